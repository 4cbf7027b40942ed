"""Domains that a position stays in: boxes and half-spaces, with projection and reflection.

    Box         {θ : a_j ≤ θ_j ≤ b_j}   Π(x)_j = min(max(x_j, a_j), b_j)
                                        R(x)_j = x_j folded: mirrored at a_j and b_j until inside
    HalfSpace   {θ : nᵀθ ≤ b}           Π(x) = x − (nᵀx − b)₊ n/‖n‖²
                                        R(x) = x − 2 (nᵀx − b)₊ n/‖n‖²

Ends of a box may be infinite. Values that are not finite stay so, which ends their chain.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..core.arrays import check_numeric, on_device
from ..core.errors import InvalidInput, check_number
from ..core.layout import Layout
from .leaves import Leaf, by_leaf, leaves_with

_ROUNDING = 1e-5


class AbstractRegion(eqx.Module):
    """A domain prepared for the flat values of one parameter."""

    @abc.abstractmethod
    def project(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        """Π: the nearest point of the domain."""

    @abc.abstractmethod
    def reflect(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        """R: the values, mirrored at the boundary until they are inside."""

    @abc.abstractmethod
    def contains(self, values: Float[Array, " k"]) -> Bool[Array, ""]:
        """Whether the values are in the domain, up to rounding."""


class BoxRegion(AbstractRegion):
    """A box, entry by entry."""

    low: Float[Array, " k"]
    high: Float[Array, " k"]

    def project(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        return jnp.where(jnp.isfinite(values), jnp.clip(values, self.low, self.high), values)

    def reflect(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        above, below = jnp.isfinite(self.low), jnp.isfinite(self.high)
        low = jnp.where(above, self.low, 0)
        high = jnp.where(below, self.high, low + 1)
        width = jnp.where(above & below, high - low, 1)
        beyond = jnp.mod(values - low, 2 * width)
        folded = low + jnp.minimum(beyond, 2 * width - beyond)
        from_low, from_high = low + jnp.abs(values - low), high - jnp.abs(high - values)
        inside = jnp.where(
            above & below, folded, jnp.where(above, from_low, jnp.where(below, from_high, values))
        )
        return self.project(inside)

    def contains(self, values: Float[Array, " k"]) -> Bool[Array, ""]:
        return jnp.all((values >= self.low) & (values <= self.high))


class HalfSpaceRegion(AbstractRegion):
    """A half-space whose normal has length one."""

    normal: Float[Array, " k"]
    offset: Float[Array, ""]

    def _excess(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        return jnp.maximum(jnp.sum(self.normal * values) - self.offset, 0) * self.normal

    def project(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        return values - self._excess(values)

    def reflect(self, values: Float[Array, " k"]) -> Float[Array, " k"]:
        return values - 2 * self._excess(values)

    def contains(self, values: Float[Array, " k"]) -> Bool[Array, ""]:
        scale = jnp.abs(self.offset) + jnp.sum(jnp.abs(self.normal * values))
        return jnp.sum(self.normal * values) - self.offset <= _ROUNDING * scale


class Domain(abc.ABC):
    """A set of allowed values of a parameter.

    >>> import tallmc
    >>> issubclass(tallmc.dynamics.Box, tallmc.dynamics.Domain)
    True
    """

    @abc.abstractmethod
    def prepare(self, leaf: Leaf, dtype: Any) -> AbstractRegion:
        """The domain for the values of `leaf`; raises if it does not fit them."""


@dataclasses.dataclass(frozen=True)
class Box(Domain):
    """Lower and upper bounds, entry by entry.

    **Arguments:**

    - `low`: lower bounds, a number or an array of the shape of the parameter. May be −∞.
    - `high`: upper bounds, likewise. May be ∞.

    **Raises:** `InvalidInput` if a lower bound is not below its upper bound.

    >>> import tallmc
    >>> tallmc.dynamics.Box(low=0.0)
    Box(low=0.0, high=inf)
    """

    low: Any = -math.inf
    high: Any = math.inf

    def __post_init__(self) -> None:
        check_bounds(self)

    def prepare(self, leaf: Leaf, dtype: Any) -> BoxRegion:
        low, high = bounds_for(self, leaf)
        return BoxRegion(on_device(low, dtype), on_device(high, dtype))


@dataclasses.dataclass(frozen=True)
class HalfSpace(Domain):
    """The points θ with nᵀθ ≤ b.

    **Arguments:**

    - `normal`: n, one number per entry of the parameter. It points out of the domain.
    - `offset`: b.

    **Raises:** `InvalidInput` if `normal` is zero or not finite, or `offset` is not finite.

    The first entry is at most the second:

    >>> import tallmc
    >>> tallmc.dynamics.HalfSpace(normal=[1.0, -1.0], offset=0.0)
    HalfSpace(normal=(1.0, -1.0), offset=0.0)
    """

    normal: Any
    offset: float

    def __post_init__(self) -> None:
        normal = np.asarray(check_numeric("normal", self.normal), np.float64)
        if not np.isfinite(normal).all() or not np.linalg.norm(normal) > 0:
            rule = "be finite and not zero: it is orthogonal to the boundary"
            raise InvalidInput("normal", rule, self.normal)
        object.__setattr__(self, "normal", as_tuples(normal))
        object.__setattr__(self, "offset", check_number("offset", self.offset))

    def prepare(self, leaf: Leaf, dtype: Any) -> HalfSpaceRegion:
        normal = np.asarray(self.normal, np.float64)
        if normal.shape != leaf.shape:
            rule = f"have the shape of {leaf.label}, {leaf.shape}"
            raise InvalidInput("normal", rule, f"shape {normal.shape}")
        length = np.linalg.norm(normal)
        return HalfSpaceRegion(
            on_device(normal.ravel() / length, dtype), on_device(self.offset / length, dtype)
        )


def check_bounds(part: Any) -> None:
    """Raise unless `part.low` < `part.high`; replace arrays by tuples, which can be compared."""
    low, high = (
        np.asarray(check_numeric(name, getattr(part, name)), np.float64) for name in ("low", "high")
    )
    try:
        ordered = bool(np.all(low < high))
    except ValueError:
        raise InvalidInput("high", f"fit the shape of low, {low.shape}", high.shape) from None
    if not ordered:
        raise InvalidInput("low", f"be below high = {part.high!r}", part.low)
    object.__setattr__(part, "low", as_tuples(low))
    object.__setattr__(part, "high", as_tuples(high))


def bounds_for(part: Any, leaf: Leaf) -> tuple[np.ndarray, np.ndarray]:
    """Flat lower and upper bounds of every entry of the leaf."""
    found = []
    for name in ("low", "high"):
        bound = np.asarray(getattr(part, name), np.float64)
        if bound.shape not in ((), leaf.shape):
            rule = f"be a number or have the shape of {leaf.label}, {leaf.shape}"
            raise InvalidInput(name, rule, f"shape {bound.shape}")
        found.append(np.broadcast_to(bound, leaf.shape).ravel())
    return found[0], found[1]


def as_tuples(array: np.ndarray) -> Any:
    """A number, or nested tuples of numbers."""
    return float(array) if array.ndim == 0 else tuple(as_tuples(entry) for entry in array)


Within = Domain | tuple[float, float] | Mapping[str, Domain | tuple[float, float]]
"""A domain of the whole position, or domains by the name of a parameter; (low, high) is a box."""


class Regions(eqx.Module):
    """The domains of all parameters. Parameters without one are free."""

    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    regions: tuple[AbstractRegion, ...]

    def project(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """Π, parameter by parameter."""
        for leaf, region in zip(self.leaves, self.regions, strict=True):
            position = position.at[leaf.start : leaf.stop].set(region.project(_of(leaf, position)))
        return position

    def reflect(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """R, parameter by parameter."""
        for leaf, region in zip(self.leaves, self.regions, strict=True):
            position = position.at[leaf.start : leaf.stop].set(region.reflect(_of(leaf, position)))
        return position

    def check(self, parameter: str, positions: Float[Any, "chains d"]) -> None:
        """Raise unless all positions are in the domains."""
        for leaf, region in zip(self.leaves, self.regions, strict=True):
            for position in np.asarray(positions):
                values = jnp.asarray(_of(leaf, position))
                if not bool(region.contains(values)):
                    raise outside(parameter, leaf, values)


def outside(parameter: str, leaf: Leaf, values: Any) -> InvalidInput:
    """The error about a position that is not in its domain."""
    return InvalidInput(
        f"{parameter}, parameter {leaf.label}",
        "lie in its domain",
        np.asarray(values).reshape(leaf.shape),
        "Chains start at `start`, else at the anchor, else at init. "
        "With an anchor, pass anchor=tallmc.laplace(posterior, at=...) with parameters inside.",
    )


def _of(leaf: Leaf, position: Any) -> Any:
    return position[leaf.start : leaf.stop]


def checked_within(given: Any) -> Any:
    """The argument `within` with pairs replaced by boxes; raises if it is something else."""
    return by_leaf("within", given, Domain, Box, "Box(low, high), HalfSpace(normal, offset)")


def regions_of(within: Any, layout: Layout, dtype: Any) -> Regions:
    """The domains prepared for positions of this layout."""
    pairs = leaves_with("within", within, layout)
    return Regions(
        tuple(leaf for leaf, _ in pairs),
        tuple(domain.prepare(leaf, dtype) for leaf, domain in pairs),
    )
