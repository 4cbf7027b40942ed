"""Mirrored Langevin dynamics: Langevin dynamics of y = ∇h(θ), which has no constraint.

    y' = y − (ε/2) ∇Ŵ(y) + √ε η,   η ~ N(0, I),   θ' = ∇h*(y')
    ∇Ŵ(y) = (∇²h(θ))⁻¹ (∇f̂(θ) + ∇ log det ∇²h(θ))

e^{−W} is the law of y if that of θ is e^{−f} (Hsieh et al., 2018, whose step size is ε/2). ∇Ŵ is
unbiased if ∇f̂ is. Parameters without a mirror map have y = θ. The map costs O(d) per step. A noise
correction uses J Cov(∇f̂) J with J = (∇²h)⁻¹, and costs O(d³).

The bias at fixed ε is of order ε if W has bounded derivatives, as it has with `Entropic` and a
Dirichlet law: ∇W = α₀θ − α, and the means are exact at any ε, with subsampled rows, too. With
`LogBarrier` y has heavy tails. Where the density of θ is positive on an end of the box, that of y
falls as 1/y² only. Chains then stay at this end for very long. `LogBarrier` suits densities that
vanish on the ends of the box. For others reflect, or use a transform.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.layout import Layout
from ..correction import reduced_noise
from ..correction.base import Covariance
from .base import (
    AbstractDiffusion,
    AbstractDynamicsState,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
    smaller_step,
)
from .domains import outside
from .leaves import Leaf, by_leaf, leaves_with
from .mirror_maps import AbstractMirror, LogBarrier, MirrorMap

MirrorMaps = MirrorMap | tuple[float, float] | Mapping[str, MirrorMap | tuple[float, float]]
"""A map of the whole position, or maps by the name of a parameter; (low, high): `LogBarrier`."""


class Mirrors(eqx.Module):
    """The mirror maps of all parameters. Those without one are their own dual."""

    leaves: tuple[Leaf, ...] = eqx.field(static=True)
    maps: tuple[AbstractMirror, ...]

    def _replaced(self, position: Float[Array, " d"], value: Any) -> Float[Array, " d"]:
        """The position with `value(map, stretch)` in place of every stretch that has a map."""
        for leaf, mirror in zip(self.leaves, self.maps, strict=True):
            stretch = slice(leaf.start, leaf.stop)
            position = position.at[stretch].set(value(mirror, stretch))
        return position

    def dual(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """y = ∇h(θ)."""
        return self._replaced(position, lambda mirror, of: mirror.dual(position[of]))

    def primal(self, dual: Float[Array, " d"]) -> Float[Array, " d"]:
        """θ = ∇h*(y)."""
        return self._replaced(dual, lambda mirror, of: mirror.primal(dual[of]))

    def pull(self, dual: Float[Array, " d"], gradient: Float[Array, " d"]) -> Float[Array, " d"]:
        """J g."""
        return self._replaced(gradient, lambda mirror, of: mirror.pull(dual[of], gradient[of]))

    def volume_gradient(self, dual: Float[Array, " d"]) -> Float[Array, " d"]:
        """∇_y log det J(y)."""
        zero = jnp.zeros_like(dual)
        return self._replaced(zero, lambda mirror, of: mirror.volume_gradient(dual[of]))

    def free(self, dual: Float[Array, " d"]) -> Float[Array, " d"]:
        """One for every entry of y that may move, else zero."""
        return self._replaced(jnp.ones_like(dual), lambda mirror, of: mirror.free(dual[of]))

    def check(self, parameter: str, positions: Float[Any, "chains d"]) -> None:
        """Raise unless all positions are inside of the domains."""
        for leaf, mirror in zip(self.leaves, self.maps, strict=True):
            for position in np.asarray(positions):
                values = jnp.asarray(position[leaf.start : leaf.stop])
                if not bool(mirror.contains(values)):
                    raise outside(parameter, leaf, values)


class MirroredState(AbstractDynamicsState):
    """Position θ and its mirror image."""

    position: Float[Array, " d"]
    dual: Float[Array, " d"]
    """y. Near a boundary it is known more accurately than θ."""


class MirroredDynamics(AbstractDiffusion):
    """Mirrored Langevin dynamics prepared for one posterior.

    **Arguments:**

    - `mirrors`: the mirror maps of the parameters.

    >>> import tallmc
    >>> tallmc.dynamics.MirroredDynamics.evaluates_at_start
    False
    """

    mirrors: Mirrors
    evaluates_at_start = False

    def check_start(self, positions: Float[np.ndarray, "chains d"]) -> None:
        self.mirrors.check("start", positions)

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> MirroredState:
        return MirroredState(position, self.mirrors.dual(position))

    def step(
        self,
        state: MirroredState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
    ) -> DynamicsStep:
        mirrors, dual = self.mirrors, state.dual
        estimate = evaluate(state.position, None)
        gradient = mirrors.pull(dual, estimate.gradient) - mirrors.volume_gradient(dual)
        injected = reduced_noise(noise, self._in_dual(dual, estimate.noise), step_size / 4)
        move = jnp.sqrt(step_size) * injected.noise - step_size / 2 * gradient
        dual = dual + mirrors.free(dual) * move
        moved = MirroredState(mirrors.primal(dual), dual)
        return DynamicsStep(moved, estimate, injected.stats, injected.outcome)

    def _in_dual(
        self, dual: Float[Array, " d"], covariance: Covariance | None
    ) -> Covariance | None:
        """J C Jᵀ, the covariance of the noise of ∇Ŵ."""
        if covariance is None:
            return None
        pull = jax.vmap(lambda row: self.mirrors.pull(dual, row))
        full = jnp.diag(covariance) if covariance.ndim == 1 else covariance
        return pull(pull(full).T)


@dataclasses.dataclass(frozen=True)
class Mirrored(DynamicsChoice):
    """Mirrored Langevin dynamics on simplices and boxes.

    **Arguments:**

    - `mirrors`: mirror maps by the name of a parameter, or one for the whole flat position:
      `Entropic()` on a simplex, `LogBarrier(low, high)` in a box. A pair (low, high) is a
      `LogBarrier`. Parameters without a map are free.

    **Raises:** `InvalidInput` if `mirrors` is something else, or, when it is prepared, does not fit
    the posterior or its `init`.

    >>> import tallmc
    >>> tallmc.dynamics.Mirrored(mirrors={"weights": tallmc.dynamics.Entropic()})
    Mirrored(mirrors={'weights': Entropic()})
    """

    mirrors: Any
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = False
    why_no_geometry = "whose mirror maps set the metric"
    corrects_through = ("noise",)
    has_transition = False

    def __post_init__(self) -> None:
        example = "Entropic(), LogBarrier(low, high)"
        chosen = by_leaf("mirrors", self.mirrors, MirrorMap, LogBarrier, example)
        object.__setattr__(self, "mirrors", chosen)

    def suggest(self, curvature: Curvature) -> Suggestion:
        chosen = self.mirrors.values() if isinstance(self.mirrors, dict) else [self.mirrors]
        bounds = [mirror.dual_curvature(curvature.largest) for mirror in chosen]
        largest = max([curvature.largest, *bounds] if isinstance(self.mirrors, dict) else bounds)
        step, rule = smaller_step(
            0.2 / largest, "0.2 / largest curvature in the mirror", curvature.noise_limit
        )
        between = curvature.condition / (step * largest)
        return Suggestion(step, rule, between, langevin_step=step)

    def prepare(self, context: DynamicsContext) -> MirroredDynamics:
        posterior = context.posterior
        mirrors = mirrors_of(self.mirrors, posterior.layout, posterior.dtype)
        mirrors.check("init", np.asarray(posterior.init)[None])
        return MirroredDynamics(mirrors)


def mirrors_of(mirrors: Any, layout: Layout, dtype: Any) -> Mirrors:
    """The mirror maps prepared for positions of this layout."""
    pairs = leaves_with("mirrors", mirrors, layout)
    return Mirrors(
        tuple(leaf for leaf, _ in pairs),
        tuple(mirror.prepare(leaf, dtype) for leaf, mirror in pairs),
    )
