"""A reference to check other draws against: NUTS on the full data, by BlackJAX.

The no-U-turn sampler (Hoffman and Gelman, 2014) with Stan's warm-up: step size by dual averaging to an acceptance of 0.8, dense
mass matrix in growing windows. It leaves exp(−f) invariant; each integration step is a pass over the rows. With an anchor it
starts at the mode, and where that has a Hessian it moves in coordinates u with θ = θ̂ + C u, whose mass matrix is right from the
start. BlackJAX is an extra, `pip install tallmc[reference]`, and is imported when `nuts` is called.
"""

from __future__ import annotations

import time
import warnings
from types import ModuleType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from ._anchor import Anchor, Needs
from ._doubts import doubts, failures
from ._draws import Draws, Timing
from ._errors import PreparationError, SamplingWarning, check_int
from ._method import prepare_anchor
from ._outcome import Outcome, outcome_of
from ._posterior import AbstractPosterior
from ._random import new_key
from ._rows import Sum
from ._version import __version__
from .dynamics.accept import potential_drop
from .geometry import AbstractGeometry, Dense, Identity


def nuts(
    posterior: AbstractPosterior,
    *,
    chains: int = 4,
    draws: int = 1000,
    warmup: int = 1000,
    seed: int = 0,
    anchor: Anchor | None = None,
) -> Draws:
    """`draws` draws from each of `chains` chains of NUTS on all rows, after `warmup` steps that are thrown away.

    Chains start at the `anchor`, from `laplace(posterior)`, where there is one, else at the posterior's `init`.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], prior_variance=10.0)
    >>> nuts(posterior, chains=2, draws=50, warmup=100).positions.shape
    (2, 50, 2)
    """
    chains = check_int("chains", chains, 1)
    draws = check_int("draws", draws, 1)
    warmup = check_int("warmup", warmup, 20, cure="It adapts the step size and the mass matrix.")
    seed = check_int("seed", seed, 0, 2**32 - 1)
    blackjax = _blackjax()

    began = time.perf_counter()
    anchor, prepared_rows = prepare_anchor(posterior, anchor, Needs.NOTHING)
    target = _target(posterior, anchor)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(new_key(seed), jnp.arange(chains))
    preparation = time.perf_counter() - began
    compiled = _run_chains.lower(blackjax, target, keys, warmup, draws).compile()  # type: ignore[attr-defined]
    compilation = time.perf_counter() - began - preparation
    warmup_steps, positions, stats = jax.tree.map(np.asarray, compiled(blackjax, target, keys, warmup, draws))
    sampling = time.perf_counter() - began - preparation - compilation

    n_rows = posterior.n_rows
    passes = 1 + warmup_steps.sum(axis=1, dtype=np.int64)[:, None] + stats["n_steps"].cumsum(axis=1, dtype=np.int64)
    outcomes = tuple(Outcome(int(code)) for code in jax.vmap(outcome_of)(positions[:, -1]))
    result = Draws(
        positions=positions,
        sample_stats={**stats, "batch_size": n_rows * stats["n_steps"].astype(np.int64), "n_row_evals": n_rows * passes},
        outcomes=outcomes,
        n_row_evals_sampling=int(n_rows * passes[:, -1].sum()),
        n_row_evals_preparation=prepared_rows + n_rows,
        timing=Timing(preparation, compilation, sampling),
        layout=posterior.layout,
        settings={
            "method": f"NUTS (BlackJAX {blackjax.__version__})",
            "seed": seed,
            "burn_in": warmup,
            "thin": 1,
            "n_rows": n_rows,
            "dtype": jnp.dtype(posterior.dtype).name,
            "tallmc_version": __version__,
            "jax_version": jax.__version__,
        },
    )
    covariance = None if anchor is None else anchor.covariance
    for message in failures(result, np.full(chains, warmup + draws)) + doubts(result, covariance):
        warnings.warn(message, SamplingWarning, stacklevel=2)
    diverged = int(stats["diverging"].sum())
    if diverged:
        text = f"{diverged} of {chains * draws} draws end a trajectory that diverged: parts of the posterior may be out of reach."
        warnings.warn(f"{text} Give another parametrisation, or a longer warm-up.", SamplingWarning, stacklevel=2)
    return result


class _Target(eqx.Module):
    """The posterior in the coordinates u that NUTS moves in, in JAX's default precision as BlackJAX takes no other."""

    posterior: AbstractPosterior
    centre: Float[Array, " d"]
    geometry: AbstractGeometry
    potential: Sum
    """f at the centre, which log densities are measured from, so that in float32 their differences keep small parts."""

    def position(self, u: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        return self.centre + self.geometry.push(u.astype(self.centre.dtype))

    def log_density(self, u: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """f(centre) − f(θ) and its gradient by u."""
        total = self.posterior.potential_and_gradient_sum(self.position(u))
        drop = potential_drop(self.potential, Sum(total.high[0], total.low[0]))
        return drop.astype(u.dtype), -self.geometry.pull(total.rounded()[1]).astype(u.dtype)


def _target(posterior: AbstractPosterior, anchor: Anchor | None) -> _Target:
    has_shape = anchor is not None and anchor.factor is not None
    geometry = (Dense() if has_shape else Identity()).prepare(posterior, anchor)
    centre = posterior.init if anchor is None else anchor.position
    total = eqx.filter_jit(posterior.potential_and_gradient_sum)(centre)
    if not np.isfinite(total.float64()[0]) or not np.isfinite(total.float64()[1]).all():
        raise PreparationError("the potential or its gradient is not finite at the start. Start where the density is positive.")
    return _Target(posterior, centre, geometry, Sum(total.high[0], total.low[0]))


class _Ran(NamedTuple):
    warmup_steps: Int[Array, "chains warmup"]
    positions: Float[Array, "chains draws d"]
    stats: dict[str, Array]


@eqx.filter_jit
def _run_chains(blackjax: ModuleType, target: _Target, keys: Key[Array, " chains"], warmup: int, draws: int) -> _Ran:
    """Warm-up and draws of all chains: integration steps of the warm-up, positions and statistics of the draws."""

    @jax.custom_vjp
    def log_density(u: Float[Array, " d"]) -> Float[Array, ""]:
        return target.log_density(u)[0]

    # The gradient comes with the value in one compensated pass; differentiating that pass would take another.
    log_density.defvjp(target.log_density, lambda gradient, cotangent: (cotangent * gradient,))
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density, is_mass_matrix_diagonal=False)

    def run_chain(key: Key[Array, ""]) -> _Ran:
        warmup_key, draws_key = jax.random.split(key)
        adapted, during = adaptation.run(warmup_key, jnp.zeros(target.posterior.dim), num_steps=warmup)
        sampler = blackjax.nuts(log_density, **adapted.parameters)

        def draw(state: Any, key: Key[Array, ""]) -> tuple[Any, tuple[Array, dict[str, Array]]]:
            state, info = sampler.step(key, state)
            stats = {
                "acceptance_rate": info.acceptance_rate,
                "diverging": info.is_divergent,
                "tree_depth": info.num_trajectory_expansions,
                "n_steps": info.num_integration_steps,
                "step_size": adapted.parameters["step_size"],
            }
            return state, (target.position(state.position), stats)

        _, (positions, stats) = lax.scan(draw, adapted.state, jax.random.split(draws_key, draws))
        return _Ran(during.info.num_integration_steps, positions, stats)

    # One after the other: side by side each would wait for the longest trajectory, at every step.
    return lax.map(run_chain, keys)


def _blackjax() -> ModuleType:
    try:
        import blackjax
    except ImportError:
        raise ImportError("tallmc.reference.nuts needs BlackJAX: pip install tallmc[reference]") from None
    return blackjax
