"""The host side of a run: call the compiled loop until all steps are done, and keep its records.

Between two calls the host handles Ctrl-C, reports progress, and makes the passes over all rows that
are due (`renewed_every`). A call ends where such a pass is due.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from .._core.arrays import named_leaves, with_leaves
from .._core.errors import InvalidInput, Outcome, SamplingWarning, check_int, check_number, warn
from .._core.random import keys_on_host
from .._core.statistics import (
    Agreement,
    GroupMoments,
    ThinnedHistory,
    agreement,
    effective_draws,
    moments,
)
from .._core.supervision import Clock, ReceivedSignal, checkpoint, held_back
from ..schedule import Constant
from .chains import Chains
from .kernel import AbstractKernel, BoundKernel
from .loop import Record, RecordedSteps, RunState, Window


class DrawBlock(NamedTuple):
    """Consecutive draws of all chains."""

    positions: Float[np.ndarray, "chains n d"]
    stats: dict[str, np.ndarray]  # each has shape (chains, n, ...)
    values: dict[str, np.ndarray] | None = None
    """The quantities of a store, (chains, n, ...) each; None if they are parts of `positions`."""

    @property
    def n_draws(self) -> int:
        return self.positions.shape[1]

    @property
    def n_bytes(self) -> int:
        return self.positions.nbytes + sum(values.nbytes for values in self.stats.values())


class Snapshot(NamedTuple):
    """The changing part of a run's state, sufficient to continue the run."""

    step: int
    rows_before: np.ndarray  # rows touched per chain, without passes over all rows
    rows_touched: int  # rows touched by all chains
    seconds: float  # time spent in steps
    leaves: dict[str, np.ndarray]  # leaves of the `RunState`, by path
    broken_claim: str | None = None  # what ended the claim of exactness so far


class DrawSink:
    """Receives the draws of a run and keeps them in memory; `StoreSink` writes them to disk."""

    in_memory = True

    def __init__(self) -> None:
        self.blocks: list[DrawBlock] = []
        self.n_draws = 0  # draws added, per chain

    def add(self, block: DrawBlock) -> None:
        if block.n_draws or not self.blocks:
            self.blocks.append(block)
        self.n_draws += block.n_draws

    def forget(self) -> None:
        """Drop the draws, but keep counting them."""
        self.blocks.clear()

    def settle(self, snapshot: Callable[[], Snapshot], *, last: bool = False) -> None:
        """Save blocks and state if a save is due; `last` saves them at once and waits.

        Called when the blocks added so far match the state that `snapshot` returns.
        """

    def conclude(
        self, completed: list[bool], *, finished: bool, facts: dict[str, Any]
    ) -> list[str]:
        """Store how the run ended; return messages about failures to do so.

        `completed` says which chains ran without failing, `finished` whether the run reached its
        goal. `facts` are stored as JSON.
        """
        return []

    def whole(self) -> DrawBlock:
        """All draws as one block."""
        self.blocks = [joined(self.blocks)] if len(self.blocks) > 1 else self.blocks
        return self.blocks[0]


def joined(blocks: list[DrawBlock]) -> DrawBlock:
    stats = {
        name: np.concatenate([block.stats[name] for block in blocks], axis=1)
        for name in blocks[0].stats
    }
    return DrawBlock(np.concatenate([block.positions for block in blocks], axis=1), stats)


# How many steps to run until the host looks at the run again: about half a second of them, and a
# whole number of blocks if it is more than one block, so that few calls are shorter than a block.

SECONDS_PER_CALL = 0.5
_FIRST_STEPS = 8
_LARGEST_GROWTH = 8


class CallLength:
    """Chooses the number of steps from the time that earlier steps took; K = `block`."""

    def __init__(self, block: int):
        self.block, self.steps = block, _FIRST_STEPS

    def next(self, first: int) -> int:
        """Steps to run from step `first` on."""
        to_end = self.block - first % self.block
        if self.steps < to_end:
            return self.steps
        return to_end + (self.steps - to_end) // self.block * self.block

    def learn(self, done: int, took: float) -> None:
        steps = max(1, int(done * SECONDS_PER_CALL / max(took, 1e-9)))
        self.steps = min(steps, _LARGEST_GROWTH * done)


_SIZES_AT_ONCE = 2**12  # step sizes that one call evaluates
_MOST_SLOT_BYTES = 2**28  # of the draws that one call records
_MOST_ROWS_PER_CALL = 2**30


def chain_keys(seed: int, n_chains: int, purpose: int = 0) -> Key[Array, " chains"]:
    """One key per chain. The key of chain k does not depend on the number of chains."""
    return keys_on_host(seed, purpose, n_chains)


class Run:
    """A run in progress: the steps done, the state and the draws.

    There is one key per chain, from `chain_keys`. `n_draws` per chain are wanted at first; `run_to`
    may ask for more. `record` returns further values to record per step. `carried` is what each
    chain has learned before, stacked; or None. `finer` is a run with the same keys that
    takes two steps for each step of this one.
    """

    def __init__(
        self,
        bound: BoundKernel,
        keys: Key[Array, " chains"],
        start: Float[Array, "chains d"],
        burn_in: int,
        thin: int,
        n_draws: int,
        sink: DrawSink | None = None,
        record: Record | None = None,
        carried: Any = None,
        finer: Run | None = None,
    ):
        self.kernel: AbstractKernel = bound.kernel
        self.rows = bound.rows
        self.start, self.burn_in, self.thin = start, burn_in, thin
        self.sink = DrawSink() if sink is None else sink
        self._chains: Chains = Chains(bound, keys, record, None if finer is None else finer._chains)
        learned = self.kernel.start_memory(start, self.rows) if carried is None else carried
        self._chains.start(start, learned)
        if carried is not None:
            self.state = eqx.tree_at(lambda state: state.chains.carried, self.state, carried)
        # Modules of equinox make a new object for each access to a method.
        schedule = self.kernel.schedule
        self._sampled, self._steps_until_sampled = schedule.sampled, schedule.steps_until
        self._rows_per_step, self._most_rows = self.kernel.rows_per_step, self.kernel.most_rows
        self._renewed_every = self.kernel.renewed_every
        self.sampled_in_burn_in = int(self._sampled(burn_in))
        self.draws, self.n_steps = n_draws, int(self._steps_until(n_draws))
        n_chains, dim = start.shape
        self.block = self._chains.supply.steps  # K, the number of steps of a block
        # Independent of `draws` and `thin`, so another number does not recompile.
        fitting = _MOST_SLOT_BYTES // (n_chains * dim * start.dtype.itemsize)
        self.slots = max(1, min(self.block, fitting))
        self.step = 0
        self.seconds = 0.0  # time spent in steps, including earlier processes
        self.rows_before = np.full(n_chains, self.kernel.rows_at_start(), np.int64)
        self._call_length: CallLength | None = None
        self._recent: list[DrawBlock] = []

    @property
    def state(self) -> RunState:
        """The states of all chains, stacked."""
        return self._chains.state

    @state.setter
    def state(self, state: RunState) -> None:
        self._chains.state = state

    def compile(self) -> None:
        self._chains.compile(self._window(0), self.slots, self.n_steps)
        self._call_length = CallLength(self.block)

    def run_to(self, n_draws: int, after_call: Callable[[], None] | None = None) -> None:
        """Run until so many draws per chain are complete. After a signal, its handler raises."""
        received = self.run_towards(n_draws, after_call)
        checkpoint()
        received.deliver()

    def run_towards(
        self,
        n_draws: int,
        after_call: Callable[[], None] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> ReceivedSignal:
        """Run to so many draws, a signal (which is returned) or `enough()`, asked between calls."""
        self.draws, self.n_steps = n_draws, int(self._steps_until(n_draws))
        with held_back() as received:
            try:
                self._run_calls_until(after_call, lambda: received.number is not None or enough())
            except KeyboardInterrupt:  # from a callback, or a second signal
                received.number = received.number or signal.SIGINT
        return received

    def snapshot(self) -> Snapshot:
        """The state from which another process can continue."""
        leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(self.state).items()}
        broken = self.kernel.broken_claim(self.state.chains)
        rows = self.rows_touched()
        return Snapshot(self.step, self.rows_before, rows, self.seconds, leaves, broken)

    def restore(self, snapshot: Snapshot) -> None:
        self.state = with_leaves(self.state, snapshot.leaves)
        self.step, self.seconds = snapshot.step, snapshot.seconds
        self.rows_before = snapshot.rows_before

    @property
    def completed(self) -> int:
        """Completed draws per chain."""
        return self._completed(self.step)

    def positions(self) -> np.ndarray:
        return self.sink.whole().positions

    def sample_stats(self) -> dict[str, np.ndarray]:
        """The statistics of all draws in the sink, each (chains, draws, ...)."""
        return self.sink.whole().stats

    def recent(self) -> DrawBlock | None:
        """The draws since the last report of progress; None before the first call."""
        return joined(self._recent) if self._recent else None

    def variances(self) -> np.ndarray:
        return moments(self.positions()).sd ** 2

    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(Outcome(int(code)) for code in self._chains.outcomes())

    def last_positions(self) -> Float[Array, "chains d"]:
        return jnp.asarray(self.state.chains.position)

    def group_moments(self) -> dict[str, GroupMoments]:
        """Moments of parameters beside the position, over the chains that have not failed."""
        completed = np.array([outcome is Outcome.OK for outcome in self.outcomes()])
        if not completed.any():
            return {}
        return self.kernel.group_moments(self.state.chains, completed, self.step)

    def failed_at(self) -> np.ndarray:
        """The step at which each chain failed; −1 if it has not failed."""
        return np.asarray(self.state.failed_at)

    def rows_touched(self) -> int:
        """Rows touched by all chains, passes included."""
        of_passes = self._rows_of_passes(np.asarray(self.step))
        return int(self.rows_before.sum() + len(self.start) * of_passes)

    def _rows_of_passes(self, step: np.ndarray) -> np.ndarray:
        return self.rows.n_rows * self.kernel.passes_before(step)

    def _completed(self, step: int) -> int:
        """Completed draws per chain after this many steps."""
        return max(int(self._sampled(step)) - self.sampled_in_burn_in, 0) // self.thin

    def _steps_until(self, draws: Any) -> Any:
        """Number of steps after which this many draws are complete."""
        return self._steps_until_sampled(self.sampled_in_burn_in + draws * self.thin)

    def _run_calls_until(
        self, after_call: Callable[[], None] | None, enough: Callable[[], bool]
    ) -> None:
        if self._call_length is None:
            self.compile()
        length = self._call_length
        assert length is not None, "`compile` sets it"
        while self.step < self.n_steps:
            first, call_began = self.step, time.perf_counter()
            done = self._run_calls(length.next(first))
            length.learn(done, time.perf_counter() - call_began)
            self.sink.settle(self.snapshot)
            self.seconds += time.perf_counter() - call_began
            if self._all_failed():
                self._fill_with_nan()
                return
            if after_call is not None:
                after_call()
            checkpoint()
            if enough():
                return

    def _run_calls(self, steps: int) -> int:
        """Run at most `steps` steps. Blocks and due passes divide them into several calls.

        The time limit keeps the run responsive to Ctrl-C where calls are long.
        """
        self._recent, first, began = [], self.step, time.perf_counter()
        records: list[DrawBlock] = []
        last = min(self.step + steps, self.n_steps)
        try:
            while self.step < last:
                records.append(self._run_call(last - self.step))
                if time.perf_counter() - began > SECONDS_PER_CALL or self._all_failed():
                    break
        finally:
            if records:
                self._add(joined(records))
        return self.step - first

    def _run_call(self, steps: int) -> DrawBlock:
        """Call the loop once: at most `steps` steps of one block, and as many draws as slots."""
        before = self._completed(self.step)
        fitting = int(self._steps_until(before + self.slots)) - self.step
        countable = max(1, _MOST_ROWS_PER_CALL // max(1, self._most_rows))
        steps = min(steps, fitting, countable, self.block - self.step % self.block)
        if self._renewed_every is not None:  # a pass over all rows begins a call
            steps = min(steps, self._renewed_every - self.step % self._renewed_every)
        if self._renewed_every is not None and self.kernel.due(self.step):
            state = self.state
            renewed = self.kernel.renew(state.chains, self.rows)
            self.state = RunState(renewed, state.outcome, state.failed_at)
        recorded = self._chains.advance(self._window(steps), self.slots, self.n_steps)
        draws = self._kept(recorded, self._completed(self.step + steps) - before)
        fixed = self._rows_per_step
        touched = np.asarray(recorded.n_rows, np.int64) if fixed is None else fixed * steps
        self.rows_before = self.rows_before + touched
        self.step += steps
        return draws

    def _window(self, steps: int) -> Window:
        start, completed = self.step - self.step % self.block, self._completed(self.step)
        rule = self.sampled_in_burn_in, self.thin, completed
        return Window.of(start, self.step, self.step + steps, *rule)

    def _kept(self, recorded: RecordedSteps, new: int) -> DrawBlock:
        """The first `new` records, with rows counted from the start of the run."""
        # Copy, because a view would keep the whole record alive.
        stats = {
            name: np.array(np.asarray(values)[:new].swapaxes(0, 1))
            for name, values in recorded.stats.items()
        }
        self._stat_kinds = {name: (kept.shape[2:], kept.dtype) for name, kept in stats.items()}
        if "n_row_evals" in stats:
            stats["n_row_evals"] = stats["n_row_evals"] + self.rows_before[:, None]
        return DrawBlock(np.array(np.asarray(recorded.positions)[:new].transpose(1, 0, 2)), stats)

    def _add(self, recorded: DrawBlock) -> None:
        """Add draws to the sink with the recorded statistics and those known from the step."""
        positions = recorded.positions
        shape, first = positions.shape[:2], self.sink.n_draws + 1
        steps_taken = self._steps_until(np.arange(first, first + shape[1]))
        stats = {"step_size": np.broadcast_to(self._step_sizes(steps_taken - 1), shape)}
        stats |= recorded.stats
        fixed = self._rows_per_step
        if fixed is not None:
            stats["batch_size"] = np.broadcast_to(np.int64(fixed), shape)
            stats["n_row_evals"] = np.broadcast_to(
                self.kernel.rows_at_start() + fixed * steps_taken, shape
            )
        stats["n_row_evals"] = stats["n_row_evals"] + self._rows_of_passes(steps_taken)
        block = DrawBlock(positions, stats)
        self._recent.append(block)
        self.sink.add(block)

    def _step_sizes(self, steps: np.ndarray) -> np.ndarray:
        """ε_t, evaluated at a fixed number of steps at a time: another number would recompile."""
        schedule, sizes = self.kernel.schedule, []
        if isinstance(schedule, Constant):  # needs no program
            return np.broadcast_to(np.asarray(schedule.step_size), steps.shape)
        for piece in np.split(steps, range(_SIZES_AT_ONCE, len(steps), _SIZES_AT_ONCE)):
            padded = jax.device_put(np.resize(piece, _SIZES_AT_ONCE))
            sizes.append(np.asarray(schedule(padded))[: len(piece)])
        return np.concatenate(sizes)

    def _all_failed(self) -> bool:
        return bool(np.all(self._chains.outcomes() != Outcome.OK))

    def _fill_with_nan(self) -> None:
        """All chains have failed: fill the remaining draws with NaN; no more rows are touched."""
        n_chains, dim = self.start.shape
        while left := self.draws - self.sink.n_draws:
            new = min(left, self.slots)
            stats = {
                name: np.zeros((n_chains, new, *shape), dtype)
                for name, (shape, dtype) in self._stat_kinds.items()
            }
            if "n_row_evals" in stats:
                stats["n_row_evals"] = stats["n_row_evals"] + self.rows_before[:, None]
            self._add(DrawBlock(np.full((n_chains, new, dim), np.nan, self.start.dtype), stats))
            self.sink.settle(self.snapshot)


# Progress of a run, for displays and callbacks.

_TRACKED_PARAMETERS = 32
_TRACKED_DRAWS = 500
_FEWEST_DRAWS = 8
_SHARE = 0.01  # largest share of the run time that is spent on effective sample sizes


class ChainFacts(NamedTuple):
    """Facts about one chain in the last block."""

    outcome: Outcome
    step_size: float
    batch_size: float
    """Mean number of rows per step."""
    grad_noise: float | None
    """Trace of the covariance of the gradient estimate; None if the run does not measure it."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The argument of a callback: made in the preparation, between calls of the compiled loop, and
    at the end.

    **Arguments:**

    - `step`, `n_steps`: steps done and steps planned, per chain.
    - `draws`: draws completed, per chain.
    - `n_row_evals`: rows touched by all chains.
    - `seconds`: time spent in steps; in the preparation, time since its beginning.
    - `n_rows`: number of rows of the data.
    - `wanted_draws`: draws wanted per chain; None if the goal is an effective sample size.
    - `wanted_ess`: effective draws wanted per parameter; None if the goal is a number of draws.
    - `chains`: outcome, step size, batch size and gradient noise of each chain; empty in the
      preparation.
    - `tracker`: the source of `ess` and `steps_per_second`.
    - `stage`: what the preparation is doing, such as "finding the mode"; then "sampling", and in
      the last report "finished" or "stopped by ...".
    - `ended`: whether this is the last report. It describes the state in which the run ended.
    """

    step: int
    n_steps: int
    draws: int
    n_row_evals: int
    seconds: float
    n_rows: int
    wanted_draws: int | None
    wanted_ess: float | None
    chains: tuple[ChainFacts, ...]
    tracker: ProgressTracker | None = dataclasses.field(repr=False, compare=False)
    stage: str = "sampling"
    ended: bool = False

    @classmethod
    def preparing(
        cls,
        stage: str,
        seconds: float,
        n_rows: int,
        wanted_draws: int | None,
        wanted_ess: float | None,
    ) -> Progress:
        """Report a stage of the preparation."""
        return cls(0, 0, 0, 0, seconds, n_rows, wanted_draws, wanted_ess, (), None, stage)

    @property
    def is_preparing(self) -> bool:
        """Whether no chain runs yet."""
        return not self.chains

    @property
    def steps_per_second(self) -> float:
        """Steps per second and chain."""
        return 0.0 if self.tracker is None else self.tracker.pace(self)

    @property
    def passes(self) -> float:
        """Rows touched, divided by the number of rows of the data."""
        return self.n_row_evals / self.n_rows

    @functools.cached_property
    def ess(self) -> float | None:
        """Effective draws so far; None while unknown.

        The value is the minimum over at most 32 parameters. The share of effective draws is
        estimated from fewer than 1,000 evenly spaced draws per chain.
        """
        return None if self.tracker is None else self.tracker.ess(self.seconds, self.draws)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the goal; None while unknown."""
        if self.ended:
            return 0.0
        if self.wanted_draws is not None:
            pace = self.steps_per_second
            return (self.n_steps - self.step) / pace if pace else None
        if self.wanted_ess is None or not self.ess:
            return None
        return max(0.0, self.seconds * (self.wanted_ess / self.ess - 1))


class ProgressTracker:
    """Makes the progress reports of a run, and keeps a thinned history of its draws."""

    def __init__(self, run: Run, wanted_draws: int | None, wanted_ess: float | None):
        chains, dim = run.start.shape
        self.wanted = wanted_draws, wanted_ess
        self.parameters = np.linspace(0, dim - 1, min(dim, _TRACKED_PARAMETERS)).astype(int)
        self.history = ThinnedHistory(_TRACKED_DRAWS, chains, len(self.parameters))
        self.first_step, self.first_seconds = run.step, run.seconds
        self.spent = 0.0
        self.last: float | None = None  # effective draws at the end of the run
        self.share: float | None = None  # effective draws per draw, when last estimated

    def look(self, run: Run) -> Progress:
        block = run.recent()
        if block is not None:
            self.history.add(block.positions[:, :, self.parameters])
        return self._report(run)

    def last_look(self, run: Run, stopped_by: str | None, ess: float | None) -> Progress:
        """Report the state in which the run ended; `ess` is None if it has not been computed."""
        if ess is None:
            positions = run.positions()
            every = max(1, positions.shape[1] // _TRACKED_DRAWS)
            ess = _smallest_ess(positions[:, ::every, self.parameters])
            if ess is not None and every > 1 and self.share is not None:  # as in `ess`
                ess = max(ess, self.share * positions.shape[0] * positions.shape[1])
        self.last, self.spent = ess, np.inf
        stage = "finished" if stopped_by is None else f"stopped by {stopped_by}"
        return dataclasses.replace(self._report(run), stage=stage, ended=True)

    def _report(self, run: Run) -> Progress:
        block = run.recent()
        means = {
            name: values.mean(axis=1)
            for name, values in ({} if block is None else block.stats).items()
            if name in ("batch_size", "grad_noise") and values.shape[1]
        }
        sizes, noise = means.get("batch_size"), means.get("grad_noise")
        step_now = float(run.kernel.schedule(jnp.int32(max(run.step - 1, 0))))
        outcomes, rows_touched = run.outcomes(), run.rows_touched()
        of_run = rows_touched / max(run.step * len(outcomes), 1)  # in the burn-in
        facts = tuple(
            ChainFacts(
                outcome,
                step_now,
                float(of_run if sizes is None else sizes[chain]),
                None if noise is None else float(noise[chain]),
            )
            for chain, outcome in enumerate(outcomes)
        )
        so_far = run.step, run.n_steps, run.completed, rows_touched, run.seconds
        return Progress(*so_far, run.rows.n_rows, *self.wanted, facts, self)

    def pace(self, now: Progress) -> float:
        """Steps per second and chain in this process."""
        took = now.seconds - self.first_seconds
        return (now.step - self.first_step) / took if took > 0 else 0.0

    def ess(self, seconds: float, draws: int) -> float | None:
        """Effective draws so far, with the last share if the time for estimates is spent."""
        if self.last is not None:
            return self.last
        kept, total = self.history.kept, self.history.kept.shape[0] * draws
        if kept.shape[1] >= _FEWEST_DRAWS and self.spent <= _SHARE * seconds:
            began = time.perf_counter()
            found, seen = _smallest_ess(kept), kept.shape[0] * self.history.seen
            # Draws far apart are nearly independent, and say nothing about those between them.
            dense = self.history.every == 1 or (found or 0.0) < kept.shape[0] * kept.shape[1] / 2
            if found is not None and (dense or self.share is None):
                self.share = found / seen
            self.spent += time.perf_counter() - began
        return None if self.share is None else self.share * total


def _smallest_ess(kept: Float[np.ndarray, "chains draws d"]) -> float | None:
    running = np.isfinite(kept).all(axis=(1, 2))
    if kept.shape[1] < _FEWEST_DRAWS:
        return None
    return effective_draws(kept[running]) if running.any() else None


# When a run ends: at a number of (effective) draws, or before, at a limit on time or rows.

_FIRST_DRAWS, _FIRST_DRAWS_WITH_PASSES = 200, 32
"""Per chain, before effective draws are counted; the second where each takes a pass over the rows,
or what users see of it does.
"""
_SMALLEST_GROWTH, _LARGEST_GROWTH_NEAR_GOAL, _LARGEST_GROWTH_OF_SEARCH = 1.2, 2.0, 8.0
_LONGER_IF_NOT_SATISFIED = 4
_MOST_PER_EFFECTIVE_DRAW = 1000  # draws; chains that need more will hardly reach their goal
_MOST_OF_MEMORY = 0.25  # joining the draws takes as much again
Judgement = Callable[[np.ndarray, Agreement], bool]
_SIGNAL_NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Goal(NamedTuple):
    """The goal and the limits of a run."""

    draws: int | None  # draws per chain; None if the goal is an effective sample size
    ess: float | None  # effective draws per parameter, over all chains
    max_seconds: float | None
    max_rows: int | None

    @classmethod
    def of(
        cls, n_draws: int | None, ess: float | None, max_seconds: float | None, max_rows: int | None
    ) -> Goal:
        if n_draws is not None and ess is not None:
            rule = "be left out when n_draws is given"
            raise InvalidInput("ess", rule, ess, "Give one of the two.")

        def positive(name: str, value: float | None) -> float | None:
            return None if value is None else check_number(name, value, 0, low_open=True)

        return cls(
            None if n_draws is None else check_int("n_draws", n_draws, 1),
            positive("ess", ess),
            positive("max_seconds", max_seconds),
            None if max_rows is None else check_int("max_rows", max_rows, 1),
        )

    @property
    def first_draws(self) -> int:
        """Draws per chain before the goal is checked for the first time."""
        return _FIRST_DRAWS if self.draws is None else self.draws


def run_until(
    run: Run,
    goal: Goal,
    listeners: Sequence[Callable[[Progress], None]] = (),
    satisfied: Judgement = lambda positions, agreed: True,
    clock: Clock | None = None,
    shown: Callable[[np.ndarray], np.ndarray] = lambda positions: positions,
    *,
    dear: bool = False,
) -> str | None:
    """Run to the goal; return what ended the run before it, or None.

    The limit on seconds counts those of the `clock`, by default from now on. A goal in effective
    draws is reached when there are enough of them and `satisfied(positions, agreed)`, a judgement
    of the draws of all running chains, is true. They are counted in the coordinates that users see,
    `shown(positions)`; few draws come first if these are `dear`. A judgement that stays false ends
    the run, normally, at four times the draws with which there were enough effective draws. Too few
    of them end it at 1,000 draws per wanted effective draw, or at a quarter of the memory.

    Unless a limit or a signal ends the run, the number of draws depends on the draws alone. A
    resumed run therefore makes the same decisions.
    """
    search = _Search(run, goal, listeners, satisfied, clock or Clock(), shown, dear)
    stopped_by = search.run_to_goal()
    if listeners:
        ess = search.ess if stopped_by is None else None  # it may have grown since
        progress = search.tracker.last_look(run, stopped_by, ess)
        for listener in listeners:
            with contextlib.suppress(KeyboardInterrupt):  # the run is over
                listener(progress)
    return stopped_by


class _Search:
    def __init__(
        self,
        run: Run,
        goal: Goal,
        listeners: Sequence[Callable[[Progress], None]],
        satisfied: Judgement,
        clock: Clock,
        shown: Callable[[np.ndarray], np.ndarray],
        dear: bool,
    ):
        self.run, self.goal, self.listeners, self.satisfied = run, goal, listeners, satisfied
        self.clock, self.shown, self.dear = clock, shown, dear
        self.tracker = ProgressTracker(run, goal.draws, goal.ess)
        self.ess: float | None = None  # effective draws when the goal was last checked

    def run_to_goal(self) -> str | None:
        run, goal, draws = self.run, self.goal, self.goal.first_draws
        if goal.ess is not None and (self.dear or run.kernel.renewed_every == 1):
            draws = max(_FIRST_DRAWS_WITH_PASSES, run.completed)
        last_draws, why = self._default_limit()
        most_draws = last_draws
        while True:
            received = run.run_towards(
                draws,
                self._report if self.listeners else None,
                lambda: self._limit_reached() is not None,
            )
            if received.number is not None:
                _warn_of_end(run, "interrupted")
                return _SIGNAL_NAMES.get(received.number, "a signal")
            if run.completed < draws:
                limit = self._limit_reached()
                if limit is not None and not run.completed:
                    _warn_of_end(run, f"stopped by {limit}")
                return limit
            if goal.ess is None:
                return None
            try:
                positions = run.positions()[:, :draws]
                running = np.isfinite(positions[:, -1]).all(axis=1)  # these have not failed
                positions = positions if running.all() else positions[running]
                if not len(positions):
                    return None
                agreed = agreement(self.shown(positions))
                self.ess = float(agreed.ess.min())
                enough = self.ess >= goal.ess
                if enough and (draws >= most_draws or self.satisfied(positions, agreed)):
                    return None
            except KeyboardInterrupt:
                return _SIGNAL_NAMES[signal.SIGINT]
            if enough:
                most_draws = min(most_draws, _LONGER_IF_NOT_SATISFIED * draws)
            elif draws >= last_draws:
                cure = "The chains mix too slowly for the goal: look at the model, or ask for less."
                warn(
                    f"stopped by {why} with {self.ess:,.0f} of {goal.ess:,.0f} effective draws. "
                    f"{cure}",
                    SamplingWarning,
                )
                return why
            elif draws >= most_draws:
                return None
            draws = math.ceil(min(most_draws, draws * _growth(goal.ess / max(self.ess, 1.0))))

    def _default_limit(self) -> tuple[float, str]:
        """The most draws per chain for a goal in effective draws, and what they are limited by."""
        if self.goal.ess is None:
            return math.inf, ""
        chains, dim = self.run.start.shape
        per_goal = math.ceil(_MOST_PER_EFFECTIVE_DRAW * self.goal.ess / chains)
        limit, why = max(per_goal, _FIRST_DRAWS), "draws per effective draw"
        if self.run.sink.in_memory:
            bytes_per_draw = chains * dim * self.run.start.dtype.itemsize
            fitting = max(int(_MOST_OF_MEMORY * memory_of_machine() / bytes_per_draw), _FIRST_DRAWS)
            limit, why = min((limit, why), (fitting, "memory"))
        return limit, f"the limit of {limit:,} draws per chain ({why})"

    def _report(self) -> None:
        progress = self.tracker.look(self.run)
        for listener in self.listeners:
            listener(progress)

    def _limit_reached(self) -> str | None:
        goal, run = self.goal, self.run
        if goal.max_seconds is not None and self.clock.seconds >= goal.max_seconds:
            return f"the limit of {goal.max_seconds:g} seconds"
        if goal.max_rows is not None and run.rows_touched() >= goal.max_rows:
            return f"the limit of {goal.max_rows:,} rows"
        return None


def memory_of_machine() -> int:
    """Bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _growth(wanted: float) -> float:
    """How many times as many draws to have before the next look, given what the last look wanted.

    The smallest of many noisy estimates from few draws is too small. Near the goal, a run that is
    made too long costs more than another look.
    """
    if wanted > _LARGEST_GROWTH_OF_SEARCH:
        return _LARGEST_GROWTH_OF_SEARCH
    return min(_LARGEST_GROWTH_NEAR_GOAL, max(_SMALLEST_GROWTH, 1.1 * wanted))


def _warn_of_end(run: Run, how: str) -> None:
    done = f"{how} after {run.completed} of {run.draws} draws; these draws are returned."
    if not run.completed:
        done = f"{how} in step {run.step} of {run.burn_in} of the burn-in; "
        done += "there are no draws yet, and none are returned."
    warn(done, SamplingWarning)
