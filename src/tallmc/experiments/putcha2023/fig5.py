"""Figure 5: adaptive sizes on CASP, the linear regression of figure 2(a).

With uniform weights the fixed size has no second moment, so that the 95 % quantile which sets the adaptive size is that of an
explosion: ASGLD-CV is then far worse than what it adapts.
"""

from __future__ import annotations

from ..results import Result, Setting
from . import adaptive
from .fig2a import SIZE, STEP_SIZE, posterior

TITLE = "CASP, n₀ = 45"
EXPECTED = adaptive.Expected(
    file="fig5a_casp_log10KSD",
    ends={"SGLD-CV-PS": (1.443, 0.15), "ASGLD-CV-PS": (1.886, 0.3)},
    order=(("SGLD-CV-PS", "ASGLD-CV-PS"), ("ASGLD-CV-PS", "SGLD-CV")),
    order_of_ten=(("SGLD-CV", "ASGLD-CV"),),
    shares={"SGLD-CV": 1.0, "SGLD-CV-PS": 0.5},
)


def as_run(setting: Setting) -> Result:
    return adaptive.as_run(setting, posterior(setting), TITLE, step_size=STEP_SIZE, size=SIZE, expected=EXPECTED)


def as_meant(setting: Setting) -> Result:
    return adaptive.as_meant(setting, posterior(setting), TITLE, step_size=STEP_SIZE, size=SIZE, thin=5)
