"""What users see of the draws of an estimator: coefficients in the units of their columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.layout import Layout
from ..core.quantities import AbstractQuantities
from .design import ColumnScaling

COEF, INTERCEPT, SCALE = "coef", "intercept", "scale"
_FEATURE, _CLASS = "feature", "class"


class CoefficientsOfColumns(AbstractQuantities):
    """`coef` and `intercept` in the units of X and y, and the noise `scale` if it is unknown.

    **Arguments:**

    - `layout`: of the sampled parameters: `beta`, and `log_scale` if the noise is unknown.
    - `scaling`: how the columns of X became those of the design.
    - `intercept_scale`: the value of the column of the intercept; None if there is none.
    - `response`: the centre and the scale of the response.
    - `features`: names of the columns of X.
    - `classes`: names of the classes after the first if there is one linear predictor for each.
    """

    structure = None

    def __init__(
        self,
        layout: Layout,
        scaling: ColumnScaling,
        intercept_scale: float | None,
        response: tuple[float, float],
        features: Sequence[str],
        classes: Sequence[str] | None,
    ):
        self.layout, self.scaling, self.intercept_scale = layout, scaling, intercept_scale
        self.response_centre, self.response_scale = response
        per_class = () if classes is None else (_CLASS,)
        n_classes = () if classes is None else (len(classes),)
        self.shapes = {COEF: (*n_classes, len(features))}
        self.dims = {COEF: (*per_class, _FEATURE)}
        self.coords = {_FEATURE: tuple(map(str, features))}
        if classes is not None:
            self.coords[_CLASS] = tuple(map(str, classes))
        if intercept_scale is not None:
            self.shapes[INTERCEPT], self.dims[INTERCEPT] = n_classes, per_class
        if "log_scale" in layout.names:
            self.shapes[SCALE], self.dims[SCALE] = (), ()

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        leaves = self.layout.split(np.asarray(positions, np.float64))
        beta = leaves["beta"]
        if len(self.shapes[COEF]) == 2:
            beta = np.swapaxes(beta, -1, -2)
        first = 0 if self.intercept_scale is None else 1
        slopes = self.response_scale * self.scaling.slopes(beta[..., first:])
        found = {COEF: slopes}
        if self.intercept_scale is not None:
            at_centre = self.response_scale * self.intercept_scale * beta[..., 0]
            found[INTERCEPT] = self.response_centre + at_centre - slopes @ self.scaling.centre
        if SCALE in self.shapes:
            found[SCALE] = self.response_scale * np.exp(leaves["log_scale"])
        return found
