"""The confidence sampler: Metropolis–Hastings that reads rows until a bound decides. Approximate.

Bardenet, Doucet and Holmes (2017). As in `austerity`, a move is accepted if the mean of all changes
D_i is below μ₀, and rows are read in batches without replacement. Reading stops after n rows with
mean m and sd s when |m − μ₀| exceeds the empirical bound of Bernstein and Serfling (Bardenet and
Maillard, 2015), which m − μ exceeds with probability δ_l at most:

    s √(2 ρ L/n) + κ R L/n,   L = log(5/δ_l),   κ = 7/3 + 3/√2
    ρ = 1 − (n − 1)/N if n ≤ N/2, else (1 − n/N)(1 + 1/n)

R ≥ max D_i − min D_i is known before a row is read: |D_i| ≤ c_i M(u, u'), as in `SubsampledMH`. A
mean μ on one side of μ₀ is judged wrongly only if m errs to the other side. At look l of the step,
δ_l = 6δ/(πl)², so one decision is wrong with probability δ at most, whatever the law of the D_i.
Austerity's t-test promises less and reads fewer rows. With remainders of order 2 instead of the
log-likelihoods, s and R are small, and few looks are needed (the proxies of the paper).
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from .._core.arrays import Scalar, on_device
from .._core.errors import check_number
from ..methods.method import StepSize
from ..methods.registry import named
from ..methods.subsampled.remainders import AbstractRemainders
from ..models.posterior import AbstractPosterior
from .austerity import AbstractSequentialDecision, AbstractSequentialMethod, SequentialMoments

_KAPPA = 7 / 3 + 3 / math.sqrt(2)
_ROUNDING = 1 + 1e-6


class ConfidentDecision(AbstractSequentialDecision):
    """Reads batches of rows until the bound decides."""

    delta: Scalar
    largest: Scalar  # The largest c_i

    def limit(self, read: SequentialMoments, bound: Scalar) -> Scalar:
        n, look = jnp.maximum(read.count, 1).astype(bound.dtype), read.looks.astype(bound.dtype)
        level = jnp.log(5 * (math.pi * look) ** 2 / (6 * self.delta))
        share = n / self.n_rows
        left = jnp.where(
            share <= 0.5, 1 - (n - 1) / self.n_rows, jnp.maximum(1 - share, 0) * (1 + 1 / n)
        )
        sd = jnp.sqrt(read.squares / n)
        spread = 2 * self.largest * bound
        return sd * jnp.sqrt(2 * left * level / n) + _KAPPA * spread * level / n


@dataclasses.dataclass(frozen=True, kw_only=True)
class Confidence(AbstractSequentialMethod):
    """Metropolis–Hastings that accepts by confidence bounds."""

    paper = "Bardenet, Doucet and Holmes (2017)"
    bias = "A decision is wrong with probability δ at most. The bias vanishes with δ."
    cost = "A step reads at least one batch of rows, and at most all rows."

    delta: float = 0.05
    batch: int = 100
    order: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("delta", self.delta, 0, 1, low_open=True, high_open=True)

    def decision(
        self, posterior: AbstractPosterior, remainders: AbstractRemainders, batch: int
    ) -> ConfidentDecision:
        constants = remainders.constants_of_all(posterior.rows)
        largest = on_device(_ROUNDING * np.max(constants), posterior.dtype)
        delta = on_device(self.delta, posterior.dtype)
        return ConfidentDecision(posterior.n_rows, batch, delta, largest)


@named("Bardenet, Doucet and Holmes (2017)")
def confidence_mh(
    step_size: StepSize,
    delta: float = 0.05,
    batch: int = 100,
    order: int = 2,
    *,
    proposal: str = "random-walk",
) -> Confidence:
    """Random-walk Metropolis by confidence bounds: approximate, reads some rows.

    For logistic, probit, binomial, Poisson and linear regression.

    - `delta`: the largest probability of a wrong decision per step, above 0 and below 1.
    - `batch`: rows read between looks.
    - `order`: the order of the expansions that rows are compared with, 0 to 3.
    - `proposal`: "random-walk", "langevin" or "pcn", in the coordinates of the anchor's Gaussian.
    """
    return Confidence(step_size=step_size, delta=delta, batch=batch, order=order, proposal=proposal)
