"""A regression problem: a table or a row store, the model chosen for it, and its posterior."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from ..models.design import (
    RegressionData,
    design_data,
    store_data,
)
from ..models.likelihood import AbstractLikelihood
from ..models.linear import ridge_start
from ..models.observations import GroupTerm
from ..models.posterior import ModelPosterior
from ..models.regression import Effects, regression_posterior
from ..rows.sharded import ShardedRows
from .coefficients import Coefficients, DesignColumns, GroupScaling, without_intercept
from .families import Family, known_noise
from .model_priors import ModelPriors, model_priors
from .priors import as_priors
from .regression_model import RegressionModel
from .row_store_design import row_store_design
from .tables import Design, make_design
from .tables.matrix import INTERCEPT
from .tables.table import Table


@dataclasses.dataclass(frozen=True)
class RegressionProblem:
    """A posterior, and how it came from a table.

    **Arguments:**

    - `model`: what the user chose.
    - `posterior`: the posterior. Its quantities are coefficients in the units of the table.
    - `response`: the name of the response.
    - `columns`: the columns of the design.
    - `description`: family, link, priors, scaling and response in words.
    - `notes`: lines to print.
    - `design`: the design; None for row stores.
    """

    model: RegressionModel
    posterior: ModelPosterior
    response: str
    columns: DesignColumns
    description: dict[str, str]
    notes: tuple[str, ...]
    design: Design | None

    @property
    def n_columns(self) -> int:
        """Columns of the design without the intercept."""
        return len(set(self.columns.names) - {INTERCEPT})

    @classmethod
    def of_table(cls, table: Table, model: RegressionModel) -> RegressionProblem:
        """The problem of a table in memory."""
        family, link = model.families()
        design = make_design(
            table,
            model.response,
            formula=model.formula,
            weights=model.weights,
            offset=model.offset,
            exposure=model.exposure,
            trials=model.trials,
            exclude=model.exclude,
            categorical=model.categorical,
            drop_missing=model.drop_missing,
            standardise=model.standardise,
            intercept=model.intercept,
            response_kind=family.response,
            level=model.level,
            dtype=str(jax.dtypes.canonicalize_dtype(np.float64)),
        )
        assert design.y is not None
        design, notes = _without_zero_weights(design)
        columns = DesignColumns(design.names, design.terms, design.means, design.sds)
        x = design.x
        if not family.has_intercept:
            columns, x = without_intercept(columns, x)
        y, weights = np.asarray(design.y, np.float64), design.weights
        if design.trials is not None:
            y, weights = y / design.trials, _product(design.trials, weights)
        groups = tuple(
            GroupTerm(jax.numpy.asarray(group.codes), jax.numpy.asarray(group.x), len(group.levels))
            for group in design.groups
        )
        data = design_data(x, y, columns.names, weights, design.offset, groups)
        encoding = design.encoding.response
        return _problem(
            model,
            (family, link),
            data,
            columns,
            x.std(axis=0, dtype=np.float64),
            (encoding.name, encoding.mean, encoding.sd, encoding.levels),
            (*design.notes, *notes),
            design,
            table.description,
        )

    @classmethod
    def of_rows(cls, rows: ShardedRows, model: RegressionModel) -> RegressionProblem:
        """The problem of a row store."""
        family, link = model.families()
        design = row_store_design(rows.shards.manifest, model, family)
        columns = design.columns
        data = store_data(rows.viewed(design.view), columns.names)
        return _problem(
            model,
            (family, link),
            data,
            columns,
            design.column_sds,
            (design.response, design.view.shift, design.view.scale, ()),
            (),
            None,
            "row store",
        )


def _problem(
    model: RegressionModel,
    family_and_link: tuple[Family, str],
    data: RegressionData,
    columns: DesignColumns,
    column_sds: np.ndarray,
    response: tuple[str, float, float, tuple[str, ...]],
    notes: tuple[str, ...],
    design: Design | None,
    table: str,
) -> RegressionProblem:
    family, link = family_and_link
    name, mean, sd, levels = response
    classes = len(levels) if levels else int(data.y_high) + 1
    known = model.noise_variance
    noise = None if known is None else known_noise(known, sd, data.dtype)
    likelihood = family.likelihood(link, classes, noise)
    of_classes = isinstance(likelihood, AbstractLikelihood) and likelihood.n_predictors > 1
    effects = [
        Effects(f"effects of {group.group}", (len(group.levels), group.x.shape[1]))
        for group in (() if design is None else design.groups)
    ]
    response_scale = data.y_sd if family.response == "number" else 1.0
    priors = model_priors(
        as_priors(model.prior),
        columns,
        column_sds,
        sd,
        response_scale,
        effects,
        data.dtype,
        likelihood.n_predictors if isinstance(likelihood, AbstractLikelihood) else 1,
    )
    shared = () if noise is not None else family.shared(data, classes)
    start = None
    if family.name == "gaussian" and noise is None:
        start, log_scale = ridge_start(data, priors.variances)
        shared = [log_scale]
    posterior = regression_posterior(
        data,
        likelihood,
        priors.prior,
        start=start,
        shared=shared,
        effects=effects,
        hyper=priors.hyper,
    )
    quantities = Coefficients(
        posterior.layout,
        columns,
        [
            GroupScaling(
                group.group,
                group.levels,
                DesignColumns(
                    group.names,
                    {column: (j,) for j, column in enumerate(group.names)},
                    group.means,
                    group.sds,
                ),
            )
            for group in (() if design is None else design.groups)
        ],
        (levels[1:] if levels else [str(k) for k in range(1, classes)]) if of_classes else None,
        mean,
        sd,
        standardised=model.standardised_results,
    )
    description = {"table": table}
    description |= _description(model, family, link, name, design, priors, levels)
    posterior = ModelPosterior(posterior.model, posterior.rows, quantities, description=description)
    return RegressionProblem(model, posterior, name, columns, description, notes, design)


def _description(
    model: RegressionModel,
    family: Family,
    link: str,
    response: str,
    design: Design | None,
    priors: ModelPriors,
    levels: tuple[str, ...],
) -> dict[str, str]:
    """The model in words."""
    found = {"family": family.name, "link": link, "response": response}
    if design is not None and design.encoding.response.one is not None:
        found["response level that counts as 1"] = str(design.encoding.response.one)
    elif levels:
        found["response levels"] = ", ".join(levels)
    if model.formula is not None:
        found["formula"] = model.formula
    for role in ("weights", "offset", "exposure", "trials"):
        if getattr(model, role) is not None:
            found[role] = str(getattr(model, role))
    found["prior"] = "; ".join(f"{term} ~ {shown}" for term, shown in priors.shown.items())
    if family.shared_prior and model.noise_variance is None:
        found["prior of shared parameters"] = "; ".join(
            f"{name}: {prior}" for name, prior in family.shared_prior.items()
        )
    if model.noise_variance is not None:
        found["noise variance"] = f"{model.noise_variance:g}"
    found["scaling"] = "columns are standardised for the sampler" if model.standardise else "none"
    found["results"] = (
        "in standardised units" if model.standardised_results else "in the units of the table"
    )
    return found


def _product(a: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    return a if b is None else a * b


def _without_zero_weights(design: Design) -> tuple[Design, tuple[str, ...]]:
    """The rows that count."""
    weights = design.weights
    if weights is None or (weights > 0).all():
        return design, ()
    kept = weights > 0

    def some(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[kept]

    groups = tuple(
        dataclasses.replace(group, codes=group.codes[kept], x=group.x[kept])
        for group in design.groups
    )
    names = ("x", "y", "weights", "offset", "trials")
    fields: dict[str, Any] = {name: some(getattr(design, name)) for name in names}
    note = f"left out {int((~kept).sum())} rows of weight 0"
    return dataclasses.replace(design, groups=groups, **fields), (note,)
