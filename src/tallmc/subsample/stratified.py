"""Stratified subsampling: rows that are alike make a stratum, and every batch has its share from each.

    n_h draws, uniform and with replacement, from the N_h rows of stratum h:   w_i = N_h/n_h,   Σ n_h = n
    Cov(∇f̂) = Σ_h (N_h²/n_h) C_h,   C_h the covariance of the residuals r_i(θ) over the rows of stratum h

Unbiased for any strata and any n_h ≥ 1. What the means of the strata differ by makes no noise. The draws are allocated

    proportional   n_h ∝ N_h: with n_h = n N_h/N exactly, never more noise than n uniform draws
    neyman         n_h ∝ N_h S_h, S_h² = tr C_h for the rows' gradients at the mode: the simple estimator's least tr Cov there

in whole draws, by largest remainders. Without labels the strata are clusters of the rows, by k-means on their columns in units of
one standard deviation: clustering-based preprocessing (CP), Fu and Zhang (2017), after Zhao and Zhang (2014).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, UInt32

from .._anchor import Needs
from .._arrays import check_numeric
from .._errors import InvalidInput, check_int
from .._posterior import AbstractPosterior
from .._random import random_words
from .._rows import block_rows, sum_rows, take_rows
from .base import Setting, SizeChoice, SubsampleChoice
from .bits import uniform_index
from .selection import AbstractStaticSelection, Picks
from .size import Fixed

_CLUSTERED_ROWS = 20_000  # the centres are found on so many rows; all rows then go to the nearest


class StratifiedSelection(AbstractStaticSelection):
    """Draw k comes from the stratum that is `rows_by_stratum[first[k] : first[k] + count[k]]`."""

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
        """n_h = `draws[h]` draws from the rows of stratum h."""
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

    def supply(self, key: PRNGKeyArray, steps: int) -> Picks:
        return self.picks_at(uniform_index(random_words(key, (steps, self.size)), self.count))

    def picks_at(self, places: Int[Array, "*k n"]) -> Picks:
        """The rows at these places, each in the stratum of its draw."""
        indices = self.rows_by_stratum.at[self.first + places].get(mode="promise_in_bounds")
        return Picks(indices, jnp.broadcast_to(self.weights, places.shape))

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """√(n_h/(n_h − 1)) (t_i − t̄_h): NaN in a stratum that is drawn from once."""
        n = self.draws[:, None].astype(terms.dtype)
        mean = jax.ops.segment_sum(terms, self.stratum, len(self.draws)) / n
        return jnp.sqrt(jnp.where(n > 1, n / (n - 1), jnp.nan))[self.stratum] * (terms - mean[self.stratum])


@dataclasses.dataclass(frozen=True, eq=False)
class Stratified(SubsampleChoice):
    """Choose rows stratum by stratum: so many k-means clusters, or your own labels, one integer a row.

    `allocation` shares the draws out in proportion to the rows ("proportional") or also to how much their gradients differ within
    a stratum ("neyman"). Each stratum gets `at_least` so many draws. From a single one a batch cannot tell how noisy it is, so a
    noise correction from the batch asks for two.

    >>> Stratified(5, allocation="neyman").needs.name
    'MODE'
    """

    strata: Any = 10
    allocation: Literal["proportional", "neyman"] = "proportional"
    at_least: int = 1

    def __post_init__(self) -> None:
        given = check_numeric("strata", self.strata)
        if not given.ndim:
            check_int("strata", self.strata, 1)
        elif not np.issubdtype(given.dtype, np.integer):
            raise InvalidInput("strata", "be a number of clusters, or integer labels, one a row", self.strata)
        if self.allocation not in ("proportional", "neyman"):
            raise InvalidInput("allocation", 'be "proportional" or "neyman"', self.allocation)
        check_int("at_least", self.at_least, 1)

    @property
    def needs(self) -> Needs:
        return Needs.MODE if self.allocation == "neyman" else Needs.NOTHING

    @property
    def passes(self) -> int:
        return int(self._clusters) + int(self.allocation == "neyman")

    @property
    def knows_its_spread(self) -> bool:
        return self.at_least >= 2

    @property
    def _clusters(self) -> bool:
        return np.ndim(self.strata) == 0

    def prepare(self, setting: Setting, size: SizeChoice | None) -> StratifiedSelection:
        if not isinstance(size, Fixed):
            raise InvalidInput(
                "size",
                "be fixed with strata: the draws are shared out among them beforehand",
                size,
                "Use Uniform() or Preferential(...) with Adaptive(...).",
            )
        posterior, anchor = setting.posterior, setting.anchor
        stratum_of_row = self._strata(posterior)
        rows = np.bincount(stratum_of_row)
        least = self.at_least * len(rows)
        n = size.checked(posterior)
        if n < least:
            rule = f"be at least {least}, {self.at_least} for each of the {len(rows)} strata"
            raise InvalidInput("size", rule, n, "Ask for fewer strata, or more rows.")
        shares = rows.astype(float)
        if self.allocation == "neyman":
            assert anchor is not None, "Neyman's allocation needs the mode"
            products = rows * _within_deviations(posterior, anchor.position, jnp.asarray(stratum_of_row, jnp.int32), len(rows))
            shares = products if products.sum() > 0 else shares
        return StratifiedSelection.of(stratum_of_row, allocate(n, shares, self.at_least), posterior.dtype)

    def _strata(self, posterior: AbstractPosterior) -> np.ndarray:
        """The stratum of every row, numbered from zero without gaps."""
        if self._clusters:
            labels = _clusters_of(posterior.data, check_int("strata", self.strata, 1, posterior.n_rows, high_name="n_rows"))
        else:
            labels = np.asarray(self.strata)
            if labels.shape != (posterior.n_rows,):
                raise InvalidInput("strata", f"be labels, one a row ({posterior.n_rows})", f"an array of shape {labels.shape}")
        return np.unique(labels, return_inverse=True)[1]


def allocate(size: int, shares: np.ndarray, at_least: int = 1) -> np.ndarray:
    """`size` draws in proportion to `shares`, whole and `at_least` so many each, by largest remainders.

    >>> allocate(10, np.array([55.0, 30.0, 14.0, 1.0]))
    array([5, 3, 1, 1])
    """
    slack = 1e-9 * size  # what rounding may take from a share that is a whole number
    raised = np.zeros(len(shares), bool)
    while True:
        # What is left after the raised ones is shared by the others, which may bring more of them under the least.
        ideal = np.where(raised, at_least, shares * ((size - at_least * raised.sum()) / shares[~raised].sum()))
        low = ~raised & (ideal < at_least - slack)
        if not low.any():
            break
        raised |= low
    draws = np.floor(ideal + slack).astype(int)
    draws[np.argsort(draws - ideal, kind="stable")[: size - draws.sum()]] += 1
    return draws


@eqx.filter_jit
def _moments_by_stratum(posterior: AbstractPosterior, position: Array, stratum_of_row: Array, strata: int) -> Any:
    def block(numbered):  # type: ignore[no-untyped-def]
        rows, stratum = numbered
        gradients = posterior.expand(posterior.row_gradients(position, rows), rows)
        return tuple(jax.ops.segment_sum(of, stratum, strata) for of in (gradients, jnp.sum(gradients**2, axis=1)))

    return sum_rows(block, (posterior.data, stratum_of_row), posterior.width)


def _within_deviations(posterior: AbstractPosterior, position: Array, stratum_of_row: Array, strata: int) -> np.ndarray:
    """S_h, from one pass over the rows."""
    first, second = _moments_by_stratum(posterior, position, stratum_of_row, strata).float64()
    rows = np.bincount(np.asarray(stratum_of_row))
    return np.sqrt(np.maximum(second / rows - np.sum((first / rows[:, None]) ** 2, axis=1), 0))


def _clusters_of(data: PyTree[Array], clusters: int) -> np.ndarray:
    """The nearest of k-means' centres for every row; some may be nobody's."""
    from scipy.cluster.vq import kmeans2, vq  # it takes a while to import

    n_rows = len(jax.tree.leaves(data)[0])
    rng = np.random.default_rng(0)
    sample = _columns(data, np.sort(rng.choice(n_rows, min(n_rows, _CLUSTERED_ROWS), replace=False)))
    mean, deviation = sample.mean(axis=0), sample.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1)
    # More clusters than different rows are no mistake: some clusters then stay empty.
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.filterwarnings("ignore", "One of the clusters is empty")
        centres = kmeans2((sample - mean) / scale, clusters, minit="++", seed=rng)[0]
    return np.concatenate([vq((_columns(data, block) - mean) / scale, centres)[0] for block in _blocks(n_rows, sample.shape[1])])


def _blocks(n_rows: int, width: int) -> Iterator[np.ndarray]:
    block = block_rows(n_rows, width)
    return (np.arange(start, min(start + block, n_rows)) for start in range(0, n_rows, block))


def _columns(data: PyTree[Array], indices: np.ndarray) -> np.ndarray:
    """These rows as a matrix, on the host."""
    columns = [np.asarray(column, float) for column in jax.tree.leaves(take_rows(data, jnp.asarray(indices)))]
    matrix = np.concatenate([column.reshape(len(indices), -1) for column in columns], axis=1)
    bad = ~np.isfinite(matrix).all(axis=1)
    if bad.any():
        value = f"NaN or infinity in row {indices[np.argmax(bad)]}"
        raise InvalidInput("data", "be finite to be clustered", value, "Pass Stratified(labels), one a row.")
    return matrix
