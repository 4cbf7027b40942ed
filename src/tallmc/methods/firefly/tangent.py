"""A lower bound on the logistic likelihood, Gaussian in the parameters and tight at the anchor.

With m = xᵀθ̂ and u = xᵀ(θ − θ̂), the bound of Jaakkola and Jordan (1997) on L = σ(s), s = ±xᵀθ, that
is tight at θ̂ has log B = a s² + s/2 + c, a = −tanh(m/2)/4m. Since log L and log B have the same
value and slope at θ̂, for δ = θ − θ̂

    −log p(θ) − Σ_i log B_i(θ) = const + ∇f(θ̂)ᵀδ + ½ δᵀPδ,
    P = ∇²f₀ + Σ_i (r_i/2) x_i x_iᵀ,   r = tanh(m/2)/m.

For either response log L − log B is, for u ≥ 0 (otherwise flip the signs of m and u),

    g = r u²/4 − q u − log(1 + q (e^−u − 1)) ≥ 0,   q = 1/(1 + e^m).

Near the anchor the gap g is of order u². Its rounding error in this form is the machine precision
times a number of order u.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...anchor.anchor import Anchor
from ...core.errors import InvalidInput
from ...core.linear_maps import dot
from ...models.families import Bernoulli
from ...models.generalised_linear import GeneralisedLinear
from ...models.observations import Observations
from ...models.posterior import AbstractPosterior
from ...rows.sums import Sum
from .bound import AbstractBound, BoundChoice


class TangentBound(AbstractBound):
    """The bound of a logistic regression. The prior times Π B_i is one Gaussian."""

    model: GeneralisedLinear
    anchor: Float[Array, " d"]
    """θ̂."""
    gradient: Float[Array, " d"]
    """∇f(θ̂)."""
    precision: Float[Array, "d d"]
    """P."""

    def known(self, position: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """−log p(θ) − Σ log B_i(θ), up to a constant, and its gradient."""
        delta = position - self.anchor
        change = dot(self.precision, delta)
        return dot(self.gradient + change / 2, delta), self.gradient + change

    def gaps(self, position: Float[Array, " d"], rows: Observations) -> Float[Array, " n"]:
        return gap(*self._predictors(position, rows))[0]

    def sum_gap_gradients(
        self, position: Float[Array, " d"], rows: Observations, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        return self.model.combine(gap(*self._predictors(position, rows))[1], rows, weights)

    def _predictors(
        self, position: Float[Array, " d"], rows: Observations
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """m and u."""
        predictors = dot(rows.x, jnp.stack([self.anchor, position - self.anchor], axis=1))
        return predictors[:, 0], predictors[:, 1]


def gap(
    m: Float[Array, " n"], u: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """log L − log B at m + u for the bound that is tight at m, and its derivative in u."""
    sign = jnp.where(u < 0, -1, 1).astype(u.dtype)
    m, u = sign * m, sign * u
    r, q = _slope_ratio(m), jax.nn.sigmoid(-m)
    change = q * jnp.expm1(-u)
    # For q near 1, where m < 0, 1 + change is a rounding error. The other branch computes
    # log(1 + e^(−m−u)) − log(1 + e^−m) instead.
    is_accurate = change > -0.5
    other = q * (1 + jnp.exp(-jnp.abs(m + u))) - 1
    logarithm = jnp.where(is_accurate, 0, jnp.maximum(m, -u)) + jnp.log1p(
        jnp.where(is_accurate, change, other)
    )
    # A row with u = 0 is never bright. The floor keeps its logarithm finite and is far below the
    # rounding error.
    floor = jnp.finfo(u.dtype).eps ** 2
    return jnp.maximum(r * u**2 / 4 - q * u - logarithm, floor), sign * (
        r * u / 2 - q + jax.nn.sigmoid(-m - u)
    )


def _slope_ratio(m: Float[Array, " n"]) -> Float[Array, " n"]:
    """tanh(m/2)/m."""
    small = jnp.abs(m) < 1e-4
    return jnp.where(small, 0.5 - m**2 / 24, jnp.tanh(m / 2) / jnp.where(small, 1, m))


@dataclasses.dataclass(frozen=True)
class Tangent(BoundChoice):
    """The Gaussian bound of Jaakkola and Jordan that is tight at the anchor; logistic regression.

    >>> import tallmc
    >>> tallmc.FlyMC(step_size=0.1, bound=Tangent()).exact
    True
    """

    @property
    def is_proved(self) -> bool:
        return True

    def check(self, posterior: AbstractPosterior) -> None:
        model = posterior.model
        if not isinstance(model, GeneralisedLinear) or not isinstance(model.family, Bernoulli):
            rule = (
                "be a logistic regression for FlyMC, "
                "which needs a tight lower bound on each likelihood"
            )
            cure = (
                "Use tallmc.models.logistic_regression, FlyMC(bound=Taylor(...)), "
                "or mala(...) for other models."
            )
            raise InvalidInput("posterior", rule, _kind(posterior), cure)
        shapes = posterior.rows.row_shapes
        if shapes.offset is not None or shapes.weight is not None:
            raise InvalidInput("posterior", "have no weights or offsets for FlyMC", "some")

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor) -> tuple[TangentBound, int]:
        model = posterior.model
        assert isinstance(model, GeneralisedLinear), "checked before"
        precision = posterior.rows.reduce(
            _bound_curvature,
            model,
            anchor.position,
            width=posterior.width,
            finish=_with_prior_curvature,
        )
        bound = TangentBound(model, anchor.position, anchor.gradient, precision)
        return bound, posterior.n_rows


def _kind(posterior: AbstractPosterior) -> str:
    if isinstance(posterior.model, GeneralisedLinear):
        return f"the {type(posterior.model.family).__name__} family"
    return type(posterior).__name__


def _bound_curvature(
    rows: Observations,
    counted: Bool[Array, " n"],
    model: GeneralisedLinear,
    position: Float[Array, " d"],
) -> Float[Array, "d d"]:
    """Σ (r_i/2) x_i x_iᵀ."""
    ratio = jnp.where(counted, _slope_ratio(dot(rows.x, position)), 0)
    return dot((rows.x * (ratio / 2)[:, None]).T, rows.x)


def _with_prior_curvature(
    total: Sum, model: GeneralisedLinear, position: Float[Array, " d"]
) -> Float[Array, "d d"]:
    """P."""
    return total.high + (total.low + jax.hessian(model.prior_potential)(position))
