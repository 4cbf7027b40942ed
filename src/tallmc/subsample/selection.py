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
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._anchor.anchor import Anchor, AnchorLevel
from .._core.arrays import AbstractLinearMap, IdentityMap, Matrix, Scalar, Vector, on_device
from .._core.compiler import loops_are_whole
from .._core.errors import InvalidInput, check_int
from .._core.part import Part
from .._core.random import random_words
from .._rows.access import AbstractRows, RowAccess
from .._rows.law import AbstractStream, Batch, HostBatches, RowDraws
from .._rows.passes import Sum
from ..gradient.estimator import AbstractGradient, Residuals
from ..models.posterior import AbstractPosterior

# The two choices of subsampling in a method: which rows a step sees, and how many.
#
# `SubsampleChoice.prepare` turns both choices into a selection for one posterior. Choice and
# selection are two classes here, unlike dynamics and gradients: a selection comes from a pair of
# choices, and one selection, such as `WithReplacement`, serves several choices.


class SubsampleContext(NamedTuple):
    """What a subsample is prepared for: the posterior, the estimator and the metric."""

    posterior: AbstractPosterior
    anchor: Anchor | None = None
    """The anchor, if the method needs one."""
    order: int | None = None
    """The order of the gradient estimator, if it has one."""
    geometry: AbstractLinearMap = IdentityMap()
    """The metric in which gradient noise is measured."""


class SizeChoice(Part, abc.ABC):
    """How many rows a step sees."""

    needs: ClassVar[AnchorLevel] = AnchorLevel.NOTHING
    """What must be known about the posterior before the first step."""
    row_access: ClassVar[RowAccess] = RowAccess.STREAM
    """How rows are read while chains run."""
    size: int | None
    """The least number of rows per step; None if it is not known before the run."""

    @abc.abstractmethod
    def select(
        self, stream: AbstractStream, context: SubsampleContext, certain: np.ndarray
    ) -> AbstractSelection:
        """The selection of this size: the `certain` rows and draws from the stream.

        `certain` is empty if `size` is None.
        """


class SubsampleChoice(Part, abc.ABC):
    """Which rows a step sees."""

    unseen_by_pairs: ClassVar[str | None] = None
    """A bias of the estimate that half the step size need not reduce, if there is one."""

    @property
    def needs(self) -> AnchorLevel:
        """What must be known about the posterior before the first step."""
        return AnchorLevel.NOTHING

    @property
    def row_access(self) -> RowAccess:
        """How rows are read while chains run."""
        return RowAccess.TAKE

    @property
    def passes(self) -> int:
        """Number of passes over the rows that `prepare` makes."""
        return 0

    @property
    def knows_its_spread(self) -> bool:
        """Whether the noise of an estimate can be estimated from its own batch."""
        return True

    @abc.abstractmethod
    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> AbstractSelection:
        """Build the selection for this posterior, estimator and metric."""


class Transition(NamedTuple):
    """How a gradient g enters a Gaussian move: the density at x is ∝ exp(−‖x + scale·Cᵀg‖²/2)."""

    at_rest: Vector
    """x of a move that does not change the position."""
    to_zero: Callable[[], Vector]
    """Returns x of a move to zero; a function, because it may take a linear solve."""
    scale: Scalar
    geometry: AbstractLinearMap
    """C."""


class Carried(eqx.Module):
    """What the parts of one chain's gradient estimate have learned so far."""

    gradient: Any = None
    selection: Any = None
    noise: Any = None


class Estimate(eqx.Module):
    """A gradient estimate and its by-products."""

    gradient: Vector
    n_rows: Int[Array, ""]
    """Number of rows read."""
    carried: Carried
    """The memory after the estimate."""
    batch: Batch | None = None
    """The rows of the estimate, if they form one batch."""
    spread: Float[Array, "n d"] | None = None
    """Vectors s_i with E Σ s_i s_iᵀ = Cov(gradient), from the rows of this batch alone."""
    potential: Sum | None = None
    """The potential, if all rows were seen."""
    stats: dict[str, Array] = eqx.field(default_factory=dict)
    """Statistics to store with the draws."""
    noise: Vector | Matrix | None = None
    """Cov(Cᵀ gradient), diagonal or full, estimated if the method corrects for gradient noise."""


class GradientAt(NamedTuple):
    """The gradient estimator at the position of one chain."""

    gradient: AbstractGradient
    position: Vector
    carried: Carried
    rows: AbstractRows
    transition: Transition | None = None

    @property
    def known(self) -> Vector:
        """The part of the estimate that needs no rows."""
        return self.gradient.known(self.position, self.carried.gradient)

    def residuals(self, batch: Batch) -> Residuals:
        """r_i of the rows of a batch, in the model's compact form."""
        indices, learned = batch.indices, self.carried.gradient
        return self.gradient.residuals(self.position, batch.rows, indices, learned)

    def residual_sum(self, batch: Batch) -> Vector:
        """Σ w_i r_i over a batch."""
        return self.gradient.residual_sum(self.position, batch, self.carried.gradient)

    def after(self, batch: Batch, residuals: Residuals, selection: Any) -> Carried:
        """What the chain has learned after this batch; `selection` is what the selection has."""
        memory = self.gradient.learn(self.carried.gradient, batch, residuals)
        return Carried(memory, selection, self.carried.noise)

    def estimate_from(
        self, batch: Batch, spread: Callable[[Float[Array, "n d"]], Float[Array, "n d"]]
    ) -> Estimate:
        """The estimate from one batch. `spread` turns its terms w_i r_i into the spread."""
        residuals = self.residuals(batch)
        value = self.gradient(self.position, batch, self.carried.gradient)
        learned = self.after(batch, residuals, self.carried.selection)
        terms = self.gradient.model.expand(residuals, batch.rows) * batch.weights[:, None]
        return Estimate(value, jnp.int32(batch.n_rows), learned, batch, spread(terms))

    def sum_of_draws(
        self,
        stream: AbstractStream,
        key: PRNGKeyArray,
        count: Int[Array, ""],
        total: Int[Array, ""],
        first: Any = 0,
    ) -> Vector:
        """Σ r_i/(total · p_i) over `count` draws of this key's sequence, from number `first` on.

        The draws are made in chunks, so a different `count` does not recompile.
        """
        size = _CHUNK_OF_WHOLE_LOOP if loops_are_whole() else _CHUNK

        def draws_from(start: Array) -> Batch:
            return self.rows.gather(stream.draw(key, (size,), start))

        return self.sum_in_chunks(draws_from, size, count, total, first)

    def sum_in_chunks(
        self,
        draws_from: Callable[[Array], Batch],
        size: int,
        count: Int[Array, ""],
        total: Int[Array, ""],
        first: Any,
    ) -> Vector:
        """`sum_of_draws`, where `draws_from(start)` returns `size` draws from number `start` on."""

        def add_chunk(chunk: Array, so_far: Vector) -> Vector:
            drawn = draws_from(first + chunk * size)
            counted = chunk * size + jnp.arange(size) < count
            batch = drawn.with_weights(jnp.where(counted, drawn.weights / total, 0))
            return so_far + self.residual_sum(self.rows.complete(batch))

        zero = jnp.zeros_like(self.position)
        return lax.fori_loop(0, (count + size - 1) // size, add_chunk, zero)


# Draws per loop iteration. An iteration costs almost nothing if XLA compiles the loop whole, and
# much otherwise.
_CHUNK, _CHUNK_OF_WHOLE_LOOP = 64, 16


class AbstractSelection(eqx.Module):
    """A subsampling scheme and a size, prepared for one posterior.

    Each selection defines the types that its `draw` and `gather` return. They are opaque to the
    engine. By default the rows, or their number, depend on the state.
    """

    @property
    def rows_per_step(self) -> int | None:
        """Rows that each step reads; None if the number is not known ahead."""
        return None

    @property
    def rows_ahead(self) -> int:
        """Rows per step that are known ahead, so that many steps can be gathered in one call."""
        return 0

    @property
    def most_rows(self) -> int:
        """The largest number of rows of one step; a selection of unknown size overrides it."""
        assert self.rows_per_step is not None, "the number of rows is known ahead"
        return self.rows_per_step

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, steps: int) -> Any:
        """The randomness of `steps` steps, drawn in one call. The leading axis is the step."""

    def gather(self, drawn: Any, rows: AbstractRows) -> Any:
        """The draws, with rows in place of the row numbers that are known ahead."""
        return drawn

    def start(self, gathered: Any) -> Any:
        """The memory of a chain before its first step, from the gathered randomness of one step."""
        return None

    @abc.abstractmethod
    def estimate(self, at: GradientAt, gathered: Any) -> Estimate:
        """The gradient estimate from the gathered randomness of one step."""


class AbstractStaticSelection(AbstractSelection):
    """A fixed number of rows, chosen independently of the state: `draw` returns row draws."""

    size: eqx.AbstractVar[int]

    @property
    def rows_per_step(self) -> int:
        return self.size

    @property
    def rows_ahead(self) -> int:
        return self.size

    def gather(self, drawn: RowDraws, rows: AbstractRows) -> Batch:
        return rows.gather(drawn)

    def estimate(self, at: GradientAt, gathered: Batch) -> Estimate:
        return at.estimate_from(at.rows.complete(gathered), self.spread)

    @abc.abstractmethod
    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """s_i with E Σ s_i s_iᵀ = Cov(Σ w_i r_i), from the terms w_i r_i of one batch.

        NaN if there are too few rows.
        """


def centred(terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """√(n/(n − 1)) (t_i − t̄): for n independent terms of one law, E Σ s_i s_iᵀ = Cov(Σ t_i)."""
    n = terms.shape[0]
    return jnp.sqrt(n / (n - 1) if n > 1 else jnp.nan) * (terms - jnp.mean(terms, axis=0))


# Draws with replacement, and the take-all stratum.
#
#     n draws from p:   w_i = 1/(n p_i)
#     take-all:         certain rows, which are in every step, w_i = 1
#
# A row with expected count n p_i ≥ 1 can be in every step with weight one. It then adds no noise,
# and the draws go to the other rows (`_rows/probabilities.py`).


NO_ROWS = np.zeros(0, np.int32)


class WithReplacement(AbstractStaticSelection):
    """The certain rows and, up to the size, independent draws from a stream."""

    stream: AbstractStream
    size: int = eqx.field(static=True)
    certain: Int[Array, " a"] = eqx.field(default_factory=lambda: jnp.asarray(NO_ROWS))
    """Rows that are in every step. The stream does not draw them."""

    @property
    def n_certain(self) -> int:
        return self.certain.shape[0]

    @property
    def draws(self) -> int:
        """Number of random draws per step."""
        return self.size - self.n_certain

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        return self.completed(self.stream.draw(key, (steps, self.draws)))

    def completed(self, drawn: RowDraws) -> RowDraws:
        """The certain rows with weight 1, and draws from the stream with weight 1/(n p_i)."""
        certain = jnp.broadcast_to(self.certain, (*drawn.indices.shape[:-1], *self.certain.shape))
        weights = drawn.weights / self.draws
        return RowDraws(
            jnp.concatenate([certain, drawn.indices], axis=-1),
            jnp.concatenate([jnp.ones(certain.shape, weights.dtype), weights], axis=-1),
        )

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        certain, drawn = terms[: self.n_certain], terms[self.n_certain :]
        return jnp.concatenate([jnp.zeros_like(certain), centred(drawn)])

    def supplied(self) -> SuppliedRows:
        """The selection for steps whose rows `gather_on_host` has gathered."""
        return SuppliedRows(n_certain=on_device(self.n_certain, np.int32), size=self.size)

    def padded(self) -> PaddedReplacement:
        """The same selection for programs that do not depend on the number of certain rows."""
        certain = np.resize(np.r_[np.asarray(self.certain), 0], self.size).astype(np.int32)
        return PaddedReplacement(
            stream=self.stream,
            n_certain=on_device(self.n_certain, np.int32),
            certain=on_device(certain, np.int32),
            size=self.size,
        )

    def gather_on_host(self, rows: AbstractRows) -> HostBatches:
        """A function that returns the certain rows with weight 1, and rows drawn with its words."""
        batches = self.stream.batches_on_host(rows, np.asarray(self.certain, np.int64))
        return lambda words: batches(np.swapaxes(words, -1, -2))


class AbstractWithCertain(AbstractStaticSelection):
    """A traced number of certain rows, which come first in each batch, and draws."""

    n_certain: Int[Array, ""]
    size: int = eqx.field(static=True)

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        # √(m/(m − 1)) (t_i − t̄) of the m terms that are not certain; zero for the certain ones.
        drawn = jnp.arange(self.size)[:, None] >= self.n_certain
        m = (self.size - self.n_certain).astype(terms.dtype)
        mean = jnp.sum(terms, axis=0, where=drawn) / m
        scale = jnp.sqrt(jnp.where(m > 1, m / (m - 1), jnp.nan))
        return jnp.where(drawn, scale * (terms - mean), 0)


class SuppliedRows(AbstractWithCertain):
    """The rows of each step are gathered before the step: `draw` returns random words for them.

    Neither the rows nor their law are part of it. Programs therefore depend on the number of rows
    per step alone.
    """

    def draw(self, key: PRNGKeyArray, steps: int) -> UInt32[Array, "steps 2 n"]:
        return random_words(key, (steps, self.size), axis=-2)


class PaddedReplacement(AbstractWithCertain):
    """`WithReplacement` with a traced number of certain rows."""

    stream: AbstractStream
    certain: Int[Array, " n"]  # The certain rows, and any others

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        drawn = self.stream.draw(key, (steps, self.size))
        is_certain = jnp.arange(self.size) < self.n_certain
        weights = drawn.weights / (self.size - self.n_certain)
        indices = jnp.where(is_certain, self.certain, drawn.indices)
        return RowDraws(indices, jnp.where(is_certain, 1, weights))


def alternating_signs(size: int, n_certain: Any, dtype: Any) -> Float[Array, " n"]:
    """±1 in turn for the draws, 0 for the certain rows, which come first in a batch of `size` rows.

    With an odd number of draws the last sign is 0, and the others are scaled up.
    """
    number, draws = jnp.arange(size) - n_certain, size - n_certain
    paired = draws - draws % 2
    signs = jnp.where((number >= 0) & (number < paired), 1 - 2 * (number % 2), 0)
    return signs * jnp.sqrt(draws / jnp.maximum(paired, 1)).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Fixed(SizeChoice):
    """The same number of rows in every step, `size`."""

    size: int

    def __post_init__(self) -> None:
        check_int("batch_size", self.size, 1)

    def select(
        self, stream: AbstractStream, context: SubsampleContext, certain: np.ndarray
    ) -> WithReplacement:
        size = self.checked(context.posterior)
        return WithReplacement(stream=stream, size=size, certain=on_device(certain, np.int32))

    def checked(self, posterior: AbstractPosterior) -> int:
        """The size; raises `InvalidInput` if it exceeds the number of rows."""
        return check_int("batch_size", self.size, 1, posterior.n_rows, high_name="n_rows")


def fixed_rows(size: SizeChoice | None, posterior: AbstractPosterior, why: str, cure: str) -> int:
    """The rows per step of a scheme that needs a fixed number; raises for other sizes."""
    if not isinstance(size, Fixed):
        raise InvalidInput("batch_size", f"be fixed {why}", size, cure)
    return size.checked(posterior)


def as_size(size: int | SizeChoice | None) -> SizeChoice | None:
    """`size`, with a number of rows as `Fixed`."""
    return size if size is None or isinstance(size, SizeChoice) else Fixed(size)
