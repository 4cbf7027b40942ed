"""Switching rates of the zig-zag process with control variates.

In coordinates u with θ = θ̂ + Cu the potential U has the derivatives

    ∂_j U(u) = (a + Bu)_j + Σ_i w_ij s_i(u),   w_i = Cᵀx_i,   t = w_iᵀu

    order 1   a = Cᵀ∇f(θ̂),  B = Cᵀ∇²f₀C,     s_i = f'(ẑ_i + t) − f'(ẑ_i)
    order 2   a = Cᵀ∇f(θ̂),  B = Cᵀ∇²f(θ̂)C,   s_i = f'(ẑ_i + t) − f'(ẑ_i) − f''(ẑ_i)t

with a Gaussian prior f₀, whose Hessian is constant. Order 1 is ZZ-CV of Bierkens, Fearnhead and
Roberts (2019). Each term has a rate of its own:

    λ_j(u, v) = (v_j (a + Bu)_j)₊ + Σ_i (v_j w_ij s_i(u))₊

For each part, (x)₊ − (−x)₊ = x. So λ_j(u, v) − λ_j(u, F_j v) = v_j ∂_j U(u), where F_j reverses the
velocity v_j: the process leaves the posterior invariant. The sum of positive parts may be larger
than the positive part of the sum, so velocities switch more often than they have to.

The rate of row i over all coordinates is at most c_i M(u), with the order k,

    c_i = sup |f⁽ᵏ⁺¹⁾| ‖w_i‖₁ ‖w_i‖ᵏ,   M(u) = ‖u‖ᵏ/k!

A candidate is row i with probability p_i ∝ c_i, from one alias table for all coordinates, and then
coordinate j with probability |w_ij|/‖w_i‖₁. It switches v_j with probability (v_j w_ij s_i)₊ over
the rate of the candidate.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ...anchor.anchor import Anchor
from ...core.arrays import on_device
from ...core.errors import InvalidInput
from ...core.linear_maps import AbstractLinearMap, dot
from ...models.generalised_linear import GeneralisedLinear
from ...models.observations import RegressionRows, weighted
from ...models.posterior import AbstractPosterior
from ...models.priors import AbstractPrior, JoinedPrior, NormalPrior, PriorOfEntries
from ...rows.stream import AbstractStream
from ..subsampled.linear import LinearRemainders
from ..subsampled.quadrature import remainder

_ROUNDING = 1 + 1e-6


class RowRates(eqx.Module):
    """The part of some rows in the rates, at one position per row."""

    slopes: Float[Array, " n"]
    """s_i."""
    columns: Float[Array, "n d"]
    """w_ij."""

    @property
    def largest(self) -> Float[Array, " n"]:
        """|s_i| ‖w_i‖₁, which no c_i M may be below."""
        return jnp.abs(self.slopes) * jnp.sum(jnp.abs(self.columns), axis=1)

    def coordinates(self, uniform: Float[Array, " n"]) -> Int[Array, " n"]:
        """A coordinate j per row, drawn with probability |w_ij|/‖w_i‖₁."""
        sums = jnp.cumsum(jnp.abs(self.columns), axis=1)
        below = jnp.sum(sums <= uniform[:, None] * sums[:, -1:], axis=1)
        return jnp.minimum(below, sums.shape[1] - 1)

    def switching(
        self, velocity: Float[Array, " d"], coordinates: Int[Array, " n"]
    ) -> Float[Array, " n"]:
        """(v_j w_ij s_i)₊ ‖w_i‖₁/|w_ij|: the rate, over the probability of the coordinate."""
        chosen = jnp.take_along_axis(self.columns, coordinates[:, None], axis=1)[:, 0]
        sign = velocity[coordinates] * jnp.sign(chosen) * jnp.sign(self.slopes)
        return jnp.maximum(sign, 0) * self.largest


class Rates(eqx.Module):
    """Rates of the anchor's terms and of the rows."""

    remainders: LinearRemainders
    linear: Float[Array, " d"]
    """a."""
    matrix: Float[Array, "d d"]
    """B."""
    stream: AbstractStream
    """Rows in proportion to c_i."""
    total: Float[Array, ""]
    """Σc."""

    @property
    def metric(self) -> AbstractLinearMap:
        """C."""
        return self.remainders.metric

    def known(
        self, u: Float[Array, " d"], velocity: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """α and β: after a time t, v_j (a + B(u + vt))_j = α_j + β_j t."""
        start = velocity * (self.linear + dot(self.matrix, u))
        return start, velocity * dot(self.matrix, velocity)

    def of_rows(self, u: Float[Array, "n d"], rows: RegressionRows) -> RowRates:
        """The part of these rows, each at a position of its own."""
        model, order, y = self.remainders.model, self.remainders.order, rows.y
        w = self.metric.pull(rows.x)
        anchored = model.predictors(self.remainders.anchor, rows)
        t = jnp.sum(w * u, axis=1)
        derivative = model.family.derivative
        expansion = sum(
            derivative(power + 1, anchored, y) * t**power / math.factorial(power)
            for power in range(order)
        )
        slopes = remainder(
            order - 1,
            lambda s: derivative(order + 1, anchored + s * t, y) * t**order,
            derivative(1, anchored + t, y) - expansion,
            jnp.abs(t),
        )
        return RowRates(weighted(rows, slopes).astype(w.dtype), w)

    def bound(self, distance: Float[Array, ""]) -> Float[Array, ""]:
        """Σc M at this distance from the anchor."""
        # growth(u, 0) bounds a remainder by ‖u‖ᵏ⁺¹/(k + 1)!; its derivative bounds the slope.
        away = jnp.stack([distance])
        of_values = self.remainders.growth(away, jnp.zeros_like(away))
        tiny = jnp.finfo(distance.dtype).tiny
        return self.total * of_values * (self.remainders.order + 1) / jnp.maximum(distance, tiny)


def prepare_rates(
    posterior: AbstractPosterior, anchor: Anchor, metric: AbstractLinearMap, order: int
) -> Rates:
    """The rates at the anchor; one pass over the rows."""
    model = posterior.model
    cure = "Use subsampled_mh(...), or mala(...)."
    if not isinstance(model, GeneralisedLinear):
        rule = "be a generalised linear model with one predictor"
        raise InvalidInput("posterior", rule, type(model).__name__, cure)
    if not _is_gaussian(model.prior):
        raise InvalidInput("posterior", "have a Gaussian prior", type(model.prior).__name__, cure)
    remainders = LinearRemainders.at(model, order, anchor, metric)
    if not remainders.bounded:
        rule = f"have rows whose derivatives of order {order + 1} are bounded"
        raise InvalidInput("posterior", rule, f"the {type(model.family).__name__} family", cure)
    assert anchor.hessian is not None and anchor.factor is not None, "the method needs a Hessian"
    factor = np.asarray(anchor.factor, np.float64)
    hessian = anchor.hessian if order == 2 else jax.hessian(model.prior_potential)(anchor.position)
    constants = np.asarray(
        posterior.rows.map(_constants, remainders, width=posterior.width), np.float64
    )
    # A row of zeros never switches a velocity; the table needs a positive weight.
    positive = np.maximum(constants, np.finfo(np.float32).tiny)
    positive = np.maximum(positive, 1e-9 * positive.mean())
    stream = posterior.rows.preferential_stream(
        positive, floor=0.0, certain_of=None, dtype=posterior.dtype
    ).stream
    return Rates(
        remainders=remainders,
        linear=on_device(factor.T @ np.asarray(anchor.gradient, np.float64), posterior.dtype),
        matrix=on_device(factor.T @ np.asarray(hessian, np.float64) @ factor, posterior.dtype),
        stream=stream,
        # The table rounds p_i: with this total, total · p_i ≥ c_i for every row.
        total=on_device(_ROUNDING * np.max(positive / stream.probabilities()), posterior.dtype),
    )


def _is_gaussian(prior: AbstractPrior) -> bool:
    if isinstance(prior, JoinedPrior | PriorOfEntries):
        return all(map(_is_gaussian, prior.parts))
    return isinstance(prior, NormalPrior)


def _constants(rows: RegressionRows, remainders: LinearRemainders) -> Float[Array, " n"]:
    """c_i, from sup |f⁽ᵏ⁺¹⁾| ‖w_i‖ᵏ⁺¹."""
    sizes = jnp.abs(remainders.metric.pull(rows.x))
    length = jnp.maximum(jnp.linalg.norm(sizes, axis=1), jnp.finfo(sizes.dtype).tiny)
    return remainders.constants(rows) * (jnp.sum(sizes, axis=1) / length)
