"""The design of a regression over a row store: which columns and products it shows."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from ..core.errors import InvalidInput
from ..models.design import ObservationsOf, ProductColumn, ProductsOf
from ..rows.manifest import RowManifest
from .coefficients import DesignColumns, without_intercept
from .families import Family
from .regression_model import RegressionModel
from .tables import store_terms
from .tables.matrix import INTERCEPT


class RowStoreDesign(NamedTuple):
    """The columns of a design, and the view of the rows that shows them."""

    columns: DesignColumns
    column_sds: np.ndarray
    """The sds of the columns as the sampler sees them."""
    response: str
    view: ObservationsOf | ProductsOf


def row_store_design(
    manifest: RowManifest, model: RegressionModel, family: Family
) -> RowStoreDesign:
    """The design that a model describes."""
    _check_row_store(model, manifest)
    terms = (
        _plain_terms(manifest, model)
        if model.formula is None
        else store_terms(model.formula, manifest)
    )
    response = model.response or terms.response or manifest.response
    if response is None or response not in manifest.names:
        found = f"The columns are: {', '.join(manifest.names[:20])}."
        raise InvalidInput("--response", "name a column of the row store", response, found)
    products = [_product_column(places, manifest) for places in terms.products]
    columns = DesignColumns(
        terms.names,
        terms.terms,
        np.array([product.shift for product in products]),
        np.array([product.scale for product in products]),
    )
    if not family.has_intercept and columns.has_intercept:
        products = products[1:]
        columns, _ = without_intercept(columns, np.zeros((1, len(terms.names))))
    place = manifest.names.index(response)
    of_response = manifest.columns[place]
    scales = family.response == "number" and model.standardise
    mean = of_response.mean if scales and columns.has_intercept else 0.0
    scaling = (mean, of_response.sd if scales else 1.0)
    numbers = [
        None if name is None else manifest.names.index(name)
        for name in (model.weights, model.offset)
    ]
    view: ObservationsOf | ProductsOf
    if all(len(product.columns) == 1 for product in products):
        features = tuple(product.columns[0] for product in products)
        view = ObservationsOf(features, place, *scaling, *numbers)
    else:
        view = ProductsOf(tuple(products), place, *scaling, *numbers)
    sds = np.array([_sd_as_stored(product, manifest) for product in products])
    return RowStoreDesign(columns, sds, response, view)


@dataclasses.dataclass(frozen=True)
class _PlainTerms:
    """All columns of a row store, one by one."""

    response: str | None
    products: list[tuple[int, ...]]
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]


def _plain_terms(manifest: RowManifest, model: RegressionModel) -> _PlainTerms:
    response = model.response or manifest.response
    left_out = {response, model.weights, model.offset, *model.exclude}
    products: list[tuple[int, ...]] = []
    names: list[str] = []
    terms: dict[str, tuple[int, ...]] = {}
    for place, column in enumerate(manifest.columns):
        is_intercept = column.name.lower() == INTERCEPT.lower()
        if column.name in left_out or column.source in left_out:
            continue
        if is_intercept and not model.intercept:
            continue
        term = INTERCEPT if is_intercept else (column.source or column.name)
        name = term if column.level is None else f"{column.source}[T.{column.level}]"
        terms[term] = (*terms.get(term, ()), len(products))
        products.append((place,))
        names.append(name)
    if not names:
        raise InvalidInput("row store", "have a column besides the response", f"only {response}")
    return _PlainTerms(response, products, tuple(names), terms)


def _product_column(places: tuple[int, ...], manifest: RowManifest) -> ProductColumn:
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


def _sd_as_stored(product: ProductColumn, manifest: RowManifest) -> float:
    """The sd of a column of the design; 0 for the intercept."""
    if len(product.columns) != 1:
        return float(bool(product.columns))
    return float(manifest.columns[product.columns[0]].sd) / product.scale


def _check_row_store(model: RegressionModel, manifest: RowManifest) -> None:
    for option in ("trials", "exposure", "categorical", "drop_missing", "level"):
        if getattr(model, option):
            cure = "Apply it before `tallmc ingest`."
            name = f"--{option.replace('_', '-')} ({option})"
            raise InvalidInput(name, "be left out with a row store", getattr(model, option), cure)
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
