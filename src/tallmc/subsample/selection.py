"""Which rows a step sees, and with what weight: the prepared form of a subsampling scheme and a size.

The randomness of many steps is drawn in one call. Where the choice of rows does not depend on the state (a *static* selection)
that call gives the picks themselves, and their rows can be gathered ahead, here or elsewhere.

For any selection and any fixed function φ of a row, E Σ_{i∈S} w_i φ(x_i) = Σ_i φ(x_i): that is all unbiasedness needs. (The one
exception is exponential weighting, which is biased and says so.)
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .._rows import Sum
from ..geometry import AbstractGeometry
from ..gradient.base import AbstractGradient, Batch


class Picks(eqx.Module):
    """Row numbers and their weights, w_i = 1/(n p_i) for n draws with replacement."""

    indices: Int[Array, "*k n"]
    weights: Float[Array, "*k n"]


class Transition(NamedTuple):
    """How a gradient g enters the Gaussian move it is asked for: the move's density at x is ∝ exp(−‖x + scale·Cᵀg‖²/2)."""

    at_rest: Float[Array, " d"]
    """x of a move that stays where it is."""
    to_zero: Float[Array, " d"]
    """x of a move to zero."""
    scale: Float[Array, ""]
    geometry: AbstractGeometry
    """C."""


class Memory(eqx.Module):
    """What the parts of one chain's estimator have learned so far."""

    gradient: Any = None
    selection: Any = None
    noise: Any = None


class Estimate(eqx.Module):
    """A gradient of the potential and what came with it."""

    gradient: Float[Array, " d"]
    n_rows: Int[Array, ""]
    """Rows it took."""
    memory: Memory
    """The memory after it."""
    batch: Batch | None = None
    """The rows it is made of, where they are one batch."""
    spread: Float[Array, "n d"] | None = None
    """Vectors s_i with E Σ s_i s_iᵀ = Cov(gradient), from the rows of this batch alone."""
    potential: Sum | None = None
    """The potential itself, where all rows were seen."""
    stats: dict[str, Array] = eqx.field(default_factory=dict)
    """What is worth keeping with the draws."""
    noise: Float[Array, " d"] | Float[Array, "d d"] | None = None
    """An estimate of Cov(Cᵀ gradient), its diagonal or all of it, where the method corrects for it."""


class AbstractSelection(eqx.Module):
    @property
    @abc.abstractmethod
    def rows_per_step(self) -> int | None:
        """Rows that each step touches; None when that is not known ahead."""

    @property
    @abc.abstractmethod
    def rows_ahead(self) -> int:
        """Rows of each step that are known ahead, and so can be gathered with those of other steps."""

    @property
    @abc.abstractmethod
    def most_rows(self) -> int:
        """Most rows that one step may touch."""

    @abc.abstractmethod
    def supply(self, key: PRNGKeyArray, steps: int) -> PyTree[Array]:
        """The randomness of `steps` steps, drawn in one call; the leading axis is the step."""

    @abc.abstractmethod
    def start(self, supply: PyTree[Array]) -> Any:
        """The memory of a chain before its first step, from the randomness of one step."""

    @abc.abstractmethod
    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: PyTree[Array],
        transition: Transition | None,
    ) -> Estimate:
        """The gradient estimate at `position` from one step's randomness."""


def estimate_from(
    gradient: AbstractGradient,
    position: Float[Array, " d"],
    memory: Memory,
    batch: Batch,
    spread: Callable[[Float[Array, "n d"]], Float[Array, "n d"]],
) -> Estimate:
    """The estimate that one batch gives; `spread` turns its terms w_i r_i into the estimate's spread."""
    posterior = gradient.posterior
    residuals = gradient.residuals(position, batch.rows, batch.indices, memory.gradient)
    value = gradient(position, batch, memory.gradient)
    learned = Memory(gradient.learn(memory.gradient, batch, residuals), memory.selection, memory.noise)
    terms = posterior.expand(residuals, batch.rows) * batch.weights[:, None]
    return Estimate(value, jnp.int32(batch.weights.shape[0]), learned, batch, spread(terms))


class AbstractStaticSelection(AbstractSelection):
    """A fixed number of rows, chosen without looking at the state: what is drawn ahead are the picks themselves."""

    size: eqx.AbstractVar[int]

    @property
    def rows_per_step(self) -> int:
        return self.size

    @property
    def rows_ahead(self) -> int:
        return self.size

    @property
    def most_rows(self) -> int:
        return self.size

    def start(self, supply: Picks) -> None:
        return None

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: Batch,
        transition: Transition | None,
    ) -> Estimate:
        return estimate_from(gradient, position, memory, supply, self.spread)

    @abc.abstractmethod
    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """s_i with E Σ s_i s_iᵀ = Cov(Σ w_i r_i), from the terms w_i r_i of one batch. They are NaN where one row is too few."""


class AbstractDynamicSelection(AbstractSelection):
    """Rows chosen, or counted, by looking at the state, with no memory of what was seen."""

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def rows_ahead(self) -> int:
        return 0

    def start(self, supply: PyTree[Array]) -> None:
        return None


def centred(terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """√(n/(n − 1)) (t_i − t̄): for n independent terms of one law, E Σ s_i s_iᵀ = Cov(Σ t_i)."""
    n = terms.shape[0]
    return jnp.sqrt(n / (n - 1) if n > 1 else jnp.nan) * (terms - jnp.mean(terms, axis=0))
