"""Diversified minibatches by a determinantal point process, k-DPP (Zhang et al., 2017).

    P(S) ∝ det(Φ_S Φ_Sᵀ),   |S| = n,   Φ the N×r matrix of features of the rows

A set of rows with similar features is rarely drawn. With the eigenvalues λ_j > 0 of ΦᵀΦ and the
orthonormal columns u_j of ΦV/√λ, a draw has two parts (Kulesza and Taskar, 2012, algorithms 7, 8):

    1. a set E of n eigenvectors with probability Π_{j∈E} λ_j / e_n(λ), e_n the elementary
       symmetric polynomial of degree n, by conditional probabilities that are tabulated ahead;
    2. n rows one after the other, row i with probability ∝ its squared distance from the span of
       the rows so far, in the coordinates (u_ij)_{j∈E}.

The probability that row i is in the batch is known,

    π_i = Σ_j P(j ∈ E) u_ij²,   P(j ∈ E) = λ_j e_{n−1}(λ without λ_j)/e_n(λ),   Σ π_i = n,

and w_i = 1/π_i (Horvitz and Thompson) makes the estimate unbiased. A share `floor` of the steps
draws n rows uniformly without replacement instead, so that π_i ≥ floor·n/N, and rows whose features
are zero are drawn too. Putcha et al. (2023, section 4) name the method beside theirs. The original
does not divide by π_i and is biased.

By default the features are random Fourier features of the standardised columns of the rows (their
inner product is a Gaussian kernel), with the median distance between rows as length scale. A step
takes O(N n (r + n)) operations and N·n random numbers: unlike other schemes here its cost grows
with N.
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

from ..anchor.anchor import AnchorLevel
from ..core.errors import InvalidInput, check_int, check_number
from ..rows.base import RowAccess
from ..rows.batch import RowDraws
from .base import SizeChoice, SubsampleChoice, SubsampleContext
from .features import checked_features, standardised_columns
from .selection import AbstractStaticSelection
from .size import Fixed

_CURE = "Pass Determinantal(features=...), one row of finite numbers per data row."
_LEAST_EIGENVALUE = 1e-10  # relative to the largest


class DeterminantalSelection(AbstractStaticSelection):
    """A k-DPP over the rows, mixed with uniform sets."""

    vectors: Float[Array, "N r"]
    """u_ij."""
    conditional: Float[Array, "r n_1"]
    """Probability that eigenvector j is in E, given that m of the first j + 1 are."""
    inverse: Float[Array, " N"]
    """1/π_i."""
    floor: Float[Array, ""]
    size: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        # One step at a time: each needs an array of N×n numbers.
        return self.draws_at(lax.map(self._set, jax.random.split(key, steps)))

    def draws_at(self, indices: Int[Array, "*k n"]) -> RowDraws:
        """These rows with their weights."""
        return RowDraws(indices, self.inverse[indices])

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """NaN: the covariance takes the probabilities of all pairs of rows."""
        return jnp.full_like(terms, jnp.nan)

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

        def include(
            missing: Int[Array, ""], at: tuple[Array, Array]
        ) -> tuple[Int[Array, ""], Bool[Array, ""]]:
            probabilities, uniform = at
            chosen = uniform < probabilities[missing]
            return missing - chosen, chosen

        uniforms = jax.random.uniform(key, self.conditional.shape[:1], self.conditional.dtype)
        start = jnp.int32(self.size)
        return lax.scan(include, start, (self.conditional, uniforms), reverse=True)[1]

    def _rows(self, key: PRNGKeyArray, vectors: Float[Array, "N r"]) -> Int[Array, " n"]:
        """n rows of the projection DPP of these vectors, by Gram–Schmidt orthogonalisation."""
        n_rows, dtype = vectors.shape[0], vectors.dtype

        def next_row(
            carry: tuple[Array, Array, Array], at: tuple[Array, PRNGKeyArray]
        ) -> tuple[tuple[Array, Array, Array], Int[Array, ""]]:
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
    """log e_m of the first l values, at [l, m], for m up to `degree`."""
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

    **Raises:** `InvalidInput` if an argument is out of its range. `prepare` raises it if the
    features have too low a rank for the size.

    >>> Determinantal(rank=64).knows_its_spread
    False
    """

    features: Any = None
    rank: int | None = None
    floor: float = 0.05
    needs = AnchorLevel.NOTHING
    passes = 1
    knows_its_spread = False
    row_access = RowAccess.TAKE

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1, low_open=True)
        if self.rank is not None:
            check_int("rank", self.rank, 2)

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> DeterminantalSelection:
        posterior = context.posterior
        if not isinstance(size, Fixed):
            raise InvalidInput("size", "be fixed with a k-DPP", size, "Use Uniform().")
        n = size.checked(posterior)
        features = (
            fourier_features(standardised_columns(posterior.rows, _CURE), self.rank or 4 * n)
            if self.features is None
            else checked_features(self.features, posterior, _CURE)
        )
        values, directions = np.linalg.eigh(features.T @ features)
        kept = values > _LEAST_EIGENVALUE * values[-1]
        if np.count_nonzero(kept) < n:
            rule = f"be at most {np.count_nonzero(kept)}, the rank of the features"
            raise InvalidInput("size", rule, n, "Use a smaller size or a larger rank.")
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
