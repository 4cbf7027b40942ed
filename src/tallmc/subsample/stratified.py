"""Stratified subsampling: every batch has draws from each stratum, a group of similar rows.

    n_h draws from the N_h rows of stratum h, uniform and with replacement:
    w_i = N_h/n_h,   Σ n_h = n
    Cov(∇f̂) = Σ_h (N_h²/n_h) C_h,   C_h the covariance of the residuals r_i(θ) in stratum h

Unbiased for any strata and any n_h ≥ 1. Differences between the means of the strata add no noise.
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
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from ..anchor.anchor import AnchorLevel
from ..core.arrays import check_numeric
from ..core.errors import InvalidInput, check_int
from ..core.random import random_words
from ..models.base import AbstractModel
from ..models.posterior import AbstractPosterior
from ..rows.base import AbstractRows, RowAccess, RowBlock
from ..rows.batch import RowDraws
from ..rows.bits import uniform_index
from .base import SizeChoice, SubsampleChoice, SubsampleContext
from .features import columns_of, index_blocks
from .selection import AbstractStaticSelection
from .size import Fixed

_CURE = "Pass Stratified(labels), one per row."
_CLUSTERED_ROWS = 20_000  # rows on which k-means runs; each row then joins the nearest centre


class StratifiedSelection(AbstractStaticSelection):
    """Draw k is from the stratum `rows_by_stratum[first[k] : first[k] + count[k]]`."""

    rows_by_stratum: Int[Array, " N"]
    first: Int[Array, " n"]
    count: UInt32[Array, " n"]
    weights: Float[Array, " n"]
    stratum: Int[Array, " n"]
    """The stratum of each draw."""
    draws: Int[Array, " H"]
    """n_h."""
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
        return jnp.sqrt(jnp.where(n > 1, n / (n - 1), jnp.nan))[self.stratum] * (
            terms - mean[self.stratum]
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Stratified(SubsampleChoice):
    """Stratified draws: a number of draws from each stratum in every step.

    **Arguments:**

    - `strata`: a number of k-means clusters, or labels, one integer per row.
    - `allocation`: "proportional" allocates draws in proportion to the rows of a stratum. "neyman"
      allocates them in proportion to the rows times the spread of the gradients in the stratum.
    - `at_least`: the least number of draws per stratum. A noise correction from the batch needs 2.

    **Raises:** `InvalidInput` if an argument is not one of these values.

    >>> Stratified(5, allocation="neyman").needs.name
    'MODE'
    """

    strata: Any = 10
    allocation: Literal["proportional", "neyman"] = "proportional"
    at_least: int = 1
    row_access = RowAccess.TAKE

    def __post_init__(self) -> None:
        given = check_numeric("strata", self.strata)
        if not given.ndim:
            check_int("strata", self.strata, 1)
        elif not np.issubdtype(given.dtype, np.integer):
            raise InvalidInput(
                "strata", "be a number of clusters, or integer labels, one per row", self.strata
            )
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
        if not isinstance(size, Fixed):
            raise InvalidInput(
                "size",
                "be fixed with strata: the draws are allocated to the strata before the run",
                size,
                "Use Uniform() or Preferential(...) with Adaptive(...).",
            )
        posterior, anchor = context.posterior, context.anchor
        stratum_of_row = self._stratum_of_row(posterior)
        rows = np.bincount(stratum_of_row)
        least = self.at_least * len(rows)
        n = size.checked(posterior)
        if n < least:
            rule = f"be at least {least}, {self.at_least} for each of the {len(rows)} strata"
            raise InvalidInput("size", rule, n, "Choose fewer strata or a larger size.")
        shares = rows.astype(float)
        if self.allocation == "neyman":
            assert anchor is not None, "Neyman allocation needs the mode"
            products = rows * _within_deviations(posterior, anchor.position, stratum_of_row)
            shares = products if products.sum() > 0 else shares
        return StratifiedSelection.of(
            stratum_of_row, allocate(n, shares, self.at_least), posterior.dtype
        )

    def _stratum_of_row(self, posterior: AbstractPosterior) -> np.ndarray:
        """The stratum of every row, numbered from zero without gaps."""
        if self._uses_clusters:
            labels = _clusters_of(
                posterior.rows,
                check_int("strata", self.strata, 1, posterior.n_rows, high_name="n_rows"),
            )
        else:
            labels = np.asarray(self.strata)
            if labels.shape != (posterior.n_rows,):
                raise InvalidInput(
                    "strata",
                    f"be labels, one per row ({posterior.n_rows})",
                    f"an array of shape {labels.shape}",
                )
        return np.unique(labels, return_inverse=True)[1]


def allocate(size: int, shares: np.ndarray, at_least: int = 1) -> np.ndarray:
    """Integers that sum to `size`, in proportion to `shares`, by largest remainders.

    Each integer is at least `at_least`.

    >>> allocate(10, np.array([55.0, 30.0, 14.0, 1.0]))
    array([5, 3, 1, 1])
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
    rows: RowBlock,
    stratum: Int[Array, " n"],
    counted: Bool[Array, " n"],
    model: AbstractModel,
    position: Float[Array, " d"],
    counts: Array,
) -> tuple[Float[Array, "H d"], Float[Array, " H"]]:
    """Σ ∇f_i and Σ ‖∇f_i‖² over a block, by stratum. `counts` has one entry per stratum."""
    gradients = model.expand(model.row_gradients(position, rows), rows)
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
    sample = columns_of(
        rows, np.sort(rng.choice(n_rows, min(n_rows, _CLUSTERED_ROWS), replace=False)), _CURE
    )
    mean, deviation = sample.mean(axis=0), sample.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1)
    # More clusters than distinct rows are allowed: some clusters then stay empty.
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.filterwarnings("ignore", "One of the clusters is empty")
        centres = kmeans2((sample - mean) / scale, clusters, minit="++", seed=rng)[0]
    return np.concatenate(
        [
            vq((columns_of(rows, block, _CURE) - mean) / scale, centres)[0]
            for block in index_blocks(n_rows, sample.shape[1])
        ]
    )
