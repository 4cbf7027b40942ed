"""Preferential subsampling with fixed weights: rows that matter more are drawn more often, and count for less when drawn.

    i ~ p,   w_i = 1/(n p_i)                                                            putcha-2023, eqs. 8 and 12

Unbiased for any p > 0; the noise is least for p_i ∝ ‖r_i(θ)‖, r_i the estimator's residual. `weights.py` has the weights that
come close without looking at the state. Draws are O(1) through an alias table. Rows that are expected at least once a step may be
taken in every step instead (`replacement.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .._anchor import Needs
from .._errors import InvalidInput, check_number
from .base import Setting, SizeChoice, SubsampleChoice
from .law import AliasLaw
from .replacement import NO_ROWS, certain_rows
from .selection import AbstractSelection
from .weights import WEIGHT_RULES, probabilities


@dataclasses.dataclass(frozen=True, eq=False)
class Preferential(SubsampleChoice):
    """Choose rows by weight: "residual" (for any estimator, in the metric of the geometry), "gradient" (eq. 11), "curvature"
    (eq. 16), "frobenius", "lipschitz", or your own, one non-negative number a row.

    `floor` mixes in uniform weights, p ← (1 − floor) p + floor/N, so that no row is forgotten and no weight exceeds 1/floor.
    `take_all` puts rows that are expected at least once a step into every step.

    >>> Preferential("curvature").needs.name
    'HESSIAN'
    """

    weights: Any = "curvature"
    floor: float = 0.05
    take_all: bool = False
    knows_its_spread = True

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1)
        if not isinstance(self.take_all, bool):
            raise InvalidInput("take_all", "be True or False", self.take_all)
        if isinstance(self.weights, str) and self.weights not in WEIGHT_RULES:
            names = ", ".join(WEIGHT_RULES)
            raise InvalidInput("weights", f"be one of {names}, or an array with one weight a row", self.weights)

    @property
    def needs(self) -> Needs:
        return WEIGHT_RULES[self.weights].needs if isinstance(self.weights, str) else Needs.NOTHING

    @property
    def passes(self) -> int:
        return 1 if isinstance(self.weights, str) else 0

    def prepare(self, setting: Setting, size: SizeChoice | None) -> AbstractSelection:
        assert size is not None, "a method with a preferential subsample has a size"
        law, certain = probabilities(self._raw_weights(setting), self.floor), NO_ROWS
        if self.take_all:
            if size.size is None:
                rule = "be known ahead with take_all, which puts rows expected at least once into every step"
                raise InvalidInput("size", rule, size, "Pass a number of rows or Measured(...).")
            certain, law = certain_rows(law, size.size)
        return size.select(AliasLaw.of(law, setting.posterior.dtype), setting, certain)

    def _raw_weights(self, setting: Setting) -> Any:
        if isinstance(self.weights, str):
            return WEIGHT_RULES[self.weights].weigh(setting)
        given, n_rows = np.asarray(self.weights), setting.posterior.n_rows
        if given.shape != (n_rows,) or not np.issubdtype(given.dtype, np.number):
            rule = f"be numbers, one a row ({n_rows})"
            raise InvalidInput("weights", rule, f"an array of shape {given.shape} and dtype {given.dtype}")
        return given
