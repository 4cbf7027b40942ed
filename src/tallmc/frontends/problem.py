"""A regression problem: a table or a row store, the model chosen for it, and its posterior."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..core.errors import InvalidInput
from ..models.design import (
    ObservationsOf,
    ProductColumn,
    ProductsOf,
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
from .coefficients import Coefficients, ColumnScaling, GroupScaling
from .families import Family, check_noise_variance, find_family, known_noise
from .model_priors import ModelPriors, model_priors
from .priors import as_priors
from .tables import Design, make_design, store_terms
from .tables.table import Table

_INTERCEPT = "Intercept"


@dataclasses.dataclass(frozen=True)
class RegressionModel:
    """What the user chose: the model, and the roles of columns.

    Everything is text and numbers, so that it can be stored as JSON. `prior` has priors by term,
    as text; the name "" stands for all other terms.
    """

    family: str
    link: str | None = None
    response: str | None = None
    formula: str | None = None
    prior: Mapping[str, str] = dataclasses.field(default_factory=dict)
    noise_variance: float | None = None
    weights: str | None = None
    offset: str | None = None
    exposure: str | None = None
    trials: str | None = None
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    drop_missing: bool = False
    standardise: bool = True
    intercept: bool = True
    level: str | tuple[str, ...] | None = None
    standardised_results: bool = False

    def families(self) -> tuple[Family, str]:
        """The family and its link, checked."""
        family, link = find_family(self.family, self.link)
        if (family.name == "binomial") != (self.trials is not None):
            rule = "name a column for family binomial, and be left out for others"
            raise InvalidInput("--trials (trials)", rule, self.trials)
        if self.exposure is not None and link != "log":
            rule = "be left out unless the family has the link log"
            raise InvalidInput("--exposure (exposure)", rule, self.exposure)
        check_noise_variance(family, self.noise_variance)
        return family, link


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
    columns: ColumnScaling
    description: dict[str, str]
    notes: tuple[str, ...]
    design: Design | None

    @property
    def n_columns(self) -> int:
        """Columns of the design without the intercept."""
        return len(set(self.columns.names) - {_INTERCEPT})

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
        columns = ColumnScaling(design.names, design.terms, design.means, design.sds)
        x = design.x
        if not family.has_intercept:
            columns, x = _without_intercept(columns, x)
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
        )

    @classmethod
    def of_rows(cls, rows: ShardedRows, model: RegressionModel) -> RegressionProblem:
        """The problem of a row store."""
        family, link = model.families()
        _check_row_store(model, family, rows)
        manifest = rows.shards.manifest
        terms = (
            _plain_terms(manifest, model)
            if model.formula is None
            else store_terms(model.formula, manifest)
        )
        response = model.response or terms.response or manifest.response
        if response not in manifest.names:
            found = f"The columns are: {', '.join(manifest.names[:20])}."
            raise InvalidInput("--response", "name a column of the row store", response, found)
        products = [_product_column(places, manifest) for places in terms.products]
        names = terms.names
        columns = ColumnScaling(
            names,
            terms.terms,
            np.array([product.shift for product in products]),
            np.array([product.scale for product in products]),
        )
        if not family.has_intercept and columns.has_intercept:
            products = products[1:]
            columns, _ = _without_intercept(columns, np.zeros((1, len(names))))
        of_response = manifest.columns[manifest.names.index(str(response))]
        scales = family.response == "number" and model.standardise
        mean, sd = (of_response.mean, of_response.sd) if scales else (0.0, 1.0)
        if not columns.has_intercept and family.has_intercept:
            mean = 0.0
        numbers = [
            None if name is None else manifest.names.index(name)
            for name in (model.weights, model.offset)
        ]
        place = manifest.names.index(str(response))
        view: ObservationsOf | ProductsOf
        if all(len(product.columns) == 1 and _is_as_stored(product) for product in products):
            features = tuple(product.columns[0] for product in products)
            view = ObservationsOf(features, place, mean, sd, *numbers)
        else:
            view = ProductsOf(tuple(products), place, mean, sd, *numbers)
        data = store_data(rows.viewed(view), columns.names)
        return _problem(
            model,
            (family, link),
            data,
            columns,
            np.array([_sd_as_stored(product, manifest) for product in products]),
            (str(response), mean, sd, ()),
            (),
            None,
        )


def _problem(
    model: RegressionModel,
    family_and_link: tuple[Family, str],
    data: RegressionData,
    columns: ColumnScaling,
    column_sds: np.ndarray,
    response: tuple[str, float, float, tuple[str, ...]],
    notes: tuple[str, ...],
    design: Design | None,
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
                ColumnScaling(
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
    description = _description(model, family, link, name, design, priors, levels)
    posterior = ModelPosterior(posterior.model, posterior.rows, quantities, description)
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


def _without_intercept(columns: ColumnScaling, x: np.ndarray) -> tuple[ColumnScaling, np.ndarray]:
    """The columns without that of the intercept, which cut points replace."""
    if not columns.has_intercept:
        return columns, x
    terms = {
        term: tuple(place - 1 for place in places)
        for term, places in columns.terms.items()
        if term != _INTERCEPT
    }
    if not terms:
        raise InvalidInput("TABLE", "have a column besides the response", "none")
    kept = ColumnScaling(columns.names[1:], terms, columns.means[1:], columns.sds[1:])
    return kept, np.ascontiguousarray(x[:, 1:])


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


@dataclasses.dataclass(frozen=True)
class _PlainTerms:
    """All columns of a row store, one by one."""

    response: str | None
    products: list[tuple[int, ...]]
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]


def _plain_terms(manifest: Any, model: RegressionModel) -> _PlainTerms:
    response = model.response or manifest.response
    left_out = {response, model.weights, model.offset, *model.exclude}
    products: list[tuple[int, ...]] = []
    names: list[str] = []
    terms: dict[str, tuple[int, ...]] = {}
    for place, column in enumerate(manifest.columns):
        is_intercept = column.name.lower() == _INTERCEPT.lower()
        if column.name in left_out or column.source in left_out:
            continue
        if is_intercept and not model.intercept:
            continue
        term = _INTERCEPT if is_intercept else (column.source or column.name)
        name = term if column.level is None else f"{column.source}[T.{column.level}]"
        terms[term] = (*terms.get(term, ()), len(products))
        products.append((place,))
        names.append(name)
    if not names:
        raise InvalidInput("row store", "have a column besides the response", f"only {response}")
    return _PlainTerms(response, products, tuple(names), terms)


def _product_column(places: tuple[int, ...], manifest: Any) -> ProductColumn:
    """A column of a design over a row store.

    The mean and the sd of a product are those of independent columns. They only scale it.
    """
    columns = [manifest.columns[place] for place in places]
    means = tuple(column.mean if column.standardised else 0.0 for column in columns)
    sds = tuple(column.sd if column.standardised else 1.0 for column in columns)
    if len(places) <= 1:
        shift, scale = (means[0], sds[0]) if places else (0.0, 1.0)
        return ProductColumn(places, means, sds, shift, scale)
    shift = math.prod(column.mean for column in columns)
    square = math.prod(column.mean**2 + column.sd**2 for column in columns)
    scale = math.sqrt(max(square - shift**2, 0.0)) or 1.0
    return ProductColumn(places, means, sds, shift, scale)


def _sd_as_stored(product: ProductColumn, manifest: Any) -> float:
    """The sd of a column of the design; 0 for the intercept."""
    if len(product.columns) != 1:
        return float(bool(product.columns))
    return float(manifest.columns[product.columns[0]].sd) / product.scale


def _is_as_stored(product: ProductColumn) -> bool:
    return (product.shift, product.scale) == (product.means[0], product.sds[0])


def _check_row_store(model: RegressionModel, family: Family, rows: ShardedRows) -> None:
    for option in ("trials", "exposure", "categorical", "drop_missing", "level"):
        if getattr(model, option):
            cure = "Apply it before `tallmc ingest`."
            name = f"--{option.replace('_', '-')} ({option})"
            raise InvalidInput(name, "be left out with a row store", getattr(model, option), cure)
    manifest = rows.shards.manifest
    if any(column.standardised for column in manifest.columns) and not model.standardise:
        rule = "be left out with a row store whose columns are standardised"
        cure = "Ingest the table again with --no-standardise."
        raise InvalidInput("--no-standardise (standardise)", rule, False, cure)
    for role in ("weights", "offset"):
        name = getattr(model, role)
        if name is None:
            continue
        if name not in manifest.names:
            raise InvalidInput(f"--{role} ({role})", "name a column of the row store", name)
        if manifest.columns[manifest.names.index(name)].standardised:
            cure = "Ingest the table again with --no-standardise."
            raise InvalidInput(f"--{role} ({role})", "not be standardised", name, cure)
