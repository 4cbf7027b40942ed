"""Terms of a formula: formulaic evaluates them; what it remembers is kept as JSON.

A formula is Python code. One that was read from a file is evaluated only if it is *plain*:
arithmetic of columns, and calls of functions from a list. Any other is asked for.
Columns of text reach formulaic with the levels of the fit, so a level that the fit has not seen is
found before. Names are those of formulaic: `C(region)[T.south]`, `age:region[T.south]`.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math
import re
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.errors import InvalidInput
from .._ingestion.errors import TableError, check_rows, some
from .._ingestion.values import ColumnValues
from .columns import INTERCEPT, MAX_NAMED_LEVELS, FeatureEncoding, RawColumn, as_text
from .smooths import Smooth, SmoothText, parse_smooth

# Split the text of a formula: the response, the common terms, and terms `(1 + x | group)`.

FORMULA = "--formula (formula)"
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "`\"'"
_NAME = re.compile(r"`([^`]+)`|([^\W\d]\w*)")


class GroupText(NamedTuple):
    """A term `(terms | group)`."""

    terms: str
    columns: tuple[str, ...]
    is_difference: bool = False
    """Of the effects of two columns, `(1 | a - b)`; else columns are joined, `(1 | a:b)`."""

    @property
    def group(self) -> str:
        return (" - " if self.is_difference else ":").join(self.columns)


class FormulaText(NamedTuple):
    """The parts of a formula."""

    response: str | None  # what stands before `~`, if anything does
    common: str  # the terms that formulaic reads
    groups: tuple[GroupText, ...]
    smooths: tuple[SmoothText, ...] = ()

    def variables(self, available: Sequence[str], known: Container[str]) -> set[str]:
        """The columns that explain the response, without those of groups."""
        in_smooths = {name for smooth in self.smooths for name in smooth.columns}
        straight = {name for smooth in self.smooths for name in smooth.variables}
        free = [name for name in available if name not in straight]
        formulas = (self.common, *(group.terms for group in self.groups))
        return in_smooths.union(*(variables_of(formula, free, known) for formula in formulas))


def split_formula(text: str) -> FormulaText:
    """The parts of a formula."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(FORMULA, "be text such as 'y ~ age + C(region)'", text)
    sides = list(_split(text, "~"))
    if len(sides) > 2:
        raise InvalidInput(FORMULA, "have one ~", text)
    response = column_name(sides[0]) if len(sides) == 2 else None
    if len(sides) == 2 and response is None:
        cure = "Put the transformed response into a column of the table first."
        if not sides[0]:
            cure = "Name the response, as in 'y ~ age'."
        elif "(" not in sides[0]:
            cure = f"Put a name with spaces or signs into backquotes: `{sides[0]}`."
        raise InvalidInput(FORMULA, "have the name of a column before ~", sides[0], cure)
    common: list[str] = []
    groups: list[GroupText] = []
    smooths: list[SmoothText] = []
    for term in _split(sides[-1], "+"):
        if (smooth := parse_smooth(term)) is not None:
            smooths.append(smooth)
            continue
        inside = _within_brackets(term)
        bars = list(_split(inside, "|")) if inside is not None else [term]
        if len(bars) == 2:
            groups += _groups_of(bars[0], bars[1], text)
        elif len(bars) > 2 or len(list(_split(term, "|"))) > 1:
            cure = "Write y ~ x + (1 + x | group), with the brackets joined by +."
            raise InvalidInput(FORMULA, "have bars only in (terms | group)", text, cure)
        else:
            common.append(term)
    for smooth in smooths:
        if len(smooth.variables) == 1 and smooth.by is None and smooth.variables[0] in common:
            cure = f"Leave out {smooth.variables[0]}: {smooth.name} contains it."
            raise InvalidInput(FORMULA, "have each column once", text, cure)
    return FormulaText(response, " + ".join(common) or "1", tuple(groups), tuple(smooths))


def _groups_of(terms: str, after_bar: str, formula: str) -> list[GroupText]:
    """The group terms of `(terms | after_bar)`: a/b, b within a, is a and a:b."""
    differ = list(_split(after_bar, "-"))
    nested = [list(_split(part, ":")) for part in _split(after_bar, "/")]
    if len(differ) == 2:
        nested = [differ]
    names = [[column_name(name) for name in part] for part in nested]
    known = [tuple(name for name in part if name is not None) for part in names]
    if any(len(one) < len(other) for one, other in zip(known, names, strict=True)):
        cure = f"Join columns into one of the table first; got {after_bar!r} after the bar."
        rule = "have columns after a bar: one, a/b, a:b, or a difference of two"
        raise InvalidInput(FORMULA, rule, formula, cure)
    joined = itertools.accumulate(known)
    found = [GroupText(terms, columns, len(differ) == 2) for columns in joined]
    for group in found:
        if len(set(group.columns)) < len(group.columns):
            raise InvalidInput(FORMULA, "join different columns after a bar", group.group)
    return found


class FormulaNeeded(InvalidInput):
    """A stored formula is not plain, and the caller has not passed it."""


_OFFSET = re.compile(r"offset\((?:(?:np\.)?(log)\()?(`[^`]+`|[^\W\d]\w*)\){1,2}")


def take_offset(formula: str) -> tuple[str, dict[str, str]]:
    """The formula without `offset(x)` or `offset(log(x))`, and x as the offset or the exposure."""
    left, tilde, right = formula.rpartition("~")
    terms = list(_split(right, "+"))
    given = [term for term in terms if term.startswith("offset(")]
    if not given:
        return formula, {}
    found = _OFFSET.fullmatch(given[0].replace(" ", ""))
    if len(given) > 1 or found is None:
        cure = "Put the sum into a column of the table first."
        raise InvalidInput(FORMULA, "have one offset(x) or offset(log(x))", formula, cure)
    rest = " + ".join(term for term in terms if term not in given) or "1"
    role = "exposure" if found[1] else "offset"
    return f"{left}{tilde} {rest}".strip(), {role: str(column_name(found[2]))}


_SURVIVAL = re.compile(r"[sS]urv\((.*)\)", re.DOTALL)


def take_survival(response: str) -> dict[str, str] | None:
    """The columns by role of the response `surv(…)`; None if it is something else."""
    found = _SURVIVAL.fullmatch(response.strip())
    if found is None:
        return None
    parts = list(_split(found[1], ","))
    last = "".join(parts[-1].split()).replace("'", '"')
    kind = parts.pop() if last.startswith("type=") else None
    names = [column_name(part) for part in parts]
    forms = {1: ["response"], 2: ["response", "event"], 3: ["entry", "response", "event"]}
    if kind is not None:
        forms = {2: ["response", "upper"]} if last == 'type="interval"' else {}
    if len(names) not in forms or None in names:
        rule = "have surv(time, event), surv(start, stop, event) or "
        rule += 'surv(lower, upper, type="interval") of columns before ~'
        raise InvalidInput(FORMULA, rule, response)
    return {role: str(name) for role, name in zip(forms[len(names)], names, strict=True)}


def take_roles(formula: str) -> tuple[str, dict[str, str]]:
    """The formula without `surv(…)` and `offset(…)`, and the columns that they name, by role."""
    left, tilde, right = formula.partition("~")
    roles = (take_survival(left) if tilde else None) or {}
    if roles:
        formula = f"`{roles.pop('response')}` ~{right}"
    if "offset(" in formula:
        formula, found = take_offset(formula)
        roles |= found
    return formula, roles


def stored_formula(stored: object, given: str | None, columns: Iterable[str]) -> str | None:
    """The formula of a saved fit of these columns: the caller's, or the stored one if it is plain.

    Raises if the caller's is another, or if there is none and the stored one is not plain.
    """
    if given is None and (stored is None or is_plain(str(stored), columns)):
        return None if stored is None else str(stored)
    if given is None:
        cure = f"If you trust it, pass it: formula={stored!r}."
        rule = "be passed again, as it calls functions of its own"
        raise FormulaNeeded(FORMULA, rule, "none", cure)
    plain = take_roles(given)[0]
    if stored is None or "".join(str(stored).split()) != "".join(plain.split()):
        raise InvalidInput(FORMULA, f"be that of the fit, {stored!r}", given)
    return plain


_CODINGS = {"Treatment", "Sum", "Poly", "Helmert", "Diff"}
_FUNCTIONS = {"log", "log10", "log2", "exp", "exp2", "exp10", "I", "C", "center", "scale"}
_FUNCTIONS |= {"standardize", "poly", "bs", "cr", "cs", "cc", *_CODINGS}
_CONTRASTS = {"treatment", "SAS", "sum", "helmert", "poly", "diff"}  # of formulaic's `contr`
_OPERATORS = (
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
    *(ast.BitAnd, ast.BitOr, ast.Invert, ast.USub, ast.UAdd),
)
_LONGEST_PLAIN = 10_000
_EXPENSIVE = re.compile(r"(\*\*|\^)\s*\(*\d{2}")  # powers of sums of terms


def is_plain(formula: str, columns: Iterable[str]) -> bool:
    """Whether a formula is arithmetic of these columns and calls of known functions."""
    known = set(columns)
    if len(formula) > _LONGEST_PLAIN or _EXPENSIVE.search(formula):
        return False
    try:
        text = split_formula(formula)
        parts = [text.common, *(group.terms for group in text.groups)]
        factors = {
            factor for part in parts for term in parse(part, known) for factor in term.factors
        }
        return all(
            factor.expr in known
            if factor.eval_method.value == "lookup"
            else _is_plain_code(factor.expr, known)
            for factor in factors
        ) and all(set(smooth.columns) <= known for smooth in text.smooths)
    except (InvalidInput, SyntaxError, ValueError, RecursionError):
        return False


def _is_plain_code(code: str, columns: set[str]) -> bool:
    from formulaic.utils.code import sanitize_variable_names

    aliases: dict[str, str] = {}  # the names that formulaic evaluates instead of `a b`
    tree = ast.parse(sanitize_variable_names(code, {}, aliases), mode="eval")
    if not set(aliases.values()) <= columns:
        return False
    return _is_plain_node(tree.body, columns | set(aliases))


def _is_plain_node(node: ast.AST, columns: set[str]) -> bool:
    def plain(*parts: ast.AST) -> bool:
        return all(_is_plain_node(part, columns) for part in parts)

    match node:
        case ast.Constant(value=str(text)):
            return not set(text) & set("\"'\\`\n")  # formulaic quotes text into code
        case ast.Constant(value=value):
            return value is None or isinstance(value, bool | int | float)
        case ast.Name(id=name):
            return name in columns or name in _CODINGS
        case ast.Attribute(value=ast.Name(id="contr"), attr=name):
            return name in _CONTRASTS
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return plain(*parts)
        case ast.UnaryOp(op=op, operand=operand):
            return isinstance(op, _OPERATORS) and plain(operand)
        case ast.BinOp(left=left, op=op, right=right):
            # Repeated lists and text, and powers of numbers, could take all memory.
            repeated = any(isinstance(part, ast.List | ast.Tuple) for part in (left, right))
            names = [part for part in ast.walk(left) if isinstance(part, ast.Name)]
            if repeated or (isinstance(op, ast.Pow) and not names):
                return False
            has_text = any(isinstance(getattr(part, "value", None), str) for part in (left, right))
            return isinstance(op, _OPERATORS) and not has_text and plain(left, right)
        case ast.Compare(left=left, comparators=others):
            return plain(left, *others)
        case ast.Call(func=function, args=arguments, keywords=options):
            named = {option.arg or "_" for option in options}
            if any(name.startswith("_") for name in named):
                return False
            return _is_known_function(function, named) and plain(
                *arguments, *(option.value for option in options)
            )
    return False


def _is_known_function(node: ast.AST, options: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in _FUNCTIONS
        case ast.Attribute(value=ast.Name(id="contr"), attr=name):
            return name in _CONTRASTS
        case ast.Attribute(value=ast.Name(id="np"), attr=name):  # `out=` would change the table
            return isinstance(getattr(np, name, None), np.ufunc) and not options
    return False


def column_name(text: str) -> str | None:
    """The column that text names, with or without backquotes; None if it is an expression."""
    found = _NAME.fullmatch(text.strip())
    return (found[1] or found[2]) if found else None


def _within_brackets(text: str) -> str | None:
    """What is between the first and the last bracket, if they are a pair."""
    if not (text.startswith("(") and text.endswith(")")):
        return None
    depths = [depth for _, depth in _characters(text[:-1])]
    return text[1:-1] if min(depths) >= 1 else None


def _characters(text: str) -> Iterator[tuple[str, int]]:
    """Characters with the number of brackets around them; quoted ones count as within one more."""
    depth, quote = 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
            yield character, depth + 1
            continue
        quote = character if character in _QUOTES else ""
        depth += character in _OPENING
        depth -= character in _CLOSING
        yield character, depth + bool(quote)


def _split(text: str, mark: str) -> Iterator[str]:
    """The pieces between marks that are outside of brackets and quotes."""
    piece = ""
    for character, depth in _characters(text):
        if character == mark and depth == 0:
            yield piece.strip()
            piece = ""
        else:
            piece += character
    yield piece.strip()


# What formulaic remembers of a table (means, knots, levels) as JSON and back.
#
# Objects are written as [type, content], so that arrays, tuples and dicts with keys that are
# numbers come back as they were. Floats come back with the same bits. There are no pickles.
def state_to_json(value: Any, transform: str = "") -> Any:
    """The states of transforms, by their text; `transform` is the text of one."""
    if not transform:
        return {text: state_to_json(state, text) for text, state in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ["float", repr(value)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        flat = [state_to_json(number, transform) for number in value.ravel()]
        return ["array", {"dtype": value.dtype.str, "shape": list(value.shape), "values": flat}]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [state_to_json(part, transform) for part in value]]
    if isinstance(value, dict):
        pairs = [[state_to_json(part, transform) for part in pair] for pair in value.items()]
        return ["dict", pairs]
    rule = "use transforms whose state can be stored as JSON"
    found = f"{transform}, which keeps a {type(value).__name__}"
    raise TableError(FORMULA, rule, found, "Transform the column in the table first.")


def state_from_json(content: Any) -> Any:
    """What `state_to_json` wrote."""
    if isinstance(content, dict):
        return {text: state_from_json(state) for text, state in content.items()}
    if not isinstance(content, list):
        return content
    kind, parts = content
    if kind == "float":
        return float(parts)
    if kind == "array":
        flat = np.array([state_from_json(number) for number in parts["values"]], parts["dtype"])
        return flat.reshape(parts["shape"])
    if kind == "dict":
        return {state_from_json(key): state_from_json(value) for key, value in parts}
    values = [state_from_json(part) for part in parts]
    return tuple(values) if kind == "tuple" else values


_ROWS_TO_COMPARE = 1000
_CATEGORY = re.compile(r"C\((`[^`]+`|\w+)(,.*)?\)")
_CURE = (
    "Functions are those of np and formulaic's C, I, center, scale, poly, bs, cr, log, exp; "
    "put other transforms into columns of the table first."
)


@dataclasses.dataclass(frozen=True)
class FormulaTerms:
    """Terms that formulaic evaluates."""

    formula: str
    features: tuple[FeatureEncoding, ...]
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]
    transforms: dict[str, Any]
    encoders: dict[str, Any]
    smooths: tuple[Smooth, ...] = ()

    @property
    def baselines(self) -> dict[str, str]:
        """The level of each category with which all others are compared, where there is one."""
        found = {}
        for text, (_, state) in state_from_json(self.encoders).items():
            levels = state.get("categories", ())
            without = [level for level in levels if f"{text}[T.{level}]" not in self.names]
            if len(without) == 1 and len(levels) > 1:
                found[category_of(text) or column_name(text) or text] = str(without[0])
        return found

    def raw_columns(self, columns: Mapping[str, ColumnValues], n_rows: int) -> list[RawColumn]:
        """The columns of the design, from columns of the table as `FeatureEncoding.values`."""
        import formulaic
        from formulaic.parser.types import Factor

        encoders = state_from_json(self.encoders)
        self._check_levels(columns, encoders)
        spec = formulaic.ModelSpec(
            formula=parse(self.formula, _free(self.features, self.smooths)),
            na_action="ignore",
            output="pandas",
            transform_state=state_from_json(self.transforms),
            encoder_state={
                text: (Factor.Kind(kind), dict(state)) for text, (kind, state) in encoders.items()
            },
        )
        matrix = _evaluated(spec, _frame(columns, self.features, n_rows))
        found = dict(zip(matrix.columns, _columns_of(matrix), strict=True))
        for smooth in self.smooths:
            found |= dict(zip(smooth.names, smooth.raw_columns(columns), strict=True))
        if tuple(found) != self.names:
            raise TableError(FORMULA, f"give the columns {some(self.names)}", some(found))
        return list(found.values())

    def _check_levels(self, columns: Mapping[str, ColumnValues], encoders: dict[str, Any]) -> None:
        """Raise if numbers within C(…) are none of those of the fit."""
        for text, (_, state) in encoders.items():
            name = category_of(text)
            if "categories" not in state or name not in columns or columns[name].kind == "text":
                continue
            numbers = columns[name].numbers
            known, cure = np.array(state["categories"]), some(map(str, state["categories"]))
            rule, cure = "have levels that the fit has seen", f"The levels are: {cure}."
            check_rows(np.isin(numbers, known), numbers, f"column {name!r}", rule, cure)


def parse(formula: str, available: Iterable[str]) -> Any:
    """The formula as terms of formulaic; `.` stands for all available columns."""
    try:
        import formulaic
    except ImportError:
        cure = "Install it with: pip install formulaic."
        raise TableError(FORMULA, "be left out without formulaic", formula, cure) from None
    available = list(available)
    context = {"__formulaic_variables_available__": available}
    try:
        parsed = formulaic.Formula.from_spec(formula, context=context)
    except Exception as error:
        odd = [f"`{name}`" for name in available if name in formula and column_name(name) is None]
        unquoted = [name for name in odd if name not in formula]
        raise _refusal(formula, error, unquoted) from None
    if not isinstance(parsed, formulaic.SimpleFormula):
        raise TableError(FORMULA, "be terms joined by +", formula)
    return parsed


def variables_of(formula: str, available: Iterable[str], known: Container[str]) -> set[str]:
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


def notes_on_splines(formula: str, names: Sequence[str]) -> list[str]:
    """Natural splines contain the constant, which the intercept has already."""
    code = "".join(formula.split())
    free = [text for text in re.findall(r"\bc[rsc]\([^()]*\)", code) if "constraints" not in text]
    return [
        f"{text} contains the intercept: write {text[:-1]}, constraints='center')"
        for text in free
        if INTERCEPT in names
    ]


def make_terms(
    formula: str,
    features: Sequence[FeatureEncoding],
    columns: Mapping[str, ColumnValues],
    n_rows: int,
    smooths: tuple[Smooth, ...] = (),
) -> tuple[FormulaTerms, list[RawColumn]]:
    """Evaluate a formula for the first time. Returns its terms and the columns of the design."""
    parsed = parse(formula, _free(features, smooths))
    _check_few_levels(parsed, columns)
    spec, raw = _first_evaluated(parsed, columns, _frame(columns, features, n_rows))
    encoders = {
        text: (kind.value, {key: value for key, value in state.items() if key != "contrasts"})
        for text, (kind, state) in spec.encoder_state.items()
    }
    names = list(map(str, spec.column_names))
    places_of = {
        INTERCEPT if str(term) == "1" else str(term): tuple(places)
        for term, places in spec.term_indices.items()
    }
    for smooth in smooths:
        places_of[smooth.name] = tuple(range(len(names), len(names) + len(smooth.names)))
        names += smooth.names
        raw += smooth.raw_columns(columns)
    terms = FormulaTerms(
        formula,
        tuple(features),
        tuple(names),
        places_of,
        state_to_json(spec.transform_state),
        state_to_json(encoders),
        smooths,
    )
    _check_row_by_row(terms, columns, raw, n_rows)
    return terms, raw


def _free(features: Sequence[FeatureEncoding], smooths: Sequence[Smooth]) -> list[str]:
    """The columns that `.` stands for: those of smooth terms are in these already."""
    taken = {name for smooth in smooths for name in smooth.variables}
    return [feature.name for feature in features if feature.name not in taken]


def _first_evaluated(
    parsed: Any, columns: Mapping[str, ColumnValues], frame: Any
) -> tuple[Any, list[RawColumn]]:
    """The spec of a formula, and its columns.

    Terms of categories alone are evaluated once per combination of their levels: formulaic makes a
    column of all rows for each. All other terms are evaluated before, on all rows, since a function
    such as `scale` remembers them. A category within another term needs all terms together.
    """
    import formulaic

    def evaluated(terms: Any, frame: Any, transforms: Mapping[str, Any]) -> Any:
        options = {"na_action": "ignore", "output": "pandas", "transform_state": dict(transforms)}
        return _evaluated(formulaic.ModelSpec(formula=terms, **options), frame)

    kinds = {term: {_is_category(factor, columns) for factor in term.factors} for term in parsed}
    coded = {term: _codes_of(term, columns) for term, kind in kinds.items() if kind == {True}}
    others = [term for term in parsed if term not in coded]
    together = not coded or any(True in kinds[term] for term in others)
    matrix = evaluated(parsed if together else formulaic.SimpleFormula(others), frame, {})
    states = matrix.model_spec.encoder_state.values()
    if not together and any(kind.value == "categorical" for kind, _ in states):
        together, matrix = True, evaluated(parsed, frame, {})
    part, rows = matrix, np.arange(len(frame))
    if not together:
        rows = np.unique(np.concatenate([example for _, example in coded.values()]))
        part = evaluated(parsed, frame.iloc[rows], matrix.model_spec.transform_state)
    raw: list[RawColumn] = []
    for term, places in part.model_spec.term_indices.items():
        for name in part.columns[places]:
            if term in coded:
                codes, example = coded[term]
                by_code = part[name].to_numpy(dtype=np.float64)[np.searchsorted(rows, example)]
                raw.append(
                    RawColumn(codes, by_code) if len(places) > 1 else RawColumn(by_code[codes])
                )
            else:
                raw.append(RawColumn(matrix[name].to_numpy(dtype=np.float64)))
    return part.model_spec, raw


def _is_category(factor: Any, columns: Mapping[str, ColumnValues]) -> bool:
    name = _category(factor)
    return name in columns and (name != column_name(factor.expr) or columns[name].kind == "text")


def _category(factor: Any) -> str:
    """The column that a factor names, alone or within C(…)."""
    return category_of(factor.expr) or column_name(factor.expr) or ""


def _codes_of(term: Any, columns: Mapping[str, ColumnValues]) -> tuple[np.ndarray, np.ndarray]:
    """For a term of categories: one code per row, and a row of each code."""
    codes, n_codes = np.zeros(1, np.int64), 1
    for factor in term.factors:
        column = as_text(columns[_category(factor)])
        codes = codes * len(column.levels) + column.numbers
        n_codes *= len(column.levels)
    example = np.zeros(n_codes, np.int64)
    example[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, example


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
        if not np.array_equal(part.numbers, rows.part(slice(count)), equal_nan=True):
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
    return [RawColumn(matrix.iloc[:, place].to_numpy(dtype=np.float64)) for place in places]


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


def _refusal(formula: str, error: Exception, unquoted: Sequence[str] = ()) -> TableError:
    """One line about a formula that formulaic does not understand, or whose Python code failed."""
    reason = str(error).partition("\n")[0].strip()
    if "beyond upper and/or lower bounds" in reason:
        cure = 'Predict within it, or fit with bs(..., extrapolation="clip").'
        rule = "meet values within the range of the fit"
        return TableError(FORMULA, rule, f"others for a spline of {formula}", cure)
    cure = _CURE
    if unquoted:
        cure = f"Put names with spaces or signs into backquotes: {some(unquoted)}."
    return TableError(FORMULA, "be one that formulaic evaluates", f"{formula}: {reason}", cure)
