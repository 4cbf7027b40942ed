"""Reference draws to check other draws against: NUTS on the full data, by BlackJAX.

The no-U-turn sampler (Hoffman and Gelman, 2014) with Stan's warm-up: dual averaging tunes the step
size to an acceptance rate of 0.8, and a dense mass matrix is adapted in growing windows. NUTS
leaves exp(−f) invariant. Each integration step is one pass over the rows. With an anchor, chains
start at the mode. If the anchor has a Hessian, chains move in coordinates u with θ = θ̂ + C u, in
which the posterior is close to a standard Gaussian, so a diagonal mass matrix is enough. BlackJAX
is an optional dependency, `pip install ".[reference]"` in a clone, imported when `nuts` is called.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from ._anchor.anchor import Anchor, AnchorLevel
from ._core.arrays import AbstractLinearMap, IdentityMap
from ._core.errors import Outcome, PreparationError, SamplingWarning, check_int, outcome_of, warn
from ._core.packages import check_installed
from ._core.random import new_key
from ._rows.passes import Sum
from ._version import __version__
from .dynamics.dynamics import potential_drop
from .geometry import Dense, Identity
from .methods.abstract import Account, prepare_anchor
from .models.posterior import AbstractPosterior, check_in_memory
from .results.draws import Draws, Timing

__all__ = ["nuts"]


def nuts(
    posterior: AbstractPosterior,
    *,
    chains: int = 4,
    n_draws: int = 1000,
    warmup: int = 1000,
    seed: int = 0,
    anchor: Anchor | None = None,
) -> Draws:
    """Draw from the posterior by NUTS on all rows.

    **Arguments:**

    - `posterior`: the posterior to sample.
    - `chains`: the number of chains.
    - `n_draws`: draws per chain.
    - `warmup`: adaptation steps per chain, which are discarded.
    - `seed`: seed of the chains.
    - `anchor`: where chains start, from `find_anchor(posterior)`. Chains start at the posterior's
      `init` if None.

    **Raises:** `PreparationError` if the potential or its gradient is not finite at the start;
    `ImportError` if BlackJAX is not installed.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [0.0, 1.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=10.0, noise_variance=1.0)
    >>> nuts(posterior, chains=2, n_draws=50, warmup=100).positions.shape
    (2, 50, 1)
    """
    chains = check_int("chains", chains, 1)
    check_in_memory(posterior, "each leapfrog step uses all rows", "Compare on a part of the rows.")
    n_draws = check_int("n_draws", n_draws, 1)
    cure = "Warm-up adapts the step size and the mass matrix."
    warmup = check_int("warmup", warmup, 20, cure=cure)
    seed = check_int("seed", seed, 0, 2**32 - 1)
    check_installed("blackjax", needed_by="tallmc.reference.nuts")
    import blackjax

    began = time.perf_counter()
    anchor, prepared_rows = prepare_anchor(posterior, anchor, AnchorLevel.NOTHING)
    target = _target(posterior, anchor)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(new_key(seed), jnp.arange(chains))
    preparation = time.perf_counter() - began
    lowered = _run_chains.lower(blackjax, target, keys, warmup, n_draws)  # type: ignore[attr-defined]
    compiled = lowered.compile()
    compilation = time.perf_counter() - began - preparation
    warmup_steps, positions, stats = jax.tree.map(
        np.asarray, compiled(blackjax, target, keys, warmup, n_draws)
    )
    sampling = time.perf_counter() - began - preparation - compilation

    n_rows = posterior.n_rows
    passes = (
        1
        + warmup_steps.sum(axis=1, dtype=np.int64)[:, None]
        + stats["n_steps"].cumsum(axis=1, dtype=np.int64)
    )
    outcomes = tuple(Outcome(int(code)) for code in jax.vmap(outcome_of)(positions[:, -1]))
    result = Draws(
        positions=positions,
        sample_stats={
            **stats,
            "batch_size": n_rows * stats["n_steps"].astype(np.int64),
            "n_row_evals": n_rows * passes,
        },
        outcomes=outcomes,
        n_row_evals_sampling=int(n_rows * passes[:, -1].sum()),
        n_row_evals_preparation=prepared_rows + n_rows,
        timing=Timing(preparation, compilation, sampling),
        layout=posterior.layout,
        quantities=posterior.quantities,
        predictive=posterior.predictive,
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
        account=Account(None, exact=True),
    )
    covariance = None if anchor is None else anchor.covariance
    diverged = int(stats["diverging"].sum())
    divergent = (
        f"{diverged} of {chains * n_draws} draws come from a divergent trajectory: "
        "the chains may miss parts of the posterior. "
        "Use another parametrisation, or a longer warm-up."
    )
    failed_at = np.full(chains, warmup + n_draws)
    result = result.judged(failed_at, covariance, [divergent] if diverged else [])
    for message in result.report.doubts:
        warn(message, SamplingWarning)
    return result


class _Target(eqx.Module):
    """The posterior in the coordinates u of NUTS.

    u has JAX's default precision, because BlackJAX supports no other.
    """

    posterior: AbstractPosterior
    centre: Float[Array, " d"]
    geometry: AbstractLinearMap
    potential: Sum
    """f at the centre. Log densities are relative to it, so float32 keeps small differences."""

    def position(self, u: Float[Array, "*k d"]) -> Float[Array, "*k d"]:
        """θ = θ̂ + C u."""
        return self.centre + self.geometry.push(u.astype(self.centre.dtype))

    def log_density(self, u: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """f(centre) − f(θ) and its gradient with respect to u."""
        total = self.posterior.model.potential_and_gradient(self.position(u), self.posterior.rows)
        drop = potential_drop(self.potential, Sum(total.high[0], total.low[0]))
        return drop.astype(u.dtype), -self.geometry.pull(total.rounded()[1]).astype(u.dtype)


def _target(posterior: AbstractPosterior, anchor: Anchor | None) -> _Target:
    has_factor = anchor is not None and anchor.factor is not None
    geometry = (Dense() if has_factor else Identity()).prepare(posterior, anchor)
    centre = posterior.init if anchor is None else anchor.position
    total = posterior.model.potential_and_gradient(centre, posterior.rows)
    if not np.isfinite(total.float64()[0]) or not np.isfinite(total.float64()[1]).all():
        raise PreparationError(
            "the potential or its gradient is not finite at the start. "
            "Start where the density is positive."
        )
    return _Target(posterior, centre, geometry, Sum(total.high[0], total.low[0]))


@eqx.filter_jit
def _run_chains(
    blackjax: ModuleType, target: _Target, keys: Key[Array, " chains"], warmup: int, n_draws: int
) -> tuple[Int[Array, "chains warmup"], Float[Array, "chains draws d"], dict[str, Array]]:
    """Integration steps of the warm-up, and positions and statistics of the draws."""

    @jax.custom_vjp
    def log_density(u: Float[Array, " d"]) -> Float[Array, ""]:
        return target.log_density(u)[0]

    # One compensated pass gives value and gradient; differentiating it would take another pass.
    log_density.defvjp(target.log_density, lambda gradient, cotangent: (cotangent * gradient,))
    # If the anchor has a Hessian, u has a covariance near I. A dense matrix that is estimated from
    # a short warm-up is worse conditioned: 53 parameters took 812 steps a draw instead of 13.
    whitened = not isinstance(target.geometry, IdentityMap)
    adaptation = blackjax.window_adaptation(
        blackjax.nuts, log_density, is_mass_matrix_diagonal=whitened
    )

    def run_chain(key: Key[Array, ""]) -> tuple[Array, Array, dict[str, Array]]:
        warmup_key, draws_key = jax.random.split(key)
        adapted, warmup_trace = adaptation.run(
            warmup_key, jnp.zeros(target.posterior.dim), num_steps=warmup
        )
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

        _, (positions, stats) = lax.scan(draw, adapted.state, jax.random.split(draws_key, n_draws))
        return warmup_trace.info.num_integration_steps, positions, stats

    # Sequential: under vmap every chain would wait for the longest trajectory at each step.
    return lax.map(run_chain, keys)
