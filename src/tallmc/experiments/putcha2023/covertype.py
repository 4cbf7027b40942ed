"""Logistic regression on covertype, class 2 against the rest: the posterior of figures 2(b) and 4(b)."""

from __future__ import annotations

from ..._posterior import AbstractPosterior
from ...models import logistic_regression
from .. import data
from ..results import Setting

STEP_SIZE, PRIOR_VARIANCE = 1e-6, 10.0


def load(setting: Setting) -> tuple[AbstractPosterior, data.Split]:
    split = data.covertype(setting.folder)
    return logistic_regression(split.X, split.y, PRIOR_VARIANCE), split
