"""Dynamics turn a gradient estimate and fresh noise into the next state.

The step-size convention is everywhere that of θ' = θ − (ε/2) ∇f̂ + √ε η (putcha-2023, eq. 4): a step of size ε is the time ε of
dζ = ½ b dt + √D dB (nemeth-2021, eq. 9). Papers that write h for the step of dθ = −∇f dt + √2 dB have ε = 2h.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .._anchor import Needs
from .._outcome import Outcome
from .._posterior import AbstractPosterior
from .._random import standard_normal
from ..correction import NoiseCorrection
from ..geometry import AbstractGeometry
from ..subsample.selection import Estimate, Transition

Evaluate = Callable[[Float[Array, " d"], Transition | None], Estimate]
"""The gradient estimate at a position, for a transition where the dynamics can say what the gradient will do."""


class AbstractDynamicsState(eqx.Module):
    position: eqx.AbstractVar[Float[Array, " d"]]


class Moved(NamedTuple):
    """What a step leaves: the next state, the estimate it used, statistics worth keeping, and whether the chain may go on."""

    state: Any
    estimate: Estimate
    stats: dict[str, Array]
    outcome: Int[Array, ""] | np.int32 = np.int32(Outcome.OK)


class AbstractDynamics(eqx.Module):
    """`step` calls `evaluate` once; everything random comes in through `noise`, drawn for many steps at a time."""

    evaluates_at_start: ClassVar[bool]

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> Any:
        """The state before the first step."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> PyTree[Array]:
        """The noise of `steps` steps; the leading axis is the step."""

    @abc.abstractmethod
    def step(self, state: Any, evaluate: Evaluate, step_size: Float[Array, ""], noise: PyTree[Array]) -> Moved:
        """One step."""


class AbstractDiffusion(AbstractDynamics):
    """Dynamics driven by one standard normal vector a step, of the length of the position."""

    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> Float[Array, "steps d"]:
        return standard_normal(key, (steps, *like.shape), like.dtype)


class Surroundings(NamedTuple):
    """What a dynamics is made ready for."""

    posterior: AbstractPosterior
    geometry: AbstractGeometry
    correction: NoiseCorrection | None


class DynamicsChoice(abc.ABC):
    """What a method asks for; `prepare` makes it ready for one posterior."""

    needs: ClassVar[Needs]
    exact_only: ClassVar[bool]
    """Whether it is right with exact gradients only."""
    takes_geometry: ClassVar[bool]
    """Whether it can move in other coordinates; those with a metric of their own cannot."""
    corrects_through: ClassVar[tuple[str, ...]]
    """The ways in which it can correct for gradient noise."""
    has_transition: ClassVar[bool]
    """Whether it can say what a gradient will do, which exponential weighting asks for."""

    @abc.abstractmethod
    def prepare(self, around: Surroundings) -> AbstractDynamics:
        """The dynamics for this posterior."""
