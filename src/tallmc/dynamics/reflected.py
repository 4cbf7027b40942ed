"""Reflected Langevin dynamics: a step that leaves the domain is mirrored at its boundary.

    θ' = R(θ − (ε/2) ∇f̂(θ) + √ε η),   η ~ N(0, I)

R folds a value into a box, and mirrors a point at the plane that bounds a half-space. This is the
symmetrised Euler scheme (Bossy, Gobet and Talay, 2004) of Langevin dynamics that are reflected at
the boundary, whose law is exp(−f) restricted to the domain. The gradient of f must be finite on the
boundary.

The bias at fixed ε is of order ε, as in Langevin dynamics without constraints, and the law has a
density: no draw lies on the boundary. If ∇f is orthogonal to the boundary's normal there, the chain
is that of the even continuation of f, folded. A reflection costs O(d) per step. The statistic
`at_boundary` tells which steps were reflected.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..anchor.anchor import AnchorLevel
from ..core.linear_maps import IdentityMap
from .base import (
    AbstractDiffusion,
    Curvature,
    DynamicsChoice,
    DynamicsContext,
    DynamicsStep,
    Evaluate,
    Suggestion,
    overdamped_suggestion,
)
from .domains import Regions, checked_within, regions_of
from .langevin import LangevinDynamics, LangevinState

_FREE = LangevinDynamics(IdentityMap())
"""The step without constraints."""


class ReflectedDynamics(AbstractDiffusion):
    """Reflected Langevin dynamics prepared for one posterior.

    **Arguments:**

    - `regions`: the domains of the parameters.

    >>> import tallmc
    >>> tallmc.dynamics.ReflectedDynamics.bias_order
    1.0
    """

    regions: Regions
    evaluates_at_start = False

    def check_start(self, positions: Float[np.ndarray, "chains d"]) -> None:
        self.regions.check("start", positions)

    def init(
        self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate
    ) -> LangevinState:
        return LangevinState(position)

    def step(
        self,
        state: LangevinState,
        evaluate: Evaluate,
        step_size: Float[Array, ""],
        noise: Float[Array, " d"],
    ) -> DynamicsStep:
        moved = _FREE.step(state, evaluate, step_size, noise)
        position = self.regions.reflect(moved.state.position)
        inside = self.regions.project(moved.state.position) == moved.state.position
        hit = (~jnp.all(inside)).astype(position.dtype)
        return moved._replace(
            state=LangevinState(position), stats={**moved.stats, "at_boundary": hit}
        )


@dataclasses.dataclass(frozen=True)
class Reflected(DynamicsChoice):
    """Reflected Langevin dynamics in boxes and half-spaces.

    **Arguments:**

    - `within`: domains by the name of a parameter, or one domain for the whole flat position:
      `Box(low, high)`, or `HalfSpace(normal, offset)`. A pair (low, high) is a box. Parameters
      without a domain are free.

    **Raises:** `InvalidInput` if `within` is something else, or, when it is prepared, does not fit
    the posterior or excludes its `init`.

    >>> import tallmc
    >>> tallmc.dynamics.Reflected(within=tallmc.dynamics.Box(low=0.0))
    Reflected(within=Box(low=0.0, high=inf))
    """

    within: Any
    needs = AnchorLevel.NOTHING
    exact_only = False
    takes_geometry = False
    why_no_geometry = "whose domains have their boundaries in the coordinates of the parameters"
    corrects_through = ("noise",)
    has_transition = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "within", checked_within(self.within))

    def suggest(self, curvature: Curvature) -> Suggestion:
        return overdamped_suggestion(curvature)

    def prepare(self, context: DynamicsContext) -> ReflectedDynamics:
        posterior = context.posterior
        regions = regions_of(self.within, posterior.layout, posterior.dtype)
        regions.check("init", np.asarray(posterior.init)[None])
        return ReflectedDynamics(regions)
