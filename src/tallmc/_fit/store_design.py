"""The design of a regression over a row store: which columns and products it shows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._core.errors import InvalidInput
from .._ingestion.errors import INTERCEPT as STORED_INTERCEPT
from .._ingestion.errors import some
from .._ingestion.values import MISSING_LEVEL, ColumnValues, missing_name
from .._rows.manifest import Column, RowManifest
from .._rows.sharded import ShardedRows
from ..models.design import Observations, ObservationsOf, ProductColumn
from ..models.regression import Family
from .columns import INTERCEPT, FeatureEncoding, PlainTerms, ResponseEncoding
from .encoding import DesignEncoding, FilledColumn, RowRoles, ScaledTerms, smooths_of
from .formulas import (
    FORMULA,
    FormulaTerms,
    FormulaText,
    category_of,
    column_name,
    make_terms,
    parse,
    split_formula,
)
from .model import RegressionModel
from .reading import Table
from .smooths import Smooth, SmoothText, make_smooths, some_rows

# Formulas over row stores: columns of the store, their interactions, and categories.
#
# The numbers of a store are fixed, so a term is a product of columns: `age:C(city)` gives one
# product per level of city but the first. Functions of columns would need another pass over the
# table.

_ROLES = ("weights", "offset", "event", "entry", "upper")
_CURE = "Transform the column before `tallmc ingest`, and use it by its name."


class StoreTerms(NamedTuple):
    """The columns of a design over a row store.

    `products` has the numbers of the columns of the store whose product each column of the design
    is; () is the intercept. `names` and `terms` are as in `Design`. A store holds standardised
    columns: the product of the table's values needs value·sd + mean of each.
    """

    response: str | None
    products: list[tuple[int, ...]]
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]


def store_terms(
    formula: str, manifest: RowManifest, left_out: Collection[str | None] = ()
) -> StoreTerms:
    """The columns of the design that a formula describes; `.` is all but those left out."""
    text = split_formula(formula)
    if text.groups:
        cure = "Use a table in memory for terms (1 | group)."
        raise InvalidInput(FORMULA, "have no bars over a row store", formula, cure)
    response = text.response if text.response is not None else manifest.response
    if response is not None and response not in manifest.names:
        cure = f"The columns are: {some(manifest.names)}."
        raise InvalidInput(FORMULA, "have a column of the row store before ~", response, cure)
    sources = dict.fromkeys(c.source for c in manifest.columns if c.source not in ("", response))
    straight = {name for smooth in text.smooths for name in smooth.variables}
    parsed = parse(text.common, [name for name in sources if name not in {*straight, *left_out}])
    levels = {category.name: category.levels for category in manifest.categories}
    for factor in {factor for term in parsed for factor in term.factors}:
        _check_factor(factor, sources, levels, formula)
    places = {(column.source, column.level): j for j, column in enumerate(manifest.columns)}

    def columns_of(scoped: Any) -> list[tuple[str, int]]:
        """The names and numbers of the columns of one of formulaic's factors."""
        text = scoped.factor.expr
        name = _source(text)
        if name not in levels:
            return [(text, places[name, None])]
        if not scoped.reduced:
            cure = (
                f"Keep the intercept, and write {name} * x instead of {name}:x, so that no column "
                f"for {levels[name][0]!r} is needed."
            )
            rule = f"leave out the baseline of {name}, which row stores do not hold"
            raise InvalidInput(FORMULA, rule, formula, cure)
        return [(f"{text}[T.{level}]", places[name, level]) for level in levels[name][1:]]

    found: dict[str, tuple[int, ...]] = {}
    terms: dict[str, tuple[int, ...]] = {}
    for term, scoped_terms, names in _structure(parsed, sources, levels):
        start, known = len(found), {}
        for scoped in scoped_terms:
            for chosen in itertools.product(*map(columns_of, scoped.factors)):
                name = ":".join(name for name, _ in chosen) or INTERCEPT
                known[name] = tuple(place for _, place in chosen)
        found |= {name: known[name] for name in names}
        terms[INTERCEPT if str(term) == "1" else str(term)] = tuple(range(start, len(found)))
    return StoreTerms(response, list(found.values()), tuple(found), terms)


def _smooths_of_store(
    texts: Sequence[SmoothText], features: Sequence[FeatureEncoding], rows: ShardedRows
) -> tuple[Smooth, ...]:
    """The smooths of a formula, with knots from some rows of the store."""
    manifest, by_name = rows.shards.manifest, {feature.name: feature for feature in features}
    places = {column.source: j for j, column in enumerate(manifest.columns) if not column.level}
    used = dict.fromkeys(name for text in texts for name in text.columns)
    for name in used:
        if name not in by_name:
            cure = f"The columns are: {some(by_name)}."
            raise InvalidInput(FORMULA, "use columns of the row store", name, cure)
    if not texts:
        return ()
    chosen = some_rows(manifest.n_rows)
    lines = rows.lines(np.arange(manifest.n_rows)[chosen]).astype(np.float64)
    numbers, ranges = {}, {}
    for name in used:
        if by_name[name].kind != "number":
            continue
        column = manifest.columns[places[name]]
        values = lines[:, places[name]]
        numbers[name] = values * column.sd + column.mean if column.standardised else values
        if column.whole:  # equal numbers must be equal to count once
            numbers[name] = np.rint(numbers[name])
        ranges[name] = column.low, column.high, column.whole
    return make_smooths(texts, by_name, numbers, ranges)


def _view_of_smooth(smooth: Smooth, manifest: RowManifest) -> StoredSmooth:
    """The columns of a smooth as a view of the row store computes them."""

    def column(name: str, level: str | None = None) -> ProductColumn:
        at = next(j for j, c in enumerate(manifest.columns) if (c.source, c.level) == (name, level))
        return _product_column((at,), manifest, centred=True)._replace(shift=0.0, scale=1.0)

    variables = tuple(map(column, smooth.variables))
    if smooth.by is None:
        return StoredSmooth(smooth, variables)
    levels = {category.name: category.levels for category in manifest.categories}
    if smooth.level is None:
        return StoredSmooth(smooth, variables, (column(smooth.by),))
    if smooth.level != levels[smooth.by][0]:
        return StoredSmooth(smooth, variables, (column(smooth.by, smooth.level),))
    # A row with the baseline is 0 in the columns of all other levels.
    others = tuple(column(smooth.by, level) for level in levels[smooth.by][1:])
    return StoredSmooth(smooth, variables, others, baseline=True)


class StoredSmooth(NamedTuple):
    """The columns of a smooth term over a row store."""

    smooth: Smooth
    variables: tuple[ProductColumn, ...]
    by: tuple[ProductColumn, ...] = ()
    baseline: bool = False

    def of(self, lines: Any) -> Any:
        """The columns of these lines of a row store."""
        numbers = [variable.of(lines) for variable in self.variables]
        by = None
        if self.by:
            by = sum(column.of(lines) for column in self.by)
            by = 1 - by if self.baseline else by
        return self.smooth.values(numbers, by).astype(lines.dtype)


def _source(factor: str) -> str:
    return category_of(factor) or factor


def _check_factor(
    factor: Any, sources: dict[str, None], levels: dict[str, tuple[str, ...]], formula: str
) -> None:
    """Raise unless a factor is a column, C(column of text) or 1."""
    text, method = factor.expr, factor.eval_method.value
    if method == "literal" and text == "1":
        return
    name = _source(text)
    quoted = name if column_name(name) == name else f"`{name}`"
    if method == "python" and (name == text or text != f"C({quoted})"):
        raise InvalidInput(FORMULA, "use columns of a row store without functions", text, _CURE)
    if name not in sources:
        cure = f"The columns are: {some(sources)}."
        raise InvalidInput(FORMULA, "use columns of the row store", name, cure)
    if method == "python" and name not in levels:
        cure = f"Ingest {name} as text to make it a category."
        raise InvalidInput(FORMULA, "use C() for columns of text only", text, cure)


def _structure(parsed: Any, sources: dict[str, None], levels: dict[str, tuple[str, ...]]) -> Any:
    """Formulaic's terms with the factors and columns that they have, from a table of all levels."""
    import formulaic
    import pandas

    rows = np.arange(max((len(names) for names in levels.values()), default=1))
    frame = pandas.DataFrame(
        {
            name: pandas.Categorical.from_codes(rows % len(levels[name]), list(levels[name]))
            if name in levels
            else np.ones(len(rows))
            for name in sources
        }
    )
    spec = formulaic.ModelSpec(formula=parsed, na_action="ignore", output="pandas")
    return spec.get_model_matrix(frame).model_spec.structure


def row_store_design(
    rows: ShardedRows, model: RegressionModel
) -> tuple[DesignEncoding, np.ndarray, ObservationsOf]:
    """The encoding of a row store, the sds that the sampler sees, and the view of its design."""
    manifest = rows.shards.manifest
    _check_row_store(model, manifest)
    family, _ = model.families()
    terms, scaled = _terms(rows, model)
    smooths = smooths_of(scaled)
    response = _response(model, terms.response, manifest)
    has_intercept = bool(terms.names) and terms.names[0] == INTERCEPT
    products = [
        _product_column(places, manifest, centred=has_intercept) for places in terms.products
    ]
    place = manifest.names.index(response)
    if any(place in places for places in terms.products):
        raise InvalidInput(FORMULA, "not explain the response by itself", response)
    if any(response in (*smooth.variables, smooth.by) for smooth in smooths):
        raise InvalidInput(FORMULA, "not explain the response by itself", response)
    of_response = manifest.columns[place]
    times = family.response == "times"
    n_smooth = sum(len(smooth.names) for smooth in smooths)
    scales = family.response == "number" and model.standardise
    mean = of_response.mean if scales and has_intercept else 0.0
    sd = of_response.sd if scales else 1.0
    if times:
        if of_response.low < 0 or (of_response.low == 0 and model.upper is None):
            rule = "not be negative" if model.upper else "be positive in every row"
            raise InvalidInput(f"response {response!r}", rule, f"{of_response.low:g}")
        if family.name == "piecewise_exponential" and model.breaks is None:
            cure = "Pass the times between intervals of constant hazard."
            raise InvalidInput("--breaks (breaks)", "be given with a row store", None, cure)
        if model.standardise and has_intercept:
            ends = [manifest.names.index(name) for name in (response, model.upper or response)]
            mean = math.log(sum(manifest.columns[end].mean for end in ends) / 2)
    encoding = DesignEncoding(
        ScaledTerms(
            scaled,
            (*(product.shift for product in products), *[0.0] * n_smooth),
            (*(product.scale for product in products), *[1.0] * n_smooth),
        ),
        ResponseEncoding(
            *(response, family.response, _levels(family, of_response), None, mean, sd),
            model.breaks or (),
        ),
        RowRoles(**{role: getattr(model, role) for role in _ROLES}),
        (),
        model.formula,
        str(jax.dtypes.canonicalize_dtype(manifest.dtype)),
        _filled(manifest, model),
    )
    shown = products if family.has_intercept or not has_intercept else products[1:]
    weight, offset, event, entry, upper = (
        None if getattr(model, role) is None else manifest.names.index(getattr(model, role))
        for role in _ROLES
    )
    stored = all(product.is_stored for product in shown) and not smooths
    features: tuple[Any, ...] = tuple(
        product.columns[0] if stored else product for product in shown
    )
    features += tuple(_view_of_smooth(smooth, manifest) for smooth in smooths)
    view = ObservationsOf(features, place, mean, sd, weight, offset, times, event, entry, upper)
    if entry is not None or upper is not None:
        _check_times(rows.viewed(view), response, model)
    # Only the free columns of smooths have a prior that depends on it, and their sd is about 1.
    sds = np.array([*(_sd_as_stored(product, manifest) for product in shown), *[1.0] * n_smooth])
    return encoding, sds, view


def _check_times(rows: ShardedRows, response: str, model: RegressionModel) -> None:
    """Raise unless times are in order in every row."""
    found = rows.survey(_is_out_of_order, _first_true, width=rows.floats_per_row)
    row = next((row for row in found if row is not None), None)
    if row is not None:
        name, other = (model.entry, model.upper)[model.entry is None], response
        rule = f"be before {other!r}" if model.entry else f"be at least {other!r}, and positive"
        raise InvalidInput(f"column {name!r}", rule, f"row {row}", "Drop the row before ingestion.")


def _is_out_of_order(block: Observations) -> Any:
    entry, time, upper = block.y.T
    return ((entry >= time) & jnp.isfinite(entry)) | ~(upper >= time) | (upper == -jnp.inf)


def _first_true(first: int, values: np.ndarray) -> int | None:
    return first + int(np.argmax(values)) if values.any() else None


def _levels(family: Family, response: Column) -> tuple[str, ...]:
    """The classes 0, 1, … of a response of numbers."""
    if family.response not in ("classes", "ordered"):
        return ()
    if not response.whole or response.low < 0:
        rule = "hold the classes 0, 1, 2, … in a row store"
        raise InvalidInput(f"response {response.name!r}", rule, f"{response.low:g} and others")
    return tuple(str(k) for k in range(int(response.high) + 1))


def _terms(
    rows: ShardedRows, model: RegressionModel
) -> tuple[StoreTerms, PlainTerms | FormulaTerms]:
    """The products of columns of the store, and the same terms for columns of a table."""
    manifest = rows.shards.manifest
    response = model.response or manifest.response
    left_out = {response, *(getattr(model, role) for role in _ROLES), *model.exclude}
    if model.formula is not None:
        added = [f"`{one.indicator}`" for one in _filled(manifest, model) if one.has_indicator]
        formula = " + ".join([model.formula, *added])
        terms = store_terms(formula, manifest, left_out)
        features = _features(manifest, left_out | {terms.response})
        text = split_formula(formula)
        smooths = _smooths_of_store(text.smooths, features, rows)
        return terms, _formula_terms(text, features, smooths)
    features = _features(manifest, left_out)
    has_intercept = model.intercept and STORED_INTERCEPT in manifest.names
    plain = PlainTerms(features, has_intercept)
    if not plain.names:
        raise InvalidInput("row store", "have a column besides the response", f"only {response}")
    places = {(column.source, column.level): j for j, column in enumerate(manifest.columns)}
    used = [manifest.names.index(STORED_INTERCEPT)] if has_intercept else []
    for feature in features:
        levels = feature.levels[1:] if feature.kind == "category" else (None,)
        used += [places[feature.name, level] for level in levels]
    return StoreTerms(response, [(place,) for place in used], plain.names, plain.terms), plain


def _filled(manifest: RowManifest, model: RegressionModel) -> tuple[FilledColumn, ...]:
    """Covariates of the fit whose missing values ingestion has marked."""
    numbers = {column.source: column for column in manifest.columns if column.level is None}
    found = []
    for column in manifest.columns:
        count, base = round(column.mean * manifest.n_rows), column.source
        if column.level == MISSING_LEVEL:
            found.append(FilledColumn(base, None, count))
        elif column.level is None and (of := numbers.get(base.removesuffix(missing_name("")))):
            found += [FilledColumn(of.source, of.mean, count)] if of is not column else []
    if model.formula is None:
        return tuple(one for one in found if one.name not in model.exclude)
    sources = {column.source for column in manifest.columns} - {"", model.response}
    used = split_formula(model.formula).variables(sorted(sources), sources)
    return tuple(one for one in found if one.name in used)


def _features(manifest: RowManifest, left_out: set[str | None]) -> tuple[FeatureEncoding, ...]:
    """The columns of the table that the store came from."""
    levels = {category.name: category.levels for category in manifest.categories}
    found = {}
    for column in manifest.columns:
        name = column.source or column.name
        if column.name == STORED_INTERCEPT or left_out & {name, column.name}:
            continue
        if column.level is None:
            found[name] = FeatureEncoding(name, "number")
        else:
            found[name] = FeatureEncoding(name, "category", levels[name])
    return tuple(found.values())


def _formula_terms(
    text: FormulaText, features: tuple[FeatureEncoding, ...], smooths: tuple[Smooth, ...]
) -> FormulaTerms:
    """The terms of a formula for tables, from a small table that has every level."""
    n_rows = max([2, *(len(feature.levels) for feature in features)])
    columns = {
        feature.name: ColumnValues("text", np.arange(n_rows) % len(feature.levels), feature.levels)
        if feature.kind == "category"
        else ColumnValues("number", np.arange(n_rows, dtype=float))
        for feature in features
    }
    used = text.variables(list(columns), columns)
    chosen = [feature for feature in features if feature.name in used]
    return make_terms(text.common, chosen, columns, n_rows, smooths)[0]


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
        cure = f"Ingest the table again, with {response} as the response."
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
    else:
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
    for option in ("trials", "exposure", "categorical", "missing", "level"):
        if getattr(model, option) not in (None, (), "raise"):
            cure = "Pass --missing drop or indicator to `tallmc ingest`."
            cure = cure if option == "missing" else "Apply it before `tallmc ingest`."
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
    for role in _ROLES:
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
        if role == "entry" and column.low < 0:
            raise InvalidInput(f"column {name!r}", "not be negative", f"{column.low:g}")
        if role == "weights" and column.low <= 0:
            cure = "Leave out rows of weight 0 before `tallmc ingest`."
            raise InvalidInput("--weights (weights)", "be positive", f"{column.low:g}", cure)
        if role == "event" and not (column.whole and column.low >= 0 and column.high == 1):
            found = f"numbers from {column.low:g} to {column.high:g}"
            rule = "be 1 for an event and 0 for censoring"
            raise InvalidInput(f"column {name!r}", rule, found)


def table_of_lines(lines: np.ndarray, manifest: RowManifest) -> Table:
    """Lines of a row store as the table that they came from."""
    levels = {category.name: category.levels for category in manifest.categories}
    columns: dict[str, ColumnValues] = {}
    codes = {name: np.zeros(len(lines), np.int64) for name in levels}
    for column, stored in zip(manifest.columns, lines.T, strict=True):
        values = stored.astype(np.float64)
        if column.standardised:
            values = values * column.sd + column.mean
        if column.level is None:
            columns[column.source or column.name] = ColumnValues("number", values)
        else:
            codes[column.source][values > 0.5] = levels[column.source].index(column.level)
    columns |= {name: ColumnValues("text", codes[name], levels[name]) for name in levels}
    return Table(columns, "row store")
