"""Turn a table into a design: choose the encoding of every column, then apply it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from ...core.errors import InvalidInput
from ...ingestion.errors import TableError, check_names
from ...ingestion.values import ColumnValues
from .columns import (
    as_text,
    check_complete,
    check_known_kinds,
    complete_rows,
    identifiers,
    without_unused_levels,
)
from .encoding import Design, DesignEncoding, GroupEncoding, ScaledTerms
from .features import FeatureEncoding, encode_features
from .formula_text import FORMULA, FormulaText, split_formula
from .formulas import FormulaTerms, make_terms, variables_of
from .matrix import INTERCEPT, RawColumn, scales
from .responses import ResponseKind, encode_response, standardised
from .roles import RowRoles, unused_weights
from .table import Table
from .terms import PlainTerms


def make_design(
    table: Table,
    response: str | None = None,
    *,
    formula: str | None = None,
    weights: str | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | None = None,
    exclude: Iterable[str] = (),
    categorical: Collection[str] = (),
    drop_missing: bool = False,
    standardise: bool = True,
    intercept: bool = True,
    response_kind: ResponseKind = "number",
    level: str | Sequence[str] | None = None,
    dtype: str = "float32",
) -> Design:
    """The design matrix and the response of a table.

    Without a formula, every column that has no other role explains the response: numbers as they
    are, booleans as 0/1, text as categories whose first level is the baseline. Columns of the
    design have the names of statsmodels and formulaic: "Intercept", "age", "region[T.south]".

    **Arguments:**

    - `table`: the table.
    - `response`: the column to explain. May be left out if the formula has it.
    - `formula`: terms such as "age + C(region)", with or without "response ~". Python code:
      pass only formulas that you trust.
    - `weights`, `offset`, `exposure`, `trials`: columns with these roles.
    - `exclude`: columns to leave out.
    - `categorical`: columns that are categories although they hold numbers, or have many levels.
    - `drop_missing`: whether rows with missing values are dropped. Otherwise they are an error.
    - `standardise`: whether columns, and a response that is a number, are standardised. Without an
      intercept they are not centred.
    - `intercept`: whether the first column is 1. A formula says so itself, with 0 or −1.
    - `response_kind`: "number", "binary", "count", "positive", "classes" or "ordered".
    - `level`: the level of a binary response that counts as 1; the order of classes.
    - `dtype`: "float32" or "float64".

    **Returns:** the `Design`. Its `notes` say what was chosen.

    **Raises:** `TableError` or `InvalidInput`, one line with the cure.

    >>> from tallmc.frontends.tables import read_table
    >>> table = read_table({"age": [20, 40, 60], "city": ["Rome", "Oslo", "Rome"], "y": [1, 2, 4]})
    >>> design = make_design(table, "y", standardise=False)
    >>> design.names, design.x.tolist()[0], design.notes
    (('Intercept', 'age', 'city[T.Rome]'), [1.0, 20.0, 1.0], ("city: 2 levels, baseline 'Oslo'",))
    """
    text = _split(formula, intercept=intercept)
    response = _response_name(response, text)
    table = table.without(exclude)
    roles = RowRoles(weights, offset, exposure, trials)
    covariates = _covariates(table, text, response, roles)
    categorical = _checked(categorical, table)
    groups = () if text is None else text.groups
    used = [*covariates, *(name for _, name in groups), *roles.names.values(), response]
    table = Table({name: table.columns[name] for name in used}, table.description, table.notes)
    check_known_kinds(table.columns)
    table = _complete(table, drop_missing=drop_missing)

    of_response, notes = encode_response(response, table.columns[response], response_kind, level)
    found = {name: table.columns[name] for name in covariates}
    if text is None:
        numbers = {name: column for name, column in found.items() if name not in categorical}
        notes += identifiers(numbers, table.n_rows)
        notes += unused_weights(found) if weights is None else []
    features, said = encode_features(found, categorical, table.n_rows, named=text is not None)
    columns = {feature.name: feature.values(found[feature.name]) for feature in features}
    evaluated = _Evaluation(table, tuple(features), columns, standardise)
    scaled, raw = evaluated.plain(intercept) if text is None else evaluated.formula(text.common)
    if not scaled.terms.names and not groups:
        rule = "have a column besides the response when there is no intercept"
        raise TableError("TABLE", rule, f"only {response}")
    of_groups, inner = evaluated.groups(groups)
    if standardise and response_kind == "number":
        centre = INTERCEPT in scaled.terms.names
        of_response = standardised(of_response, table.columns[response], centre=centre)
    encoding = DesignEncoding(scaled, of_response, roles, of_groups, formula, dtype)
    lines = (*table.notes, *notes, *said)
    return encoding.design(table, raw, inner, need_response=True, notes=lines)


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """Columns of a table that become terms for the first time."""

    table: Table
    features: tuple[FeatureEncoding, ...]
    columns: Mapping[str, ColumnValues]
    standardise: bool

    def plain(self, intercept: bool) -> tuple[ScaledTerms, list[RawColumn]]:
        """Every column as it is."""
        terms = PlainTerms(self.features, intercept)
        return self._scaled(terms, terms.raw_columns(self.columns, self.table.n_rows))

    def formula(self, formula: str) -> tuple[ScaledTerms, list[RawColumn]]:
        """The terms of a formula."""
        names = variables_of(formula, self.columns, self.columns)
        features = [feature for feature in self.features if feature.name in names]
        return self._scaled(*make_terms(formula, features, self.columns, self.table.n_rows))

    def groups(
        self, groups: Sequence[tuple[str, str]]
    ) -> tuple[tuple[GroupEncoding, ...], list[list[RawColumn]]]:
        """Terms `(terms | group)`."""
        found, raw = [], []
        for terms, name in groups:
            levels = without_unused_levels(as_text(self.table.columns[name])).levels
            scaled, columns = self.formula(terms)
            feature = FeatureEncoding(name, "category", levels)
            found.append(GroupEncoding(f"{terms} | {name}", feature, scaled))
            raw.append(columns)
        return tuple(found), raw

    def _scaled(
        self, terms: PlainTerms | FormulaTerms, raw: list[RawColumn]
    ) -> tuple[ScaledTerms, list[RawColumn]]:
        check_names("the design", terms.names)
        return ScaledTerms(terms, *scales(raw, terms.names, standardise=self.standardise)), raw


def _split(formula: str | None, *, intercept: bool) -> FormulaText | None:
    if formula is None:
        return None
    if not intercept:
        cure = "Begin the terms with 0 +."
        raise InvalidInput("--no-intercept (intercept)", "be part of the formula", formula, cure)
    return split_formula(formula)


def _response_name(given: str | None, text: FormulaText | None) -> str:
    named = None if text is None else text.response
    if given is None and named is None:
        cure = "Pass --response (response) or write it before ~ in the formula."
        raise InvalidInput("--response", "name a column", "none", cure)
    if given is not None and named not in (None, given):
        raise InvalidInput("--response", f"be that of the formula, {named!r}", given)
    return str(given if given is not None else named)


def _covariates(
    table: Table, text: FormulaText | None, response: str, roles: RowRoles
) -> list[str]:
    """The columns that explain the response."""
    table.column(response, "--response")
    roles.check(table)
    if response in roles.names.values():
        raise TableError("--response", "have no other role", response)
    taken = {response, *roles.names.values()}
    free = [name for name in table.columns if name not in taken]
    if text is None:
        return free
    for _, group in text.groups:
        table.column(group, FORMULA)
    formulas = (text.common, *(terms for terms, _ in text.groups))
    needed = {name for formula in formulas for name in variables_of(formula, free, table.columns)}
    if response in needed:
        raise TableError(FORMULA, "not explain the response by itself", response)
    for name in sorted(needed):
        table.column(name, FORMULA)
    return [name for name in table.columns if name in needed]


def _checked(categorical: Collection[str], table: Table) -> set[str]:
    names = {categorical} if isinstance(categorical, str) else set(categorical)
    for name in sorted(names):
        table.column(name, "--categorical (categorical)")
    return names


def _complete(table: Table, *, drop_missing: bool) -> Table:
    """The table without missing values."""
    if drop_missing and not (complete := complete_rows(table.columns)).all():
        dropped = int((~complete).sum())
        note = f"dropped {dropped} of {table.n_rows} rows with missing values"
        table = table.rows(complete)
        table = dataclasses.replace(table, notes=(*table.notes, note))
    check_complete(table.columns)
    return table
