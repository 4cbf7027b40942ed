"""Austerity: Metropolis–Hastings whose accept step is a sequential test. Approximate.

Korattikara, Chen and Welling (2014), algorithm 1, with the proposals of `SubsampledMH`. The paper
tests the log-likelihoods themselves, which is order 0. Remainders of a higher order have a smaller
variance, so the test needs fewer rows. A move is accepted if the mean of all changes D_i is below

    μ₀ = (log ratio without the rows − log u) / N.

The test draws batches of rows without replacement, from a pseudo-random permutation per step.
After n rows with mean m and sd s it has the statistic

    t = (m − μ₀) / σ,   σ = s/√n · √(1 − (n − 1)/(N − 1)),

and stops when Student's t distribution with n − 1 degrees of freedom gives |t| a tail probability
below ε. After all rows, the decision is exact.

One look errs with probability ε at most, if m is close to Gaussian. A test of several looks errs
more often: with ten looks at 400 rows of unequal length, 2.0 % of the decisions were wrong at
ε = 0.01, and 12 % at ε = 0.1. These errors bias the draws by an unknown amount.
"""

from __future__ import annotations

import abc
import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._anchor.anchor import Anchor
from .._core.arrays import Scalar, on_device
from .._core.errors import check_int, check_number
from .._core.random import random_words
from .._rows.access import AbstractRows, PerRow
from ..dynamics.dynamics import Curvature, Suggestion
from ..geometry import Dense
from ..methods.abstract import AbstractAnchoredMethod, AtAnchor, labels
from ..methods.method import StepSize
from ..methods.registry import named
from ..methods.subsampled.method import SubsampledKernel
from ..methods.subsampled.remainders import AbstractRemainders, prepare_remainders
from ..methods.subsampled.surrogate import PROPOSALS, check_proposal, prepare_surrogate
from ..methods.subsampled.thinning import AbstractDecision, Decided, Move
from ..models.posterior import AbstractPosterior
from ..schedule import as_schedule, in_precision

# Pseudo-random permutations of the row numbers, evaluated where they are needed.
#
# A Feistel network permutes the numbers below a power of four. Numbers that leave the range of the
# rows are permuted again until they return, which is a permutation of that range. No array of N
# numbers is made.

_ROUNDS = 6


def permuted(key: PRNGKeyArray, numbers: Int[Array, " k"], count: int) -> Int[Array, " k"]:
    """π(number) of the key's permutation π of 0, …, count − 1. All numbers are below `count`."""
    half = max(1, -(-(count - 1).bit_length() // 2))
    keys = random_words(key, (_ROUNDS,))[:, 0]

    def network(values: UInt32[Array, " k"]) -> UInt32[Array, " k"]:
        left, right = values >> half, values & (2**half - 1)
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mixed(right ^ keys[number]) >> (32 - half))
        return left << half | right

    found = lax.while_loop(
        lambda values: jnp.any(values >= count),
        lambda values: jnp.where(values >= count, network(values), values),
        network(numbers.astype(jnp.uint32)),
    )
    return found.astype(jnp.int32)


def _mixed(words: UInt32[Array, " k"]) -> UInt32[Array, " k"]:
    """The finaliser of MurmurHash3."""
    words = (words ^ words >> 16) * jnp.uint32(0x85EBCA6B)
    words = (words ^ words >> 13) * jnp.uint32(0xC2B2AE35)
    return words ^ words >> 16


class AbstractSequentialDecision(AbstractDecision):
    """Reads batches of rows until their mean is far enough from the threshold."""

    n_rows: int = eqx.field(static=True)
    batch: int = eqx.field(static=True)

    @abc.abstractmethod
    def limit(self, read: SequentialMoments, bound: Scalar) -> Scalar:
        """The distance beyond which reading stops, from the rows read and M(u, u')."""

    @property
    def looks(self) -> int:
        return -(-self.n_rows // self.batch)

    @property
    def most_rows(self) -> int:
        return self.n_rows

    def decide(
        self, remainders: AbstractRemainders, move: Move, key: PRNGKeyArray, rows: AbstractRows
    ) -> Decided:
        threshold = (move.log_known - move.log_uniform) / self.n_rows
        bound, dtype = remainders.growth(move.here, move.there), threshold.dtype

        def look(carry: SequentialMoments) -> SequentialMoments:
            numbers = carry.looks * self.batch + jnp.arange(self.batch)
            drawn = numbers < self.n_rows
            indices = permuted(key, jnp.where(drawn, numbers, 0), self.n_rows)
            before, after = remainders.values(move.moves, rows.take(indices))
            return carry.extended(jnp.where(drawn, after - before, 0).astype(dtype), drawn)

        def undecided(carry: SequentialMoments) -> Array:
            distance = jnp.abs(carry.mean - threshold)
            # A limit of ∞ · 0 is NaN, which compares as undecided.
            unsure = (carry.looks == 0) | ~(distance > self.limit(carry, bound))
            return (carry.looks < self.looks) & unsure

        none, zero = jnp.int32(0), jnp.zeros((), dtype)
        found = lax.while_loop(undecided, look, SequentialMoments(none, none, zero, zero))
        accept, outside = found.mean < threshold, jnp.zeros((), bool)
        return Decided(accept, accept.astype(dtype), found.count, none, zero, outside)


class SequentialMoments(eqx.Module):
    """Mean and sum of squares of the changes read so far."""

    looks: Int[Array, ""]
    count: Int[Array, ""]
    mean: Scalar
    squares: Scalar  # Σ(D_i − mean)²

    def extended(self, changes: PerRow, drawn: Array) -> SequentialMoments:
        """With one more batch (Chan et al., 1983)."""
        new = jnp.sum(drawn, dtype=jnp.int32)
        batch_mean = jnp.sum(changes) / new
        within = jnp.sum(jnp.where(drawn, changes - batch_mean, 0) ** 2)
        shift, total = batch_mean - self.mean, self.count + new
        return SequentialMoments(
            self.looks + 1,
            total,
            self.mean + shift * new / total,
            self.squares + within + shift**2 * self.count * (new / total),
        )

    def error(self, n_rows: int) -> Scalar:
        """σ."""
        count = jnp.maximum(self.count, 2).astype(self.mean.dtype)
        left = jnp.maximum(1 - (count - 1) / max(n_rows - 1, 1), 0)
        return jnp.sqrt(self.squares / (count - 1) / count * left)


class SequentialDecision(AbstractSequentialDecision):
    """Reads batches of rows until a t-test is confident."""

    critical: Float[Array, " looks"]
    """The value of |t| beyond which the test stops, after each batch."""

    @classmethod
    def of(cls, n_rows: int, batch: int, epsilon: float, dtype: np.dtype) -> SequentialDecision:
        """The test with this probability of an error at each look."""
        from scipy.stats import t  # a slow import

        read = np.minimum(batch * np.arange(1, -(-n_rows // batch) + 1), n_rows)
        critical = t.isf(epsilon, np.maximum(read - 1, 1))
        critical[read < 2] = np.inf
        return cls(n_rows, batch, on_device(critical, dtype))

    def limit(self, read: SequentialMoments, bound: Scalar) -> Scalar:
        return self.critical[read.looks - 1] * read.error(self.n_rows)


_STEP = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AbstractSequentialMethod(AbstractAnchoredMethod):
    """Metropolis–Hastings whose accept step reads rows until it is confident."""

    unseen_by_pairs = "the bias by wrong decisions of the sequential tests"
    unmeasured = (
        f"{unseen_by_pairs} was not measured. Compare with subsampled_mh(...), which is exact."
    )

    step_size: StepSize
    batch: int
    proposal: str = "random-walk"
    order: int

    def __post_init__(self) -> None:
        check_proposal(self.proposal, self.step_size)
        check_int("batch", self.batch, 1)
        check_int("order", self.order, 0, 3)

    @abc.abstractmethod
    def decision(
        self, posterior: AbstractPosterior, remainders: AbstractRemainders, batch: int
    ) -> AbstractSequentialDecision:
        """The test, with this many rows between looks."""

    @property
    def has_accept_step(self) -> bool:
        return self.order == 0

    @property
    def axes(self) -> dict[str, str]:
        gradient = f"surrogate of order {self.order}"
        return labels(f"{self.proposal} proposals", gradient, "sequential test", "sequential")

    def suggest(self, curvature: Curvature) -> Suggestion:
        step = _STEP / curvature.dim
        return Suggestion(step, "the scaling of random walks", 2 / step, step)

    def kernel_at(self, posterior: AbstractPosterior, anchor: Anchor) -> AtAnchor:
        metric = Dense().prepare(posterior, anchor)
        remainders, _ = prepare_remainders(posterior, anchor, metric, self.order)
        surrogate, n_row_evals = prepare_surrogate(posterior, anchor, metric, remainders)
        batch = min(self.batch, posterior.n_rows)
        kernel = SubsampledKernel(
            surrogate=surrogate,
            proposal=PROPOSALS[self.proposal],
            decision=self.decision(posterior, remainders, batch),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
        )
        return AtAnchor(kernel, n_row_evals)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Austerity(AbstractSequentialMethod):
    """Metropolis–Hastings that accepts by a sequential test."""

    paper = "Korattikara, Chen and Welling (2014)"
    bias = "The errors of the tests bias the draws. The bias vanishes with ε."
    cost = "A step reads at least one batch of rows, and at most all rows; all with ε = 0."

    epsilon: float = 0.05
    batch: int = 500
    order: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon, 0, 0.5, high_open=True)

    def decision(
        self, posterior: AbstractPosterior, remainders: AbstractRemainders, batch: int
    ) -> SequentialDecision:
        return SequentialDecision.of(posterior.n_rows, batch, self.epsilon, posterior.dtype)


@named("Korattikara, Chen and Welling (2014), algorithm 1")
def austerity_mh(
    step_size: StepSize,
    epsilon: float = 0.05,
    batch: int = 500,
    order: int = 0,
    *,
    proposal: str = "random-walk",
) -> Austerity:
    """Random-walk Metropolis by sequential tests: approximate, reads some rows.

    For logistic, probit, binomial, Poisson and linear regression.

    - `epsilon`: the probability of an error at each look of a test, at least 0 and below 1/2. With
      0 every step reads all rows and is exact, apart from rounding.
    - `batch`: rows read between looks.
    - `order`: the order of the expansions that rows are compared with, 0 to 3; 0 as in the paper.
    - `proposal`: "random-walk", "langevin" or "pcn", in the coordinates of the anchor's Gaussian.
    """
    return Austerity(
        step_size=step_size, epsilon=epsilon, batch=batch, order=order, proposal=proposal
    )
