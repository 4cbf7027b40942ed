"""Whether the gradients of a model's rows are Lipschitz, which adaptive sizes need."""

from __future__ import annotations

from .base import AbstractModel
from .generalised_linear import GeneralisedLinear
from .hierarchy import Hierarchical
from .linear_predictor import LinearPredictor


def has_bounded_curvature(model: AbstractModel) -> bool:
    """Whether the curvature of each row has a bound that the model knows."""
    if isinstance(model, Hierarchical):
        return has_bounded_curvature(model.inner)
    if isinstance(model, GeneralisedLinear):
        return model.family.largest_curvature() is not None
    return isinstance(model, LinearPredictor) and model.likelihood.largest_curvature() is not None
