"""Build the posterior of a regression from its rows, its likelihood and its priors."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from ..core.errors import InvalidInput
from ..core.layout import Layout, layout_of
from ..rows.resident import ResidentRows
from . import fused
from .base import AbstractModel
from .design import RegressionData
from .effect_starts import start_of_effects
from .effects import GroupEffects
from .families import AbstractFamily, BernoulliProbit
from .generalised_linear import GeneralisedLinear
from .hierarchy import AbstractHyperprior, Hierarchical, SeveralHyperpriors
from .likelihood import AbstractLikelihood
from .linear_predictor import LinearPredictor
from .observations import Observations
from .posterior import ModelPosterior
from .priors import AbstractPrior, JoinedPrior
from .starts import START_MAX_DIM, chosen_rows


class Shared(NamedTuple):
    """A parameter that all rows share, such as the log of a noise scale."""

    name: str
    start: Any
    """Its value where the search for the mode starts: a number or a vector."""
    prior: AbstractPrior


class Hyper(NamedTuple):
    """Hyper-parameters, and the prior of the coefficients given them."""

    names: tuple[str, ...]
    starts: tuple[np.ndarray, ...]
    hyperprior: AbstractHyperprior


class Effects(NamedTuple):
    """The name of a group term, and its numbers of groups and columns."""

    name: str
    shape: tuple[int, int]


def regression_posterior(
    data: RegressionData,
    likelihood: AbstractFamily | AbstractLikelihood,
    prior: AbstractPrior,
    *,
    start: ArrayLike | None = None,
    shared: Sequence[Shared] = (),
    effects: Sequence[Effects] = (),
    hyper: Sequence[Hyper] = (),
) -> ModelPosterior:
    """The posterior of a regression.

    **Arguments:**

    - `data`: the rows.
    - `likelihood`: a family with closed forms, or a likelihood of K predictors.
    - `prior`: the prior of all coefficients, those of group terms included.
    - `start`: the common coefficients where the search for the mode starts. By default those of
      the likelihood's starting point, else zero.
    - `shared`: the parameters that all rows share, in the order of the likelihood.
    - `effects`: the group terms, in the order of the columns.
    - `hyper`: hyper-parameters.
    """
    dtype = data.dtype
    n_effects = sum(groups * columns for _, (groups, columns) in effects)
    shape: tuple[int, ...] = (data.n_columns - n_effects,)
    if isinstance(likelihood, AbstractLikelihood) and likelihood.n_predictors > 1:
        if effects:
            raise InvalidInput("group terms", "be left out with several predictors", len(effects))
        shape = (*shape, likelihood.n_predictors)
    if start is None and isinstance(likelihood, AbstractLikelihood):
        start, shared = _start_of(likelihood, data, shared)
    beta = np.zeros(shape) if start is None else np.asarray(start, float)
    of_effects = [np.zeros(shape) for _, shape in effects]
    if effects and hyper:
        beta, of_effects, hyper = _start_with_effects(
            likelihood, data, beta, shared, effects, hyper
        )
    parts = [("beta", beta)]
    parts += [(each.name, values) for each, values in zip(effects, of_effects, strict=True)]
    parts += [(each.name, np.asarray(each.start, float)) for each in shared]
    n_coefficients = sum(values.size for _, values in parts[: 1 + len(effects)])
    priors = [prior, *(each.prior for each in shared)]
    lengths = [n_coefficients, *(np.size(each.start) for each in shared)]
    joined = JoinedPrior(tuple(priors), tuple(lengths)) if shared else prior
    layout, init = _layout(parts, dtype, data.names)
    model: AbstractModel
    if isinstance(likelihood, AbstractFamily):
        model = GeneralisedLinear(init=init, layout=layout, family=likelihood, prior=joined)
    else:
        model = LinearPredictor(init=init, layout=layout, likelihood=likelihood, prior=joined)
    if hyper:
        for each in hyper:
            parts += zip(each.names, each.starts, strict=True)
        layout, init = _layout(parts, dtype, data.names)
        hyperprior = SeveralHyperpriors(tuple(each.hyperprior for each in hyper))
        model = Hierarchical(init=init, layout=layout, inner=model, hyperprior=hyperprior)
    return ModelPosterior(model, _packed(data, likelihood))


def _start_of(
    likelihood: AbstractLikelihood, data: RegressionData, shared: Sequence[Shared]
) -> tuple[np.ndarray | None, Sequence[Shared]]:
    """The start of the likelihood, if it has one, and the shared parameters there."""
    if data.n_columns > START_MAX_DIM:
        return None, shared
    found = likelihood.starting_point(data.some(chosen_rows(data)))
    if found is None:
        return None, shared
    return found.beta, [
        each._replace(start=value) for each, value in zip(shared, found.shared, strict=True)
    ]


def _start_with_effects(
    likelihood: AbstractFamily | AbstractLikelihood,
    data: RegressionData,
    beta: np.ndarray,
    shared: Sequence[Shared],
    effects: Sequence[Effects],
    hyper: Sequence[Hyper],
) -> tuple[np.ndarray, list[np.ndarray], Sequence[Hyper]]:
    """Coefficients, effects and spreads near those that the rows support."""
    rows = data.rows.take(jnp.asarray(chosen_rows(data)))
    lengths = [columns for _, (_, columns) in effects]
    spreads = [each for each in hyper if isinstance(each.hyperprior, GroupEffects)]
    given = np.concatenate([np.ravel(start) for each in spreads for start in each.starts])
    found = start_of_effects(
        rows,
        likelihood,
        beta,
        np.concatenate([np.zeros(0), *(np.ravel(each.start) for each in shared)]),
        np.split(given, np.cumsum(lengths)[:-1]),
    )
    values = np.concatenate(found.log_sds)
    if not np.isfinite(np.concatenate([values, *map(np.ravel, found.effects)])).all():
        return beta, [np.zeros(shape) for _, shape in effects], hyper
    moved, at = [], 0
    for each in hyper:
        if isinstance(each.hyperprior, GroupEffects):
            sizes = [np.size(start) for start in each.starts]
            parts = np.split(values[at : at + sum(sizes)], np.cumsum(sizes)[:-1])
            each = each._replace(
                starts=tuple(
                    part.reshape(np.shape(start))
                    for part, start in zip(parts, each.starts, strict=True)
                )
            )
            at += sum(sizes)
        moved.append(each)
    return found.beta, found.effects, moved


def _layout(
    parts: Sequence[tuple[str, np.ndarray]], dtype: Any, names: Sequence[str] | None
) -> tuple[Layout, Any]:
    """The layout of the parts in their order, with the columns as names of the coefficients."""
    found = collections.OrderedDict((name, jnp.asarray(values, dtype)) for name, values in parts)
    # Plain dicts are ordered by name: keep them where that is the order of the parts.
    in_order = list(found) == sorted(found)
    layout, init = layout_of(dict(found) if in_order else found)
    n_common = len(parts[0][1])
    named = names is not None and parts[0][1].ndim == 1
    return (layout.labelled({"beta": names[:n_common]}) if named and names else layout), init


def _packed(data: RegressionData, likelihood: Any) -> Any:
    """The rows, packed for the fused sum of a GPU where it applies."""
    rows = data.rows
    if not isinstance(rows, ResidentRows) or not isinstance(likelihood, AbstractFamily):
        return rows
    columns = rows.columns
    plain = isinstance(columns, Observations) and columns.offset is None is columns.weight
    # The fused sum cannot read parameters of the family, nor compute Φ.
    if not plain or jax.tree.leaves(likelihood) or isinstance(likelihood, BernoulliProbit):
        return rows
    return ResidentRows(columns, fused.pack(columns.x, columns.y))
