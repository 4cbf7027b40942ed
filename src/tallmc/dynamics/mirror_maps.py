"""Mirror maps: strictly convex h whose gradient maps the inside of a domain onto all of ℝᵏ.

    y = ∇h(θ),   θ = ∇h*(y),   J = ∂θ/∂y = (∇²h)⁻¹

    Entropic     h = Σ_k θ_k log θ_k             y_k = log(θ_k/θ_K),   θ = softmax(y)
    LogBarrier   h = −log(θ − a) − log(b − θ)    y = 1/(b − θ) − 1/(θ − a)

The simplex has K entries and K − 1 degrees of freedom: θ_K = 1 − Σ_{k<K} θ_k, and densities are
with respect to Lebesgue measure of the first K − 1. The dual vector is kept with K entries, of
which the last is zero. With e^{−W(y)} the density of y if that of θ is e^{−f(θ)},

    ∇W(y) = J (∇f(θ) + ∇ log det ∇²h(θ)) = J ∇f(θ) − ∇_y log det J(y)

    Entropic     ∇W_k = θ_k (∂_k f − Σ_j θ_j ∂_j f) − 1 + K θ_k
    LogBarrier   ∇W = J ∂f + 2st(s³ − t³)/(s² + t²)²,   J = s²t²/(s² + t²),  s = θ − a, t = b − θ
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..core.arrays import on_device
from ..core.errors import InvalidInput
from .domains import bounds_for, check_bounds
from .leaves import Leaf

_ROUNDING = 1e-4


class AbstractMirror(eqx.Module):
    """A mirror map prepared for the flat values of one parameter."""

    @abc.abstractmethod
    def contains(self, values: Float[Array, " k"]) -> Bool[Array, ""]:
        """Whether the values are inside of the domain, up to rounding."""

    @abc.abstractmethod
    def dual(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        """y = ∇h(θ)."""

    @abc.abstractmethod
    def primal(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        """θ = ∇h*(y), inside of the domain."""

    @abc.abstractmethod
    def pull(self, dual: Float[Array, " k"], gradient: Float[Array, " k"]) -> Float[Array, " k"]:
        """J g, the gradient with respect to y of a function whose gradient in θ is g."""

    @abc.abstractmethod
    def volume_gradient(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        """∇_y log det J(y)."""

    @abc.abstractmethod
    def free(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        """One for every entry of y that may move, else zero."""


class EntropicMirror(AbstractMirror):
    """The entropic map of vectors that lie on simplices, one after the other."""

    classes: int = eqx.field(static=True)
    """K."""

    def _rows(self, values: Float[Array, " k"]) -> Float[Array, "n K"]:
        return values.reshape(-1, self.classes)

    def contains(self, values: Float[Array, " k"]) -> Bool[Array, ""]:
        return jnp.all(values > 0) & jnp.all(jnp.abs(self._rows(values).sum(1) - 1) <= _ROUNDING)

    def dual(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        logs = jnp.log(self._rows(values))
        return (logs - logs[:, -1:]).ravel()

    def primal(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        # θ must not underflow: gradients of log θ would not be finite.
        smallest = math.sqrt(jnp.finfo(dual.dtype).tiny)
        return jnp.maximum(jax.nn.softmax(self._rows(dual), axis=1), smallest).ravel()

    def pull(self, dual: Float[Array, " k"], gradient: Float[Array, " k"]) -> Float[Array, " k"]:
        theta = self._rows(self.primal(dual))
        weighted = theta * self._rows(gradient)
        return (weighted - theta * weighted.sum(1, keepdims=True)).ravel() * self.free(dual)

    def volume_gradient(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        return (1 - self.classes * self.primal(dual)) * self.free(dual)

    def free(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        return jnp.ones_like(self._rows(dual)).at[:, -1].set(0).ravel()


class LogBarrierMirror(AbstractMirror):
    """The logarithmic barrier of a box, entry by entry."""

    low: Float[Array, " k"]
    high: Float[Array, " k"]

    def _distances(self, dual: Float[Array, " k"]) -> tuple[Array, Array]:
        """s = θ − a and t = b − θ, each accurate where it is small."""
        width = self.high - self.low
        scaled = jnp.abs(width * dual)
        root = jnp.sqrt(scaled**2 + 4)
        near = width * (1 + 2 / (root + scaled)) / (root + 2)  # to the nearer end
        return jnp.where(dual < 0, near, width - near), jnp.where(dual < 0, width - near, near)

    def contains(self, values: Float[Array, " k"]) -> Bool[Array, ""]:
        return jnp.all((values > self.low) & (values < self.high))

    def dual(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        return 1 / (self.high - values) - 1 / (values - self.low)

    def primal(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        s, t = self._distances(dual)
        theta = jnp.where(dual < 0, self.low + s, self.high - t)
        inside = jnp.clip(
            theta, jnp.nextafter(self.low, self.high), jnp.nextafter(self.high, self.low)
        )
        return jnp.where(jnp.isfinite(dual), inside, jnp.nan)

    def _slope(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        s, t = self._distances(dual)
        return (s * t) ** 2 / (s**2 + t**2)

    def pull(self, dual: Float[Array, " k"], gradient: Float[Array, " k"]) -> Float[Array, " k"]:
        return self._slope(dual) * gradient

    def volume_gradient(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        s, t = self._distances(dual)
        return 2 * s * t * (t**3 - s**3) / (s**2 + t**2) ** 2

    def free(self, dual: Float[Array, " k"]) -> Float[Array, " k"]:
        return jnp.ones_like(dual)


class MirrorMap(abc.ABC):
    """A choice of h for one parameter.

    >>> import tallmc
    >>> issubclass(tallmc.dynamics.Entropic, tallmc.dynamics.MirrorMap)
    True
    """

    @abc.abstractmethod
    def prepare(self, leaf: Leaf, dtype: Any) -> AbstractMirror:
        """The map for the values of `leaf`; raises if it does not fit them."""

    @abc.abstractmethod
    def dual_curvature(self, largest: float) -> float:
        """A bound on ∇²W where the Hessian of f is at most `largest`."""


@dataclasses.dataclass(frozen=True)
class Entropic(MirrorMap):
    """The entropic map of a simplex: the last axis of the parameter sums to one.

    The density is with respect to Lebesgue measure of all entries but the last.

    >>> import tallmc
    >>> tallmc.dynamics.Entropic()
    Entropic()
    """

    def prepare(self, leaf: Leaf, dtype: Any) -> EntropicMirror:
        if not leaf.shape or leaf.shape[-1] < 2:
            rule = f"have at least two entries on its last axis with {self!r}"
            raise InvalidInput(f"parameter {leaf.label}", rule, f"shape {leaf.shape}")
        return EntropicMirror(leaf.shape[-1])

    def dual_curvature(self, largest: float) -> float:
        # No eigenvalue of diag(θ) − θθᵀ exceeds ½.
        return largest / 4


@dataclasses.dataclass(frozen=True)
class LogBarrier(MirrorMap):
    """The logarithmic barrier of a box.

    **Arguments:**

    - `low`: lower bounds, a number or an array of the shape of the parameter.
    - `high`: upper bounds, likewise.

    **Raises:** `InvalidInput` unless the bounds are finite and `low` is below `high`.

    >>> import tallmc
    >>> tallmc.dynamics.LogBarrier(0.0, 1.0)
    LogBarrier(low=0.0, high=1.0)
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

    def prepare(self, leaf: Leaf, dtype: Any) -> LogBarrierMirror:
        low, high = bounds_for(self, leaf)
        return LogBarrierMirror(on_device(low, dtype), on_device(high, dtype))

    def dual_curvature(self, largest: float) -> float:
        # J ≤ w²/8 and −∂² log J ≤ 3w²/8, both in the middle of the box.
        width = float(np.max(np.asarray(self.high) - np.asarray(self.low)))
        return largest * (width**2 / 8) ** 2 + 3 * width**2 / 8
