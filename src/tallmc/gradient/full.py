"""The exact gradient: the simple estimator over all rows, each with weight one.

    ∇f(θ) = ∇f₀(θ) + Σ_i ∇f_i(θ)

No noise. Every step is a pass over the data. The unadjusted Langevin algorithm and MALA use it.
"""

from __future__ import annotations

import dataclasses

from ..anchor.anchor import Anchor, AnchorLevel
from ..models.posterior import AbstractPosterior
from ..rows.base import RowAccess
from .base import GradientChoice
from .simple import SimpleGradient


@dataclasses.dataclass(frozen=True)
class Full(GradientChoice):
    """The exact gradient. It requires `subsample.AllRows`.

    >>> Full().row_access.name
    'TAKE'
    """

    needs = AnchorLevel.NOTHING
    order = 0
    has_memory = False
    row_access = RowAccess.TAKE

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SimpleGradient:
        return SimpleGradient(posterior.model)
