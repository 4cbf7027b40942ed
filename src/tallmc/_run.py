"""The host's side of a run: call the compiled loop until all steps are done, keep what it recorded, hear Ctrl-C between calls."""

from __future__ import annotations

import dataclasses
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._errors import SamplingWarning
from ._interrupts import held_back
from ._kept import AbstractKept, Block, InMemory, Snapshot, moments
from ._kernel import AbstractKernel
from ._leaves import named_leaves, with_leaves
from ._loop import Recorded, RunState, advance, start_run
from ._outcome import Outcome
from ._random import new_key

_SLOT_BYTES = 2**24
_MOST_SLOTS = 2**14
_SECONDS_PER_CALL = 0.5
_MOST_ROWS_PER_CALL = 2**30


@dataclasses.dataclass
class Run:
    """Which steps are done, and what they left."""

    kernel: AbstractKernel
    seed: int
    start: Float[Array, "chains d"]
    burn_in: int
    thin: int
    draws: int
    kept: AbstractKept = dataclasses.field(default_factory=InMemory)

    def __post_init__(self) -> None:
        n_chains, dim = self.start.shape
        root = jax.random.fold_in(new_key(self.seed), 0)
        self.keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(n_chains))
        self.state: RunState = start_run(self.kernel, self.keys, self.start)
        self.sampled_in_burn_in = int(self.kernel.schedule.sampled(self.burn_in))
        self.n_steps = int(self._steps_until(self.draws))
        # Independent of `draws`, so that another number of draws needs no other compilation.
        bytes_per_slot = n_chains * dim * self.start.dtype.itemsize
        self.slots = max(1, min(_MOST_SLOTS, _SLOT_BYTES // bytes_per_slot))
        self.step = 0
        self.seconds = 0.0
        """Spent in steps, by earlier processes too."""
        self.interrupted: int | None = None
        """The signal that ended it, if one did."""
        self.rows_before = np.full(n_chains, self.kernel.rows_at_start(), np.int64)

    def compile(self) -> None:
        """Compile the loop, by running no step of it."""
        jax.block_until_ready(self._advance(0)[1].positions)

    def run_to(
        self,
        draws: int,
        after_call: Callable[[], None] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on until so many draws are complete, or until it is `enough`, which is asked after each call."""
        self.draws, self.n_steps = draws, int(self._steps_until(draws))
        try:
            with held_back() as heard:
                self._run_on(after_call, lambda: heard.number is not None or enough())
            self.interrupted = heard.number
        except KeyboardInterrupt:  # of a callback, or where signals cannot be held back
            self.interrupted = signal.SIGINT
            if not self.completed:
                raise
        if self.interrupted is None:
            return
        if not self.completed:
            signal.raise_signal(self.interrupted)
        message = f"interrupted after {self.completed} of {self.draws} draws; these are returned."
        warnings.warn(message, SamplingWarning, stacklevel=3)

    def snapshot(self) -> Snapshot:
        leaves = {name: np.asarray(leaf) for name, leaf in named_leaves(self.state).items()}
        return Snapshot(self.step, self.rows_before, self.rows_touched(), self.seconds, leaves)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back, or forward, to where this snapshot was taken."""
        self.state = with_leaves(self.state, snapshot.leaves)
        self.step, self.rows_before, self.seconds = snapshot.step, snapshot.rows_before, snapshot.seconds

    @property
    def completed(self) -> int:
        """Draws of each chain that are complete."""
        return self._completed(self.step)

    def positions(self) -> np.ndarray:
        return self.kept.whole().positions

    def sample_stats(self) -> dict[str, np.ndarray]:
        return self.kept.whole().stats

    def variances(self) -> np.ndarray:
        """Of all draws kept."""
        return moments(self.positions()).sd ** 2

    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(Outcome(int(code)) for code in self.state.outcome)

    def last_positions(self) -> Float[Array, "chains d"]:
        return self.state.chains.position

    def failed_at(self) -> np.ndarray:
        return np.asarray(self.state.failed_at)

    def rows_touched(self) -> int:
        return int(self.rows_before.sum() + len(self.start) * self._rows_of_passes(np.asarray(self.step)))

    def _rows_of_passes(self, step: np.ndarray) -> np.ndarray:
        return self.kernel.posterior.n_rows * self.kernel.passes_before(step)

    def _completed(self, step: int) -> int:
        """Draws complete after so many steps."""
        return max(int(self.kernel.schedule.sampled(step)) - self.sampled_in_burn_in, 0) // self.thin

    def _steps_until(self, draws: Any) -> Any:
        """Steps after which so many draws are complete."""
        return self.kernel.schedule.steps_until(self.sampled_in_burn_in + draws * self.thin)

    def _run_on(self, after_call: Callable[[], None] | None, enough: Callable[[], bool]) -> None:
        steps = 64
        while self.step < self.n_steps and not enough():
            call_began = time.perf_counter()
            done = self._run_call(steps)
            took = time.perf_counter() - call_began
            self.kept.settle(self.snapshot)
            self.seconds += time.perf_counter() - call_began
            steps = max(1, int(done * min(4.0, _SECONDS_PER_CALL / max(took, 1e-6))))
            if self._all_failed():
                self._fill_up()
                return
            if after_call is not None:
                after_call()

    def _run_call(self, steps: int) -> int:
        """One call of the compiled loop; at most `steps` steps, and no more draws than it has slots for."""
        before = self._completed(self.step)
        fitting = int(self._steps_until(before + self.slots)) - self.step
        countable = max(1, _MOST_ROWS_PER_CALL // self.kernel.most_rows)
        steps = min(steps, self.n_steps - self.step, fitting, countable)
        state, recorded = self._advance(steps)
        new = self._completed(self.step + steps) - before
        self._recorded = {name: values.dtype for name, values in recorded.stats.items()}
        self._keep(recorded, new)
        fixed = self.kernel.rows_per_step
        self.rows_before = self.rows_before + (np.asarray(recorded.n_rows, np.int64) if fixed is None else fixed * steps)
        self.state, self.step = state, self.step + steps
        return steps

    def _keep(self, recorded: Recorded, new: int) -> None:
        # Copies: a view would keep the whole record alive.
        stats = {name: np.array(np.asarray(values)[:new].T) for name, values in recorded.stats.items()}
        if "n_row_evals" in stats:
            stats["n_row_evals"] = stats["n_row_evals"] + self.rows_before[:, None]
        self._add(np.array(np.asarray(recorded.positions)[:new].transpose(1, 0, 2)), stats)

    def _add(self, positions: np.ndarray, recorded: dict[str, np.ndarray]) -> None:
        """Keep draws with their statistics, those among them that need no recording."""
        shape, first = positions.shape[:2], self.kept.n_draws + 1
        steps_taken = self._steps_until(np.arange(first, first + shape[1]))
        # At as many steps as there are slots: to ask at any other number of them is to compile anew.
        asked = np.resize(steps_taken - 1, self.slots)
        step_size = np.asarray(self.kernel.schedule(jnp.asarray(asked)))[: shape[1]]
        stats = {"step_size": np.broadcast_to(step_size, shape)} | recorded
        fixed = self.kernel.rows_per_step
        if fixed is not None:
            stats["batch_size"] = np.broadcast_to(np.int64(fixed), shape)
            stats["n_row_evals"] = np.broadcast_to(self.kernel.rows_at_start() + fixed * steps_taken, shape)
        stats["n_row_evals"] = stats["n_row_evals"] + self._rows_of_passes(steps_taken)
        self.last_block = Block(positions, stats)
        self.kept.add(self.last_block)

    def _all_failed(self) -> bool:
        return bool(np.all(np.asarray(self.state.outcome) != Outcome.OK))

    def _fill_up(self) -> None:
        """No chain goes on: NaN for the draws that are left, and no rows touched."""
        n_chains, dim = self.start.shape
        while left := self.draws - self.kept.n_draws:
            new = min(left, self.slots)
            stats = {name: np.zeros((n_chains, new), dtype) for name, dtype in self._recorded.items()}
            if "n_row_evals" in stats:
                stats["n_row_evals"] = stats["n_row_evals"] + self.rows_before[:, None]
            self._add(np.full((n_chains, new, dim), np.nan, self.start.dtype), stats)
            self.kept.settle(self.snapshot)

    def _advance(self, steps: int) -> tuple[RunState, Recorded]:
        first, stop, burn_in, thin = (jnp.int32(v) for v in (self.step, self.step + steps, self.burn_in, self.thin))
        return advance(self.kernel, self.keys, self.state, first, stop, burn_in, thin, self.slots)
