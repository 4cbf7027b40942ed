"""What there is to know about a named method, from its record in `METHODS` and from its parts.

This file holds no facts about methods. The summary is the first line of the method's function, the
citation is in the record. Bias, cost and paper are class variables of the parts, and the equations
are the indented blocks of the documentation of a part or, if it has none, of its file.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, NamedTuple

from .._anchor.anchor import AnchorLevel
from .._core.part import Part
from .._rows.access import RowAccess
from .abstract import AbstractMethod
from .method import Method
from .references import cited_in
from .registry import method_named

_INDENT = "    "
_ROWS_PER_STEP = {
    "fixed": "Each batch has `batch_size` rows.",
    "all rows": "Each step reads all rows.",
    "adaptive": "Each step reads a number of rows that depends on the position.",
}
_PREPARATION = {
    AnchorLevel.NOTHING: "The method needs no mode.",
    AnchorLevel.MODE: "The mode is found before the first step, in passes over all rows.",
    AnchorLevel.HESSIAN: (
        "The mode and the Hessian there are found before the first step, in passes over all rows."
    ),
}
_ACCESS = {
    RowAccess.STREAM: "Rows may be in memory or in a row store.",
    RowAccess.TAKE: "Rows must be in memory.",
}


class PartDescription(NamedTuple):
    """A part of a method."""

    axis: str
    name: str
    equation: str
    bias: str
    cost: str
    paper: str | None


class MethodDescription(NamedTuple):
    """A named method."""

    name: str
    summary: str
    reference: str
    """Citation and place in the paper."""
    axes: dict[str, str]
    parts: tuple[PartDescription, ...]
    bias: tuple[str, ...]
    cost: tuple[str, ...]
    references: tuple[str, ...]
    """The papers of the method and of its parts, with title and venue."""
    example: str
    """An expression that makes the method."""

    def as_json(self) -> dict[str, Any]:
        """The description as a JSON object."""
        return {**self._asdict(), "parts": [part._asdict() for part in self.parts]}


def describe(name: str) -> MethodDescription:
    """Describe a named method of this library or of a topic of `tallmc.contrib`."""
    named = method_named(name)
    method = named.build()
    parts = tuple(_described(axis, part) for axis, part in _parts(method).items())
    papers = cited_in("; ".join((named.reference, *(part.paper or "" for part in parts))))
    settings = {"step_size": 0.1, **named.example}
    arguments = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return MethodDescription(
        name=name,
        summary=named.summary,
        reference=named.reference,
        axes=method.axes,
        parts=parts,
        bias=(
            *_bias_in_general(method),
            *(f"{part.name}: {part.bias}" for part in parts if part.bias),
        ),
        cost=(
            *_cost_in_general(method),
            *(f"{part.name}: {part.cost}" for part in parts if part.cost),
        ),
        references=tuple(map(str, papers)),
        example=f"{named.path}({arguments})",
    )


def _parts(method: AbstractMethod) -> dict[str, Part]:
    if not isinstance(method, Method):
        return {"method": method}
    parts = {
        "dynamics": method.dynamics,
        "gradient": method.gradient,
        "subsample": method.subsample,
        "size": method.batch_size,
        "step size": method.step_size,
        "correction": method.correction,
    }
    return {axis: part for axis, part in parts.items() if isinstance(part, Part)}


def _described(axis: str, part: Part) -> PartDescription:
    kind = type(part)
    texts = (kind.__doc__, sys.modules[kind.__module__].__doc__)
    equations = (_equations(text) for text in texts if text)
    equation = next((found for found in equations if found), "")
    return PartDescription(axis, kind.__name__, equation, part.bias, part.cost, part.paper)


def _equations(text: str) -> str:
    """The indented blocks of a documentation."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    blocks = (block for block in paragraphs if block.startswith(_INDENT))
    return "\n\n".join(inspect.cleandoc(f"\n{block}") for block in blocks)


def _bias_in_general(method: AbstractMethod) -> tuple[str, ...]:
    if method.exact:
        return ("None: the posterior is invariant at any step size.",)
    unseen = method.unseen_by_pairs
    return () if unseen is None else (f"Pairs of chains at two step sizes do not see {unseen}.",)


def _cost_in_general(method: AbstractMethod) -> tuple[str, ...]:
    rows = _ROWS_PER_STEP.get(method.axes["size"])
    per_step = () if rows is None else (rows,)
    return (*per_step, _PREPARATION[method.needs], _ACCESS[method.row_access])
