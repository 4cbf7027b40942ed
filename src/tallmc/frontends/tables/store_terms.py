"""Formulas over row stores: columns of the store, their interactions, and categories.

The numbers of a store are fixed, so a term is a product of columns: `age:C(city)` gives one product
per level of city but the first. Functions of columns would need another pass over the table.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from ...core.errors import InvalidInput
from ...ingestion.errors import some
from ...rows.manifest import RowManifest
from .formula_text import FORMULA, column_name, split_formula
from .formulas import category_of, parse
from .matrix import INTERCEPT

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


def store_terms(formula: str, manifest: RowManifest) -> StoreTerms:
    """The columns of the design that a formula describes.

    **Arguments:**

    - `formula`: columns of the table that was ingested, `C(column)` of columns of text, their
      interactions (`:`, `*`) and `0`. Nothing of it is evaluated as code.
    - `manifest`: what the row store holds.

    **Returns:** the `StoreTerms`.

    **Raises:** `InvalidInput` with the cure for anything else.

    >>> from tallmc.rows.manifest import Category, Column
    >>> columns = (Column("age", "age"), Column("city=Oslo", "city", "Oslo"), Column("y", "y"))
    >>> city = Category("city", ("Rome", "Oslo"))
    >>> found = store_terms("y ~ age * city", RowManifest("float32", columns, (), "y", (city,)))
    >>> dict(zip(found.names, found.products))
    {'Intercept': (), 'age': (0,), 'city[T.Oslo]': (1,), 'age:city[T.Oslo]': (0, 1)}
    """
    text = split_formula(formula)
    if text.groups:
        cure = "Use a table in memory for terms (1 | group)."
        raise InvalidInput(FORMULA, "have no bars over a row store", formula, cure)
    response = text.response if text.response is not None else manifest.response
    if response is not None and response not in manifest.names:
        cure = f"The columns are: {some(manifest.names)}."
        raise InvalidInput(FORMULA, "have a column of the row store before ~", response, cure)
    sources = dict.fromkeys(c.source for c in manifest.columns if c.source not in ("", response))
    parsed = parse(text.common, sources)
    levels = {category.name: category.levels for category in manifest.categories}
    for factor in {factor for term in parsed for factor in term.factors}:
        _check_factor(factor, sources, levels, formula)
    products = _Products(manifest, levels)
    found: dict[str, tuple[int, ...]] = {}
    terms: dict[str, tuple[int, ...]] = {}
    for term, scoped_terms, names in _structure(parsed, sources, levels):
        start = len(found)
        known = {name: p for scoped in scoped_terms for name, p in products.of(scoped, formula)}
        found |= {name: known[name] for name in names}
        terms[INTERCEPT if str(term) == "1" else str(term)] = tuple(range(start, len(found)))
    return StoreTerms(response, list(found.values()), tuple(found), terms)


class _Products:
    """Products of columns of a store."""

    def __init__(self, manifest: RowManifest, levels: dict[str, tuple[str, ...]]):
        self._places = {(c.source, c.level): j for j, c in enumerate(manifest.columns)}
        self._levels = levels

    def of(self, scoped: Any, formula: str) -> list[tuple[str, tuple[int, ...]]]:
        """The names and products of one of formulaic's terms."""
        choices = [self._columns(factor, formula) for factor in scoped.factors]
        if not choices:
            return [(INTERCEPT, ())]
        return [
            (":".join(name for name, _ in chosen), tuple(place for _, place in chosen))
            for chosen in itertools.product(*choices)
        ]

    def _columns(self, scoped: Any, formula: str) -> list[tuple[str, int]]:
        """The names and numbers of the columns of a factor."""
        text = scoped.factor.expr
        name = _source(text)
        if name not in self._levels:
            return [(text, self._places[name, None])]
        if not scoped.reduced:
            cure = (
                f"Keep the intercept, and write {name} * x instead of {name}:x, so that no column "
                f"for {self._levels[name][0]!r} is needed."
            )
            rule = f"leave out the baseline of {name}, which row stores do not hold"
            raise InvalidInput(FORMULA, rule, formula, cure)
        return [
            (f"{text}[T.{level}]", self._places[name, level]) for level in self._levels[name][1:]
        ]


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
    if method == "python" and (name == text or text != f"C({_quoted(name)})"):
        raise InvalidInput(FORMULA, "use columns of a row store without functions", text, _CURE)
    if name not in sources:
        cure = f"The columns are: {some(sources)}."
        raise InvalidInput(FORMULA, "use columns of the row store", name, cure)
    if method == "python" and name not in levels:
        cure = f"Ingest {name} as text to make it a category."
        raise InvalidInput(FORMULA, "use C() for columns of text only", text, cure)


def _quoted(name: str) -> str:
    """The name as formulas write it."""
    return name if column_name(name) == name else f"`{name}`"


def _structure(parsed: Any, sources: dict[str, None], levels: dict[str, tuple[str, ...]]) -> Any:
    """Formulaic's terms with the factors and columns that they have, from a table of all levels."""
    import formulaic
    import pandas

    n_rows = max((len(names) for names in levels.values()), default=1)
    frame = pandas.DataFrame(
        {
            name: pandas.Categorical(
                [levels[name][row % len(levels[name])] for row in range(n_rows)], levels[name]
            )
            if name in levels
            else [1.0] * n_rows
            for name in sources
        }
    )
    spec = formulaic.ModelSpec(formula=parsed, na_action="ignore", output="pandas")
    return spec.get_model_matrix(frame).model_spec.structure
