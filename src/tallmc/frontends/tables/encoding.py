"""Designs, and what a fit remembers of its table, as JSON, so that new rows get the same columns.

A formula is code: an encoding that was read from a file is refused unless the user passes the text
of the formula again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.errors import InvalidInput
from ...ingestion.errors import TableError, some
from ...ingestion.values import ColumnValues
from .columns import check_complete
from .features import FeatureEncoding
from .formula_text import FORMULA, split_formula
from .formulas import FormulaTerms
from .matrix import RawColumn, scaled_matrix
from .responses import ResponseEncoding
from .roles import RowRoles
from .table import Table
from .terms import PlainTerms

_FORMAT, _VERSION = "tallmc design", 1


@dataclasses.dataclass(frozen=True)
class ScaledTerms:
    """Terms, and the scaling of their columns."""

    terms: PlainTerms | FormulaTerms
    means: tuple[float, ...]
    sds: tuple[float, ...]

    def matrix(self, raw: list[RawColumn], n_rows: int, dtype: str) -> np.ndarray:
        """The scaled matrix of columns that the terms gave."""
        return scaled_matrix(raw, self.terms.names, self.means, self.sds, n_rows, dtype)


@dataclasses.dataclass(frozen=True)
class GroupEncoding:
    """A term `(1 + x | group)`: its column of groups, and its terms."""

    name: str
    group: FeatureEncoding
    scaled: ScaledTerms


@dataclasses.dataclass(frozen=True)
class GroupDesign:
    """The rows of a term `(1 + x | group)`.

    **Arguments:**

    - `name`: the term, such as "1 + x | group".
    - `group`: the column after the bar.
    - `codes`: the group of each row, a number of `levels`.
    - `levels`: the names of the groups.
    - `x`: one column per coefficient that each group has, scaled like the design.
    - `names`, `means`, `sds`: of the columns of `x`.
    """

    name: str
    group: str
    codes: np.ndarray
    levels: tuple[str, ...]
    x: np.ndarray
    names: tuple[str, ...]
    means: np.ndarray
    sds: np.ndarray


@dataclasses.dataclass(frozen=True)
class Design:
    """The design matrix and response of a regression, with the scaling that was applied.

    Column j of `x` is (column of the table − means[j])/sds[j]; a response of numbers is
    (y − encoding.response.mean)/encoding.response.sd, and `offset` is divided by the same sd.

    **Arguments:**

    - `x`: the matrix, float32 or float64; the intercept comes first.
    - `y`: the response: float64, or int32 codes of classes. None if the rows have none.
    - `names`: the names of the columns.
    - `terms`: the numbers of the columns of each term.
    - `means`, `sds`: the scaling of each column; 0 and 1 for the intercept.
    - `weights`, `offset`, `trials`: values per row, or None. `offset` contains the logarithm of the
      exposure.
    - `groups`: the terms `(1 + x | group)`.
    - `encoding`: makes the same design of new rows.
    - `notes`: lines to print: dropped rows, baselines, the level that counts as 1, identifiers.
    """

    x: np.ndarray
    y: np.ndarray | None
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]
    means: np.ndarray
    sds: np.ndarray
    weights: np.ndarray | None
    offset: np.ndarray | None
    trials: np.ndarray | None
    groups: tuple[GroupDesign, ...]
    encoding: DesignEncoding
    notes: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.x)


@dataclasses.dataclass(frozen=True)
class DesignEncoding:
    """How the columns of a table became a design.

    **Arguments:**

    - `scaled`: the terms and their scaling.
    - `response`: the response.
    - `roles`: the columns that hold weights, offsets, exposures and trials.
    - `groups`: terms `(1 + x | group)`.
    - `formula`: the text of the formula, if there is one.
    - `dtype`: of the matrix.

    >>> from tallmc.frontends.tables import make_design, read_table
    >>> design = make_design(read_table({"age": [20, 40], "ill": ["no", "yes"]}), "ill",
    ...     response_kind="binary")
    >>> content = design.encoding.to_json()
    >>> DesignEncoding.from_json(content).apply(read_table({"age": [35]})).x.tolist()
    [[1.0, 0.5]]
    """

    scaled: ScaledTerms
    response: ResponseEncoding
    roles: RowRoles
    groups: tuple[GroupEncoding, ...]
    formula: str | None
    dtype: str

    def apply(self, table: Table, *, need_response: bool = False) -> Design:
        """The design of new rows.

        **Arguments:**

        - `table`: the rows. Columns that the fit did not use are ignored.
        - `need_response`: whether the rows must have the response. Otherwise `y` is None.

        **Returns:** the `Design`, with the columns and the scaling of the fit.

        **Raises:** `TableError` if columns or values are missing, or for levels that the fit has
        not seen; the message names column, level and row.
        """
        columns = self._columns(table, need_response=need_response)
        raw = self.scaled.terms.raw_columns(columns, table.n_rows)
        inner = [group.scaled.terms.raw_columns(columns, table.n_rows) for group in self.groups]
        return self.design(table, raw, inner, need_response=need_response)

    def design(
        self,
        table: Table,
        raw: list[RawColumn],
        inner: list[list[RawColumn]],
        *,
        need_response: bool,
        notes: tuple[str, ...] = (),
    ) -> Design:
        """The design from columns that the terms (`raw`) and groups (`inner`) gave."""
        response = table.columns[self.response.name] if need_response else None
        y = None if response is None else self.response.values(response)
        found = self.roles.values(table, y)
        offset = None if found.offset is None else found.offset / self.response.sd
        return Design(
            self.scaled.matrix(raw, table.n_rows, self.dtype),
            y,
            self.scaled.terms.names,
            self.scaled.terms.terms,
            np.array(self.scaled.means),
            np.array(self.scaled.sds),
            found.weights,
            offset,
            found.trials,
            tuple(
                self._group(group, table, part)
                for group, part in zip(self.groups, inner, strict=True)
            ),
            self,
            notes,
        )

    def _group(self, group: GroupEncoding, table: Table, raw: list[RawColumn]) -> GroupDesign:
        scaled, feature = group.scaled, group.group
        return GroupDesign(
            group.name,
            feature.name,
            feature.values(table.columns[feature.name]).numbers.astype(np.int32),
            feature.levels,
            scaled.matrix(raw, table.n_rows, self.dtype),
            scaled.terms.names,
            np.array(scaled.means),
            np.array(scaled.sds),
        )

    def _columns(self, table: Table, *, need_response: bool) -> dict[str, ColumnValues]:
        """The columns that the design needs, with the kinds and levels of the fit."""
        parts = [self.scaled, *(group.scaled for group in self.groups)]
        features = {f.name: f for part in parts for f in part.terms.features}
        needed = [*features, *(group.group.name for group in self.groups)]
        needed += self.roles.needed(need_response=need_response)
        needed += [self.response.name] if need_response else []
        lacking = [name for name in dict.fromkeys(needed) if name not in table.columns]
        if lacking:
            found = f"{table.description} without {some(lacking)}"
            cure = f"Its columns are: {some(table.columns)}."
            raise TableError("TABLE", "have the columns of the fit", found, cure)
        check_complete({name: table.columns[name] for name in needed})
        return {f.name: f.values(table.columns[f.name]) for f in features.values()}

    def to_json(self) -> dict[str, Any]:
        """JSON-able content, without arrays and pickles."""
        content = {"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(self)}
        for scaled in (content["scaled"], *(group["scaled"] for group in content["groups"])):
            scaled["terms"].pop("formula", None)  # follows from the whole formula
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], formula: str | None = None) -> DesignEncoding:
        """The encoding that `to_json` wrote.

        **Arguments:**

        - `content`: what `to_json` returned, also after JSON wrote and read it.
        - `formula`: the text of the formula, if the encoding has one. Stored formulas are not
          trusted, because formulas are code.

        **Raises:** `InvalidInput` if it is something else, or the formula is not the same.
        """
        if content.get("format") != _FORMAT or content.get("version") != _VERSION:
            found = f"version {content.get('version')} of {content.get('format')}"
            raise InvalidInput("encoding", f"be version {_VERSION} of {_FORMAT!r}", found)
        check_formula(content.get("formula"), formula)
        text = None if formula is None else split_formula(formula)
        try:
            response, dtype = content["response"], content["dtype"]
            groups = zip(content["groups"], () if text is None else text.groups, strict=True)
            return cls(
                _scaled(content["scaled"], None if text is None else text.common),
                ResponseEncoding(**{**response, "levels": tuple(response["levels"])}),
                RowRoles(**content["roles"]),
                tuple(
                    GroupEncoding(
                        group["name"], _feature(group["group"]), _scaled(group["scaled"], inner)
                    )
                    for group, (inner, _) in groups
                ),
                formula,
                dtype,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput("encoding", "be what to_json wrote", str(error)) from None


def check_formula(stored: object, given: str | None) -> None:
    """Raise unless the caller passes the formula that is stored, or there is none."""
    if stored is None and given is None:
        return
    if stored is not None and given is None:
        cure = f"If you trust it, pass it: formula={stored!r}."
        raise InvalidInput(FORMULA, "be passed again, as stored formulas are code", "none", cure)
    if stored is None or "".join(str(stored).split()) != "".join(str(given).split()):
        raise InvalidInput(FORMULA, f"be that of the fit, {stored!r}", given)


def _scaled(content: Mapping[str, Any], formula: str | None) -> ScaledTerms:
    fields = dict(content["terms"])
    fields["features"] = tuple(map(_feature, fields["features"]))
    terms: PlainTerms | FormulaTerms
    if formula is None:
        terms = PlainTerms(**fields)
    else:
        fields["names"] = tuple(fields["names"])
        fields["terms"] = {term: tuple(places) for term, places in fields["terms"].items()}
        terms = FormulaTerms(formula, **fields)
    return ScaledTerms(terms, tuple(content["means"]), tuple(content["sds"]))


def _feature(content: Mapping[str, Any]) -> FeatureEncoding:
    return FeatureEncoding(content["name"], content["kind"], tuple(content["levels"]))
