"""Terms of a formula: formulaic evaluates them; what it remembers is kept as JSON.

A formula is Python code. It is evaluated if a user passes it, never if it was read from a file.
Columns of text reach formulaic with the levels of the fit, so a level that the fit has not seen is
found before. Names are those of formulaic: `C(region)[T.south]`, `age:region[T.south]`.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ingestion.errors import TableError, some
from ...ingestion.values import ColumnValues
from .features import MAX_NAMED_LEVELS, FeatureEncoding
from .formula_state import state_from_json, state_to_json
from .formula_text import FORMULA, column_name
from .matrix import INTERCEPT, RawColumn

_ROWS_TO_COMPARE = 1000
_CATEGORY = re.compile(r"C\((`[^`]+`|\w+)(,.*)?\)")
_CURE = (
    "Functions are those of np and formulaic's C, I, center, scale, poly, bs, cr, log, exp; "
    "put other transforms into columns of the table first."
)


@dataclasses.dataclass(frozen=True)
class FormulaTerms:
    """Terms that formulaic evaluates.

    **Arguments:**

    - `formula`: the terms, as text.
    - `features`: the columns of the table that the formula uses.
    - `names`: the names of the columns of the design.
    - `terms`: the columns of the design that each term gives.
    - `transforms`, `encoders`: what formulaic remembers of functions and of factors, as JSON.
    """

    formula: str
    features: tuple[FeatureEncoding, ...]
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]
    transforms: dict[str, Any]
    encoders: dict[str, Any]

    def raw_columns(self, columns: Mapping[str, ColumnValues], n_rows: int) -> list[RawColumn]:
        """The columns of the design, from columns of the table as `FeatureEncoding.values`."""
        import formulaic
        from formulaic.parser.types import Factor

        encoders = state_from_json(self.encoders)
        self._check_levels(columns, encoders)
        spec = formulaic.ModelSpec(
            formula=parse(self.formula, [feature.name for feature in self.features]),
            na_action="ignore",
            output="pandas",
            transform_state=state_from_json(self.transforms),
            encoder_state={
                text: (Factor.Kind(kind), dict(state)) for text, (kind, state) in encoders.items()
            },
        )
        matrix = _evaluated(spec, _frame(columns, self.features, n_rows))
        found = dict(zip(matrix.columns, _columns_of(matrix), strict=True))
        if tuple(found) != self.names:
            shown = some(found)
            raise TableError(FORMULA, f"give the columns {some(self.names)}", shown)
        return list(found.values())

    def _check_levels(self, columns: Mapping[str, ColumnValues], encoders: dict[str, Any]) -> None:
        """Raise if numbers within C(…) are none of those of the fit."""
        for text, (_, state) in encoders.items():
            name = category_of(text)
            if "categories" not in state or name not in columns or columns[name].kind == "text":
                continue
            numbers = columns[name].numbers
            unknown = ~np.isin(numbers, np.array(state["categories"]))
            if unknown.any():
                row = int(unknown.argmax())
                found = f"{numbers[row]:g} in row {row + 1}"
                cure = f"The levels are: {some(map(str, state['categories']))}."
                rule = "have levels that the fit has seen"
                raise TableError(f"column {name!r}", rule, found, cure)


def parse(formula: str, available: Iterable[str]) -> Any:
    """The formula as terms of formulaic; `.` stands for all available columns.

    **Raises:** `TableError` with the first line of formulaic's reason.
    """
    try:
        import formulaic
    except ImportError:
        cure = "Install it with: pip install formulaic."
        raise TableError(FORMULA, "be left out without formulaic", formula, cure) from None
    context = {"__formulaic_variables_available__": list(available)}
    try:
        parsed = formulaic.Formula.from_spec(formula, context=context)
    except Exception as error:
        raise _refusal(formula, error) from None
    if not isinstance(parsed, formulaic.SimpleFormula):
        raise TableError(FORMULA, "be terms joined by +", formula)
    return parsed


def variables_of(formula: str, available: Iterable[str], known: Container[str]) -> set[str]:
    """The columns that a formula uses.

    **Arguments:**

    - `formula`: the terms.
    - `available`: the columns for which `.` stands.
    - `known`: the columns of the table. Other names within functions are left to formulaic.

    >>> sorted(variables_of("age + log(`my income`)", [], ["age", "my income", "y"]))
    ['age', 'my income']
    """
    found = set()
    for factor in {factor for term in parse(formula, available) for factor in term.factors}:
        if factor.eval_method.value == "lookup":
            found.add(factor.expr)
        elif factor.eval_method.value == "python":
            found |= {name for name in _names_in(factor.expr) if name in known}
    return found


def _names_in(code: str) -> set[str]:
    """The names in Python code, in which names with spaces are in backquotes."""
    quoted = re.findall(r"`([^`]+)`", code)
    try:
        tree = ast.parse(re.sub(r"`[^`]+`", "_", code).strip(), mode="eval")
    except SyntaxError:  # formulaic will say so
        return set(quoted)
    return {*quoted, *(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))}


def make_terms(
    formula: str,
    features: Sequence[FeatureEncoding],
    columns: Mapping[str, ColumnValues],
    n_rows: int,
) -> tuple[FormulaTerms, list[RawColumn]]:
    """Evaluate a formula for the first time. Returns its terms and the columns of the design."""
    import formulaic

    parsed = parse(formula, [feature.name for feature in features])
    _check_few_levels(parsed, columns)
    spec = formulaic.ModelSpec(formula=parsed, na_action="ignore", output="pandas")
    matrix = _evaluated(spec, _frame(columns, features, n_rows))
    spec = matrix.model_spec
    encoders = {
        text: (kind.value, {key: value for key, value in state.items() if key != "contrasts"})
        for text, (kind, state) in spec.encoder_state.items()
    }
    terms = FormulaTerms(
        formula,
        tuple(features),
        tuple(map(str, spec.column_names)),
        {
            INTERCEPT if str(term) == "1" else str(term): tuple(places)
            for term, places in spec.term_indices.items()
        },
        state_to_json(spec.transform_state),
        state_to_json(encoders),
    )
    raw = _columns_of(matrix)
    _check_row_by_row(terms, columns, raw, n_rows)
    return terms, raw


def _check_few_levels(parsed: Any, columns: Mapping[str, ColumnValues]) -> None:
    """Raise if C(…) would make thousands of columns of numbers."""
    for factor in {factor.expr for term in parsed for factor in term.factors}:
        name = category_of(factor)
        if name in columns and columns[name].kind != "text":
            count = len(np.unique(columns[name].numbers))
            if count > MAX_NAMED_LEVELS:
                cure = f"Use {name} as a number, or as a random intercept: (1 | {name})."
                rule = f"have at most {MAX_NAMED_LEVELS} levels in {factor}"
                raise TableError(f"column {name!r}", rule, f"{count} levels", cure)


def _check_row_by_row(
    terms: FormulaTerms,
    columns: Mapping[str, ColumnValues],
    whole: Sequence[RawColumn],
    n_rows: int,
) -> None:
    """Raise if a term of the first rows depends on the other rows, as that of x − np.mean(x)."""
    count = min(_ROWS_TO_COMPARE, n_rows - 1)
    if not count:
        return
    first = {name: column[:count] for name, column in columns.items()}
    parts = terms.raw_columns(first, count)
    for name, part, rows in zip(terms.names, parts, whole, strict=True):
        if not np.array_equal(part.numbers, rows.numbers[:count], equal_nan=True):
            cure = "Use center(x) or scale(x), which remember the table of the fit."
            rule = "compute each row from this row alone"
            raise TableError(FORMULA, rule, f"other values of {name} without the last rows", cure)


def category_of(factor: str) -> str:
    """The column within C(…), or nothing if the factor is something else."""
    found = _CATEGORY.fullmatch(factor)
    return (found and column_name(found[1])) or ""


def _frame(
    columns: Mapping[str, ColumnValues], features: Sequence[FeatureEncoding], n_rows: int
) -> Any:
    import pandas

    content = {}
    for feature in features:
        values = columns[feature.name].numbers
        if feature.kind == "category":
            content[feature.name] = pandas.Categorical.from_codes(values, list(feature.levels))
        else:
            content[feature.name] = values.astype(bool) if feature.kind == "boolean" else values
    return pandas.DataFrame(content, index=pandas.RangeIndex(n_rows), copy=False)


def _columns_of(matrix: Any) -> list[RawColumn]:
    places = range(matrix.shape[1])
    return [RawColumn(matrix.iloc[:, j].to_numpy(dtype=np.float64)) for j in places]


def _evaluated(spec: Any, frame: Any) -> Any:
    from formulaic.errors import DataMismatchWarning

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", DataMismatchWarning)
            return spec.get_model_matrix(frame)
    except DataMismatchWarning as error:
        levels = str(error).partition(": {")[2].partition("}.")[0]
        levels = re.sub(r"np\.\w+\((.*?)\)", r"\1", levels)
        found = f"level {levels} in {spec.formula}"
        raise TableError(FORMULA, "meet levels that the fit has seen", found) from None
    except Exception as error:
        raise _refusal(str(spec.formula), error) from None


def _refusal(formula: str, error: Exception) -> TableError:
    """One line about a formula that formulaic does not understand, or whose Python code failed."""
    reason = str(error).partition("\n")[0].strip()
    cure = "Pass the column as --offset (offset)." if "offset(" in formula else _CURE
    return TableError(FORMULA, "be one that formulaic evaluates", f"{formula}: {reason}", cure)
