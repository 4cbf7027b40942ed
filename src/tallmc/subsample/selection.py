"""Selections: a subsampling scheme and a size, prepared for one posterior.

A selection determines which rows a step sees, and their weights. The randomness of many steps is
drawn in one call (`draw`). If the choice of rows does not depend on the state (a *static*
selection), this call returns the row draws, and `gather` can replace them by their rows before the
steps.

Every selection except exponential weighting satisfies E Σ_{i∈S} w_i φ(x_i) = Σ_i φ(x_i) for any
fixed function φ of a row. This makes every estimator unbiased. Exponential weighting is biased.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..core.linear_maps import AbstractLinearMap
from ..gradient.base import AbstractGradient
from ..rows.base import AbstractRows
from ..rows.batch import Batch, RowDraws
from ..rows.sums import Sum


class Transition(NamedTuple):
    """How a gradient g enters a Gaussian move: the density at x is ∝ exp(−‖x + scale·Cᵀg‖²/2)."""

    at_rest: Float[Array, " d"]
    """x of a move that does not change the position."""
    to_zero: Callable[[], Float[Array, " d"]]
    """Returns x of a move to zero; a function, because it may take a linear solve."""
    scale: Float[Array, ""]
    geometry: AbstractLinearMap
    """C."""


class Memory(eqx.Module):
    """What the parts of one chain's gradient estimate have learned so far."""

    gradient: Any = None
    selection: Any = None
    noise: Any = None


class Estimate(eqx.Module):
    """A gradient estimate and its by-products."""

    gradient: Float[Array, " d"]
    n_rows: Int[Array, ""]
    """Number of rows read."""
    memory: Memory
    """The memory after the estimate."""
    batch: Batch | None = None
    """The rows of the estimate, if they form one batch."""
    spread: Float[Array, "n d"] | None = None
    """Vectors s_i with E Σ s_i s_iᵀ = Cov(gradient), from the rows of this batch alone."""
    potential: Sum | None = None
    """The potential, if all rows were seen."""
    stats: dict[str, Array] = eqx.field(default_factory=dict)
    """Statistics to store with the draws."""
    noise: Float[Array, " d"] | Float[Array, "d d"] | None = None
    """Cov(Cᵀ gradient), diagonal or full, estimated if the method corrects for gradient noise."""


class AbstractSelection(eqx.Module):
    """A subsampling scheme and a size, prepared for one posterior.

    Each selection defines the types that its `draw` and `gather` return. They are opaque to the
    engine.
    """

    @property
    @abc.abstractmethod
    def rows_per_step(self) -> int | None:
        """Rows that each step reads; None if the number is not known ahead."""

    @property
    @abc.abstractmethod
    def rows_ahead(self) -> int:
        """Rows per step that are known ahead, so that many steps can be gathered in one call."""

    @property
    @abc.abstractmethod
    def most_rows(self) -> int:
        """The largest number of rows that one step may read."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, steps: int) -> Any:
        """The randomness of `steps` steps, drawn in one call. The leading axis is the step."""

    @abc.abstractmethod
    def gather(self, drawn: Any, source: AbstractRows) -> Any:
        """The draws, with rows in place of the row numbers that are known ahead."""

    @abc.abstractmethod
    def start(self, gathered: Any) -> Any:
        """The memory of a chain before its first step, from the gathered randomness of one step."""

    @abc.abstractmethod
    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        gathered: Any,
        source: AbstractRows,
        transition: Transition | None,
    ) -> Estimate:
        """The gradient estimate at `position` from the gathered randomness of one step."""


def estimate_from(
    gradient: AbstractGradient,
    position: Float[Array, " d"],
    memory: Memory,
    batch: Batch,
    spread: Callable[[Float[Array, "n d"]], Float[Array, "n d"]],
) -> Estimate:
    """The estimate from one batch. `spread` turns its terms w_i r_i into the estimate's spread."""
    residuals = gradient.residuals(position, batch.rows, batch.indices, memory.gradient)
    value = gradient(position, batch, memory.gradient)
    learned = Memory(
        gradient.learn(memory.gradient, batch, residuals), memory.selection, memory.noise
    )
    terms = gradient.model.expand(residuals, batch.rows) * batch.weights[:, None]
    return Estimate(value, jnp.int32(batch.n_rows), learned, batch, spread(terms))


class AbstractStaticSelection(AbstractSelection):
    """A fixed number of rows, chosen independently of the state: `draw` returns row draws."""

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

    def gather(self, drawn: RowDraws, source: AbstractRows) -> Batch:
        return source.gather(drawn)

    def start(self, gathered: Batch) -> None:
        return None

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        gathered: Batch,
        source: AbstractRows,
        transition: Transition | None,
    ) -> Estimate:
        return estimate_from(gradient, position, memory, source.complete(gathered), self.spread)

    @abc.abstractmethod
    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """s_i with E Σ s_i s_iᵀ = Cov(Σ w_i r_i), from the terms w_i r_i of one batch.

        NaN if there are too few rows.
        """


class AbstractDynamicSelection(AbstractSelection):
    """Rows whose choice or number depends on the state, without memory."""

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def rows_ahead(self) -> int:
        return 0

    def gather(self, drawn: Any, source: AbstractRows) -> Any:
        return drawn

    def start(self, gathered: Any) -> None:
        return None


def centred(terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """√(n/(n − 1)) (t_i − t̄): for n independent terms of one law, E Σ s_i s_iᵀ = Cov(Σ t_i)."""
    n = terms.shape[0]
    return jnp.sqrt(n / (n - 1) if n > 1 else jnp.nan) * (terms - jnp.mean(terms, axis=0))
