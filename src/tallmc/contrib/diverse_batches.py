"""Diversified minibatches by Poisson-disk sampling: rows keep a distance (Zhang et al., 2019).

`tries`·n candidates are drawn, uniformly and with replacement. A candidate is accepted if its
features are farther than the radius from those of every accepted candidate. The batch is the first
n accepted candidates. If there are fewer, the first refused candidates fill it up. This is the
cheap alternative to a determinantal process.

The expected number π_i of times that row i is in a batch has no closed form. It is smaller where
rows are dense. M = `simulated` batches give the estimate π̂_i = c_i/M before the run, and w_i =
1/π̂_i. With the right π_i the estimate would be unbiased (Hansen and Hurwitz; a row may occur twice
among the rows that fill up). With π̂_i it has a bias that is fixed for the whole run,

    E ∇f̂ − ∇f = Σ_i (π_i/π̂_i − 1) r_i,   variance about Σ_i ‖r_i‖² (1 − π_i)/(M π_i).

A row that no simulated batch contains has π̂_i = 1/(2M), so its weight is finite.
`tests/contrib/diverse_batches/test_diverse.py` measures the bias.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.arrays import Scalar
from .._core.errors import InvalidInput, check_int, check_number
from .._core.random import new_key, random_words
from .._rows.law import RowDraws, UniformLaw
from ..subsample.selection import (
    AbstractStaticSelection,
    SizeChoice,
    SubsampleChoice,
    SubsampleContext,
    fixed_rows,
)
from ..subsample.stratified import checked_features

# Diversified minibatches by a determinantal point process, k-DPP (Zhang et al., 2017).
#
#     P(S) ∝ det(Φ_S Φ_Sᵀ),   |S| = n,   Φ the N×r matrix of features of the rows
#
# A set of rows with similar features is rarely drawn. With the eigenvalues λ_j > 0 of ΦᵀΦ and the
# orthonormal columns u_j of ΦV/√λ, a draw has two parts (Kulesza and Taskar, 2012, algorithms 7,
# 8):
#
#     1. a set E of n eigenvectors with probability Π_{j∈E} λ_j / e_n(λ), e_n the elementary
#        symmetric polynomial of degree n, by conditional probabilities that are tabulated ahead;
#     2. n rows one after the other, row i with probability ∝ its squared distance from the span of
#        the rows so far, in the coordinates (u_ij)_{j∈E}.
#
# The probability that row i is in the batch is known,
#
#     π_i = Σ_j P(j ∈ E) u_ij²,   P(j ∈ E) = λ_j e_{n−1}(λ without λ_j)/e_n(λ),   Σ π_i = n,
#
# and w_i = 1/π_i (Horvitz and Thompson) makes the estimate unbiased. A share `floor` of the steps
# draws n rows uniformly without replacement instead, so that π_i ≥ floor·n/N, and rows whose
# features are zero are drawn too. Putcha et al. (2023, section 4) name the method beside theirs.
# The original does not divide by π_i and is biased.
#
# By default the features are random Fourier features of the standardised columns of the rows (their
# inner product is a Gaussian kernel), with the median distance between rows as length scale. Unlike
# the cost of other schemes, that of a step grows with N.


_CURE = "Pass {}(features=...), one row of finite numbers per data row."
_LEAST_EIGENVALUE = 1e-10  # relative to the largest


class RepulsiveSelection(AbstractStaticSelection):
    """Batches in which row i occurs π_i times on average, and has the weight 1/π_i."""

    inverse: eqx.AbstractVar[Float[Array, " N"]]  # 1/π_i

    def draws_at(self, indices: Int[Array, "*k n"]) -> RowDraws:
        """These rows with their weights."""
        return RowDraws(indices, self.inverse[indices])

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """NaN: the covariance takes the probabilities of all pairs of rows."""
        return jnp.full_like(terms, jnp.nan)


class DeterminantalSelection(RepulsiveSelection):
    """A k-DPP over the rows, mixed with uniform sets."""

    vectors: Float[Array, "N r"]  # u_ij
    # Probability that eigenvector j is in E, given that m of the first j + 1 are.
    conditional: Float[Array, "r n_1"]
    inverse: Float[Array, " N"]
    floor: Scalar
    size: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        # One step at a time: each needs an array of N×n numbers.
        return self.draws_at(lax.map(self._set, jax.random.split(key, steps)))

    def _set(self, key: PRNGKeyArray) -> Int[Array, " n"]:
        vectors_key, rows_key, uniform_key, mixture_key = jax.random.split(key, 4)
        chosen = self._eigenvectors(vectors_key)
        diverse = self._rows(rows_key, jnp.where(chosen, self.vectors, 0))
        order = jax.random.uniform(uniform_key, self.inverse.shape)
        uniform = lax.top_k(order, self.size)[1].astype(diverse.dtype)
        mixed = jax.random.uniform(mixture_key, dtype=self.floor.dtype) < self.floor
        return jnp.where(mixed, uniform, diverse)

    def _eigenvectors(self, key: PRNGKeyArray) -> Bool[Array, " r"]:
        """E, from the last eigenvector to the first."""

        def include(missing: Array, at: tuple[Array, Array]) -> tuple[Array, Array]:
            probabilities, uniform = at
            chosen = uniform < probabilities[missing]
            return missing - chosen, chosen

        uniforms = jax.random.uniform(key, self.conditional.shape[:1], self.conditional.dtype)
        start = jnp.int32(self.size)
        return lax.scan(include, start, (self.conditional, uniforms), reverse=True)[1]

    def _rows(self, key: PRNGKeyArray, vectors: Float[Array, "N r"]) -> Int[Array, " n"]:
        """N rows of the projection DPP of these vectors, by Gram–Schmidt orthogonalisation."""
        n_rows, dtype = vectors.shape[0], vectors.dtype

        def next_row(carry: tuple[Array, ...], at: tuple[Array, ...]) -> tuple[Any, Array]:
            basis, distance, taken = carry
            place, key = at
            logits = jnp.where(taken | (distance <= 0), -jnp.inf, jnp.log(distance))
            row = jax.random.categorical(key, logits).astype(jnp.int32)
            projected = vectors @ vectors[row] - basis @ basis[row]
            new = projected / jnp.sqrt(distance[row])
            left = jnp.maximum(distance - new**2, 0)
            return (basis.at[:, place].set(new), left, taken.at[row].set(True)), row

        start = (
            jnp.zeros((n_rows, self.size), dtype),
            jnp.sum(vectors**2, axis=1),
            jnp.zeros(n_rows, bool),
        )
        places = jnp.arange(self.size), jax.random.split(key, self.size)
        return lax.scan(next_row, start, places)[1]


def log_symmetric(log_values: Float[np.ndarray, " r"], degree: int) -> Float[np.ndarray, "r_1 n_1"]:
    """Log e_m of the first l values, at [l, m], for m up to `degree`."""
    table = np.full((len(log_values) + 1, degree + 1), -np.inf)
    table[:, 0] = 0
    for count, value in enumerate(log_values, start=1):
        table[count, 1:] = np.logaddexp(table[count - 1, 1:], value + table[count - 1, :-1])
    return table


def eigenvector_probabilities(
    log_values: Float[np.ndarray, " r"], size: int
) -> tuple[Float[np.ndarray, "r n_1"], Float[np.ndarray, " r"]]:
    """The table of conditional probabilities of part 1, and P(j ∈ E)."""
    before = log_symmetric(log_values, size)
    after = log_symmetric(log_values[::-1], size)[::-1]
    conditional = np.zeros((len(log_values), size + 1))
    with np.errstate(invalid="ignore"):  # −∞ − (−∞) where fewer than m values are left
        ratio = np.exp(log_values[:, None] + before[:-1, :-1] - before[1:, 1:])
    conditional[:, 1:] = np.nan_to_num(ratio, nan=0.0)
    # e_{n−1} without λ_j: some of the values before j, and the others after j.
    without = np.logaddexp.reduce(before[:-1, :size] + after[1:, size - 1 :: -1], axis=1)
    return conditional, np.exp(log_values + without - before[-1, size])


@dataclasses.dataclass(frozen=True, eq=False)
class Determinantal(SubsampleChoice):
    """Diverse batches by a k-DPP: rows with similar features are rarely in the same batch.

    **Arguments:**

    - `features`: an N×r matrix whose rank is at least the size; by default random Fourier features
      of the standardised columns.
    - `rank`: r of the random features, an even number; by default four times the size.
    - `floor`: the share of the steps that draw a uniform set.
    """

    paper = "Zhang, Kjellström and Mandt (2017)"
    bias = "Unbiased."
    cost = "A step takes O(N n (r + n)) operations and N·n random numbers."
    passes = 1
    knows_its_spread = False

    features: Any = None
    rank: int | None = None
    floor: float = 0.05

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1, low_open=True)
        if self.rank is not None:
            check_int("rank", self.rank, 2)

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> DeterminantalSelection:
        posterior = context.posterior
        n = fixed_rows(size, posterior, "with a k-DPP", "Use Uniform().")
        features = checked_features(self.features, posterior, _CURE.format("Determinantal"))
        if self.features is None:
            features = fourier_features(features, self.rank or 4 * n)
        values, directions = np.linalg.eigh(features.T @ features)
        kept = values > _LEAST_EIGENVALUE * values[-1]
        if np.count_nonzero(kept) < n:
            rule = f"be at most {np.count_nonzero(kept)}, the rank of the features"
            raise InvalidInput("batch_size", rule, n, "Use a smaller size or a larger rank.")
        values, directions = values[kept], directions[:, kept]
        vectors = features @ directions / np.sqrt(values)
        conditional, marginal = eigenvector_probabilities(np.log(values), n)
        inclusion = (1 - self.floor) * vectors**2 @ marginal + self.floor * n / posterior.n_rows
        return DeterminantalSelection(
            vectors=jnp.asarray(vectors, posterior.dtype),
            conditional=jnp.asarray(conditional, posterior.dtype),
            inverse=jnp.asarray(1 / inclusion, posterior.dtype),
            floor=jnp.asarray(self.floor, posterior.dtype),
            size=n,
        )


def fourier_features(columns: Float[np.ndarray, "N c"], rank: int) -> Float[np.ndarray, "N r"]:
    """√(2/r) (cos ωx, sin ωx), ω ~ N(0, I/ℓ²), ℓ the median distance between rows."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, len(columns), (2, 1000))
    scale = np.median(np.linalg.norm(columns[pairs[0]] - columns[pairs[1]], axis=1)) or 1.0
    angles = columns @ rng.standard_normal((columns.shape[1], -(-rank // 2))) / scale
    return np.sqrt(2 / rank) * np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


_SIMULATED_AT_ONCE = 1000
_BATCHES_FOR_RADIUS = 200


class PoissonDiskSelection(RepulsiveSelection):
    """Batches whose rows keep a distance."""

    features: Float[Array, "N c"]
    radius: Scalar
    inverse: Float[Array, " N"]
    law: UniformLaw
    size: int = eqx.field(static=True)
    tries: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        candidates = self.law.draw(random_words(key, (steps, self.tries * self.size)))
        return self.draws_at(jax.vmap(self.batch_from)(candidates))

    def batch_from(self, candidates: Int[Array, " m"]) -> Int[Array, " n"]:
        """The accepted candidates in their order, then the refused ones, the first n of them."""
        places = self.features[candidates]
        near = jnp.sum((places[:, None] - places[None]) ** 2, axis=2) <= self.radius**2

        def consider(accepted: Array, candidate: Array) -> tuple[Array, None]:
            free = ~jnp.any(near[candidate] & accepted)
            return accepted.at[candidate].set(free), None

        start = jnp.zeros(len(candidates), bool)
        accepted = lax.scan(consider, start, jnp.arange(len(candidates)))[0]
        return candidates[jnp.argsort(~accepted, stable=True)[: self.size]]


@dataclasses.dataclass(frozen=True, eq=False)
class PoissonDisk(SubsampleChoice):
    """Diverse batches whose rows keep a distance, with estimated weights.

    **Arguments:**

    - `radius`: the distance; by default the median distance of a row to the nearest row of its
      batch, for uniform batches.
    - `features`: a matrix with one row per data row; by default the standardised columns.
    - `tries`: candidates per row of a batch.
    - `simulated`: the number M of batches from which the weights are estimated. The bias of the
      gradient is about that of an average over M steps.
    """

    paper = "Zhang, Öztireli, Mandt and Salvi (2019)"
    bias = (
        "With estimated weights the gradient has a bias that is fixed for the whole run, about 1/M "
        "of the noise of one batch without repulsion: that of an average over M steps. A run much "
        "longer than M steps sees it."
    )
    cost = "A step takes O(tries·n²) distances, whatever N."
    passes = 1
    knows_its_spread = False

    radius: float | None = None
    features: Any = None
    tries: int = 4
    simulated: int = 100_000
    unseen_by_pairs = "the bias of the estimated weights of Poisson-disk batches"

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_number("radius", self.radius, 0)
        check_int("tries", self.tries, 1)
        check_int("simulated", self.simulated, 1)

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> PoissonDiskSelection:
        posterior = context.posterior
        n = fixed_rows(size, posterior, "with Poisson disks", "Use Uniform().")
        features = checked_features(self.features, posterior, _CURE.format("PoissonDisk"))
        radius = _usual_distance(features, n) if self.radius is None else self.radius
        unweighted = PoissonDiskSelection(
            features=jnp.asarray(features, posterior.dtype),
            radius=jnp.asarray(radius, posterior.dtype),
            inverse=jnp.ones(posterior.n_rows, posterior.dtype),
            law=UniformLaw(posterior.n_rows, posterior.dtype),
            size=n,
            tries=self.tries,
        )
        counts = _simulated_counts(unweighted, self.simulated)
        inverse = jnp.asarray(self.simulated / np.maximum(counts, 0.5), posterior.dtype)
        return dataclasses.replace(unweighted, inverse=inverse)


def _usual_distance(features: Float[np.ndarray, "N c"], size: int) -> float:
    """The median distance of a row of a uniform batch to the nearest other row of the batch."""
    if size < 2:
        return 0.0
    numbers = np.random.default_rng(0).integers(0, len(features), (_BATCHES_FOR_RADIUS, size))
    batches = features[numbers]
    squares = np.sum((batches[:, :, None] - batches[:, None]) ** 2, axis=3)
    squares[:, np.arange(size), np.arange(size)] = np.inf
    return float(np.median(np.sqrt(squares.min(axis=2))))


def _simulated_counts(selection: PoissonDiskSelection, batches: int) -> Float[np.ndarray, " N"]:
    """How often each row occurs in this many batches."""
    counts = np.zeros(len(selection.inverse))
    draw = eqx.filter_jit(lambda selection, key, steps: selection.draw(key, steps).indices)
    for number, first in enumerate(range(0, batches, _SIMULATED_AT_ONCE)):
        key = jax.random.fold_in(new_key(0), number)
        steps = min(_SIMULATED_AT_ONCE, batches - first)
        drawn = np.asarray(draw(selection, key, steps))
        counts += np.bincount(drawn.ravel(), minlength=len(counts))
    return counts
