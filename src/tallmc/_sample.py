"""The one verb: prepare a method, run its chains, return the draws."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ._anchor import Anchor
from ._doubts import warn_of_coarse_potential, warn_of_doubts, warn_of_failures
from ._draws import Draws, Timing
from ._errors import InvalidInput, check_int
from ._method import AbstractMethod, Prepared
from ._posterior import AbstractPosterior
from ._run import Progress, Run
from ._version import __version__

_MOST_STEPS = 2**31 - 1


def sample(
    posterior: AbstractPosterior,
    method: AbstractMethod,
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
    has one, else at the posterior's `init`; `start` overrides both (parameters, a vector (d,), or one a chain, (chains, d)).
    From an anchor the burn-in is a tenth of the steps that follow unless given, from anywhere else it is as long. `anchor`
    reuses `laplace(posterior)`; `callback` hears a `Progress` every half second or so.

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
    if not isinstance(method, AbstractMethod):
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
    if callback is not None and not callable(callback):
        raise InvalidInput("callback", "be callable with a Progress", callback)

    began = time.perf_counter()
    prepared = method.prepare(posterior, anchor, seed=seed)
    positions, anchored = _starts(posterior, prepared, start, chains)
    if burn_in is None:
        burn_in = draws * thin // 10 if anchored else draws * thin
    check_int("burn_in + draws · thin", burn_in + draws * thin, 1, _MOST_STEPS)
    run = Run(prepared.kernel, seed, positions, burn_in, thin, draws)
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
    warn_of_failures(result, run.failed_at())
    warn_of_doubts(result, prepared.anchor)
    if method.has_accept_step:
        warn_of_coarse_potential(posterior, run.last_positions()[0])
    return result


def _starts(
    posterior: AbstractPosterior, prepared: Prepared, start: PyTree | None, chains: int
) -> tuple[Float[Array, "chains d"], bool]:
    """A starting position for each chain, and whether it is the anchor."""
    shape = (chains, posterior.dim)
    if start is None:
        anchor = prepared.anchor
        position = posterior.init if anchor is None else anchor.position
        return jnp.broadcast_to(position, shape), anchor is not None
    try:
        given = np.asarray(start, float)
    except (TypeError, ValueError):
        given = np.asarray(posterior.layout.ravel(start, "start"))
    if given.shape not in (shape, shape[1:]):
        given = np.asarray(posterior.layout.ravel(start, "start"))
    positions = jnp.broadcast_to(jnp.asarray(given, posterior.dtype), shape)
    if not bool(jnp.all(jnp.isfinite(positions))):
        raise InvalidInput("start", "be finite", "NaN or infinity")
    return positions, False
