"""Models whose prior counts as a fraction of one prior: p(θ)^power.

The posterior of a part of the rows with the prior to the power of 1/S is one of S factors whose
product is the posterior. A Gaussian prior stays Gaussian, with a larger variance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from ..core.errors import InvalidInput
from .base import AbstractModel
from .densities import DensityModel
from .generalised_linear import GeneralisedLinear
from .linear_predictor import LinearPredictor
from .priors import AbstractPrior, JoinedPrior, NormalPrior, PriorOfEntries


class TemperedPrior(AbstractPrior):
    """p(θ)^power."""

    prior: AbstractPrior
    power: float

    @property
    def log_concave(self) -> bool:
        return self.prior.log_concave

    def potential(self, values: Float[Array, " d"]) -> Float[Array, ""]:
        return self.power * self.prior.potential(values)


class TemperedLogPrior(eqx.Module):
    """power · log p, for a log density of the user's own."""

    log_prior: Callable[[PyTree], Any]
    power: float

    def __call__(self, params: PyTree) -> Any:
        return self.power * self.log_prior(params)


def tempered(model: AbstractModel, power: float) -> AbstractModel:
    """The model with its prior to this power.

    **Raises:** `InvalidInput` if the prior of the model is not known as a part of its own.
    """
    if isinstance(model, DensityModel):
        return dataclasses.replace(model, log_prior=TemperedLogPrior(model.log_prior, power))
    if isinstance(model, GeneralisedLinear | LinearPredictor):
        return dataclasses.replace(model, prior=_tempered_prior(model.prior, power))
    rule = "be a regression without group effects, or be given by densities"
    raise InvalidInput("posterior", rule, type(model).__name__, "Use sample(posterior).")


def _tempered_prior(prior: AbstractPrior, power: float) -> AbstractPrior:
    if isinstance(prior, NormalPrior):
        return dataclasses.replace(prior, variance=prior.variance / power)
    if isinstance(prior, JoinedPrior | PriorOfEntries):
        parts = tuple(_tempered_prior(part, power) for part in prior.parts)
        return dataclasses.replace(prior, parts=parts)
    return TemperedPrior(prior, power)
