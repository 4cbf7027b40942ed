"""Where the search for the mode starts with group effects: at estimated effects and spreads.

    −log p(u, σ) = Σ_g u_g²/2σ² + G log σ

The density of effects and spreads has no bound where both go to zero. With u = 0, every search goes
there. Its useful mode is a local one, where the effects are those that the rows support. The start
is therefore close to it: Newton steps for the coefficients and for the effects of each group in
turn, and σ² = mean of u_g² + Var u_g, an EM step, on some of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .families import AbstractFamily
from .likelihood import AbstractLikelihood
from .observations import GroupedObservations

_ROUNDS = 15
_HALVINGS = 10
_LEAST_CURVATURE = 1e-6
"""Least curvature of a row, relative to the mean; some potentials are not convex."""


class EffectStart(NamedTuple):
    """Common coefficients, effects (groups, columns) and log standard deviations of each term."""

    beta: Float[np.ndarray, " c"]
    effects: list[Float[np.ndarray, "_ _"]]
    log_sds: list[Float[np.ndarray, " _"]]


class _RowTerms(NamedTuple):
    """w_i f(z_i), its slopes and its curvatures, as functions of z on the host."""

    potential: Callable[[np.ndarray], float]
    derivatives: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def start_of_effects(
    rows: GroupedObservations,
    likelihood: AbstractFamily | AbstractLikelihood,
    beta: Float[np.ndarray, " c"],
    shared: Float[np.ndarray, " e"],
    log_sds: list[Float[np.ndarray, " _"]],
) -> EffectStart:
    """Estimate effects and spreads from some rows.

    **Arguments:**

    - `rows`: the rows.
    - `likelihood`: the likelihood, with one predictor.
    - `beta`, `shared`, `log_sds`: where this estimation itself starts.
    """
    of_rows = _row_terms(rows, likelihood, shared)
    x = np.asarray(rows.fixed, np.float64)
    z = x @ beta + (0.0 if rows.offset is None else np.asarray(rows.offset, np.float64))
    terms = [
        (np.asarray(term.codes), np.asarray(term.columns, np.float64), term.n_groups)
        for term in rows.terms
    ]
    effects = [np.zeros((n_groups, columns.shape[1])) for _, columns, n_groups in terms]
    log_sds = [np.array(each, np.float64) for each in log_sds]
    for _ in range(_ROUNDS):
        slopes, curvatures = of_rows.derivatives(z)
        gram = (x * curvatures[:, None]).T @ x
        step = -np.linalg.lstsq(gram, x.T @ slopes, rcond=None)[0]
        size = _step_size(of_rows, z, x @ step, lambda size: 0.0)
        beta, z = beta + size * step, z + size * (x @ step)
        for k, (codes, columns, n_groups) in enumerate(terms):
            slopes, curvatures = of_rows.derivatives(z)
            precision = np.exp(-2 * log_sds[k])
            products = columns[:, :, None] * columns[:, None, :] * curvatures[:, None, None]
            hessians = _sums(products, codes, n_groups) + np.diag(precision)
            gradients = _sums(columns * slopes[:, None], codes, n_groups) + effects[k] * precision
            steps = -np.linalg.solve(hessians, gradients[:, :, None])[:, :, 0]
            along = np.sum(columns * steps[codes], axis=1)

            def penalty(
                size: float, at: Any = effects[k], steps: Any = steps, precision: Any = precision
            ) -> float:
                return 0.5 * float(np.sum((at + size * steps) ** 2 * precision))

            size = _step_size(of_rows, z, along, penalty)
            effects[k], z = effects[k] + size * steps, z + size * along
            spread = np.diagonal(np.linalg.inv(hessians), axis1=1, axis2=2)
            log_sds[k] = 0.5 * np.log(np.mean(effects[k] ** 2 + spread, axis=0))
    return EffectStart(beta, effects, log_sds)


def _step_size(
    of_rows: _RowTerms, z: np.ndarray, along: np.ndarray, penalty: Callable[[float], float]
) -> float:
    """The first of 1, ½, ¼, … that lowers the potential; 0 if none does."""
    size, now = 1.0, of_rows.potential(z) + penalty(0.0)
    for _ in range(_HALVINGS):
        if of_rows.potential(z + size * along) + penalty(size) <= now:
            return size
        size /= 2
    return 0.0


def _sums(values: np.ndarray, codes: np.ndarray, n_groups: int) -> np.ndarray:
    """Sums over the rows of each group."""
    flat = values.reshape(len(codes), -1)
    sums = [np.bincount(codes, column, n_groups) for column in flat.T]
    return np.stack(sums, axis=1).reshape(n_groups, *values.shape[1:])


def _row_terms(
    rows: GroupedObservations, likelihood: AbstractFamily | AbstractLikelihood, shared: np.ndarray
) -> _RowTerms:
    dtype = rows.fixed.dtype
    fixed = jnp.asarray(shared, dtype)
    weights = 1.0 if rows.weight is None else np.asarray(rows.weight, np.float64)

    def potentials(z: Any) -> Any:
        if isinstance(likelihood, AbstractFamily):
            return likelihood.potential(z, rows.y)
        return jax.vmap(lambda at, y: _of_row(likelihood, at, fixed, y))(z, rows.y)

    @jax.jit
    def values(z: Any) -> tuple[Any, Any, Any]:
        # Rows are independent: derivatives with respect to all z at once are those of each row.
        slope = jax.grad(lambda at: jnp.sum(potentials(at)))
        slopes, curvatures = jax.jvp(slope, (z,), (jnp.ones_like(z),))
        return potentials(z), slopes, curvatures

    def at(z: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(
            weights * np.asarray(each, np.float64) for each in values(jnp.asarray(z, dtype))
        )

    def derivatives(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        _, slopes, curvatures = at(z)
        least = _LEAST_CURVATURE * np.mean(np.abs(curvatures)) + np.finfo(np.float64).tiny
        return slopes, np.maximum(curvatures, least)

    return _RowTerms(lambda z: float(np.sum(at(z)[0])), derivatives)


def _of_row(likelihood: AbstractLikelihood, z: Any, shared: Any, y: Any) -> Any:
    return likelihood.row_potential(jnp.concatenate([z[None], shared]), y)
