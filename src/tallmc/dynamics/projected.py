"""Projected Langevin dynamics: a step that leaves the domain ends at its nearest point.

    θ' = Π(θ − (ε/2) ∇f̂(θ) + √ε η),   η ~ N(0, I)

Π projects onto boxes or half-spaces. The target is exp(−f) restricted to the domain, whose gradient
must be finite on the boundary (Bubeck, Eldan and Lehec, 2018; Brosse et al., 2017).

The bias at fixed ε is of order √ε wherever the density on the boundary is positive, and there the
law has atoms: a share of the draws of order √ε lies exactly on the boundary. Near a flat boundary
the chain behaves as if the boundary were 0.58 √ε farther out, and its draws from there were moved
back onto it (0.58 = −ζ(½)/√2π; Asmussen, Glynn and Pitman, 1995). Reflection has a bias of order ε
at the same cost, so projection is rarely the better choice. Pairs of chains at ε and ε/2 measure
this bias by its order. The statistic `at_boundary` tells which steps were projected. A projection
costs O(d) per step.
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
    smaller_step,
)
from .domains import Regions, checked_within, regions_of
from .langevin import LangevinDynamics, LangevinState

_FREE = LangevinDynamics(IdentityMap())
"""The step without constraints."""
_STEP_PER_CURVATURE = 0.01
"""At this ελ the boundary seems 0.06 posterior standard deviations too far out."""


class ProjectedDynamics(AbstractDiffusion):
    """Projected Langevin dynamics prepared for one posterior.

    **Arguments:**

    - `regions`: the domains of the parameters.

    >>> import tallmc
    >>> tallmc.dynamics.ProjectedDynamics.bias_order
    0.5
    """

    regions: Regions
    evaluates_at_start = False
    bias_order = 0.5

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
        position = self.regions.project(moved.state.position)
        hit = jnp.any(position != moved.state.position).astype(position.dtype)
        return moved._replace(
            state=LangevinState(position), stats={**moved.stats, "at_boundary": hit}
        )


@dataclasses.dataclass(frozen=True)
class Projected(DynamicsChoice):
    """Projected Langevin dynamics in boxes and half-spaces.

    **Arguments:**

    - `within`: domains by the name of a parameter, or one domain for the whole flat position:
      `Box(low, high)`, or `HalfSpace(normal, offset)`. A pair (low, high) is a box. Parameters
      without a domain are free.

    **Raises:** `InvalidInput` if `within` is something else, or, when it is prepared, does not fit
    the posterior or excludes its `init`.

    >>> import tallmc
    >>> tallmc.dynamics.Projected(within={"rate": (0.0, 2.0)})
    Projected(within={'rate': Box(low=0.0, high=2.0)})
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
        step, rule = smaller_step(
            _STEP_PER_CURVATURE / curvature.largest,
            f"{_STEP_PER_CURVATURE} / largest curvature: the bias is of order √ε",
            curvature.noise_limit,
        )
        return Suggestion(step, rule, 1 / (step * curvature.smallest), langevin_step=step)

    def prepare(self, context: DynamicsContext) -> ProjectedDynamics:
        posterior = context.posterior
        regions = regions_of(self.within, posterior.layout, posterior.dtype)
        regions.check("init", np.asarray(posterior.init)[None])
        return ProjectedDynamics(regions)
