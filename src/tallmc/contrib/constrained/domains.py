"""Domains that a position stays in: boxes and half-spaces, with projection and reflection.

    Box         {θ : a_j ≤ θ_j ≤ b_j}   Π(x)_j = min(max(x_j, a_j), b_j)
                                        R(x)_j = x_j folded: mirrored at a_j and b_j until inside
    HalfSpace   {θ : nᵀθ ≤ b}           Π(x) = x − (nᵀx − b)₊ n/‖n‖²
                                        R(x) = x − 2 (nᵀx − b)₊ n/‖n‖²

Ends of a box may be infinite. Values that are not finite stay so, which ends their chain.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._core.arrays import Layout, Vector, check_numeric, on_device
from ..._core.errors import InvalidInput, check_number
from ..._core.part import Part

Values = Float[Array, " k"]  # The flat values of one parameter
_ROUNDING = 1e-5


class Leaf(NamedTuple):
    """A stretch of the flat position: one parameter, or all of them."""

    label: str
    start: int
    stop: int
    shape: tuple[int, ...]


class Settings(eqx.Module):
    """Domains or mirror maps prepared for the parameters that have one."""

    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    parts: tuple[Any, ...]

    def replaced(self, position: Vector, value: Callable[[Any, slice], Values]) -> Vector:
        """The position with `value(part, stretch)` in place of every stretch that has a part."""
        for leaf, part in zip(self.leaves, self.parts, strict=True):
            stretch = slice(leaf.start, leaf.stop)
            position = position.at[stretch].set(value(part, stretch))
        return position

    def check(self, parameter: str, positions: Float[Any, "chains d"]) -> None:
        """Raise unless all positions are in the domains."""
        for leaf, part in zip(self.leaves, self.parts, strict=True):
            for position in np.asarray(positions):
                values = position[leaf.start : leaf.stop]
                if not bool(part.contains(jnp.asarray(values))):
                    raise InvalidInput(
                        f"{parameter}, parameter {leaf.label}",
                        "lie in its domain",
                        values.reshape(leaf.shape),
                        "Chains start at `start`, else at the anchor, else at init. With an anchor,"
                        " pass anchor=find_anchor(posterior, at=...) with parameters inside.",
                    )


def prepared_settings(parameter: str, given: Any, layout: Layout, dtype: Any) -> Settings:
    """The settings of the stretches of the position that `given` names.

    `given` has parts by the name of a leaf, or is one part for the whole position.
    """
    if not isinstance(given, Mapping):
        leaf = Leaf("position", 0, layout.dim, (layout.dim,))
        return Settings((leaf,), (given.prepare(leaf, dtype),))
    unknown = sorted(set(given) - set(layout.names))
    if unknown:
        rule = f"name parameters of the posterior ({', '.join(layout.names)})"
        raise InvalidInput(parameter, rule, unknown[0])
    leaves, start = [], 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        stop = start + math.prod(shape)
        if name in given:
            leaves.append(Leaf(name, start, stop, shape))
        start = stop
    return Settings(tuple(leaves), tuple(given[leaf.label].prepare(leaf, dtype) for leaf in leaves))


def by_leaf(parameter: str, given: Any, kind: type, of_pair: Any, example: str) -> Any:
    """The settings with pairs of numbers replaced by `of_pair(low, high)`; raises for others."""
    if isinstance(given, Mapping):
        return {
            str(name): by_leaf(f"{parameter}[{name!r}]", value, kind, of_pair, example)
            for name, value in given.items()
        }
    if isinstance(given, tuple | list) and len(given) == 2:
        return of_pair(*given)
    if not isinstance(given, kind):
        rule = f"be {example}, a pair (low, high), or a dict of them by the name of a parameter"
        raise InvalidInput(parameter, rule, given)
    return given


class Domain(Part, eqx.Module):
    """A set of allowed values of a parameter."""

    @abc.abstractmethod
    def prepare(self, leaf: Leaf, dtype: Any) -> Self:
        """The domain for the flat values of `leaf`; raises if it does not fit them."""

    @abc.abstractmethod
    def project(self, values: Values) -> Values:
        """Π: the nearest point of the domain."""

    @abc.abstractmethod
    def reflect(self, values: Values) -> Values:
        """R: the values, mirrored at the boundary until they are inside."""

    @abc.abstractmethod
    def contains(self, values: Values) -> Bool[Array, ""]:
        """Whether the values are in the domain, up to rounding."""


class Box(Domain):
    """Lower and upper bounds, entry by entry.

    **Arguments:**

    - `low`: lower bounds, a number or an array of the shape of the parameter. May be −∞.
    - `high`: upper bounds, likewise. May be ∞.
    """

    low: Any = -math.inf
    high: Any = math.inf

    def __post_init__(self) -> None:
        check_bounds(self)

    def prepare(self, leaf: Leaf, dtype: Any) -> Self:
        return with_flat_bounds(self, leaf, dtype)

    def project(self, values: Values) -> Values:
        return jnp.where(jnp.isfinite(values), jnp.clip(values, self.low, self.high), values)

    def reflect(self, values: Values) -> Values:
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

    def contains(self, values: Values) -> Bool[Array, ""]:
        return jnp.all((values >= self.low) & (values <= self.high))


class HalfSpace(Domain):
    """The points θ with nᵀθ ≤ b.

    **Arguments:**

    - `normal`: n, one number per entry of the parameter. It points out of the domain.
    - `offset`: b.
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

    def prepare(self, leaf: Leaf, dtype: Any) -> Self:
        """The half-space with a normal of length one."""
        normal = np.asarray(self.normal, np.float64)
        if normal.shape != leaf.shape:
            rule = f"have the shape of {leaf.label}, {leaf.shape}"
            raise InvalidInput("normal", rule, f"shape {normal.shape}")
        length = np.linalg.norm(normal)
        return self._with(
            normal=on_device(normal.ravel() / length, dtype),
            offset=on_device(self.offset / length, dtype),
        )

    def _excess(self, values: Values) -> Values:
        return jnp.maximum(jnp.sum(self.normal * values) - self.offset, 0) * self.normal

    def project(self, values: Values) -> Values:
        return values - self._excess(values)

    def reflect(self, values: Values) -> Values:
        return values - 2 * self._excess(values)

    def contains(self, values: Values) -> Bool[Array, ""]:
        scale = jnp.abs(self.offset) + jnp.sum(jnp.abs(self.normal * values))
        return jnp.sum(self.normal * values) - self.offset <= _ROUNDING * scale


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


def with_flat_bounds(part: Any, leaf: Leaf, dtype: Any) -> Any:
    """The part with a lower and an upper bound for every entry of the leaf, as flat arrays."""
    found = {}
    for name in ("low", "high"):
        bound = np.asarray(getattr(part, name), np.float64)
        if bound.shape not in ((), leaf.shape):
            rule = f"be a number or have the shape of {leaf.label}, {leaf.shape}"
            raise InvalidInput(name, rule, f"shape {bound.shape}")
        found[name] = on_device(np.broadcast_to(bound, leaf.shape).ravel(), dtype)
    return part._with(**found)


def as_tuples(array: np.ndarray) -> Any:
    """A number, or nested tuples of numbers."""
    return float(array) if array.ndim == 0 else tuple(as_tuples(entry) for entry in array)


Within = Domain | tuple[float, float] | Mapping[str, Domain | tuple[float, float]]
"""A domain of the whole position, or domains by the name of a parameter; (low, high) is a box."""
