"""A posterior from a likelihood of outputs, a prior, rows and positive parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array, PyTree

from ..core.layout import layout_of
from ..core.quantities import AbstractQuantities, Parameters
from ..rows.resident import resident
from .densities import Batched, DensityModel, check_per_row
from .observations import Observations
from .output_law import OutputLikelihood
from .output_predictive import OutputPredictive
from .posterior import ModelPosterior
from .precisions import positive
from .transforms import ConstrainedLikelihood, ConstrainedPrior, constrained_parameters

_CHECKED_ROWS = 3


def output_posterior(
    likelihood: OutputLikelihood,
    log_prior: Callable[[PyTree], Array],
    rows: Observations,
    start: PyTree[Array],
    *,
    positive_names: Sequence[str],
    encode_x: Callable[[Any], Array],
    encode_y: Callable[[Any], Array],
    classes: tuple[str, ...] | None,
    description: Mapping[str, str],
) -> ModelPosterior:
    """The posterior of parameters that start at `start`; leaves named positive stay positive."""
    log_likelihood: Callable[[PyTree, Any], Array] = likelihood
    constraints, quantities = None, None
    if positive_names:
        constraints, start = positive(start, positive_names)
        log_likelihood = ConstrainedLikelihood(likelihood, constraints)
        log_prior = ConstrainedPrior(log_prior, constraints)
        quantities = constrained_parameters(constraints)
    layout, init = layout_of(start)
    shown: AbstractQuantities = Parameters(layout) if quantities is None else quantities
    some_rows = jax.tree.map(
        lambda column: jax.ShapeDtypeStruct((_CHECKED_ROWS, *column.shape[1:]), column.dtype), rows
    )
    check_per_row("log-likelihood", _CHECKED_ROWS, log_likelihood, start, some_rows)
    model = DensityModel(
        log_likelihood=Batched(log_likelihood), log_prior=log_prior, init=init, layout=layout
    )
    predictive = OutputPredictive(model, likelihood, constraints, encode_x, encode_y, classes)
    return ModelPosterior(model, resident(rows), shown, predictive, description)
