"""Preferential subsampling with fixed weights: important rows are drawn more often.

    i ~ p,   w_i = 1/(n p_i)   Putcha, Nemeth and Fearnhead (2023), eqs. 8, 12

The noise is least for p_i ∝ ‖r_i(θ)‖, r_i the estimator's residual. `weights.py` has weights that
approximate this law and do not depend on the state. Rows with an expected count of at least one per
step can be put into every step instead (`WithReplacement.certain`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .._anchor.anchor import AnchorLevel
from .._core.errors import InvalidInput, check_number
from .._rows.access import RowAccess
from .._rows.values import ShardedValues
from .selection import AbstractSelection, SizeChoice, SubsampleChoice, SubsampleContext
from .weights import WEIGHT_RULES


@dataclasses.dataclass(frozen=True, eq=False)
class Preferential(SubsampleChoice):
    """Fixed weights: rows are drawn with replacement in proportion to their weights.

    **Arguments:**

    - `weights`: "residual" (for estimators without memory, in the metric of the geometry),
      "gradient" (eq. 11), "curvature" (eq. 16), "frobenius", "lipschitz", or an array with one
      non-negative number per row; also what `rows.map` returned.
    - `floor`: the share of uniform weights, p ← (1 − floor) p + floor/N. With a floor > 0,
      every row can be drawn, and no importance weight 1/(N p_i) exceeds 1/floor.
    - `take_all`: whether rows with an expected count of at least one per step are in every step.
    """

    paper = "Putcha, Nemeth and Fearnhead (2023)"
    bias = "Unbiased for any p > 0."
    cost = "A draw from rows in memory is O(1), through an alias table."
    row_access = RowAccess.STREAM

    weights: Any = "curvature"
    floor: float = 0.05
    take_all: bool = False

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1)
        if not isinstance(self.take_all, bool):
            raise InvalidInput("take_all", "be True or False", self.take_all)
        if isinstance(self.weights, str) and self.weights not in WEIGHT_RULES:
            rule = f"be one of {', '.join(WEIGHT_RULES)}, or an array with one weight per row"
            raise InvalidInput("weights", rule, self.weights)

    @property
    def needs(self) -> AnchorLevel:
        named = isinstance(self.weights, str)
        return WEIGHT_RULES[self.weights].needs if named else AnchorLevel.NOTHING

    @property
    def passes(self) -> int:
        return 1 if isinstance(self.weights, str) else 0

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> AbstractSelection:
        assert size is not None, "a preferential subsample requires a size"
        if self.take_all and size.size is None:
            rule = (
                "be known ahead with take_all, "
                "which puts rows expected at least once per step into every step"
            )
            cure = "Pass a number of rows or TargetNoise(...)."
            raise InvalidInput("batch_size", rule, size, cure)
        posterior = context.posterior
        stream, certain = posterior.rows.preferential_stream(
            self._raw_weights(context),
            floor=self.floor,
            certain_of=size.size if self.take_all else None,
            dtype=posterior.dtype,
        )
        return size.select(stream, context, certain)

    def _raw_weights(self, context: SubsampleContext) -> Any:
        if isinstance(self.weights, str):
            return WEIGHT_RULES[self.weights].weigh(context)
        if isinstance(self.weights, ShardedValues):
            return self.weights
        given, n_rows = np.asarray(self.weights), context.posterior.n_rows
        if given.shape != (n_rows,) or not np.issubdtype(given.dtype, np.number):
            rule = f"be numbers, one per row ({n_rows})"
            found = f"an array of shape {given.shape} and dtype {given.dtype}"
            raise InvalidInput("weights", rule, found)
        return given
