"""The score of tuning: kernel Stein discrepancy in units of the posterior's spread.

The kernel assumes coordinates of scale 1. The score uses u = C⁻¹θ with CCᵀ = Σ̂ from the anchor. If
the anchor has no Hessian, C is the diagonal of the standard deviations of the candidates' first
draws (the median over candidates).

Each gradient is estimated from about 10 d rows by control variates around the anchor. If the anchor
has a Hessian, they are of order 2 with matching weights. Near the anchor the noise is small
compared with the variance of a coordinate, which is 1, for data of any length N. The noise of the
simple estimator would be N/n and would hide the discrepancy. All candidates use the same estimator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ..anchor.anchor import Anchor
from ..diagnose.draws_ksd import in_units
from ..diagnose.gradients import exact_gradients, stochastic_gradients
from ..diagnose.ksd import ksd
from ..engine.kernel import BoundKernel
from ..geometry import Dense
from ..gradient.control_variate import ControlVariate
from ..methods.method import Method
from ..models.posterior import AbstractPosterior
from ..subsample.preferential import Preferential
from ..subsample.selection import AbstractStaticSelection

_ROWS_PER_DIMENSION = 10
_LEAST_ROWS = 64


@dataclasses.dataclass(frozen=True)
class Score:
    """The discrepancy of positions. `units` (C) may be None until the first draws define it."""

    posterior: AbstractPosterior
    estimator: BoundKernel | None
    """The gradient estimator; None if exact gradients cost no more."""
    rows_per_draw: int
    units: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"] | None
    n_row_evals_preparation: int

    @classmethod
    def around(cls, posterior: AbstractPosterior, anchor: Anchor) -> Score:
        """The score with control variates around `anchor`."""
        rows = min(max(_ROWS_PER_DIMENSION * posterior.dim, _LEAST_ROWS), posterior.n_rows)
        units = None if anchor.factor is None else np.asarray(anchor.factor, np.float64)
        if rows == posterior.n_rows:
            return cls(posterior, None, rows, units, 0)
        method = Method(gradient=ControlVariate(), size=rows, step_size=1.0)
        if anchor.hessian is not None:
            weights = Preferential("residual", take_all=True)
            method = dataclasses.replace(
                method, gradient=ControlVariate(order=2), subsample=weights, geometry=Dense()
            )
        prepared = method.prepare(posterior, anchor)
        return cls(
            posterior, prepared.kernel, rows, units, prepared.n_row_evals - anchor.n_row_evals
        )

    def in_units_of(self, candidates: Sequence[Float[np.ndarray, "_ d"]]) -> Score:
        """The score in units of the median standard deviations of the candidates' draws.

        The unit is 1 where the draws do not define one.
        """
        sds = [draws.std(axis=0) for draws in candidates if len(draws)]
        units = np.median(sds, axis=0) if sds else np.zeros(self.posterior.dim)
        return dataclasses.replace(self, units=np.where(units > 0, units, 1.0))

    def __call__(self, positions: Float[np.ndarray, "K d"]) -> float:
        """The discrepancy; infinite if a position or a gradient is not finite."""
        assert self.units is not None, "units are set before the first score"
        if not np.isfinite(positions).all():
            return np.inf
        gradients = self._gradients(positions)
        if not np.isfinite(gradients).all():
            return np.inf
        return ksd(*in_units(self.units, positions, gradients))

    def _gradients(self, positions: Float[np.ndarray, "K d"]) -> Float[np.ndarray, "K d"]:
        if self.estimator is None:
            return exact_gradients(self.posterior, positions)
        kernel = self.estimator.composition
        assert isinstance(kernel.selection, AbstractStaticSelection), "the size is fixed"
        return stochastic_gradients(
            kernel.gradient, kernel.selection, self.posterior.rows, positions
        )
