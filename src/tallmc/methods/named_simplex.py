"""Named methods for points on simplices, from the counts of a few rows."""

from __future__ import annotations

from ..subsample import SubsampleChoice, Uniform
from .method import StepSize
from .simplex import SimplexSampler


def sgrld_simplex(
    step_size: StepSize, size: int, subsample: SubsampleChoice | None = None
) -> SimplexSampler:
    """SGRLD on simplices, in the expanded-mean parametrisation: biased near zero.

    For models of counts: `tallmc.models.dirichlet_multinomial` and `tallmc.models.lda`.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step.
    - `subsample`: which rows a step sees; distinct rows at random by default.

    **Returns:** a `SimplexSampler`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.sgrld_simplex(step_size=1e-3, size=10).transition
    'expanded mean'
    """
    return _sampler(step_size, size, "expanded mean", subsample)


def scir(
    step_size: StepSize, size: int, subsample: SubsampleChoice | None = None
) -> SimplexSampler:
    """Stochastic Cox–Ingersoll–Ross process on simplices: no error of discretisation.

    For models of counts: `tallmc.models.dirichlet_multinomial` and `tallmc.models.lda`.

    **Arguments:**

    - `step_size`: the step size ε, a number or a schedule.
    - `size`: rows per step.
    - `subsample`: which rows a step sees; distinct rows at random by default.

    **Returns:** a `SimplexSampler`.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.scir(step_size=0.1, size=10).transition
    'cir'
    """
    return _sampler(step_size, size, "cir", subsample)


def _sampler(
    step_size: StepSize, size: int, transition: str, subsample: SubsampleChoice | None
) -> SimplexSampler:
    chosen = Uniform(replace=False) if subsample is None else subsample
    return SimplexSampler(step_size=step_size, size=size, transition=transition, subsample=chosen)
