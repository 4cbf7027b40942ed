"""The design of a regression over a row store: which columns and products it shows."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np

from ..core.errors import InvalidInput
from ..ingestion.errors import INTERCEPT as STORED_INTERCEPT
from ..ingestion.errors import some
from ..ingestion.values import ColumnValues
from ..models.design import ObservationsOf, ProductColumn, ProductsOf
from ..rows.manifest import Column, RowManifest
from .families import Family
from .regression_model import RegressionModel
from .tables import DesignEncoding, ResponseEncoding, StoreTerms, store_terms
from .tables.encoding import ScaledTerms
from .tables.features import FeatureEncoding
from .tables.formula_text import FORMULA, split_formula
from .tables.formulas import FormulaTerms, make_terms, variables_of
from .tables.matrix import INTERCEPT
from .tables.roles import RowRoles
from .tables.terms import PlainTerms


class RowStoreDesign(NamedTuple):
    """The encoding of a row store, and the view of its rows that shows the design."""

    encoding: DesignEncoding
    column_sds: np.ndarray
    """The sds of the columns as the sampler sees them."""
    view: ObservationsOf | ProductsOf


def row_store_design(manifest: RowManifest, model: RegressionModel) -> RowStoreDesign:
    """The design that a model describes."""
    _check_row_store(model, manifest)
    family, _ = model.families()
    terms, features = _terms(manifest, model)
    response = _response(model, terms.response, manifest)
    has_intercept = bool(terms.names) and terms.names[0] == INTERCEPT
    products = [
        _product_column(places, manifest, centred=has_intercept) for places in terms.products
    ]
    place = manifest.names.index(response)
    if any(place in places for places in terms.products):
        raise InvalidInput(FORMULA, "not explain the response by itself", response)
    of_response = manifest.columns[place]
    scales = family.response == "number" and model.standardise
    mean = of_response.mean if scales and has_intercept else 0.0
    sd = of_response.sd if scales else 1.0
    encoding = DesignEncoding(
        ScaledTerms(
            features,
            tuple(product.shift for product in products),
            tuple(product.scale for product in products),
        ),
        ResponseEncoding(response, family.response, _levels(family, of_response), None, mean, sd),
        RowRoles(weights=model.weights, offset=model.offset),
        (),
        model.formula,
        str(jax.dtypes.canonicalize_dtype(manifest.dtype)),
    )
    shown = products if family.has_intercept or not has_intercept else products[1:]
    numbers = [
        None if name is None else manifest.names.index(name)
        for name in (model.weights, model.offset)
    ]
    view: ObservationsOf | ProductsOf
    if all(product.is_stored for product in shown):
        view = ObservationsOf(
            tuple(product.columns[0] for product in shown), place, mean, sd, *numbers
        )
    else:
        view = ProductsOf(tuple(shown), place, mean, sd, *numbers)
    sds = np.array([_sd_as_stored(product, manifest) for product in shown])
    return RowStoreDesign(encoding, sds, view)


def _levels(family: Family, response: Column) -> tuple[str, ...]:
    """The classes 0, 1, … of a response of numbers."""
    if family.response not in ("classes", "ordered"):
        return ()
    if not response.whole or response.low < 0:
        rule = "hold the classes 0, 1, 2, … in a row store"
        raise InvalidInput(f"response {response.name!r}", rule, f"{response.low:g} and others")
    return tuple(str(k) for k in range(int(response.high) + 1))


def _terms(
    manifest: RowManifest, model: RegressionModel
) -> tuple[StoreTerms, PlainTerms | FormulaTerms]:
    """The products of columns of the store, and the same terms for columns of a table."""
    response = model.response or manifest.response
    left_out = {response, model.weights, model.offset, *model.exclude}
    if model.formula is not None:
        terms = store_terms(model.formula, manifest)
        left_out |= {terms.response}
        features = tuple(_features(manifest, left_out).values())
        return terms, _formula_terms(split_formula(model.formula).common, features)
    features = tuple(_features(manifest, left_out).values())
    has_intercept = model.intercept and any(map(_is_intercept, manifest.columns))
    plain = PlainTerms(features, has_intercept)
    if not plain.names:
        raise InvalidInput("row store", "have a column besides the response", f"only {response}")
    places = {
        (column.source, column.level): (place,) for place, column in enumerate(manifest.columns)
    }
    products: list[tuple[int, ...]] = [
        (place,)
        for place, column in enumerate(manifest.columns)
        if _is_intercept(column) and has_intercept
    ]
    for feature in features:
        levels = feature.levels[1:] if feature.kind == "category" else (None,)
        products += [places[feature.name, level] for level in levels]
    return StoreTerms(response, products, plain.names, plain.terms), plain


def _features(manifest: RowManifest, left_out: set[str | None]) -> dict[str, FeatureEncoding]:
    """The columns of the table that the store came from, by name."""
    levels = {category.name: category.levels for category in manifest.categories}
    found = {}
    for column in manifest.columns:
        name = column.source or column.name
        if _is_intercept(column) or name in left_out or column.name in left_out:
            continue
        is_category = column.level is not None
        found[name] = FeatureEncoding(
            name, "category" if is_category else "number", levels[name] if is_category else ()
        )
    return found


def _is_intercept(column: Column) -> bool:
    return column.name == STORED_INTERCEPT


def _formula_terms(formula: str, features: tuple[FeatureEncoding, ...]) -> FormulaTerms:
    """The terms of a formula for tables, from a small table that has every level."""
    n_rows = max([2, *(len(feature.levels) for feature in features)])
    columns = {
        feature.name: ColumnValues("text", np.arange(n_rows) % len(feature.levels), feature.levels)
        if feature.kind == "category"
        else ColumnValues("number", np.arange(n_rows, dtype=float))
        for feature in features
    }
    used = variables_of(formula, columns, columns)
    chosen = [feature for feature in features if feature.name in used]
    return make_terms(formula, chosen, columns, n_rows)[0]


def _response(model: RegressionModel, of_formula: str | None, manifest: RowManifest) -> str:
    """The name of the response; raises unless the row store holds it as it is."""
    named = None if model.formula is None else split_formula(model.formula).response
    if named is not None and model.response not in (None, named):
        raise InvalidInput("--response", f"be that of the formula, {named!r}", model.response)
    response = model.response or of_formula or manifest.response
    if response is None or response not in manifest.names:
        found = f"The columns are: {some(manifest.names)}."
        raise InvalidInput("--response", "name a column of the row store", response, found)
    if manifest.columns[manifest.names.index(response)].standardised:
        cure = f"Ingest the table again with --response {response}."
        raise InvalidInput("--response", "not be standardised in the row store", response, cure)
    return response


def _product_column(
    places: tuple[int, ...], manifest: RowManifest, *, centred: bool
) -> ProductColumn:
    """A column of a design over a row store; it is not centred if there is no intercept.

    The mean and the sd of a product are those of independent columns. They only scale it.
    """
    columns = [manifest.columns[place] for place in places]
    means = tuple(column.mean if column.standardised else 0.0 for column in columns)
    sds = tuple(column.sd if column.standardised else 1.0 for column in columns)
    if len(places) <= 1:
        shift, scale = (means[0], sds[0]) if places else (0.0, 1.0)
        return ProductColumn(places, means, sds, shift if centred else 0.0, scale)
    shift = math.prod(column.mean for column in columns)
    square = math.prod(column.mean**2 + column.sd**2 for column in columns)
    scale = math.sqrt(max(square - shift**2, 0.0)) or 1.0
    return ProductColumn(places, means, sds, shift if centred else 0.0, scale)


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
    known = {name for column in manifest.columns for name in (column.name, column.source)}
    columns = f"The columns are: {some(manifest.names)}."
    for name in model.exclude:
        if name not in known:
            rule = "name columns of the row store"
            raise InvalidInput("--exclude (exclude)", rule, name, columns)
    for role in ("weights", "offset"):
        name = getattr(model, role)
        if name is None:
            continue
        if name not in manifest.names:
            rule = "name a column of the row store"
            raise InvalidInput(f"--{role} ({role})", rule, name, columns)
        column = manifest.columns[manifest.names.index(name)]
        if column.standardised:
            cure = "Ingest the table again with --no-standardise."
            raise InvalidInput(f"--{role} ({role})", "not be standardised", name, cure)
        if role == "weights" and column.low <= 0:
            cure = "Leave out rows of weight 0 before `tallmc ingest`."
            raise InvalidInput("--weights (weights)", "be positive", f"{column.low:g}", cure)
