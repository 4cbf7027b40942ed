"""The remainders and bounds of a posterior, from its model or from the user."""

from __future__ import annotations

from ...anchor.anchor import Anchor
from ...core.errors import InvalidInput
from ...core.linear_maps import AbstractLinearMap
from ...models.base import AbstractModel
from ...models.generalised_linear import GeneralisedLinear
from ...models.linear_predictor import LinearPredictor
from ...models.posterior import AbstractPosterior
from ..firefly.taylor import Taylor
from .given import given_remainders
from .linear import LinearRemainders
from .predictors import PredictorRemainders
from .remainders import AbstractRemainders

_MOST_CUBIC = 200
"""Parameters of expansions of order 3, which have d³ coefficients."""


def has_bounds(model: AbstractModel) -> bool:
    """Whether the changes of remainders of order 2 have bounds."""
    if isinstance(model, LinearPredictor):
        return model.likelihood.cubic_bound is not None
    return isinstance(model, GeneralisedLinear)


def prepare_remainders(
    posterior: AbstractPosterior,
    anchor: Anchor,
    metric: AbstractLinearMap,
    order: int,
    bound: Taylor | None = None,
) -> tuple[AbstractRemainders, int]:
    """The remainders of this order at the anchor, and how many rows were evaluated for them."""
    if bound is not None:
        assert order == 2, "checked before"
        return given_remainders(bound, posterior, anchor, metric)
    model = posterior.model
    if order == 3 and (posterior.dim > _MOST_CUBIC or not isinstance(model, GeneralisedLinear)):
        rule = f"be 2 for models with several predictors, or more than {_MOST_CUBIC} parameters"
        raise InvalidInput("order", rule, order)
    if isinstance(model, GeneralisedLinear):
        return LinearRemainders.at(model, order, anchor, metric), 0
    if isinstance(model, LinearPredictor) and model.likelihood.cubic_bound is not None:
        if order < 2:
            raise InvalidInput("order", "be 2 for models with several predictors", order)
        return PredictorRemainders.at(model, model.likelihood.cubic_bound, anchor, metric), 0
    rule = "have a bound on the third derivatives of its rows"
    cure = "Pass bound=Taylor(...) with a bound of your own, or use mala(...)."
    raise InvalidInput("posterior", rule, type(model).__name__, cure)
