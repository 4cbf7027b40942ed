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

from ..._anchor.anchor import Anchor
from ..._core.arrays import AbstractLinearMap, Matrix, Scalar, Vector, dot, on_device
from ..._core.errors import InvalidInput, check_number
from ..._core.programs import quickly_compiled
from ..._rows.access import AbstractRows, RowBlock
from ..._rows.law import Batch
from ...models.model import AbstractModel, rounded_sum
from ...models.posterior import AbstractPosterior
from ...schedule import AbstractSchedule, as_schedule
from .remainders import AbstractRemainders


class Surrogate(eqx.Module):
    """e(u)."""

    remainders: AbstractRemainders
    anchor: Vector
    metric: AbstractLinearMap
    linear: Vector
    quadratic: Matrix  # The quadratic terms of e are ½ uᵀQu with this Q
    cubic: Float[Array, "d d d"] | None  # T
    prior_terms: tuple[Array, ...]
    """Value, gradient and Hessian of the prior at the anchor, as far as e expands the prior."""
    certain: Int[Array, " a"]  # Rows that every step evaluates

    def smooth(self, u: Vector) -> Scalar:
        """e(u) without the certain rows."""
        total = dot(self.linear + dot(self.quadratic, u) / 2, u) + self._prior(u)
        if self.cubic is not None:
            total += dot(dot(dot(self.cubic, u), u), u) / 6
        return total

    def excess(self, u: Vector, rows: AbstractRows) -> Scalar:
        """e(u)."""
        total = self.smooth(u)
        if self.certain.shape[0]:
            block = rows.take(self.certain)
            total += jnp.sum(self.remainders.values(self.metric.push(u)[None], block))
        return total

    def gradient(self, u: Vector) -> Vector:
        """The gradient of ½‖u‖² + e(u), without the certain rows."""
        return u + jax.grad(self.smooth)(u)

    def _prior(self, u: Vector) -> Scalar:
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
        cubic = posterior.rows.reduce(
            _third_derivatives, model, at, metric, width=posterior.dim**2, finish=rounded_sum
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
def _prior_terms(model: AbstractModel, at: Vector) -> tuple[Array, Array, Array]:
    """Value, gradient and Hessian of the prior's potential."""
    return (
        model.prior_potential(at),
        model.prior_gradient(at),
        jax.hessian(model.prior_potential)(at),
    )


def _third_derivatives(
    block: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    anchor: Vector,
    metric: AbstractLinearMap,
) -> Float[Array, "d d d"]:
    batch = Batch(block, counted.astype(model.dtype))
    return model.third_derivatives(anchor, metric, batch).reshape(3 * anchor.shape)


# Proposals in the coordinates u, in which the posterior is close to N(0, I).
#
#     pCN          u' = √(1 − h) u + √h ξ         reversible for N(0, I); independent of u if h = 1
#     Langevin     u' = u − (h/2) ∇Ŝ(u) + √h ξ    Ŝ is the surrogate, so no rows are read
#     random walk  u' = u + √h ξ
#
# `log_ratio` is log q(u | u')/q(u' | u) relative to N(0, I): the target's ratio then needs only the
# excess over ½‖u‖².


class Proposal(eqx.Module):
    """A Gaussian proposal: "pcn", "langevin" or "random-walk"."""

    name: str = eqx.field(static=True)

    def propose(self, surrogate: Surrogate, u: Vector, step: Scalar, normal: Vector) -> Vector:
        """u'."""
        match self.name:
            case "pcn":
                return jnp.sqrt(jnp.maximum(1 - step, 0)) * u + jnp.sqrt(step) * normal
            case "langevin":
                return u - step / 2 * surrogate.gradient(u) + jnp.sqrt(step) * normal
            case _:
                return u + jnp.sqrt(step) * normal

    def log_ratio(self, surrogate: Surrogate, here: Vector, there: Vector, step: Scalar) -> Scalar:
        """log q(u | u') − log q(u' | u) − ½‖u'‖² + ½‖u‖²."""
        if self.name == "pcn":
            return jnp.zeros_like(step)
        move = there - here
        if self.name == "random-walk":
            return -jnp.sum(move * (here + there)) / 2
        # ‖δ + hg/2‖²/2h − ‖δ − hg'/2‖²/2h with δ = u' − u, without its large terms, which cancel.
        g, g_there = surrogate.gradient(here), surrogate.gradient(there)
        proposals = jnp.sum(move * (g + g_there)) / 2 + step / 8 * (
            jnp.sum(g**2) - jnp.sum(g_there**2)
        )
        return proposals - jnp.sum(move * (here + there)) / 2


PROPOSALS = {name: Proposal(name) for name in ("pcn", "langevin", "random-walk")}


def check_proposal(name: str, step_size: float | AbstractSchedule) -> None:
    """Raise if there is no such proposal, or the step size is out of its range."""
    as_schedule(step_size)
    if name not in PROPOSALS:
        raise InvalidInput("proposal", f"be one of {', '.join(map(repr, PROPOSALS))}", name)
    if name == "pcn" and isinstance(step_size, int | float):
        check_number("step_size", step_size, 0, 1, low_open=True)
