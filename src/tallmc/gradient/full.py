"""The exact gradient, ∇f(θ) = ∇f₀(θ) + Σ_i ∇f_i(θ): the simple estimator over all rows, each with weight one.

No noise; every step is a pass over the data. It is what the unadjusted Langevin algorithm and MALA use.
"""

from __future__ import annotations

import dataclasses

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior
from .base import GradientChoice
from .simple import SimpleGradient


@dataclasses.dataclass(frozen=True)
class Full(GradientChoice):
    """Choose the exact gradient; it goes with `subsample.AllRows` only."""

    needs = Needs.NOTHING
    order = 0
    has_memory = False

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> SimpleGradient:
        return SimpleGradient(posterior)
