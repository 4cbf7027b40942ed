"""The one verb: prepare a method, run its chains block by block, return the draws."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ._anchor import Anchor
from ._draws import Draws, Timing
from ._errors import InvalidInput, SamplingWarning, check_int
from ._kernel import Kernel
from ._loop import Recorded, RunState, advance, start_run
from ._method import Method, Prepared
from ._outcome import Outcome
from ._posterior import AbstractPosterior
from ._random import new_key
from ._version import __version__

_SLOT_BYTES = 2**24
_MOST_SLOTS = 2**14
_SECONDS_PER_CALL = 0.5
_MOST_ROWS_PER_CALL = 2**30
_MOST_STEPS = 2**31 - 1


class Progress(NamedTuple):
    """What a callback hears after each host block."""

    step: int
    n_steps: int
    draws: int
    n_row_evals: int
    seconds: float


def sample(
    posterior: AbstractPosterior,
    method: Method,
    *,
    chains: int = 4,
    draws: int = 1000,
    burn_in: int | None = None,
    thin: int = 1,
    seed: int = 0,
    start: PyTree | None = None,
    anchor: Anchor | None = None,
    callback: Callable[[Progress], None] | None = None,
) -> Draws:
    """Run `method` on `posterior` and return `draws` draws from each of `chains` chains.

    A chain takes `burn_in` steps that are thrown away and then keeps every `thin`-th. It starts at the anchor where the method
    has one, else at the posterior's `init`; `start` overrides both (parameters, or an array (chains, d)). From an anchor the
    burn-in is a tenth of the steps that follow unless given, from anywhere else it is as long. `anchor` reuses
    `laplace(posterior)`; `callback` hears a `Progress` every half second or so.

    The same seed gives the same draws, chain by chain, whatever the number of chains or draws. Ctrl-C returns the draws so far.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], prior_variance=10.0)
    >>> draws = tallmc.sample(posterior, tallmc.sgld_cv(step_size=1e-4, size=10), chains=2, draws=500)
    >>> draws.positions.shape
    (2, 500, 2)
    """
    if not isinstance(posterior, AbstractPosterior):
        raise InvalidInput("posterior", "be a tallmc posterior", type(posterior).__name__, "See tallmc.Posterior, tallmc.models.")
    if not isinstance(method, Method):
        cure = (
            "Call it with its settings, as in tallmc.sgld(step_size=1e-4, size=32)." if callable(method) else "See tallmc.Method."
        )
        raise InvalidInput("method", "be a Method", method, cure)
    chains = check_int("chains", chains, 1)
    draws = check_int("draws", draws, 1)
    thin = check_int("thin", thin, 1)
    seed = check_int("seed", seed, 0, 2**32 - 1)
    if burn_in is not None:
        burn_in = check_int("burn_in", burn_in, 0)

    began = time.perf_counter()
    prepared = method.prepare(posterior, anchor, seed=seed)
    positions, anchored = _starts(posterior, prepared, start, chains)
    if burn_in is None:
        burn_in = draws * thin // 10 if anchored else draws * thin
    check_int("burn_in + draws · thin", burn_in + draws * thin, 1, _MOST_STEPS)
    run = _Run(prepared.kernel, seed, positions, burn_in, thin, draws)
    jax.block_until_ready(jax.tree.leaves(run.state))
    preparation = time.perf_counter() - began
    run.compile()
    compilation = time.perf_counter() - began - preparation
    run.run_to_end(callback)
    sampling = time.perf_counter() - began - preparation - compilation

    settings = {
        "method": method,
        "seed": seed,
        "burn_in": burn_in,
        "thin": thin,
        "n_rows": posterior.n_rows,
        "dtype": jnp.dtype(posterior.dtype).name,
        "tallmc_version": __version__,
        "jax_version": jax.__version__,
    }
    result = Draws(
        positions=run.positions(),
        sample_stats=run.sample_stats(),
        outcomes=run.outcomes(),
        n_row_evals_sampling=run.rows_touched(),
        n_row_evals_preparation=prepared.n_row_evals,
        timing=Timing(preparation, compilation, sampling),
        layout=posterior.layout,
        settings=settings,
    )
    _warn_of_failures(result, run.failed_at())
    return result


@dataclasses.dataclass
class _Run:
    """The host's side of a run: which steps are done, and what they left."""

    kernel: Kernel
    seed: int
    start: Float[Array, "chains d"]
    burn_in: int
    thin: int
    draws: int

    def __post_init__(self) -> None:
        n_chains, dim = self.start.shape
        root = jax.random.fold_in(new_key(self.seed), 0)
        self.keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(n_chains))
        self.state: RunState = start_run(self.kernel, self.keys, self.start)
        self.n_steps = self.burn_in + self.draws * self.thin
        # Independent of `draws`, so that another number of draws needs no other compilation.
        bytes_per_slot = n_chains * dim * self.start.dtype.itemsize
        self.slots = max(1, min(_MOST_SLOTS, _SLOT_BYTES // bytes_per_slot))
        self.step = 0
        self.rows_before = np.full(n_chains, self._rows_at_start(), np.int64)
        self.chunks: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []

    def compile(self) -> None:
        """Compile the loop, by running no step of it."""
        jax.block_until_ready(self._advance(0)[1].positions)

    def run_to_end(self, callback: Callable[[Progress], None] | None) -> None:
        began = time.perf_counter()
        steps = 64
        try:
            while self.step < self.n_steps:
                call_began = time.perf_counter()
                done = self._run_call(steps)
                took = time.perf_counter() - call_began
                steps = max(1, int(done * min(4.0, _SECONDS_PER_CALL / max(took, 1e-6))))
                if callback is not None:
                    rows = self.rows_touched()
                    callback(Progress(self.step, self.n_steps, self._completed(self.step), rows, time.perf_counter() - began))
        except KeyboardInterrupt:
            if not self._completed(self.step):
                raise
            warnings.warn(
                f"interrupted after {self._completed(self.step)} of {self.draws} draws; these are returned.",
                SamplingWarning,
                stacklevel=3,
            )

    def positions(self) -> np.ndarray:
        return np.concatenate([positions for positions, _ in self.chunks], axis=1)

    def sample_stats(self) -> dict[str, np.ndarray]:
        recorded = {name: np.concatenate([stats[name] for _, stats in self.chunks], axis=1) for name in self.chunks[0][1]}
        n_chains, n_draws = len(self.start), sum(positions.shape[1] for positions, _ in self.chunks)
        last_step = self.burn_in + self.thin * np.arange(1, n_draws + 1) - 1
        step_size = np.asarray(self.kernel.schedule(jnp.asarray(last_step)))
        stats = {"step_size": np.broadcast_to(step_size, (n_chains, n_draws))}
        fixed = self.kernel.rows_per_step
        if fixed is not None:
            stats["batch_size"] = np.full((n_chains, n_draws), fixed)
            stats["n_row_evals"] = np.broadcast_to(self._rows_at_start() + fixed * (last_step + 1), (n_chains, n_draws))
        return stats | recorded

    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(Outcome(int(code)) for code in self.state.outcome)

    def failed_at(self) -> np.ndarray:
        return np.asarray(self.state.failed_at)

    def rows_touched(self) -> int:
        return int(self.rows_before.sum())

    def _rows_at_start(self) -> int:
        return self.kernel.most_rows_per_step if self.kernel.dynamics.evaluates_at_start else 0

    def _completed(self, step: int) -> int:
        return max(step - self.burn_in, 0) // self.thin

    def _run_call(self, steps: int) -> int:
        """One call of the compiled loop; at most `steps` steps, and no more draws than it has slots for."""
        before = self._completed(self.step)
        fitting = self.burn_in + (before + self.slots) * self.thin - self.step
        countable = max(1, _MOST_ROWS_PER_CALL // self.kernel.most_rows_per_step)
        steps = min(steps, self.n_steps - self.step, fitting, countable)
        state, recorded = self._advance(steps)
        new = self._completed(self.step + steps) - before
        self._keep(recorded, new)
        fixed = self.kernel.rows_per_step
        self.rows_before = self.rows_before + (np.asarray(recorded.n_rows, np.int64) if fixed is None else fixed * steps)
        self.state, self.step = state, self.step + steps
        return steps

    def _keep(self, recorded: Recorded, new: int) -> None:
        stats = {name: np.asarray(values)[:new].T for name, values in recorded.stats.items()}
        if "n_row_evals" in stats:
            stats["n_row_evals"] = stats["n_row_evals"] + self.rows_before[:, None]
        self.chunks.append((np.asarray(recorded.positions)[:new].transpose(1, 0, 2), stats))

    def _advance(self, steps: int) -> tuple[RunState, Recorded]:
        first, stop, burn_in, thin = (jnp.int32(v) for v in (self.step, self.step + steps, self.burn_in, self.thin))
        return advance(self.kernel, self.keys, self.state, first, stop, burn_in, thin, self.slots)


def _starts(
    posterior: AbstractPosterior, prepared: Prepared, start: PyTree | None, chains: int
) -> tuple[Float[Array, "chains d"], bool]:
    """A starting position for each chain, and whether it is the anchor."""
    shape = (chains, posterior.dim)
    if start is None:
        anchor = prepared.anchor
        position = posterior.init if anchor is None else anchor.position
        return jnp.broadcast_to(position, shape), anchor is not None
    if getattr(start, "shape", None) == shape:
        positions = jnp.asarray(start, posterior.dtype)
    else:
        positions = jnp.broadcast_to(jnp.asarray(posterior.layout.ravel(start, "start"), posterior.dtype), shape)
    if not bool(jnp.all(jnp.isfinite(positions))):
        raise InvalidInput("start", "be finite", "NaN or infinity")
    return positions, False


def _warn_of_failures(draws: Draws, failed_at: np.ndarray) -> None:
    for outcome in set(draws.outcomes) - {Outcome.OK}:
        failed = [chain for chain, of_chain in enumerate(draws.outcomes) if of_chain is outcome]
        steps = ", ".join(f"chain {chain} at step {failed_at[chain]}" for chain in failed)
        warnings.warn(f"{len(failed)} of {len(draws.outcomes)} chains {outcome.message} ({steps})", SamplingWarning, stacklevel=3)
