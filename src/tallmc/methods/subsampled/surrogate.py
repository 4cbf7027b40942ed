"""The part of the target that needs no rows left to chance, relative to the Gaussian N(0, I).

In coordinates u with θ = θ̂ + Cu the potential is ½‖u‖² + e(u) + Σ R_i(u). With expansions of order
2, CᵀHC = I up to rounding, and the excess is

    e(u) = gᵀCu + ½ uᵀ(CᵀHC − I)u + (f₀ − its expansion)(u) + Σ R_i(u) over the certain rows,

with g = ∇f(θ̂). Order 3 adds T[u, u, u]/6, T = Σ f_i‴ w_i⊗w_i⊗w_i. Orders 0 and 1 have fewer terms
and need −½‖u‖². The prior f₀ is exact in all of them.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ...anchor.anchor import Anchor
from ...core.arrays import on_device
from ...core.compiler import quickly_compiled
from ...core.linear_maps import AbstractLinearMap, dot
from ...models.base import AbstractModel
from ...models.generalised_linear import GeneralisedLinear
from ...models.observations import RegressionRows, weighted
from ...models.posterior import AbstractPosterior
from ...rows.base import AbstractRows
from ...rows.sums import Sum
from .remainders import AbstractRemainders


class Surrogate(eqx.Module):
    """e(u)."""

    remainders: AbstractRemainders
    anchor: Float[Array, " d"]
    metric: AbstractLinearMap
    linear: Float[Array, " d"]
    quadratic: Float[Array, "d d"]
    """The quadratic terms of e are ½ uᵀQu with this Q."""
    cubic: Float[Array, "d d d"] | None
    """T."""
    prior_terms: tuple[Array, ...]
    """Value, gradient and Hessian of the prior at the anchor, as far as e expands the prior."""
    certain: Int[Array, " a"]
    """Rows that every step evaluates."""

    def smooth(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        """e(u) without the certain rows."""
        total = dot(self.linear + dot(self.quadratic, u) / 2, u) + self._prior(u)
        if self.cubic is not None:
            total += dot(dot(dot(self.cubic, u), u), u) / 6
        return total

    def excess(self, u: Float[Array, " d"], source: AbstractRows) -> Float[Array, ""]:
        """e(u)."""
        total = self.smooth(u)
        if self.certain.shape[0]:
            rows = source.take(self.certain)
            total += jnp.sum(self.remainders.values(self.metric.push(u)[None], rows))
        return total

    def gradient(self, u: Float[Array, " d"]) -> Float[Array, " d"]:
        """The gradient of ½‖u‖² + e(u), without the certain rows."""
        return u + jax.grad(self.smooth)(u)

    def _prior(self, u: Float[Array, " d"]) -> Float[Array, ""]:
        move = self.metric.push(u)
        value, *terms = self.prior_terms
        total = self.remainders.model.prior_potential(self.anchor + move) - value
        if terms:
            gradient, hessian = terms
            total -= dot(gradient + dot(hessian, move) / 2, move)
        return total


def prepare_surrogate(
    posterior: AbstractPosterior,
    anchor: Anchor,
    metric: AbstractLinearMap,
    remainders: AbstractRemainders,
) -> tuple[Surrogate, int]:
    """The surrogate without certain rows, and how many rows were evaluated for it."""
    model, at, order = posterior.model, anchor.position, remainders.order
    assert anchor.hessian is not None and anchor.factor is not None, "the method needs a Hessian"
    factor = np.asarray(anchor.factor, np.float64)
    prior_value, prior_gradient, prior_hessian = _prior_terms(model, at)
    if order >= 2:
        linear = factor.T @ np.asarray(anchor.gradient, np.float64)
        quadratic = factor.T @ np.asarray(anchor.hessian, np.float64) @ factor - np.eye(len(factor))
        expanded: tuple[Array, ...] = (prior_gradient, prior_hessian)
    else:
        of_rows = np.asarray(anchor.gradient, np.float64) - np.asarray(prior_gradient)
        linear = factor.T @ of_rows if order == 1 else np.zeros(len(factor))
        quadratic, expanded = -np.eye(len(factor)), ()
    cubic, n_row_evals = None, 0
    if order == 3:
        assert isinstance(model, GeneralisedLinear), "checked before"
        cubic = posterior.rows.reduce(
            _third_derivatives, model, at, metric, width=posterior.dim**2, finish=_rounded
        )
        n_row_evals = posterior.n_rows
    surrogate = Surrogate(
        remainders=remainders,
        anchor=at,
        metric=metric,
        linear=on_device(linear, posterior.dtype),
        quadratic=on_device(quadratic, posterior.dtype),
        cubic=cubic,
        prior_terms=(prior_value, *expanded),
        certain=on_device(np.zeros(0), np.int32),
    )
    return surrogate, n_row_evals


@quickly_compiled
def _prior_terms(model: AbstractModel, at: Float[Array, " d"]) -> tuple[Array, Array, Array]:
    """Value, gradient and Hessian of the prior's potential."""
    return (
        model.prior_potential(at),
        model.prior_gradient(at),
        jax.hessian(model.prior_potential)(at),
    )


def _third_derivatives(
    rows: RegressionRows,
    counted: Bool[Array, " n"],
    model: GeneralisedLinear,
    anchor: Float[Array, " d"],
    metric: AbstractLinearMap,
) -> Float[Array, "d d d"]:
    """Σ f_i‴ w_i⊗w_i⊗w_i."""
    third = weighted(rows, model.family.derivative(3, model.predictors(anchor, rows), rows.y))
    w = metric.pull(rows.x)
    pairs = (w[:, :, None] * w[:, None, :]).reshape(len(w), -1)
    total = dot((jnp.where(counted, third, 0)[:, None] * w).T, pairs)
    return total.reshape(3 * w.shape[1:])


def _rounded(total: Sum, *args: object) -> Array:
    return total.rounded()
