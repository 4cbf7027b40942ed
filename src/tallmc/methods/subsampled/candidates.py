"""The table that draws candidates, and how many a step is expected to draw.

Row i is a candidate with probability p_i ∝ c_i. The table rounds p_i; with S = max c_i/p_i, every
row has S p_i ≥ c_i. A row that would be expected at least once a step is certain: every step
evaluates it, and none leaves it to chance.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._anchor.anchor import Anchor
from ..._core.arrays import Scalar, Vector, on_device
from ..._core.programs import quickly_compiled
from ..._core.supervision import stage
from ..._rows.access import PerRow, RowBlock
from ...geometry import Dense
from ...models.posterior import AbstractPosterior
from ..firefly import Taylor
from .remainders import AbstractRemainders, prepare_remainders
from .surrogate import Proposal, Surrogate, prepare_surrogate
from .thinning import PoissonDecision, Rule

_TYPICAL_MOVES = 512
_LEAST_CHUNK, _MOST_CHUNK = 8, 512
_ROUNDING = 1 + 1e-6


class BoundedRows(NamedTuple):
    """The surrogate and the bounds of all rows, at an anchor."""

    surrogate: Surrogate
    constants: Float[np.ndarray, " N"]
    """c_i."""
    n_row_evals: int
    """Rows evaluated to find them."""


def bound_rows(
    posterior: AbstractPosterior, anchor: Anchor, order: int, bound: Taylor | None = None
) -> BoundedRows:
    """The surrogate of this order and c_i of every row, in a few passes."""
    stage("bounding the rows")
    metric = Dense().prepare(posterior, anchor)
    remainders, of_bound = prepare_remainders(posterior, anchor, metric, order, bound)
    surrogate, of_surrogate = prepare_surrogate(posterior, anchor, metric, remainders)
    values = posterior.rows.map(_constants, remainders, width=remainders.width(posterior.rows))
    constants = np.asarray(values, np.float64)
    return BoundedRows(surrogate, constants, of_bound + of_surrogate + posterior.n_rows)


def _constants(block: RowBlock, remainders: AbstractRemainders) -> PerRow:
    return remainders.constants(block)


def typical_growth(surrogate: Surrogate, proposal: Proposal, step: Scalar) -> float:
    """The mean of M over moves from positions of the anchor's Gaussian."""
    shape, dtype = (_TYPICAL_MOVES, *surrogate.anchor.shape), surrogate.anchor.dtype
    here, normals = (
        on_device(of, dtype) for of in np.random.default_rng(0).normal(size=(2, *shape))
    )
    return float(_mean_growth(surrogate, proposal, step, here, normals))


@quickly_compiled
def _mean_growth(
    surrogate: Surrogate,
    proposal: Proposal,
    step: Scalar,
    here: Float[Array, "m d"],
    normals: Float[Array, "m d"],
) -> Scalar:
    def of_move(u: Vector, normal: Vector) -> Scalar:
        return surrogate.remainders.growth(u, proposal.propose(surrogate, u, step, normal))

    found = jax.vmap(of_move)(here, normals)
    return jnp.mean(found, where=jnp.isfinite(found))


def poisson_decision(
    posterior: AbstractPosterior,
    constants: Float[np.ndarray, " N"],
    rule: Rule,
    typical: float,
    dtype: Any,
) -> tuple[PoissonDecision, Int[Array, " a"]]:
    """The accept step for these caps, and the certain rows."""
    # A row of zeros has c_i = 0 and D_i = 0; the table needs a positive weight.
    positive = np.maximum(constants, np.finfo(np.float32).tiny)
    positive = np.maximum(positive, 1e-9 * positive.mean())
    expected = float(rule.rate(on_device(positive.sum() * typical, dtype)))
    found = posterior.rows.preferential_stream(
        positive, floor=0.0, certain_of=math.ceil(expected), dtype=dtype
    )
    left = np.ones(len(positive), bool)
    left[found.certain] = False
    probability = found.stream.probabilities()
    total = _ROUNDING * np.max(positive[left] / probability[left])
    mean = float(rule.rate(on_device(total * typical, dtype)))
    enough = 8 * math.ceil((mean + 2 * math.sqrt(mean)) / 8)
    chunk = min(max(enough, _LEAST_CHUNK), _MOST_CHUNK)
    decision = PoissonDecision(rule, found.stream, on_device(total, dtype), chunk)
    return decision, on_device(found.certain, np.int32)
