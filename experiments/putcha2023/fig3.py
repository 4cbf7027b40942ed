"""Figure 3: adaptive sizes on a simulated logistic regression, N = 10⁴.

The authors' data file is probably not the one that their script creates. With the data of the
script, the adaptive methods make 3.7 and 3.9 passes; the figure shows 4.3 and 4.5.
"""

from __future__ import annotations

from tallmc.models import logistic_regression
from tallmc.models.posterior import AbstractPosterior

from .. import synthetic
from ..results import ExperimentSetting, Result
from . import adaptive

STEP_SIZE, SIZE, TITLE = 1e-4, 10, "simulated logistic regression, n₀ = 10"
EXPECTED = adaptive.Expected(
    file="fig3a_lrb_log10KSD",
    ends={
        "SGLD-CV": (0.770, 0.1),
        "SGLD-CV-PS": (0.738, 0.1),
        "ASGLD-CV": (0.746, 0.1),
        "ASGLD-CV-PS": (0.714, 0.1),
    },
    order=(("ASGLD-CV", "SGLD-CV"), ("ASGLD-CV-PS", "SGLD-CV-PS")),
    shares={"SGLD-CV": 0.5, "SGLD-CV-PS": 0.5},
    reported_order=(("SGLD-CV-PS", "SGLD-CV"), ("ASGLD-CV-PS", "ASGLD-CV")),
)


def posterior() -> AbstractPosterior:
    return logistic_regression(
        *synthetic.classification(105, 15_000, flipped=0.3), prior_variance=10.0
    )


def as_run(setting: ExperimentSetting) -> Result:
    return adaptive.as_run(
        setting, posterior(), TITLE, step_size=STEP_SIZE, size=SIZE, expected=EXPECTED
    )


def as_meant(setting: ExperimentSetting) -> Result:
    return adaptive.as_meant(setting, posterior(), TITLE, step_size=STEP_SIZE, size=SIZE, thin=5)
