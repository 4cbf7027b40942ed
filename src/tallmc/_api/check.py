"""Check a method on a posterior: a run, and pairs of chains that measure its bias."""

from __future__ import annotations

import warnings

from .._anchor.anchor import Anchor
from .._core.errors import SamplingWarning
from ..methods.abstract import AbstractMethod
from ..models.posterior import AbstractPosterior
from ..results.report import RunReport
from .sample import sample


def check(
    posterior: AbstractPosterior,
    method: AbstractMethod,
    *,
    ess: float = 1000.0,
    chains: int | None = None,
    burn_in: int | None = None,
    thin: int | None = None,
    max_seconds: float | None = 60.0,
    seed: int = 0,
    anchor: Anchor | None = None,
    progress: bool | None = None,
) -> RunReport:
    """Measure how wrong a method's draws from a posterior are.

    The method runs until it has `ess` effective draws. Pairs of chains at its step size and at half
    of it then measure the bias of step size and gradient noise. To keep the draws, use
    `sample(..., measure_bias=True)`, which does the same.

    **Arguments:**

    - `ess`: effective draws per parameter. More of them measure the bias more precisely.
    - `max_seconds`: limit on the time of the run. A run that it ends is doubtful.
    - `chains`, `burn_in`, `thin`, `seed`, `anchor`, `progress`: as in `sample`.

    **Returns:** the `RunReport` on the draws. Its `verdict` is checked, doubtful or not checked.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> y = x @ [1.0, -1.0]
    >>> posterior = tallmc.models.linear_regression(x, y, prior_variance=10.0, noise_variance=1.0)
    >>> print(tallmc.check(posterior, tallmc.methods.sgld(step_size=1e-3, batch_size=10)).verdict)
    doubtful
    """
    # The doubts are returned.
    with warnings.catch_warnings(action="ignore", category=SamplingWarning):
        draws = sample(
            posterior,
            method,
            ess=ess,
            chains=chains,
            burn_in=burn_in,
            thin=thin,
            max_seconds=max_seconds,
            seed=seed,
            anchor=anchor,
            measure_bias=True,
            progress=progress,
        )
    return draws.report
