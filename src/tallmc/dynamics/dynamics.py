"""What every dynamics has in common: how a gradient estimate moves the state of a chain.

One scheme is one class, an Equinox module. Its fields are the settings that a user writes, such as
the friction. `prepare` returns a copy for one posterior: numbers become arrays, so that another
number does not recompile, and the fields declared with `repr=False` are filled, such as the map C
of the geometry. The engine calls `init`, `noise` and `step` of that copy.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .._anchor.anchor import AnchorLevel
from .._core.arrays import AbstractLinearMap, IdentityMap, Scalar, Vector, dot
from .._core.errors import Outcome
from .._core.part import Part
from .._core.random import standard_normal
from .._rows.passes import Sum
from ..correction import Covariance, NoiseCorrection
from ..models.posterior import AbstractPosterior
from ..subsample.selection import Estimate, Transition

Evaluate = Callable[[Vector, Transition | None], Estimate]
"""Returns the gradient estimate at a position.

The transition is None for dynamics that cannot state how the gradient enters the move.
"""
CheckStart = Callable[[Any, np.ndarray], None]
"""A method that takes the starting positions of all chains."""
OwnCoordinates = Callable[[Any, np.ndarray, np.ndarray, int], np.ndarray]
"""A method that takes the Hessian, the diagonal of the gradient noise, and the number of rows."""


class AbstractDynamicsState(eqx.Module):
    """State of the dynamics of one chain."""

    position: eqx.AbstractVar[Vector]


class PositionState(AbstractDynamicsState):
    """The state of dynamics that need the position only."""

    position: Vector


class DynamicsStep(NamedTuple):
    """Result of one step."""

    state: Any
    estimate: Estimate
    """Gradient estimate that the step used."""
    stats: dict[str, Array]
    """Statistics to keep with the draw."""
    outcome: Int[Array, ""] | np.int32 = np.int32(Outcome.OK)
    """`Outcome.OK` if the chain can continue."""


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

    def within_noise(self, step: float, rule: str, friction: float = 1.0) -> tuple[float, str]:
        """This step, or that at which noise uses up the budget if it is smaller, with its rule.

        Second-order dynamics of this friction allow for so many times the noise.
        """
        by_noise = friction * self.noise_limit
        if step <= by_noise:
            return step, rule
        return by_noise, "the gradient noise that the error budget allows"


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


class AbstractDynamics(Part, eqx.Module):
    """Dynamics; see the top of this file for the two lives of an instance.

    `step` calls `evaluate` exactly once. `step` draws no random numbers: `noise` draws the
    randomness of many steps in one call. A scheme of your own needs `step`, and `init` if its state
    is more than the position.
    """

    geometry: AbstractLinearMap = eqx.field(default=IdentityMap(), repr=False, kw_only=True)
    """The linear map C of the coordinates."""

    needs: ClassVar[AnchorLevel] = AnchorLevel.NOTHING
    """What the dynamics must know about the posterior before the first step."""
    evaluates_at_start: ClassVar[bool] = False
    """Whether `init` calls `evaluate`."""
    exact_only: ClassVar[bool] = False
    """Whether the dynamics has an accept step, and so requires exact gradients."""
    bias_order: ClassVar[float] = 1.0
    """The bias at step size ε is of order ε to this power; pairs of chains measure it by this."""
    takes_geometry: ClassVar[bool] = True
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
    check_start: ClassVar[CheckStart | None] = None
    """Raises `InvalidInput` unless chains may start at these positions; None if all may."""
    own_coordinates: ClassVar[OwnCoordinates | None] = None
    """Returns C at the mode, if the dynamics has a metric CCᵀ of its own."""

    @property
    def has_transition(self) -> bool:
        """Whether it passes a `Transition` to `evaluate`; exponential weighting needs one."""
        return False

    @property
    def corrects_through(self) -> tuple[str, ...]:
        """Values of `NoiseCorrection.through` that the dynamics supports."""
        return () if self.exact_only else ("noise",)

    def prepare(
        self,
        posterior: AbstractPosterior,
        geometry: AbstractLinearMap = IdentityMap(),  # noqa: B008  (frozen)
        correction: NoiseCorrection | None = None,
    ) -> Self:
        """The dynamics for one posterior, in the coordinates of a geometry."""
        static = {field.name for field in dataclasses.fields(self) if field.metadata.get("static")}
        numbers = {
            name: jnp.asarray(value, posterior.dtype)
            for name, value in self.settings().items()
            if name not in static and isinstance(value, int | float | np.number)
        }
        return self._with(**{"geometry": geometry, **numbers, **self.filled(posterior)})

    def filled(self, posterior: AbstractPosterior) -> dict[str, Any]:
        """The fields that `prepare` computes from the posterior, beside geometry and numbers."""
        return {}

    def init(self, key: PRNGKeyArray, position: Vector, evaluate: Evaluate) -> Any:
        """Return the state before the first step."""
        return PositionState(position)

    @abc.abstractmethod
    def step(
        self, state: Any, evaluate: Evaluate, step_size: Scalar, noise: PyTree[Array]
    ) -> DynamicsStep:
        """Take one step with the noise of that step."""

    def noise(self, key: PRNGKeyArray, steps: int, like: Vector) -> PyTree[Array]:
        """Draw the noise of `steps` steps; the leading axis is the step.

        By default one standard normal vector per step, as long as the position.
        """
        return standard_normal(key, (steps, *like.shape), like.dtype)

    def finer(self) -> Self:
        """The same dynamics for steps of half the size; numbers that count steps are doubled."""
        return self

    def merged_noise(self, first: PyTree[Array], second: PyTree[Array]) -> PyTree[Array]:
        """The noise of a step that covers the time of two finer steps with these noises."""
        if self.exact_only:
            raise TypeError("dynamics with an accept step have no pairs")
        return merged_normal(first, second)

    def suggest(self, curvature: Curvature) -> Suggestion:
        """Suggest a step size and other settings for a posterior with this curvature.

        By default for dynamics that are stable for step sizes up to 4/λ.
        """
        step, rule = curvature.within_noise(0.2 / curvature.largest, "0.2 / largest curvature")
        return Suggestion(step, rule, 1 / (step * curvature.smallest), langevin_step=step)


def merged_normal(first: Float[Array, "*k"], second: Float[Array, "*k"]) -> Float[Array, "*k"]:
    """The standard normal noise of a step that covers two finer steps with these noises."""
    return (first + second) / math.sqrt(2)


# The accept step of the exact dynamics.


AcceptNoise = tuple[Float[Array, "*steps d"], Float[Array, "*steps"]]
"""Normal vector of the proposal, and the logarithm of a uniform number for the accept step."""


class AbstractMetropolis(AbstractDynamics):
    """Dynamics that propose a Gaussian move and then accept or reject it."""

    bias = "Exact: every ε leaves exp(−f) invariant."
    exact_only = True
    evaluates_at_start = True

    def noise(self, key: PRNGKeyArray, steps: int, like: Vector) -> AcceptNoise:
        proposal_key, accept_key = jax.random.split(key)
        normal = standard_normal(proposal_key, (steps, *like.shape), like.dtype)
        return normal, -jax.random.exponential(accept_key, (steps,), like.dtype)


def potential_drop(before: Sum | None, after: Sum | None) -> Scalar:
    """f(θ) − f(θ') of two large potentials; their low-order parts are not lost to cancellation."""
    assert before is not None and after is not None, (
        "an accept step requires the potential of all rows"
    )
    return (before.high - after.high) + (before.low - after.low)


def acceptance_rate(log_ratio: Scalar) -> Scalar:
    """min(1, exp(log_ratio)), and 0 for a NaN ratio, which rejects the candidate."""
    return jnp.exp(jnp.minimum(jnp.nan_to_num(log_ratio, nan=-jnp.inf), 0))


def metropolis(
    state: Any, candidate: Any, log_ratio: Scalar, log_uniform: Scalar, used: Estimate
) -> DynamicsStep:
    """Accept the candidate with probability min(1, exp(log_ratio)), otherwise keep the state."""
    accept = log_uniform < log_ratio
    next_state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), candidate, state)
    return DynamicsStep(next_state, used, {"acceptance_rate": acceptance_rate(log_ratio)})


# Correction of a step for gradient noise: less injected noise, or more friction. `correction.py`
# estimates the covariance V of the gradient noise; it is None without a correction.


class ReducedNoise(NamedTuple):
    """Injected noise after the gradient noise of the step is taken from it."""

    noise: Vector
    stats: dict[str, Array]
    """`uncorrected_noise`, the share of the gradient noise that could not be taken."""
    outcome: Int[Array, ""] | np.int32


def reduced_noise(normal: Vector, covariance: Covariance | None, share: Scalar) -> ReducedNoise:
    """Noise of covariance I − share·V from standard normal noise.

    Negative eigenvalues of I − share·V are set to zero.
    """
    if covariance is None:
        return ReducedNoise(normal, {}, np.int32(Outcome.OK))
    if covariance.ndim == 1:
        taken = share * covariance
        noise = jnp.sqrt(jnp.maximum(1 - taken, 0)) * normal
    else:
        taken, axes = jnp.linalg.eigh(share * covariance)
        noise = dot(axes, jnp.sqrt(jnp.maximum(1 - taken, 0)) * dot(axes.T, normal))
    uncorrected = jnp.sum(jnp.maximum(taken - 1, 0)) / jnp.maximum(
        jnp.sum(taken), jnp.finfo(taken.dtype).tiny
    )
    return ReducedNoise(noise, {"uncorrected_noise": uncorrected}, _outcome(covariance, share))


def diffusion_noise(
    normal: Float[Array, " k"], diffusion: Float[Array, "k k"], taken: Float[Array, "k k"] | None
) -> ReducedNoise:
    """Noise of covariance D − B: that of a diffusion D, less the gradient noise B of the step.

    Eigenvalues of D − B below zero are set to zero.
    """
    remaining = diffusion if taken is None else diffusion - taken
    values, axes = jnp.linalg.eigh(remaining)
    noise = dot(dot(axes * jnp.sqrt(jnp.maximum(values, 0)), axes.T), normal)
    if taken is None:
        return ReducedNoise(noise, {}, np.int32(Outcome.OK))
    total = jnp.trace(taken)
    uncorrected = jnp.sum(jnp.maximum(-values, 0)) / jnp.maximum(total, jnp.finfo(total.dtype).tiny)
    outcome = jnp.where(total <= jnp.trace(diffusion), Outcome.OK, Outcome.TOO_NOISY)
    return ReducedNoise(noise, {"uncorrected_noise": uncorrected}, outcome.astype(jnp.int32))


def transformed(
    covariance: Covariance | None, factor: Float[Array, "d k"]
) -> Float[Array, "k k"] | None:
    """FᵀVF, the covariance of Fᵀg from that of g, a full matrix."""
    if covariance is None:
        return None
    pulled = factor.T * covariance if covariance.ndim == 1 else dot(factor.T, covariance)
    return dot(pulled, factor)


def drag(
    momentum: Vector, covariance: Covariance | None, h: Scalar
) -> tuple[Vector, Int[Array, ""] | np.int32]:
    """The friction (h/2)Vρ that balances kicks of covariance h²V, and its outcome.

    If (h²/2)V > I, this friction would reverse the momentum.
    """
    if covariance is None:
        return jnp.zeros_like(momentum), np.int32(Outcome.OK)
    applied = covariance * momentum if covariance.ndim == 1 else dot(covariance, momentum)
    return h / 2 * applied, _outcome(covariance, h**2 / 2)


def _outcome(covariance: Covariance, share: Scalar) -> Int[Array, ""]:
    """`TOO_NOISY` if the mean of share·V over all directions exceeds the available variance 1."""
    variances = covariance if covariance.ndim == 1 else jnp.diagonal(covariance)
    is_enough = share * jnp.mean(variances) <= 1
    return jnp.where(is_enough, Outcome.OK, Outcome.TOO_NOISY).astype(jnp.int32)
