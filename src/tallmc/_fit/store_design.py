"""The design of a regression over a row store: which columns and products it shows."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._core.errors import InvalidInput
from .._core.supervision import checkpoint
from .._ingestion.errors import INTERCEPT as STORED_INTERCEPT
from .._ingestion.errors import check_names, check_varying, some
from .._ingestion.values import MISSING_LEVEL, ColumnValues, missing_name
from .._rows.manifest import Column, RowManifest
from .._rows.opening import is_row_store, open_rows
from .._rows.sharded import ShardedRows
from ..models.design import (
    Indicator,
    Observations,
    ObservationsOf,
    ProductColumn,
    StoredFactor,
    StoredNumber,
    stored_codes,
    stored_factor,
)
from ..models.regression import Family
from .columns import INTERCEPT, FeatureEncoding, PlainTerms, ResponseEncoding, encode_features
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
# The numbers of a store are fixed, so a term is a product of columns and of indicators of levels:
# `age:C(city)` gives one product per level of city. Functions of columns would need another pass
# over the table.

_ROLES = ("weights", "offset", "event", "entry", "upper")
_CURE = "Transform the column before `tallmc ingest`, and use it by its name."


Product = tuple[tuple[str, int | None], ...]
"""Columns of the table whose product is a column of the design: the name of each, and the number of
the level that a category must have. An intercept is ()."""


Products = dict[str, Product]
"""The columns of a design over a row store, by name."""


def store_terms(
    formula: str, manifest: RowManifest, left_out: Collection[str | None] = ()
) -> Products:
    """The columns of the design that a formula describes; `.` is all but those left out."""
    text = split_formula(formula)
    response = text.response if text.response is not None else manifest.response
    if response is not None and response not in manifest.names:
        cure = f"The columns are: {some(manifest.names)}."
        raise InvalidInput(FORMULA, "have a column of the row store before ~", response, cure)
    sources = dict.fromkeys(c.source for c in manifest.columns if c.source not in ("", response))
    straight = {name for smooth in text.smooths for name in smooth.variables}
    parsed = parse(text.common, [name for name in sources if name not in {*straight, *left_out}])
    levels = {name: category.levels for name, category in manifest.covariates.items()}
    factors = {factor for term in parsed for factor in term.factors}
    for factor in factors:
        _check_factor(factor, sources, levels, formula)
    used = {_source(factor.expr) for factor in factors}

    def columns_of(scoped: Any) -> list[tuple[str, tuple[str, int | None]]]:
        """The names and the columns of one of formulaic's factors."""
        text = scoped.factor.expr
        name = _source(text)
        if name not in levels:
            return [(text, (name, None))]
        form, first = ("{}[T.{}]", 1) if scoped.reduced else ("{}[{}]", 0)
        return [
            (form.format(text, level), (name, code))
            for code, level in enumerate(levels[name][first:], start=first)
        ]

    found: Products = {}
    for _, scoped_terms, names in _structure(parsed, used, levels):
        known = {}
        for scoped in scoped_terms:
            for chosen in itertools.product(*map(columns_of, scoped.factors)):
                name = ":".join(name for name, _ in chosen) or INTERCEPT
                known[name] = tuple(column for _, column in chosen)
        found |= {name: known[name] for name in names}
    return found


def _smooths_of_store(
    texts: Sequence[SmoothText], features: Sequence[FeatureEncoding], rows: ShardedRows
) -> tuple[Smooth, ...]:
    """The smooths of a formula, with knots from some rows of the store."""
    manifest, by_name = rows.shards.manifest, {feature.name: feature for feature in features}
    places = {column.source: j for j, column in enumerate(manifest.columns)}
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


class StoredSmooth(NamedTuple):
    """The columns of a smooth term over a row store."""

    smooth: Smooth
    variables: tuple[StoredNumber | Indicator, ...]
    by: StoredNumber | Indicator | None = None

    @classmethod
    def view(cls, smooth: Smooth, manifest: RowManifest) -> StoredSmooth:
        variables = tuple(_factor((name, None), manifest) for name in smooth.variables)
        if smooth.by is None:
            return cls(smooth, variables)
        level = smooth.level
        code = None if level is None else manifest.covariates[smooth.by].levels.index(level)
        return cls(smooth, variables, _factor((smooth.by, code), manifest))

    @property
    def n_columns(self) -> int:
        return len(self.smooth.names)

    def of(self, lines: Any) -> Any:
        """The columns of these lines of a row store."""
        numbers = [variable.of(lines) for variable in self.variables]
        by = None if self.by is None else self.by.of(lines)
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


def _structure(parsed: Any, used: Collection[str], levels: dict[str, tuple[str, ...]]) -> Any:
    """Formulaic's terms with the factors and columns that they have, from a table of all levels."""
    import formulaic
    import pandas

    rows = np.arange(max((len(levels[name]) for name in used if name in levels), default=1))
    frame = pandas.DataFrame(
        {
            name: pandas.Categorical.from_codes(rows % len(levels[name]), list(levels[name]))
            if name in levels
            else np.ones(len(rows))
            for name in used
        }
    )
    spec = formulaic.ModelSpec(formula=parsed, na_action="ignore", output="pandas")
    return spec.get_model_matrix(frame).model_spec.structure


def row_store_design(
    rows: ShardedRows, model: RegressionModel, known: ScaledTerms | None = None
) -> tuple[DesignEncoding, np.ndarray, ObservationsOf]:
    """The encoding of a row store, the sds that the sampler sees, and the view of its design.

    Interactions are scaled as in `known`, the terms of an earlier fit. Otherwise their moments are
    measured in one pass.
    """
    manifest = rows.shards.manifest
    _check_row_store(model, manifest)
    family, _ = model.families()
    products, scaled = _terms(rows, model)
    smooths = smooths_of(scaled)
    response = _response(model, manifest)
    has_intercept = next(iter(products), None) == INTERCEPT
    first = int(has_intercept and not family.has_intercept)
    if known is not None and known.names[: len(products)] == tuple(products):
        of_names = zip(products.values(), known.means, known.sds, strict=False)
        moments: Moments = {product: (mean, sd) for product, mean, sd in of_names}
    else:
        moments = _measured(rows, products)
    of_terms = list(_features_of(products, manifest, moments, centred=has_intercept))
    scaling = [scaled for _, scaled in of_terms]
    means, sds, column_sds = (np.concatenate(of) for of in zip(*scaling, strict=True))
    place = manifest.names.index(response)
    used = {name for product in products.values() for name, _ in product}
    if response in used.union(*((*smooth.variables, smooth.by) for smooth in smooths)):
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
            scaled, (*means.tolist(), *[0.0] * n_smooth), (*sds.tolist(), *[1.0] * n_smooth)
        ),
        ResponseEncoding(
            *(response, family.response, _levels(family, of_response), None, mean, sd),
            model.breaks or (),
        ),
        RowRoles.of(model),
        (),
        model.formula,
        str(jax.dtypes.canonicalize_dtype(manifest.dtype)),
        _filled(manifest, model),
    )
    weight, offset, event, entry, upper = (
        None if getattr(model, role) is None else manifest.names.index(getattr(model, role))
        for role in _ROLES
    )
    features = [feature for feature, _ in of_terms[first:]]
    features += [StoredSmooth.view(smooth, manifest) for smooth in smooths]
    view = ObservationsOf(
        tuple(features), place, mean, sd, weight, offset, times, event, entry, upper
    )
    if entry is not None or upper is not None:
        _check_times(rows.viewed(view), response, model)
    # Only the free columns of smooths have a prior that depends on it, and their sd is about 1.
    return encoding, np.append(column_sds[first:], [1.0] * n_smooth), view


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


def _terms(rows: ShardedRows, model: RegressionModel) -> tuple[Products, PlainTerms | FormulaTerms]:
    """The products of columns of the store, and the same terms for columns of a table."""
    manifest = rows.shards.manifest
    response = model.response or manifest.response
    left_out = {response, *(getattr(model, role) for role in _ROLES), *model.exclude}
    if model.formula is not None:
        added = [f"`{one.indicator}`" for one in _filled(manifest, model) if one.has_indicator]
        formula = " + ".join([model.formula, *added])
        text = split_formula(formula)
        features = _features(manifest, left_out | {text.response})
        names = text.variables([of.name for of in features], {of.name for of in features})
        used = tuple(feature for feature in features if feature.name in names)
        _check_features(used, manifest.n_rows, named=True)
        products = store_terms(formula, manifest, left_out)
        smooths = _smooths_of_store(text.smooths, features, rows)
        return products, _formula_terms(text, used, smooths)
    features = _features(manifest, left_out)
    _check_features(features, manifest.n_rows, named=False)
    has_intercept = model.intercept and STORED_INTERCEPT in manifest.names
    plain = PlainTerms(features, has_intercept)
    if not plain.names:
        raise InvalidInput("row store", "have a column besides the response", f"only {response}")
    found: list[Product] = [()] if has_intercept else []
    for feature in features:
        codes = range(1, len(feature.levels)) if feature.kind == "category" else (None,)
        found += [((feature.name, code),) for code in codes]
    check_names("the design", plain.names)
    return dict(zip(plain.names, found, strict=True)), plain


def _filled(manifest: RowManifest, model: RegressionModel) -> tuple[FilledColumn, ...]:
    """Covariates of the fit whose missing values ingestion has marked."""
    numbers = {column.source: column for column in manifest.columns}
    found = []
    for column in manifest.columns:
        of = numbers.get(column.source.removesuffix(missing_name("")))
        if of is not None and of is not column and of.source != column.source:
            count = round(column.mean * manifest.n_rows)
            found.append(FilledColumn(of.source, of.mean, count))
    for category in manifest.covariates.values():
        if MISSING_LEVEL in category.levels:
            share = category.shares[category.levels.index(MISSING_LEVEL)]
            found.append(FilledColumn(category.name, None, round(share * manifest.n_rows)))
    order = [column.source for column in manifest.columns]
    found.sort(key=lambda one: order.index(one.name))
    if model.formula is None:
        return tuple(one for one in found if one.name not in model.exclude)
    sources = {column.source for column in manifest.columns} - {"", model.response}
    used = split_formula(model.formula).variables(sorted(sources), sources)
    return tuple(one for one in found if one.name in used)


def _features(manifest: RowManifest, left_out: set[str | None]) -> tuple[FeatureEncoding, ...]:
    """The columns of the table that the store came from."""
    categories, found = manifest.covariates, {}
    for column in manifest.columns:
        name = column.source or column.name
        if column.name == STORED_INTERCEPT or left_out & {name, column.name}:
            continue
        found[name] = FeatureEncoding(name, "number")
        if name in categories:
            found[name] = FeatureEncoding(name, "category", categories[name].levels)
    return tuple(found.values())


def _check_features(features: Iterable[FeatureEncoding], n_rows: int, *, named: bool) -> None:
    """Raise unless categories are such that a table of these rows could have them."""
    columns = {
        of.name: ColumnValues("text", np.arange(len(of.levels)), of.levels)
        for of in features
        if of.kind == "category"
    }
    encode_features(columns, (), n_rows, named=named)


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
    return make_terms(text.common, features, columns, n_rows, smooths)[0]


def _response(model: RegressionModel, manifest: RowManifest) -> str:
    """The name of the response; raises unless the row store holds it as it is."""
    named = None if model.formula is None else split_formula(model.formula).response
    if named is not None and model.response not in (None, named):
        raise InvalidInput("--response", f"be that of the formula, {named!r}", model.response)
    response = model.response or named or manifest.response
    if response is None or response not in manifest.names:
        found = f"The columns are: {some(manifest.names)}."
        raise InvalidInput("--response", "name a column of the row store", response, found)
    cure = f"Ingest the table again, with {response} as the response."
    if response in manifest.covariates:
        raise InvalidInput("--response", "hold numbers in the row store", response, cure)
    if manifest.columns[manifest.names.index(response)].standardised:
        raise InvalidInput("--response", "not be standardised in the row store", response, cure)
    return response


def _factor(column: tuple[str, int | None], manifest: RowManifest) -> StoredNumber | Indicator:
    """A column of the table, or the indicator of a level, of lines of the row store."""
    name, level = column
    if level is not None:
        return Indicator(stored_codes(manifest)[name], level)
    (place,) = manifest.places(name)
    stored = manifest.columns[place]
    return StoredNumber(place, *((stored.mean, stored.sd) if stored.standardised else ()))


Scaling = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""Of the columns of a feature: what is subtracted from them, what they are divided by, and their
sds then; 0 for the intercept."""


def _features_of(
    of_names: Products, manifest: RowManifest, moments: Moments, *, centred: bool
) -> Iterator[tuple[Any, Scaling]]:
    """The columns of a design over a row store; they are not centred if there is no intercept."""
    categories = manifest.covariates
    for names, run in itertools.groupby(of_names.values(), _names):
        products = list(run)
        if names and all(name in categories for name in names):
            levels: Any = [[level for _, level in product] for product in products]
            known = None if len(names) == 1 else [moments[product] for product in products]
            factor = stored_factor(names, levels, manifest, centred=centred, moments=known)
            sds = np.ones(len(products))
            if known is None:
                share = np.array(categories[names[0]].shares)[np.ravel(levels)]
                sds = np.sqrt(share * (1 - share)) / factor.scales
            yield factor, (factor.shifts, factor.scales, sds.tolist())
            continue
        for product in products:
            factors = tuple(_factor(column, manifest) for column in product)
            if len(factors) == 1 and isinstance(factors[0], StoredNumber):
                stored = manifest.columns[factors[0].place]
                shift, scale, sd = factors[0].mean, factors[0].sd, stored.sd / factors[0].sd
            elif not factors:
                shift, scale, sd = 0.0, 1.0, 0.0
            else:
                (shift, scale), sd = moments[product], 1.0
            column = ProductColumn(factors, shift if centred else 0.0, scale)
            place = column.place
            if not factors and STORED_INTERCEPT in manifest.names:
                place = manifest.names.index(STORED_INTERCEPT)
            yield column if place is None else place, ([column.shift], [scale], [sd])


# Moments of interactions. The manifest has those of the columns of the table, so designs with
# interactions take one more pass over the store.
#
# Of a number v in the rows of a level l, a share p of all rows, let m be the mean and S the sum of
# squares about it, merged shard by shard (Chan et al., 1983). The column that is v in these rows
# and 0 in the others has
#
#     mean = p m,   variance = S/N + p(1 − p) m²
#
# v = 1 gives the moments of an indicator, p = 1 those of a product of numbers.

Moments = Mapping[Product, tuple[float, float]]
"""Mean and standard deviation of every product of two or more columns."""
_ROWS_AT_ONCE = 2**16


def _names(product: Product) -> tuple[str, ...]:
    return tuple(name for name, _ in product)


def _measured(rows: ShardedRows, products: Products) -> Moments:
    """The moments of the interactions, in one pass over the rows if there are any."""
    manifest, found = rows.shards.manifest, {}
    interactions = [product for product in products.values() if len(product) > 1]
    of_names = list(dict.fromkeys(map(_names, interactions)))
    if not interactions:
        return {}
    codes = stored_codes(manifest)
    wanted = tuple(
        (
            tuple(_factor((name, None), manifest) for name in names if name not in codes),
            StoredFactor(tuple(codes[name] for name in names if name in codes)),
        )
        for names in of_names
    )
    parts = rows.workers.each(
        _sums_of_levels, (rows.shards, wanted), dict.fromkeys(range(rows.n_shards))
    )
    by_names = zip(of_names, zip(*parts, strict=True), strict=True)
    sums = {names: functools.reduce(_merged, of_shards) for names, of_shards in by_names}
    for product in interactions:
        levels = [level for _, level in product if level is not None]
        sizes = [codes[name].n_levels for name, level in product if level is not None]
        place = int(np.ravel_multi_index(levels, sizes)) if levels else 0
        count, mean, squares = (float(of[place]) for of in sums[_names(product)])
        share = count / rows.n_rows
        variance = squares / rows.n_rows + share * (1 - share) * mean**2
        found[product] = share * mean, math.sqrt(variance)
    check_varying(
        {
            name: found[product][0]
            for name, product in products.items()
            if product in found and not found[product][1]
        },
        "Leave them out of the formula or with --exclude (exclude)",
    )
    return found


def _sums_of_levels(common: Any, number: int, _: Any) -> list[np.ndarray]:
    """Counts, means and sums of squares of products of numbers by level, in one shard."""
    shards, wanted = common
    lines, found = shards.array(number), []
    for numbers, factor in wanted:
        total = np.zeros((3, factor.n_levels))
        for first in range(0, len(lines), _ROWS_AT_ONCE):
            some_lines = lines[first : first + _ROWS_AT_ONCE].astype(np.float64)
            values = np.ones(len(some_lines))
            for of in numbers:
                values *= of.of(some_lines)
            code = factor.code(some_lines) if factor.parts else np.zeros(len(values), np.int32)
            counts, sums = (
                np.bincount(code, weights, factor.n_levels) for weights in (None, values)
            )
            means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
            squares = np.bincount(code, (values - means[code]) ** 2, factor.n_levels)
            total = _merged(total, np.stack([counts, means, squares]))
        found.append(total)
    return found


def _merged(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Counts, means and sums of squares of the rows of both."""
    count, change = one[0] + other[0], other[1] - one[1]
    share = np.divide(other[0], count, out=np.zeros_like(count), where=count > 0)
    return np.stack(
        [count, one[1] + change * share, one[2] + other[2] + change**2 * one[0] * share]
    )


def _check_row_store(model: RegressionModel, manifest: RowManifest) -> None:
    if model.formula is not None and split_formula(model.formula).groups:
        cure = "Use the rows as a table."
        raise InvalidInput(FORMULA, "have no group terms over rows on disk", model.formula, cure)
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
        if name in manifest.covariates:
            raise InvalidInput(f"--{role} ({role})", "hold numbers", f"{name}, a column of text")
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


def opened_rows(data: Any) -> Any:
    """The rows of a row store if this is the path of one; otherwise the data themselves."""
    return open_rows(data) if is_row_store(data) else data


def table_of_lines(
    lines: np.ndarray, manifest: RowManifest, names: Collection[str] | None = None
) -> Table:
    """Lines of a row store as the table that they came from, or some of its columns."""
    columns: dict[str, ColumnValues] = {}
    for column, stored in zip(manifest.columns, lines.T, strict=True):
        name = column.source or column.name
        if name in manifest.covariates or (names is not None and name not in names):
            continue
        values = stored.astype(np.float64)
        if column.standardised:
            values = values * column.sd + column.mean
            values = np.rint(values) if column.whole else values
        columns[name] = ColumnValues("number", values)
    for name, code in stored_codes(manifest).items():
        if names is None or name in names:
            columns[name] = ColumnValues("text", code.of(lines), manifest.covariates[name].levels)
    return Table(columns, "row store")


MOST_BYTES = 2**31
"""Of the columns of a row store that a model with group terms holds in memory."""


def stored_table(rows: ShardedRows, names: Collection[str], groups: Collection[str]) -> Table:
    """Columns of a row store in memory: a group's rows must be side by side.

    Values that ingestion has marked as missing are missing again.
    """
    manifest = rows.shards.manifest
    known = dict.fromkeys(column.source for column in manifest.columns if column.source)
    for name in names:
        if name not in known:
            cure = f"The columns are: {some(known)}."
            raise InvalidInput(FORMULA, "use columns of the row store", name, cure)
    names = [name for name in known if name in names]
    size = rows.n_rows * sum(4 if name in manifest.covariates else 8 for name in names)
    if size > MOST_BYTES:
        rule = f"have at most {MOST_BYTES / 2**30:g} GiB in the columns of a fit with group terms"
        cure = "Use fewer columns, or ingest a part of the rows."
        found = f"{size / 2**30:.1f} GiB in {rows.n_rows:,} rows of {some(names)}"
        raise InvalidInput("row store", rule, found, cure)
    for name in set(groups) - manifest.covariates.keys():
        column = manifest.columns[manifest.places(name)[0]]
        largest = max(abs(column.low - column.mean), abs(column.high - column.mean))
        if not column.whole or (manifest.dtype == "float32" and largest > _MOST_EXACT):
            rule = "be text, or whole numbers that the row store tells apart, to be a group"
            found = f"numbers from {column.low:,.6g} to {column.high:,.6g}"
            raise InvalidInput(f"column {name!r}", rule, found, "Ingest it as text.")
    made: dict[str, ColumnValues] = {}
    read = {*names, *map(missing_name, names)}
    for start, number in zip(rows.starts, range(rows.n_shards), strict=True):
        checkpoint()
        part = table_of_lines(rows.shards.array(number), manifest, read).columns
        for name in names:
            values = part[name]
            if missing_name(name) in part:
                values.numbers[part[missing_name(name)].numbers > 0] = np.nan
            elif values.levels[-1:] == (MISSING_LEVEL,):
                codes = np.where(values.numbers < len(values.levels) - 1, values.numbers, -1)
                values = ColumnValues("text", codes, values.levels[:-1])
            if name not in made:
                empty = np.empty(rows.n_rows, values.numbers.dtype)
                made[name] = dataclasses.replace(values, numbers=empty)
            made[name].numbers[start : start + len(values)] = values.numbers
    return Table(made, "row store")


_MOST_EXACT = 2**22  # distance from the mean up to which float32 restores whole numbers
