"""The posterior of figures 2(b) and 4(b): logistic regression on covertype, class 2 vs the rest."""

from __future__ import annotations

from tallmc.models import logistic_regression
from tallmc.models.posterior import AbstractPosterior

from .. import data
from ..results import ExperimentSetting

STEP_SIZE, PRIOR_VARIANCE = 1e-6, 10.0


def load(setting: ExperimentSetting) -> tuple[AbstractPosterior, data.Split]:
    split = data.covertype(setting.folder)
    return logistic_regression(split.X, split.y, PRIOR_VARIANCE), split
