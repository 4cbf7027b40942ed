"""Dynamics turn a gradient estimate and fresh noise into the next state.

Every dynamics uses the step-size convention of θ' = θ − (ε/2) ∇f̂ + √ε η (putcha-2023, eq. 4):
a step of size ε advances dζ = ½ b dt + √D dB (nemeth-2021, eq. 9) by the time ε. Papers that write
h for the step size of dθ = −∇f dt + √2 dB have ε = 2h.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from ..anchor.anchor import AnchorLevel
from ..core.linear_maps import AbstractLinearMap
from ..core.outcome import Outcome
from ..core.random import standard_normal
from ..correction import NoiseCorrection
from ..models.posterior import AbstractPosterior
from ..subsample.selection import Estimate, Transition

Evaluate = Callable[[Float[Array, " d"], Transition | None], Estimate]
"""Returns the gradient estimate at a position.

The transition is None for dynamics that cannot state how the gradient enters the move.
"""


CheckStart = Callable[[Any, np.ndarray], None]
"""A method that takes the starting positions of all chains."""


class AbstractDynamicsState(eqx.Module):
    """State of the dynamics of one chain."""

    position: eqx.AbstractVar[Float[Array, " d"]]


class DynamicsStep(NamedTuple):
    """Result of one step."""

    state: Any
    """State after the step."""
    estimate: Estimate
    """Gradient estimate that the step used."""
    stats: dict[str, Array]
    """Statistics to keep with the draw."""
    outcome: Int[Array, ""] | np.int32 = np.int32(Outcome.OK)
    """`Outcome.OK` if the chain can continue."""


class AbstractDynamics(eqx.Module):
    """Dynamics prepared for one posterior.

    `step` calls `evaluate` exactly once. `step` draws no random numbers: `noise` draws the
    randomness of many steps in one call.

    >>> import tallmc
    >>> issubclass(tallmc.dynamics.LangevinDynamics, tallmc.dynamics.AbstractDynamics)
    True
    """

    evaluates_at_start: ClassVar[bool]
    """Whether `init` calls `evaluate`."""
    bias_order: ClassVar[float] = 1.0
    """The bias at step size ε is of order ε to this power; pairs of chains measure it by this."""
    check_start: ClassVar[CheckStart | None] = None
    """Raises `InvalidInput` unless chains may start at these positions; None if all may."""

    @abc.abstractmethod
    def init(self, key: PRNGKeyArray, position: Float[Array, " d"], evaluate: Evaluate) -> Any:
        """Return the state before the first step."""

    @abc.abstractmethod
    def noise(self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]) -> PyTree[Array]:
        """Draw the noise of `steps` steps; the leading axis is the step."""

    @abc.abstractmethod
    def step(
        self, state: Any, evaluate: Evaluate, step_size: Float[Array, ""], noise: PyTree[Array]
    ) -> DynamicsStep:
        """Take one step with the noise of that step."""

    @abc.abstractmethod
    def finer(self) -> AbstractDynamics:
        """The same dynamics for steps of half the size; numbers that count steps are doubled."""

    @abc.abstractmethod
    def merged_noise(self, first: PyTree[Array], second: PyTree[Array]) -> PyTree[Array]:
        """The noise of a step that covers the time of two finer steps with these noises."""


def merged_normal(first: Float[Array, "*k"], second: Float[Array, "*k"]) -> Float[Array, "*k"]:
    """The standard normal noise of a step that covers two finer steps with these noises."""
    return (first + second) / math.sqrt(2)


class AbstractDiffusion(AbstractDynamics):
    """Dynamics driven by one standard normal vector per step, as long as the position."""

    def noise(
        self, key: PRNGKeyArray, steps: int, like: Float[Array, " d"]
    ) -> Float[Array, "steps d"]:
        return standard_normal(key, (steps, *like.shape), like.dtype)

    def finer(self) -> AbstractDynamics:
        return self

    def merged_noise(
        self, first: Float[Array, " d"], second: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        return merged_normal(first, second)


class DynamicsContext(NamedTuple):
    """Posterior, geometry and noise correction that a dynamics is prepared for."""

    posterior: AbstractPosterior
    geometry: AbstractLinearMap
    correction: NoiseCorrection | None


class Curvature(NamedTuple):
    """Curvature and gradient noise at the mode, in the coordinates in which a dynamics moves."""

    smallest: float
    """Smallest eigenvalue of the Hessian."""
    largest: float
    """Largest eigenvalue of the Hessian."""
    dim: int
    noise_limit: float = math.inf
    """Step size of Langevin dynamics at which gradient noise uses up the error budget."""
    metric_smallest: float = 1.0
    """Smallest eigenvalue of the dynamics' own metric at the mode."""
    metric_largest: float = 1.0
    """Largest eigenvalue of the dynamics' own metric at the mode."""

    @property
    def condition(self) -> float:
        """Condition number of the Hessian."""
        return self.largest / self.smallest


class Suggestion(NamedTuple):
    """Settings derived from curvature and gradient noise.

    The step size is far below the stability limit of the dynamics, so discretisation widens no
    direction by more than a few per cent, and small enough for the error budget of gradient noise.
    Most dynamics keep one or two draws per relaxation time of the slowest direction. `Hamiltonian`
    keeps one draw per trajectory.
    """

    step_size: float
    rule: str
    """Rule for the step size, as shown to the user."""
    steps_between: float
    """Steps between draws."""
    langevin_step: float
    """Step size of Langevin dynamics that gradient noise inflates as much."""
    others: Mapping[str, Any] = MappingProxyType({})
    """Further settings of the dynamics, by name."""


_NOISE_RULE = "the gradient noise that the error budget allows"


def smaller_step(by_curvature: float, rule: str, by_noise: float) -> tuple[float, str]:
    """The smaller of two step sizes, with its rule."""
    return (by_curvature, rule) if by_curvature <= by_noise else (by_noise, _NOISE_RULE)


def overdamped_suggestion(curvature: Curvature) -> Suggestion:
    """Suggest settings for dynamics that are stable for step sizes up to 4/λ."""
    step, rule = smaller_step(
        0.2 / curvature.largest, "0.2 / largest curvature", curvature.noise_limit
    )
    return Suggestion(step, rule, 1 / (step * curvature.smallest), langevin_step=step)


OwnCoordinates = Callable[[Any, np.ndarray, np.ndarray, int], np.ndarray]
"""A method that takes the Hessian, the diagonal of the gradient noise, and the number of rows."""


class DynamicsChoice(abc.ABC):
    """Settings of the dynamics of a method; `prepare` makes them ready for one posterior.

    >>> import tallmc
    >>> issubclass(tallmc.dynamics.Langevin, tallmc.dynamics.DynamicsChoice)
    True
    """

    needs: ClassVar[AnchorLevel]
    """What the dynamics must know about the posterior before the first step."""
    exact_only: ClassVar[bool]
    """Whether the dynamics is correct with exact gradients only."""
    takes_geometry: ClassVar[bool]
    """Whether the dynamics can use other coordinates."""
    why_no_geometry: ClassVar[str] = "which has its own metric"
    """Why the dynamics cannot use other coordinates, if it cannot."""
    reads_fisher_information: ClassVar[bool] = False
    """Whether the dynamics estimates the Fisher information from the gradients of a step's rows.

    They must be simple gradients of rows that are drawn uniformly. The dynamics then allows for
    gradient noise itself.
    """
    unseen_by_pairs: ClassVar[str | None] = None
    """A bias that does not vanish with the step size, if the dynamics has one."""
    own_coordinates: ClassVar[OwnCoordinates | None] = None
    """Returns C at the mode, if the dynamics has a metric CCᵀ of its own."""

    @property
    @abc.abstractmethod
    def has_transition(self) -> bool:
        """Whether it passes a `Transition` to `evaluate`; exponential weighting needs one."""

    @property
    @abc.abstractmethod
    def corrects_through(self) -> tuple[str, ...]:
        """Values of `NoiseCorrection.through` that the dynamics supports."""

    @abc.abstractmethod
    def suggest(self, curvature: Curvature) -> Suggestion:
        """Suggest a step size and other settings for a posterior with this curvature."""

    @abc.abstractmethod
    def prepare(self, context: DynamicsContext) -> AbstractDynamics:
        """Return the dynamics for the posterior in `context`."""
