"""The host side of a run: call the compiled loop until all steps are done, and keep its records.

Between two calls the host handles Ctrl-C, reports progress, and makes the passes over all rows that
are due (`renewed_every`). A call ends where such a pass is due.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..core.interrupts import ReceivedSignal, held_back
from ..core.outcome import Outcome
from ..core.pytrees import named_leaves, with_leaves
from ..core.random import keys_on_host
from ..core.supervision import checkpoint
from ..statistics.group_moments import GroupMoments
from ..statistics.moments import moments
from .call_length import SECONDS_PER_CALL, CallLength
from .chains import Chains
from .kernel import AbstractKernel, BoundKernel
from .loop import Record, RecordedSteps, RunState, Window
from .sinks import AbstractDrawSink, DrawBlock, MemorySink, Snapshot, joined

_MOST_SLOT_BYTES = 2**28  # of the draws that one call records
_MOST_ROWS_PER_CALL = 2**30


def chain_keys(seed: int, n_chains: int, purpose: int = 0) -> Key[Array, " chains"]:
    """One key per chain. The key of chain k does not depend on the number of chains."""
    return keys_on_host(seed, purpose, n_chains)


class Run:
    """A run in progress: the steps done, the state and the draws.

    **Arguments:**

    - `bound`: the kernel and its rows.
    - `keys`: one per chain, from `chain_keys`.
    - `start`: one position per chain.
    - `burn_in`, `thin`: steps discarded at the start, and steps per draw.
    - `draws`: draws wanted per chain at first; `run_to` may ask for more.
    - `sink`: receives the draws; memory by default.
    - `record`: returns further values to record per step, by name.
    - `memory`: what each chain has learned before, stacked; None starts anew.
    - `finer`: a run with the same keys that takes two steps for each step of this one.
    """

    def __init__(
        self,
        bound: BoundKernel,
        keys: Key[Array, " chains"],
        start: Float[Array, "chains d"],
        burn_in: int,
        thin: int,
        draws: int,
        sink: AbstractDrawSink | None = None,
        record: Record | None = None,
        memory: Any = None,
        finer: Run | None = None,
    ):
        self.kernel: AbstractKernel = bound.kernel
        self.rows = bound.rows
        self.start, self.burn_in, self.thin = start, burn_in, thin
        self.sink = MemorySink() if sink is None else sink
        self._chains: Chains = Chains(bound, keys, record, None if finer is None else finer._chains)
        learned = self.kernel.start_memory(start, self.rows) if memory is None else memory
        self._chains.start(start, learned)
        if memory is not None:
            self.state = eqx.tree_at(lambda state: state.chains.memory, self.state, memory)
        # Modules of equinox make a new object for each access to a method.
        schedule = self.kernel.schedule
        self._sampled, self._steps_until_sampled = schedule.sampled, schedule.steps_until
        self._rows_per_step, self._most_rows = self.kernel.rows_per_step, self.kernel.most_rows
        self._renewed_every = self.kernel.renewed_every
        self.sampled_in_burn_in = int(self._sampled(burn_in))
        self.draws, self.n_steps = draws, int(self._steps_until(draws))
        n_chains, dim = start.shape
        self.block = self._chains.supply.steps
        """K, the number of steps of a block."""
        # Independent of `draws` and `thin`, so another number does not recompile.
        fitting = _MOST_SLOT_BYTES // (n_chains * dim * start.dtype.itemsize)
        self.slots = max(1, min(self.block, fitting))
        self.step = 0
        self.seconds = 0.0
        """Time spent in steps, including earlier processes."""
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
        """Compile the loop."""
        self._chains.compile(self._window(self.step, self.step), self.slots, self.n_steps)
        self._call_length = CallLength(self.block)

    def run_to(self, draws: int, after_call: Callable[[], None] | None = None) -> None:
        """Run until `draws` draws per chain are complete.

        **Raises:** `KeyboardInterrupt`, or what the program's handler raises, after a signal.
        """
        received = self.run_towards(draws, after_call)
        checkpoint()
        received.deliver()

    def run_towards(
        self,
        draws: int,
        after_call: Callable[[], None] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> ReceivedSignal:
        """Run until `draws` draws per chain are complete, a signal comes, or `enough()` is true.

        `enough` is called between calls of the compiled loop. **Returns** the signal, if any.
        """
        self.draws, self.n_steps = draws, int(self._steps_until(draws))
        with held_back() as received:
            try:
                self._run_calls_until(after_call, lambda: received.number is not None or enough())
            except KeyboardInterrupt:  # from a callback, or a second signal
                received.number = received.number or signal.SIGINT
        return received

    def snapshot(self) -> Snapshot:
        """The state from which another process can continue."""
        leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(self.state).items()}
        return Snapshot(self.step, self.rows_before, self.rows_touched(), self.seconds, leaves)

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state to that of a snapshot."""
        self.state = with_leaves(self.state, snapshot.leaves)
        self.step, self.rows_before, self.seconds = (
            snapshot.step,
            snapshot.rows_before,
            snapshot.seconds,
        )

    @property
    def completed(self) -> int:
        """Completed draws per chain."""
        return self._completed(self.step)

    def positions(self) -> np.ndarray:
        """All draws in the sink, (chains, draws, d)."""
        return self.sink.whole().positions

    def sample_stats(self) -> dict[str, np.ndarray]:
        """The statistics of all draws in the sink, each (chains, draws, ...)."""
        return self.sink.whole().stats

    def recent(self) -> DrawBlock | None:
        """The draws since the last report of progress; None before the first call."""
        return joined(self._recent) if self._recent else None

    def variances(self) -> np.ndarray:
        """The variance of each parameter over all draws in the sink."""
        return moments(self.positions()).sd ** 2

    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcome of each chain so far."""
        return tuple(Outcome(int(code)) for code in self._chains.outcomes())

    def last_positions(self) -> Float[Array, "chains d"]:
        """The current position of each chain."""
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
        return int(
            self.rows_before.sum() + len(self.start) * self._rows_of_passes(np.asarray(self.step))
        )

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
        countable = max(1, _MOST_ROWS_PER_CALL // self._most_rows)
        steps = min(steps, fitting, countable, self._steps_to_end_of_call())
        if self._renewed_every is not None and self.kernel.due(self.step):
            state = self.state
            renewed = self.kernel.renew(state.chains, self.rows)
            self.state = RunState(renewed, state.outcome, state.failed_at)
        window = self._window(self.step, self.step + steps)
        recorded = self._chains.advance(window, self.slots, self.n_steps)
        new = self._completed(self.step + steps) - before
        draws = self._kept(recorded, new)
        fixed = self._rows_per_step
        touched = np.asarray(recorded.n_rows, np.int64) if fixed is None else fixed * steps
        self.rows_before = self.rows_before + touched
        self.step += steps
        return draws

    def _steps_to_end_of_call(self) -> int:
        """Steps until the block ends or a pass over all rows is due."""
        to_end, every = self.block - self.step % self.block, self._renewed_every
        return to_end if every is None else min(to_end, every - self.step % every)

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
        pieces = [
            np.asarray(self.kernel.schedule(jnp.asarray(np.resize(piece, self.block))))[
                : len(piece)
            ]
            for piece in np.split(steps, range(self.block, len(steps), self.block))
        ]
        return np.concatenate(pieces)

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

    def _window(self, first: int, stop: int) -> Window:
        return Window.of(first, stop, self.burn_in, self.thin)
