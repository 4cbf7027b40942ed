"""How far draws are from the posterior, as tuning measures it: kernel Stein discrepancy in units of the posterior's spread.

The kernel presumes coordinates of scale 1. These are u = C⁻¹θ with CCᵀ = Σ̂ from the anchor; where that has no Hessian, C is the
diagonal of the standard deviations of the candidates' first draws (their median).

Gradients come from about 10 d rows each, by control variates around the anchor: of order 2, with weights to match, where it has a
Hessian. Near the anchor their noise is small beside a coordinate's variance, which is 1, however many rows there are; that of the
simple estimator would be N/n, and drown what is to be seen. It is the same for all candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .._anchor import Anchor
from .._kernel import Kernel
from .._method import Method
from .._posterior import AbstractPosterior
from ..diagnose.draws_ksd import in_units
from ..diagnose.gradients import exact_gradients, stochastic_gradients
from ..diagnose.ksd import ksd
from ..geometry import Dense
from ..gradient.control_variate import ControlVariate
from ..subsample.preferential import Preferential
from ..subsample.selection import AbstractStaticSelection

_ROWS_PER_DIMENSION = 10
_LEAST_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Score:
    """The discrepancy of positions; `units` (C) may be None until draws are there to tell."""

    posterior: AbstractPosterior
    estimator: Kernel | None
    """What estimates gradients; None where all rows are as cheap."""
    rows_per_draw: int
    units: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"] | None
    n_row_evals_preparation: int

    @classmethod
    def around(cls, posterior: AbstractPosterior, anchor: Anchor) -> Score:
        rows = min(max(_ROWS_PER_DIMENSION * posterior.dim, _LEAST_ROWS), posterior.n_rows)
        units = None if anchor.factor is None else np.asarray(anchor.factor, np.float64)
        if rows == posterior.n_rows:
            return cls(posterior, None, rows, units, 0)
        method = Method(gradient=ControlVariate(), size=rows, step_size=1.0)
        if anchor.hessian is not None:
            weights = Preferential("residual", take_all=True)
            method = dataclasses.replace(method, gradient=ControlVariate(order=2), subsample=weights, geometry=Dense())
        prepared = method.prepare(posterior, anchor)
        assert isinstance(prepared.kernel, Kernel), "that of a composition"
        return cls(posterior, prepared.kernel, rows, units, prepared.n_row_evals - anchor.n_row_evals)

    def in_units_of(self, candidates: Sequence[Float[np.ndarray, "_ d"]]) -> Score:
        """The score in the median standard deviations of these candidates' draws, where they have any."""
        sds = [draws.std(axis=0) for draws in candidates if len(draws)]
        units = np.median(sds, axis=0) if sds else np.zeros(self.posterior.dim)
        return dataclasses.replace(self, units=np.where(units > 0, units, 1.0))

    def __call__(self, positions: Float[np.ndarray, "K d"]) -> float:
        """The discrepancy; infinite where positions or their gradients are not finite."""
        assert self.units is not None, "known before the first score"
        if not np.isfinite(positions).all():
            return np.inf
        gradients = self._gradients(positions)
        if not np.isfinite(gradients).all():
            return np.inf
        return ksd(*in_units(self.units, positions, gradients))

    def _gradients(self, positions: Float[np.ndarray, "K d"]) -> Float[np.ndarray, "K d"]:
        if self.estimator is None:
            return exact_gradients(self.posterior, positions)
        selection = self.estimator.selection
        assert isinstance(selection, AbstractStaticSelection), "it was given a fixed size"
        return stochastic_gradients(self.estimator.gradient, selection, positions)
