"""Diversified minibatches by Poisson-disk sampling: rows keep a distance (Zhang et al., 2019).

`tries`·n candidates are drawn, uniformly and with replacement. A candidate is accepted if its
features are farther than the radius from those of every accepted candidate. The batch is the first
n accepted candidates. If there are fewer, the first refused candidates fill it up. A step takes
O(tries·n²) distances, whatever N: this is the cheap alternative to a determinantal process.

The expected number π_i of times that row i is in a batch has no closed form. It is smaller where
rows are dense. M = `simulated` batches give the estimate π̂_i = c_i/M before the run, and w_i =
1/π̂_i. With the right π_i the estimate would be unbiased (Hansen and Hurwitz; a row may occur twice
among the rows that fill up). With π̂_i it has a bias that is fixed for the whole run,

    E ∇f̂ − ∇f = Σ_i (π_i/π̂_i − 1) r_i,   variance about Σ_i ‖r_i‖² (1 − π_i)/(M π_i),

which is about 1/M of the noise of one batch without repulsion: the bias is that of an average over
M steps. A run much longer than M steps sees it. A row that no simulated batch contains has π̂_i =
1/(2M), so its weight is finite. `tests/test_diverse.py` measures the bias.
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
from ..core.random import new_key, random_words
from ..rows.base import RowAccess
from ..rows.batch import RowDraws
from ..rows.law import UniformLaw
from .base import SizeChoice, SubsampleChoice, SubsampleContext
from .features import checked_features
from .selection import AbstractStaticSelection
from .size import Fixed

_CURE = "Pass PoissonDisk(features=...), one row of finite numbers per data row."
_SIMULATED_AT_ONCE = 1000
_BATCHES_FOR_RADIUS = 200


class PoissonDiskSelection(AbstractStaticSelection):
    """Batches whose rows keep a distance."""

    features: Float[Array, "N c"]
    radius: Float[Array, ""]
    inverse: Float[Array, " N"]
    """1/π̂_i."""
    law: UniformLaw
    size: int = eqx.field(static=True)
    tries: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        candidates = self.law.draw(random_words(key, (steps, self.tries * self.size)))
        return self.draws_at(jax.vmap(self.batch_from)(candidates))

    def draws_at(self, indices: Int[Array, "*k n"]) -> RowDraws:
        """These rows with their weights."""
        return RowDraws(indices, self.inverse[indices])

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """NaN: the covariance takes the probabilities of all pairs of rows."""
        return jnp.full_like(terms, jnp.nan)

    def batch_from(self, candidates: Int[Array, " m"]) -> Int[Array, " n"]:
        """The accepted candidates in their order, then the refused ones, the first n of them."""
        places = self.features[candidates]
        squares = jnp.sum((places[:, None] - places[None]) ** 2, axis=2)
        near = squares <= self.radius**2

        def consider(
            accepted: Bool[Array, " m"], candidate: Int[Array, ""]
        ) -> tuple[Bool[Array, " m"], None]:
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

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> PoissonDisk(radius=0.5).simulated
    100000
    """

    radius: float | None = None
    features: Any = None
    tries: int = 4
    simulated: int = 100_000
    needs = AnchorLevel.NOTHING
    passes = 1
    knows_its_spread = False
    row_access = RowAccess.TAKE
    unseen_by_pairs = "the bias of the estimated weights of Poisson-disk batches"

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_number("radius", self.radius, 0)
        check_int("tries", self.tries, 1)
        check_int("simulated", self.simulated, 1)

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> PoissonDiskSelection:
        posterior = context.posterior
        if not isinstance(size, Fixed):
            raise InvalidInput("size", "be fixed with Poisson disks", size, "Use Uniform().")
        n = size.checked(posterior)
        features = checked_features(self.features, posterior, _CURE)
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
    rng = np.random.default_rng(0)
    if size < 2:
        return 0.0
    batches = features[rng.integers(0, len(features), (_BATCHES_FOR_RADIUS, size))]
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
