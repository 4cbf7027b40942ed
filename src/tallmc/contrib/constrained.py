"""Langevin dynamics whose positions stay in boxes, half-spaces or simplices."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._core.arrays import Layout, Scalar, Vector, check_numeric, on_device
from .._core.errors import InvalidInput, check_number
from .._core.part import Part
from ..correction import Covariance
from ..dynamics.dynamics import (
    AbstractDynamics,
    AbstractDynamicsState,
    Curvature,
    DynamicsStep,
    Evaluate,
    PositionState,
    Suggestion,
    reduced_noise,
)
from ..dynamics.langevin import Langevin
from ..methods.method import Method, Size, StepSize
from ..methods.registry import named
from ..models.posterior import AbstractPosterior

__all__ = [
    "Box",
    "Domain",
    "Entropic",
    "HalfSpace",
    "LogBarrier",
    "MirrorMap",
    "Mirrored",
    "Projected",
    "Reflected",
    "mirrored_sgld",
    "projected_sgld",
    "reflected_sgld",
]

# Domains that a position stays in: boxes and half-spaces, with projection and reflection.
#
#     Box         {θ : a_j ≤ θ_j ≤ b_j}   Π(x)_j = min(max(x_j, a_j), b_j)
#                                         R(x)_j = x_j folded: mirrored at a_j and b_j until inside
#     HalfSpace   {θ : nᵀθ ≤ b}           Π(x) = x − (nᵀx − b)₊ n/‖n‖²
#                                         R(x) = x − 2 (nᵀx − b)₊ n/‖n‖²
#
# Ends of a box may be infinite. Values that are not finite stay so, which ends their chain.

Values = Float[Array, " k"]  # The flat values of one parameter
_PLANE_ROUNDING, _SUM_ROUNDING = 1e-5, 1e-4


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
        return jnp.sum(self.normal * values) - self.offset <= _PLANE_ROUNDING * scale


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


_STEP_PER_CURVATURE = 0.01
"""At this ελ the boundary seems 0.06 posterior standard deviations too far out."""


class Reflected(Langevin):
    """Reflected Langevin dynamics in boxes and half-spaces.

        θ' = R(θ − (ε/2) ∇f̂(θ) + √ε η),   η ~ N(0, I)

    R folds a value into a box, and mirrors a point at the plane that bounds a half-space. The
    target is exp(−f) restricted to the domain, whose gradient must be finite on the boundary. The
    statistic `at_boundary` tells which steps left the domain. This is the symmetrised Euler scheme
    (Bossy, Gobet and Talay, 2004) of Langevin dynamics that are reflected at the boundary. If ∇f is
    orthogonal to the boundary's normal there, the chain is that of the even continuation of f,
    folded.

    **Arguments:**

    - `within`: domains by the name of a parameter, or one domain for the whole flat position:
      `Box(low, high)`, or `HalfSpace(normal, offset)`. A pair (low, high) is a box. Parameters
      without a domain are free.
    """

    paper = "Bossy, Gobet and Talay (2004)"
    bias = (
        "The bias at fixed ε is of order ε, as in Langevin dynamics without constraints, and the "
        "law has a density: no draw lies on the boundary."
    )
    cost = "A reflection costs O(d) per step."
    takes_geometry = False
    why_no_geometry = "whose domains have their boundaries in the coordinates of the parameters"
    has_transition = False

    within: Any

    def __post_init__(self) -> None:
        example = "Box(low, high), HalfSpace(normal, offset)"
        object.__setattr__(self, "within", by_leaf("within", self.within, Domain, Box, example))

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        within = prepared_settings("within", self.within, posterior.layout, posterior.dtype)
        within.check("init", np.asarray(posterior.init)[None])
        return {"within": within}

    def check_start(self, positions: Float[np.ndarray, "chains d"]) -> None:
        self.within.check("start", positions)

    def step(
        self, state: PositionState, evaluate: Evaluate, step_size: Scalar, noise: Vector
    ) -> DynamicsStep:
        moved = super().step(state, evaluate, step_size, noise)
        free = moved.state.position
        hit = jnp.any(self._projected(free) != free).astype(free.dtype)
        stats = {**moved.stats, "at_boundary": hit}
        return moved._replace(state=PositionState(self._inside(free)), stats=stats)

    def _projected(self, free: Vector) -> Vector:
        return self.within.replaced(free, lambda domain, of: domain.project(free[of]))

    def _inside(self, free: Vector) -> Vector:
        return self.within.replaced(free, lambda domain, of: domain.reflect(free[of]))


class Projected(Reflected):
    """Projected Langevin dynamics in boxes and half-spaces: Π takes the nearest point.

        θ' = Π(θ − (ε/2) ∇f̂(θ) + √ε η),   η ~ N(0, I)

    Projection (Bubeck, Eldan and Lehec, 2018; Brosse et al., 2017) puts a share of the draws of
    order √ε exactly on the boundary. Near a flat boundary the chain behaves as if the boundary were
    0.58 √ε farther out, and its draws from there were moved back onto it (0.58 = −ζ(½)/√2π;
    Asmussen, Glynn and Pitman, 1995). `Reflected` is more accurate at the same cost, so projection
    is rarely the better choice. Pairs of chains at ε and ε/2 measure the bias by its order.

    `within` is as in `Reflected`.
    """

    paper = "Bubeck, Eldan and Lehec (2018)"
    bias = (
        "The bias at fixed ε is of order √ε wherever the density on the boundary is positive, and "
        "there the law has atoms."
    )
    bias_order = 0.5
    cost = "A projection costs O(d) per step."

    def _inside(self, free: Vector) -> Vector:
        return self._projected(free)

    def suggest(self, curvature: Curvature) -> Suggestion:
        rule = f"{_STEP_PER_CURVATURE} / largest curvature: the bias is of order √ε"
        step, rule = curvature.within_noise(_STEP_PER_CURVATURE / curvature.largest, rule)
        return Suggestion(step, rule, 1 / (step * curvature.smallest), langevin_step=step)


@named("Bubeck, Eldan and Lehec (2018)", example={"batch_size": 2, "within": (-2.0, 2.0)})
def projected_sgld(step_size: StepSize, batch_size: Size, within: Within | None = None) -> Method:
    """SGLD whose steps are projected onto boxes or half-spaces.

    **Arguments:** those of `sgld`, and

    - `within`: domains by the name of a parameter, or one for the whole position:
      `Box(low, high)`, a pair (low, high), or `HalfSpace(normal, offset)`. None
      constrains nothing.
    """
    chosen = Projected({} if within is None else within)
    return Method(dynamics=chosen, batch_size=batch_size, step_size=step_size)


@named("Bossy, Gobet and Talay (2004)", example={"batch_size": 2, "within": (-2.0, 2.0)})
def reflected_sgld(step_size: StepSize, batch_size: Size, within: Within | None = None) -> Method:
    """SGLD whose steps are reflected at the boundaries of boxes or half-spaces.

    `within` is as in `projected_sgld`, the other arguments as in `sgld`.
    """
    chosen = Reflected({} if within is None else within)
    return Method(dynamics=chosen, batch_size=batch_size, step_size=step_size)


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
        return jnp.all(values > 0) & jnp.all(
            jnp.abs(self._rows(values).sum(1) - 1) <= _SUM_ROUNDING
        )

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
    """Mirrored Langevin dynamics: Langevin dynamics of y = ∇h(θ), which has no constraint.

        y' = y − (ε/2) ∇Ŵ(y) + √ε η,   η ~ N(0, I),   θ' = ∇h*(y')
        ∇Ŵ(y) = (∇²h(θ))⁻¹ (∇f̂(θ) + ∇ log det ∇²h(θ))

    e^{−W} is the law of y if that of θ is e^{−f} (Hsieh et al., 2018, whose step size is ε/2). ∇Ŵ
    is unbiased if ∇f̂ is. Parameters without a mirror map have y = θ. A noise correction uses
    J Cov(∇f̂) J with J = (∇²h)⁻¹.

    With `Entropic` and a Dirichlet law W has bounded derivatives: ∇W = α₀θ − α, and the means are
    exact at any ε, with subsampled rows, too. With `LogBarrier` y has heavy tails. Where the
    density of θ is positive on an end of the box, that of y falls as 1/y² only. Chains then stay at
    this end for very long. `LogBarrier` suits densities that vanish on the ends of the box. For
    others reflect, or use a transform.

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
        step, rule = curvature.within_noise(0.2 / largest, rule)
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
