"""Langevin dynamics in a domain: a step that leaves it is reflected or projected.

    Reflected   θ' = R(θ − (ε/2) ∇f̂(θ) + √ε η),   η ~ N(0, I)
    Projected   θ' = Π(θ − (ε/2) ∇f̂(θ) + √ε η)

R folds a value into a box, and mirrors a point at the plane that bounds a half-space; Π takes the
nearest point of the domain. The target is exp(−f) restricted to the domain, whose gradient must be
finite on the boundary. The statistic `at_boundary` tells which steps left the domain.

Reflection is the symmetrised Euler scheme (Bossy, Gobet and Talay, 2004) of Langevin dynamics that
are reflected at the boundary. If ∇f is orthogonal to the boundary's normal there, the chain is that
of the even continuation of f, folded.

Projection (Bubeck, Eldan and Lehec, 2018; Brosse et al., 2017) puts a share of the draws of order
√ε exactly on the boundary. Near a flat boundary the chain behaves as if the boundary were 0.58 √ε
farther out, and its draws from there were moved back onto it (0.58 = −ζ(½)/√2π; Asmussen, Glynn and
Pitman, 1995). Reflection is more accurate at the same cost, so projection is rarely the better
choice. Pairs of chains at ε and ε/2 measure the bias by its order.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..._core.arrays import Scalar, Vector
from ...dynamics.dynamics import (
    Curvature,
    DynamicsStep,
    Evaluate,
    PositionState,
    Suggestion,
    smaller_step,
)
from ...dynamics.langevin import Langevin
from ...methods.method import Method, Size, StepSize
from ...methods.registry import named
from ...models.posterior import AbstractPosterior
from .domains import Box, Domain, Within, by_leaf, prepared_settings

_STEP_PER_CURVATURE = 0.01
"""At this ελ the boundary seems 0.06 posterior standard deviations too far out."""


class Reflected(Langevin):
    """Reflected Langevin dynamics in boxes and half-spaces.

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
    """Projected Langevin dynamics in boxes and half-spaces.

    **Arguments:**

    - `within`: as in `Reflected`.
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
        step, rule = smaller_step(
            _STEP_PER_CURVATURE / curvature.largest,
            f"{_STEP_PER_CURVATURE} / largest curvature: the bias is of order √ε",
            curvature.noise_limit,
        )
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

    **Arguments:** those of `sgld`, and

    - `within`: as in `projected_sgld`.
    """
    chosen = Reflected({} if within is None else within)
    return Method(dynamics=chosen, batch_size=batch_size, step_size=step_size)
