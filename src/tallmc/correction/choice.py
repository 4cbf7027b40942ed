"""Correction for gradient noise: subtract the noise of the subsample from the injected noise.

A Langevin step with gradient noise of covariance V has (ε²/4)V too much variance. One correction
injects that much less noise, Z ~ N(0, I − (ε/4)V) in place of N(0, I) (nemeth-2021, section 3). In
general, noise of covariance D is replaced by noise of covariance D − (ε/4)B, where B is the
covariance of the gradient noise in the drift. The docstring of each dynamics has its formula. The
other correction, for `Underdamped`, adds friction in proportion to V (li-2021, appendix F). V is
not known. It is estimated in one of two ways:

    from the batch   The spread of the terms w_i r_i within each step's own batch. It is unbiased,
                     so the variance of a step is right on average, and the stationary covariance
                     on a Gaussian is that of exact gradients.
                     With `groups`, the spread of sums over groups of rows in place of rows: also
                     unbiased, and without row gradients, which a model with many parameters cannot
                     afford.
    calibrated       A pass over all rows every m steps computes Σ ∇f_i at ω = θ. From then on
                     the SVRG estimate, whose noise is small, serves as ∇f(θ):
                     ∇f₀(θ) + Σ ∇f_i(ω) + Σ_{i∈S} w_i [∇f_i(θ) − ∇f_i(ω)].
                     V is the running average, over about m steps, of the squared errors of the
                     estimates that were used. Only for the simple estimator.

The second is a corrected Algorithm 2 of li-2021. As printed, the algorithm never sets ω, lets its
moments accumulate, and uses the covariance of rows drawn uniformly for rows drawn by exponential
weights. Exponential weights cause a mean force along the momentum, which acts as friction. With
them the correction helps where the noise is strong and overcorrects where it is weak.

The remaining injected variance is never negative. Directions in which V is too large for the step
get no injected noise, and the share of tr V that was not removed is recorded
(`uncorrected_noise`). If V is too large over all directions together, the chain ends with the
outcome `TOO_NOISY`: for Langevin dynamics if tr (ε/4)V > d, with added friction if tr (ε²/8)V > d.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..core.errors import InvalidInput, check_int
from ..core.linear_maps import AbstractLinearMap
from ..models.posterior import AbstractPosterior
from .base import AbstractNoiseEstimate, Shape
from .calibrated import Calibrated
from .within_batch import WithinBatch
from .within_groups import WithinGroups


@dataclasses.dataclass(frozen=True)
class NoiseCorrection:
    """Correct for gradient noise.

    **Arguments:**

    - `shape`: "diagonal" corrects each coordinate by itself. "dense" corrects all directions and
      costs O(d³) per step.
    - `through`: "noise" injects less noise. "friction", for `Underdamped`, adds friction.
    - `calibrate_every`: None estimates the noise from each batch. A number m estimates it from the
      errors of earlier estimates, with a pass over all rows every m steps.
    - `groups`: None estimates the noise from the rows of each batch. A number k estimates it from
      the sums over k groups of rows, which is cheaper if row gradients are full vectors, as in
      neural networks.

    **Raises:** `InvalidInput` if an argument is not one of these values.

    >>> NoiseCorrection("dense").through
    'noise'
    """

    shape: Shape = "diagonal"
    through: Literal["noise", "friction"] = "noise"
    calibrate_every: int | None = None
    groups: int | None = None

    def __post_init__(self) -> None:
        if self.shape not in ("diagonal", "dense"):
            raise InvalidInput("shape", 'be "diagonal" or "dense"', self.shape)
        if self.through not in ("noise", "friction"):
            raise InvalidInput("through", 'be "noise" or "friction"', self.through)
        if self.calibrate_every is not None:
            check_int("calibrate_every", self.calibrate_every, 1)
        if self.groups is not None:
            check_int("groups", self.groups, 2)
            if self.calibrate_every is not None:
                rule = "be left out with calibrate_every, which needs no spread of the batch"
                raise InvalidInput("groups", rule, self.groups)

    def prepare(
        self, posterior: AbstractPosterior, geometry: AbstractLinearMap, size: int
    ) -> AbstractNoiseEstimate:
        """Build the noise estimate for this posterior. `size` is the number of rows per step."""
        if self.groups is not None:
            return WithinGroups(geometry=geometry, shape=self.shape, groups=self.groups)
        if self.calibrate_every is None:
            return WithinBatch(geometry=geometry, shape=self.shape)
        return Calibrated(
            model=posterior.model,
            geometry=geometry,
            shape=self.shape,
            every=self.calibrate_every,
            size=size,
        )
