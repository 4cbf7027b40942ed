"""Mirrored Langevin dynamics: Langevin dynamics of y = ∇h(θ), which has no constraint.

    y' = y − (ε/2) ∇Ŵ(y) + √ε η,   η ~ N(0, I),   θ' = ∇h*(y')
    ∇Ŵ(y) = (∇²h(θ))⁻¹ (∇f̂(θ) + ∇ log det ∇²h(θ))

e^{−W} is the law of y if that of θ is e^{−f} (Hsieh et al., 2018, whose step size is ε/2). ∇Ŵ is
unbiased if ∇f̂ is. Parameters without a mirror map have y = θ. A noise correction uses
J Cov(∇f̂) J with J = (∇²h)⁻¹.

With `Entropic` and a Dirichlet law W has bounded derivatives: ∇W = α₀θ − α, and the means are exact
at any ε, with subsampled rows, too. With `LogBarrier` y has heavy tails. Where the density of θ is
positive on an end of the box, that of y falls as 1/y² only. Chains then stay at this end for very
long. `LogBarrier` suits densities that vanish on the ends of the box. For others reflect, or use a
transform.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..._core.arrays import Scalar, Vector
from ..._core.errors import InvalidInput
from ..._core.part import Part
from ...correction import Covariance
from ...dynamics.dynamics import (
    AbstractDynamics,
    AbstractDynamicsState,
    Curvature,
    DynamicsStep,
    Evaluate,
    Suggestion,
    reduced_noise,
    smaller_step,
)
from ...methods.method import Method, Size, StepSize
from ...methods.registry import named
from ...models.posterior import AbstractPosterior
from .domains import Leaf, Values, by_leaf, check_bounds, prepared_settings, with_flat_bounds

# Mirror maps: strictly convex h whose gradient maps the inside of a domain onto all of ℝᵏ.
#
#     y = ∇h(θ),   θ = ∇h*(y),   J = ∂θ/∂y = (∇²h)⁻¹
#
#     Entropic     h = Σ_k θ_k log θ_k             y_k = log(θ_k/θ_K),   θ = softmax(y)
#     LogBarrier   h = −log(θ − a) − log(b − θ)    y = 1/(b − θ) − 1/(θ − a)
#
# The simplex has K entries and K − 1 degrees of freedom: θ_K = 1 − Σ_{k<K} θ_k, and densities are
# with respect to Lebesgue measure of the first K − 1. The dual vector is kept with K entries, of
# which the last is zero. The gradient is ∇W(y) = J ∇f(θ) − ∇_y log det J(y):
#
#     Entropic     ∇W_k = θ_k (∂_k f − Σ_j θ_j ∂_j f) − 1 + K θ_k
#     LogBarrier   ∇W = J ∂f + 2st(s³ − t³)/(s² + t²)²,   J = s²t²/(s² + t²),  s = θ − a, t = b − θ


_ROUNDING = 1e-4


class MirrorMap(Part, eqx.Module):
    """A choice of h for one parameter."""

    @abc.abstractmethod
    def prepare(self, leaf: Leaf, dtype: Any) -> Self:
        """The map for the flat values of `leaf`; raises if it does not fit them."""

    @abc.abstractmethod
    def dual_curvature(self, largest: float) -> float:
        """A bound on ∇²W where the Hessian of f is at most `largest`."""

    @abc.abstractmethod
    def contains(self, values: Values) -> Bool[Array, ""]:
        """Whether the values are inside of the domain, up to rounding."""

    @abc.abstractmethod
    def dual(self, values: Values) -> Values:
        """Y = ∇h(θ)."""

    @abc.abstractmethod
    def primal(self, dual: Values) -> Values:
        """θ = ∇h*(y), inside of the domain."""

    @abc.abstractmethod
    def pull(self, dual: Values, gradient: Values) -> Values:
        """J g, the gradient with respect to y of a function whose gradient in θ is g."""

    @abc.abstractmethod
    def volume_gradient(self, dual: Values) -> Values:
        """∇_y log det J(y)."""

    def free(self, dual: Values) -> Values:
        """One for every entry of y that may move, else zero."""
        return jnp.ones_like(dual)


class Entropic(MirrorMap):
    """The entropic map of a simplex: the last axis of the parameter sums to one.

    The density is with respect to Lebesgue measure of all entries but the last.
    """

    classes: int = eqx.field(default=0, static=True, repr=False, kw_only=True)
    """K. Vectors of this length lie on simplices, one after the other."""

    def prepare(self, leaf: Leaf, dtype: Any) -> Self:
        if not leaf.shape or leaf.shape[-1] < 2:
            rule = f"have at least two entries on its last axis with {self!r}"
            raise InvalidInput(f"parameter {leaf.label}", rule, f"shape {leaf.shape}")
        return self._with(classes=leaf.shape[-1])

    def dual_curvature(self, largest: float) -> float:
        # No eigenvalue of diag(θ) − θθᵀ exceeds ½.
        return largest / 4

    def _rows(self, values: Values) -> Float[Array, "n K"]:
        return values.reshape(-1, self.classes)

    def contains(self, values: Values) -> Bool[Array, ""]:
        return jnp.all(values > 0) & jnp.all(jnp.abs(self._rows(values).sum(1) - 1) <= _ROUNDING)

    def dual(self, values: Values) -> Values:
        logs = jnp.log(self._rows(values))
        return (logs - logs[:, -1:]).ravel()

    def primal(self, dual: Values) -> Values:
        # θ must not underflow: gradients of log θ would not be finite.
        smallest = math.sqrt(jnp.finfo(dual.dtype).tiny)
        return jnp.maximum(jax.nn.softmax(self._rows(dual), axis=1), smallest).ravel()

    def pull(self, dual: Values, gradient: Values) -> Values:
        theta = self._rows(self.primal(dual))
        weighted = theta * self._rows(gradient)
        return (weighted - theta * weighted.sum(1, keepdims=True)).ravel() * self.free(dual)

    def volume_gradient(self, dual: Values) -> Values:
        return (1 - self.classes * self.primal(dual)) * self.free(dual)

    def free(self, dual: Values) -> Values:
        return jnp.ones_like(self._rows(dual)).at[:, -1].set(0).ravel()


class LogBarrier(MirrorMap):
    """The logarithmic barrier of a box, entry by entry.

    **Arguments:**

    - `low`: lower bounds, a number or an array of the shape of the parameter.
    - `high`: upper bounds, likewise.
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("low", "high"):
            if not np.isfinite(getattr(self, name)).all():
                rule = "be finite: the barrier of one end alone maps onto half of the line only"
                cure = 'Use Reflected(...), or transforms={...: "positive"}.'
                raise InvalidInput(name, rule, getattr(self, name), cure)

    def prepare(self, leaf: Leaf, dtype: Any) -> Self:
        return with_flat_bounds(self, leaf, dtype)

    def dual_curvature(self, largest: float) -> float:
        # J ≤ w²/8 and −∂² log J ≤ 3w²/8, both in the middle of the box.
        width = float(np.max(np.asarray(self.high) - np.asarray(self.low)))
        return largest * (width**2 / 8) ** 2 + 3 * width**2 / 8

    def _distances(self, dual: Values) -> tuple[Array, Array]:
        """S = θ − a and t = b − θ, each accurate where it is small."""
        width = self.high - self.low
        scaled = jnp.abs(width * dual)
        root = jnp.sqrt(scaled**2 + 4)
        near = width * (1 + 2 / (root + scaled)) / (root + 2)  # to the nearer end
        return jnp.where(dual < 0, near, width - near), jnp.where(dual < 0, width - near, near)

    def contains(self, values: Values) -> Bool[Array, ""]:
        return jnp.all((values > self.low) & (values < self.high))

    def dual(self, values: Values) -> Values:
        return 1 / (self.high - values) - 1 / (values - self.low)

    def primal(self, dual: Values) -> Values:
        s, t = self._distances(dual)
        theta = jnp.where(dual < 0, self.low + s, self.high - t)
        ends = jnp.nextafter(self.low, self.high), jnp.nextafter(self.high, self.low)
        inside = jnp.clip(theta, *ends)
        return jnp.where(jnp.isfinite(dual), inside, jnp.nan)

    def pull(self, dual: Values, gradient: Values) -> Values:
        s, t = self._distances(dual)
        return (s * t) ** 2 / (s**2 + t**2) * gradient

    def volume_gradient(self, dual: Values) -> Values:
        s, t = self._distances(dual)
        return 2 * s * t * (t**3 - s**3) / (s**2 + t**2) ** 2


MirrorMaps = MirrorMap | tuple[float, float] | Mapping[str, MirrorMap | tuple[float, float]]
"""A map of the whole position, or maps by the name of a parameter; (low, high): `LogBarrier`."""


class MirroredState(AbstractDynamicsState):
    """Position θ and its mirror image."""

    position: Vector
    dual: Vector  # y. Near a boundary it is known more accurately than θ.


class Mirrored(AbstractDynamics):
    """Mirrored Langevin dynamics on simplices and boxes.

    **Arguments:**

    - `mirrors`: mirror maps by the name of a parameter, or one for the whole flat position:
      `Entropic()` on a simplex, `LogBarrier(low, high)` in a box. A pair (low, high) is a
      `LogBarrier`. Parameters without a map are free.
    """

    paper = "Hsieh, Kavis, Rolland and Cevher (2018)"
    bias = (
        "The bias at fixed ε is of order ε if W has bounded derivatives, as it has with `Entropic` "
        "and a Dirichlet law. `LogBarrier` suits densities that vanish on the ends of the box."
    )
    cost = "The map costs O(d) per step, and a noise correction O(d³)."
    takes_geometry = False
    why_no_geometry = "whose mirror maps set the metric"

    mirrors: Any

    def __post_init__(self) -> None:
        example = "Entropic(), LogBarrier(low, high)"
        chosen = by_leaf("mirrors", self.mirrors, MirrorMap, LogBarrier, example)
        object.__setattr__(self, "mirrors", chosen)

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        mirrors = prepared_settings("mirrors", self.mirrors, posterior.layout, posterior.dtype)
        mirrors.check("init", np.asarray(posterior.init)[None])
        return {"mirrors": mirrors}

    def check_start(self, positions: Float[np.ndarray, "chains d"]) -> None:
        self.mirrors.check("start", positions)

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> MirroredState:
        return MirroredState(position, self.dual(position))

    def step(
        self, state: MirroredState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        dual = state.dual
        estimate = evaluate(state.position, None)
        gradient = self.pull(dual, estimate.gradient) - self.volume_gradient(dual)
        injected = reduced_noise(noise, self._in_dual(dual, estimate.noise), step_size / 4)
        move = jnp.sqrt(step_size) * injected.noise - step_size / 2 * gradient
        one = jnp.ones_like(dual)
        dual += self.mirrors.replaced(one, lambda mirror, of: mirror.free(state.dual[of])) * move
        moved = MirroredState(self.primal(dual), dual)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)

    # The maps of the whole position. Parameters without a map are their own dual.

    def dual(self, position: Vector) -> Vector:
        return self.mirrors.replaced(position, lambda mirror, of: mirror.dual(position[of]))

    def primal(self, dual: Vector) -> Vector:
        return self.mirrors.replaced(dual, lambda mirror, of: mirror.primal(dual[of]))

    def pull(self, dual: Vector, gradient: Vector) -> Vector:
        return self.mirrors.replaced(
            gradient, lambda mirror, of: mirror.pull(dual[of], gradient[of])
        )

    def volume_gradient(self, dual: Vector) -> Vector:
        zero = jnp.zeros_like(dual)
        return self.mirrors.replaced(zero, lambda mirror, of: mirror.volume_gradient(dual[of]))

    def _in_dual(self, dual: Vector, covariance: Covariance | None) -> Covariance | None:
        """J C Jᵀ, the covariance of the noise of ∇Ŵ."""
        if covariance is None:
            return None
        pull = jax.vmap(lambda row: self.pull(dual, row))
        full = jnp.diag(covariance) if covariance.ndim == 1 else covariance
        return pull(pull(full).T)

    def suggest(self, curvature: Curvature) -> Suggestion:
        chosen = self.mirrors.values() if isinstance(self.mirrors, dict) else [self.mirrors]
        bounds = [mirror.dual_curvature(curvature.largest) for mirror in chosen]
        largest = max([curvature.largest, *bounds] if isinstance(self.mirrors, dict) else bounds)
        rule = "0.2 / largest curvature in the mirror"
        step, rule = smaller_step(0.2 / largest, rule, curvature.noise_limit)
        between = curvature.condition / (step * largest)
        return Suggestion(step, rule, between, langevin_step=step)


@named("Hsieh, Kavis, Rolland and Cevher (2018)", example={"batch_size": 2, "mirrors": (-2.0, 2.0)})
def mirrored_sgld(
    step_size: StepSize, batch_size: Size, mirrors: MirrorMaps | None = None
) -> Method:
    """SGLD of the mirror image of parameters on simplices or in boxes.

    **Arguments:** those of `sgld`, and

    - `mirrors`: mirror maps by the name of a parameter, or one for the whole position:
      `Entropic()`, `LogBarrier(low, high)`, or a pair (low, high) for the latter.
      None constrains nothing.
    """
    chosen = Mirrored({} if mirrors is None else mirrors)
    return Method(dynamics=chosen, batch_size=batch_size, step_size=step_size)
