"""The bouncy particle sampler with subsampling and control variates.

In the coordinates u of the anchor's Gaussian the position moves on a straight line with velocity v.
The potential is the sum of a known term and of one term per row, those of `zig_zag`:

    ∇U(u) = g₀(u) + Σ_i w_i s_i(u),   g₀(u) = a + Bu + Cᵀ∇f₀

Each term g reflects the velocity at the rate (vᵀg)₊, to R_g v = v − 2(vᵀg)g/‖g‖². Since
vᵀR_g = −vᵀ on g, (vᵀg)₊ − ((R_g v)ᵀg)₊ = vᵀg, and the lengths of v and R_g v are equal: with
velocities N(0, I) the process leaves the posterior invariant (Bouchard-Côté, Vollmer and Doucet,
2018, the local form). The velocity is drawn anew at the rate ρ; without it the process need not be
ergodic.

The rate of row i is at most c_i ‖v‖ ‖u‖ᵏ/k! with c_i = sup |f⁽ᵏ⁺¹⁾| ‖w_i‖ᵏ⁺¹, which falls short of
the constants of the zig-zag process by the factor ‖w_i‖/‖w_i‖₁.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._anchor.anchor import Anchor
from .._core.arrays import Scalar, Vector
from .._core.errors import check_number
from .._rows.access import PerRow
from ..methods.registry import named
from ..models.posterior import AbstractPosterior
from .zig_zag import AbstractPathMethod, Candidates, RowRates, ZigZagRates, prepare_rates


class BouncyRates(ZigZagRates):
    """Rates at which the velocity is reflected on the gradients of the terms."""

    @staticmethod
    def size(columns: Float[Array, "n d"]) -> PerRow:
        return jnp.linalg.norm(columns, axis=1)

    def speed(self, velocity: Vector) -> Scalar:
        return jnp.linalg.norm(velocity)

    def first_velocity(self, key: PRNGKeyArray, like: Vector) -> Vector:
        return jax.random.normal(key, like.shape, like.dtype)

    def directions(self, velocity: Vector) -> Float[Array, "m d"]:
        return velocity[None]

    def normal(self, term: Int[Array, ""], gradient: Vector) -> Vector:
        return gradient

    def candidates(self, velocity: Vector, rows: RowRates, uniform: PerRow) -> Candidates:
        rates = jnp.maximum(rows.slopes * (rows.columns @ velocity), 0)
        largest = jnp.abs(rows.slopes) * self.size(rows.columns) * self.speed(velocity)
        return Candidates(rates, largest, rows.columns)

    def known_events(self, dim: int) -> float:
        # vᵀu is close to normal with variance d.
        assert self.refreshment is not None, "given by the method"
        return math.sqrt(dim / (2 * math.pi)) + float(self.refreshment)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bouncy(AbstractPathMethod):
    """The bouncy particle sampler, for logistic, probit, binomial and linear regression.

    A step follows the path for the time `step_size`; the position at its end is the draw.
    `zig_zag.path_moments` reads the exact averages along the path. Priors are Gaussian, Laplace or
    Student-t.
    """

    paper = "Bouchard-Côté, Vollmer and Doucet (2018)"
    cost = (
        "A pass over the rows for c_i, and then about Σc E‖v‖‖u‖ᵏ/k! rows per unit of time, with "
        "the order k, as the zig-zag process. Σc is smaller by up to √d."
    )
    process = "bouncy particle sampler"

    step_size: float
    order: int = 2
    refreshment: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("refreshment", self.refreshment, 0, low_open=True)

    def rates_at(self, posterior: AbstractPosterior, anchor: Anchor) -> ZigZagRates:
        return prepare_rates(BouncyRates, posterior, anchor, self.order, self.refreshment)


@named("Bouchard-Côté, Vollmer and Doucet (2018)")
def bouncy(step_size: float, order: int = 2, refreshment: float = 1.0) -> Bouncy:
    """Bouncy particle sampler with subsampling and control variates: exact, reads a few rows.

    `step_size` is the time between draws, in units in which a coordinate of the anchor's Gaussian
    moves by about one standard deviation. `order` is the order of the control variates, 1 or 2.
    `refreshment` is the rate at which the velocity is drawn anew.
    """
    return Bouncy(step_size=step_size, order=order, refreshment=refreshment)
