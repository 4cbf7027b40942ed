"""Preferential subsampling with fixed weights: rows that matter more are drawn more often, and count for less when drawn.

    i ~ p,   w_i = 1/(n p_i)                                                            putcha-2023, eqs. 8 and 12

Unbiased for any p > 0; the noise is least for p_i ∝ ‖r_i(θ)‖, r_i the estimator's residual. `weights.py` has the weights that
come close without looking at the state. Draws are O(1) through an alias table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .._anchor import Anchor, Needs
from .._errors import InvalidInput, check_number
from .._posterior import AbstractPosterior
from .base import SizeChoice, SubsampleChoice
from .law import AliasLaw
from .selection import AbstractSelection
from .weights import WEIGHT_RULES, probabilities


@dataclasses.dataclass(frozen=True, eq=False)
class Preferential(SubsampleChoice):
    """Choose rows by weight: "gradient" (eq. 11), "curvature" (eq. 16), "frobenius", "lipschitz", or your own, one
    non-negative number a row.

    `floor` mixes in uniform weights, p ← (1 − floor) p + floor/N, so that no row is forgotten and no weight exceeds 1/floor.

    >>> Preferential("curvature").needs.name
    'HESSIAN'
    """

    weights: Any = "curvature"
    floor: float = 0.05
    knows_its_spread = True

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1)
        if isinstance(self.weights, str) and self.weights not in WEIGHT_RULES:
            names = ", ".join(WEIGHT_RULES)
            raise InvalidInput("weights", f"be one of {names}, or an array with one weight a row", self.weights)

    @property
    def needs(self) -> Needs:
        return WEIGHT_RULES[self.weights].needs if isinstance(self.weights, str) else Needs.NOTHING

    @property
    def passes(self) -> int:
        return 1 if isinstance(self.weights, str) else 0

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None, size: SizeChoice | None) -> AbstractSelection:
        assert size is not None, "a method with a preferential subsample has a size"
        law = AliasLaw.of(probabilities(self._raw_weights(posterior, anchor), self.floor), posterior.dtype)
        return size.select(law, posterior, anchor)

    def _raw_weights(self, posterior: AbstractPosterior, anchor: Anchor | None) -> Any:
        if isinstance(self.weights, str):
            return WEIGHT_RULES[self.weights].weigh(posterior, anchor)  # type: ignore[arg-type]
        given = np.asarray(self.weights)
        if given.shape != (posterior.n_rows,) or not np.issubdtype(given.dtype, np.number):
            rule = f"be numbers, one a row ({posterior.n_rows})"
            raise InvalidInput("weights", rule, f"an array of shape {given.shape} and dtype {given.dtype}")
        return given
