"""Stratified subsampling: every batch has draws from each stratum, a group of similar rows.

    n_h draws from the N_h rows of stratum h, uniform and with replacement:
    w_i = N_h/n_h,   Σ n_h = n
    Cov(∇f̂) = Σ_h (N_h²/n_h) C_h,   C_h the covariance of the residuals r_i(θ) in stratum h

Differences between the means of the strata add no noise.
There are two allocations of the draws:

    proportional   n_h ∝ N_h. With n_h = n N_h/N exactly, never more noise than n uniform draws.
    neyman         n_h ∝ N_h S_h, S_h² = tr C_h for the rows' gradients at the mode. This minimises
                   tr Cov of the simple estimator at the mode.

The n_h are rounded to integers by largest remainders. Without labels the strata are clusters of the
rows, by k-means on the standardised columns: clustering-based preprocessing (CP), Fu and Zhang
(2017), after Zhao and Zhang (2014).
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from .._anchor.anchor import AnchorLevel
from .._core.arrays import Vector, check_numeric
from .._core.errors import InvalidInput, check_int
from .._core.random import random_words
from .._rows.access import AbstractRows, RowBlock
from .._rows.law import RowDraws, uniform_index
from .._rows.passes import block_rows
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from .selection import (
    AbstractStaticSelection,
    SizeChoice,
    SubsampleChoice,
    SubsampleContext,
    fixed_rows,
)

# The columns of rows as a matrix on the host, for schemes that compare rows with each other.


def columns_of(rows: AbstractRows, indices: Int[np.ndarray, " n"], cure: str) -> np.ndarray:
    """These rows as a matrix; `cure` tells the user what to do if they are not finite."""
    leaves = jax.tree.leaves(rows.take(jnp.asarray(indices)))
    columns = [np.asarray(column, float) for column in leaves]
    matrix = np.concatenate([column.reshape(len(indices), -1) for column in columns], axis=1)
    bad = ~np.isfinite(matrix).all(axis=1)
    if bad.any():
        value = f"NaN or infinity in row {indices[np.argmax(bad)]}"
        raise InvalidInput("data", "be finite to be compared", value, cure)
    return matrix


def index_blocks(n_rows: int, width: int) -> Iterator[Int[np.ndarray, " n"]]:
    """All row numbers, in blocks that fit into memory."""
    block = block_rows(width)
    return (np.arange(start, min(start + block, n_rows)) for start in range(0, n_rows, block))


def standardised_columns(rows: AbstractRows, cure: str) -> Float[np.ndarray, "N c"]:
    """All columns with mean zero and, unless they are constant, sd one."""
    blocks = index_blocks(rows.n_rows, rows.floats_per_row)
    matrix = np.concatenate([columns_of(rows, block, cure) for block in blocks])
    deviation = matrix.std(axis=0)
    return (matrix - matrix.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def checked_features(
    features: object, posterior: AbstractPosterior, cure: str
) -> Float[np.ndarray, "N r"]:
    """The features that a user gave, or the standardised columns of the rows."""
    if features is None:
        return standardised_columns(posterior.rows, cure)
    given = np.asarray(check_numeric("features", features), np.float64)
    if given.ndim != 2 or len(given) != posterior.n_rows or not np.isfinite(given).all():
        rule = f"be a matrix of finite numbers, one row per data row ({posterior.n_rows})"
        raise InvalidInput("features", rule, f"an array of shape {given.shape}")
    return given


_CURE = "Pass Stratified(labels), one per row."
_CLUSTERED_ROWS = 20_000  # rows on which k-means runs; each row then joins the nearest centre


class StratifiedSelection(AbstractStaticSelection):
    """Draw k is from the stratum `rows_by_stratum[first[k] : first[k] + count[k]]`."""

    rows_by_stratum: Int[Array, " N"]
    first: Int[Array, " n"]
    count: UInt32[Array, " n"]
    weights: Float[Array, " n"]
    stratum: Int[Array, " n"]  # The stratum of each draw
    draws: Int[Array, " H"]  # n_h
    size: int = eqx.field(static=True)

    @classmethod
    def of(cls, stratum_of_row: np.ndarray, draws: np.ndarray, dtype: Any) -> StratifiedSelection:
        """The selection with n_h = `draws[h]` draws from the rows of stratum h."""
        rows = np.bincount(stratum_of_row)
        stratum = np.repeat(np.arange(len(rows)), draws)
        return cls(
            rows_by_stratum=jnp.asarray(np.argsort(stratum_of_row, kind="stable"), jnp.int32),
            first=jnp.asarray((np.cumsum(rows) - rows)[stratum], jnp.int32),
            count=jnp.asarray(rows[stratum], jnp.uint32),
            weights=jnp.asarray((rows / draws)[stratum], dtype),
            stratum=jnp.asarray(stratum, jnp.int32),
            draws=jnp.asarray(draws, jnp.int32),
            size=int(draws.sum()),
        )

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        return self.draws_at(uniform_index(random_words(key, (steps, self.size)), self.count))

    def draws_at(self, places: Int[Array, "*k n"]) -> RowDraws:
        """The rows at these places within the strata of their draws."""
        indices = self.rows_by_stratum.at[self.first + places].get(mode="promise_in_bounds")
        return RowDraws(indices, jnp.broadcast_to(self.weights, places.shape))

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """√(n_h/(n_h − 1)) (t_i − t̄_h), NaN in a stratum with a single draw."""
        n = self.draws[:, None].astype(terms.dtype)
        mean = jax.ops.segment_sum(terms, self.stratum, len(self.draws)) / n
        scale = jnp.sqrt(jnp.where(n > 1, n / (n - 1), jnp.nan))
        return scale[self.stratum] * (terms - mean[self.stratum])


@dataclasses.dataclass(frozen=True, eq=False)
class Stratified(SubsampleChoice):
    """Stratified draws: a number of draws from each stratum in every step.

    **Arguments:**

    - `strata`: a number of k-means clusters, or labels, one integer per row.
    - `allocation`: "proportional" allocates draws in proportion to the rows of a stratum. "neyman"
      allocates them in proportion to the rows times the spread of the gradients in the stratum.
    - `at_least`: the least number of draws per stratum. A noise correction from the batch needs 2.
    """

    paper = "Fu and Zhang (2017)"
    bias = "Unbiased for any strata and any n_h ≥ 1."

    strata: Any = 10
    allocation: Literal["proportional", "neyman"] = "proportional"
    at_least: int = 1

    def __post_init__(self) -> None:
        given = check_numeric("strata", self.strata)
        if not given.ndim:
            check_int("strata", self.strata, 1)
        elif not np.issubdtype(given.dtype, np.integer):
            rule = "be a number of clusters, or integer labels, one per row"
            raise InvalidInput("strata", rule, self.strata)
        if self.allocation not in ("proportional", "neyman"):
            raise InvalidInput("allocation", 'be "proportional" or "neyman"', self.allocation)
        check_int("at_least", self.at_least, 1)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.MODE if self.allocation == "neyman" else AnchorLevel.NOTHING

    @property
    def passes(self) -> int:
        return int(self._uses_clusters) + int(self.allocation == "neyman")

    @property
    def knows_its_spread(self) -> bool:
        return self.at_least >= 2

    @property
    def _uses_clusters(self) -> bool:
        return np.ndim(self.strata) == 0

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> StratifiedSelection:
        posterior, anchor = context.posterior, context.anchor
        why = "with strata: the draws are allocated to the strata before the run"
        cure = "Use Uniform() or Preferential(...) with BoundedNoise(...)."
        n = fixed_rows(size, posterior, why, cure)
        stratum_of_row = self._stratum_of_row(posterior)
        rows = np.bincount(stratum_of_row)
        least = self.at_least * len(rows)
        if n < least:
            rule = f"be at least {least}, {self.at_least} for each of the {len(rows)} strata"
            raise InvalidInput("batch_size", rule, n, "Choose fewer strata or a larger size.")
        shares = rows.astype(float)
        if self.allocation == "neyman":
            assert anchor is not None, "Neyman allocation needs the mode"
            products = rows * _within_deviations(posterior, anchor.position, stratum_of_row)
            shares = products if products.sum() > 0 else shares
        draws = allocate(n, shares, self.at_least)
        return StratifiedSelection.of(stratum_of_row, draws, posterior.dtype)

    def _stratum_of_row(self, posterior: AbstractPosterior) -> np.ndarray:
        """The stratum of every row, numbered from zero without gaps."""
        if self._uses_clusters:
            clusters = check_int("strata", self.strata, 1, posterior.n_rows, high_name="n_rows")
            labels = _clusters_of(posterior.rows, clusters)
        else:
            labels = np.asarray(self.strata)
            if labels.shape != (posterior.n_rows,):
                rule = f"be labels, one per row ({posterior.n_rows})"
                raise InvalidInput("strata", rule, f"an array of shape {labels.shape}")
        return np.unique(labels, return_inverse=True)[1]


def allocate(size: int, shares: np.ndarray, at_least: int = 1) -> np.ndarray:
    """Integers that sum to `size`, in proportion to `shares`, by largest remainders.

    Each integer is at least `at_least`.
    """
    slack = 1e-9 * size  # covers the rounding error of ideal counts that are integers
    raised = np.zeros(len(shares), bool)
    while True:
        # Raising some counts lowers the others, which may bring more of them below `at_least`.
        ideal = np.where(
            raised, at_least, shares * ((size - at_least * raised.sum()) / shares[~raised].sum())
        )
        low = ~raised & (ideal < at_least - slack)
        if not low.any():
            break
        raised |= low
    draws = np.floor(ideal + slack).astype(int)
    draws[np.argsort(draws - ideal, kind="stable")[: size - draws.sum()]] += 1
    return draws


def _stratum_moments(
    block: RowBlock,
    stratum: Int[Array, " n"],
    counted: Bool[Array, " n"],
    model: AbstractModel,
    position: Vector,
    counts: Array,
) -> tuple[Float[Array, "H d"], Float[Array, " H"]]:
    """Σ ∇f_i and Σ ‖∇f_i‖² over a block, by stratum. `counts` has one entry per stratum."""
    gradients = model.expand(model.row_gradients(position, block), block)
    gradients = jnp.where(counted[:, None], gradients, 0)
    squares = jnp.sum(gradients**2, axis=1)
    by_stratum = functools.partial(
        jax.ops.segment_sum, segment_ids=stratum, num_segments=len(counts)
    )
    return by_stratum(gradients), by_stratum(squares)


def _within_deviations(
    posterior: AbstractPosterior, position: Array, stratum_of_row: np.ndarray
) -> np.ndarray:
    """S_h, from one pass over the rows."""
    counts = np.bincount(stratum_of_row)
    total = posterior.rows.reduce(
        _stratum_moments,
        posterior.model,
        position,
        jnp.asarray(counts),
        width=posterior.width,
        beside=jnp.asarray(stratum_of_row, jnp.int32),
    )
    first, second = total.float64()
    return np.sqrt(np.maximum(second / counts - np.sum((first / counts[:, None]) ** 2, axis=1), 0))


def _clusters_of(rows: AbstractRows, clusters: int) -> np.ndarray:
    """The nearest k-means centre of every row. Some clusters may be empty."""
    from scipy.cluster.vq import kmeans2, vq  # a slow import

    n_rows = rows.n_rows
    rng = np.random.default_rng(0)
    chosen = rng.choice(n_rows, min(n_rows, _CLUSTERED_ROWS), replace=False)
    sample = columns_of(rows, np.sort(chosen), _CURE)
    mean, deviation = sample.mean(axis=0), sample.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1)
    # More clusters than distinct rows are allowed: some clusters then stay empty.
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.filterwarnings("ignore", "One of the clusters is empty")
        centres = kmeans2((sample - mean) / scale, clusters, minit="++", seed=rng)[0]
    found = [
        vq((columns_of(rows, block, _CURE) - mean) / scale, centres)[0]
        for block in index_blocks(n_rows, sample.shape[1])
    ]
    return np.concatenate(found)
