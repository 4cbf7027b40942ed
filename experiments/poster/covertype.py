"""The posterior of figure 4: logistic regression on covertype, class 2 against the rest.

The columns are scaled to [0, 1], as in the LIBSVM version of the data. The prior is N(0, 2).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tallmc import diagnose
from tallmc._anchor.anchor import Anchor, find_anchor
from tallmc.models import logistic_regression
from tallmc.models.design import regression_data
from tallmc.models.families.bernoulli import Bernoulli
from tallmc.models.posterior import ModelPosterior
from tallmc.models.priors import NormalPrior
from tallmc.models.regression import regression_posterior

from .. import data
from ..results import ExperimentSetting

N_TRAIN, N_TEST, PRIOR_VARIANCE, SEED = 570_000, 10_000, 2.0, 13


class CovertypeRegression(NamedTuple):
    """Training and test rows with the intercept first, the posterior, and its mode."""

    split: data.Split
    target: ModelPosterior
    anchor: Anchor

    @property
    def mode(self) -> Float[np.ndarray, " d"]:
        return np.asarray(self.anchor.position)

    @property
    def step_factor(self) -> float:
        """The reduced form has fewer rows, so the posterior is wider and steps are larger."""
        return N_TRAIN / len(self.split.y)

    @property
    def log_loss_at_mode(self) -> float:
        return float(self.log_losses(self.mode[None])[0])

    @property
    def log_loss_of_shares(self) -> float:
        """The log-loss of predicting the shares of the classes for every row."""
        share = self.split.y.mean()
        return -float(np.mean(np.log(np.where(self.split.y_held_out == 1, share, 1 - share))))

    def log_losses(self, positions: Float[np.ndarray, "*k d"]) -> Float[np.ndarray, "*k"]:
        test = (self.split.X_held_out, self.split.y_held_out)
        return diagnose.log_losses(positions, self.target, test)


def covertype_regression(setting: ExperimentSetting) -> CovertypeRegression:
    arrays = data.load("covertype", setting.folder)
    x, y = arrays["X"].astype(np.float32), (arrays["y"] == 2).astype(int)
    low, high = x.min(axis=0), x.max(axis=0)
    x = np.column_stack([np.ones(len(x), np.float32), (x - low) / (high - low)])
    order = np.random.default_rng(SEED).permutation(len(x))
    test, train = order[:N_TEST], order[N_TEST:][: setting.pick(N_TRAIN, 50_000)]
    split = data.Split(x[train], y[train], x[test], y[test])
    setting.part("mode")(0)
    target = logistic_regression(split.X, split.y, PRIOR_VARIANCE)
    return CovertypeRegression(split, target, find_anchor(target))


def printed_target(split: data.Split, prior_mean: Float[np.ndarray, " d"]) -> ModelPosterior:
    """The posterior whose SGLD has the printed gradient: each row has the weight 1/N."""
    weights = np.full(len(split.y), 1 / len(split.y), np.float32)
    rows = regression_data(split.X, split.y, None, weights)
    variance, mean = (jnp.asarray(value, jnp.float32) for value in (PRIOR_VARIANCE, prior_mean))
    return regression_posterior(rows, Bernoulli(), NormalPrior(variance, mean))
