"""What there is to know about a named method, from its record and from the files of its parts.

This file holds no facts about methods. The summary is the first line of the method's function. The
citation is in the method's record in `METHODS`, and the papers are in `references.py`. The file of
every part begins with its equations, in an indented block, and says what is biased and what a step
costs. These passages are taken from there, so a new method is described once it is in `METHODS`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from typing import Any, NamedTuple

from ..anchor.anchor import AnchorLevel
from ..core.errors import InvalidInput
from ..rows.base import RowAccess
from .base import AbstractMethod
from .method import Method
from .named import METHODS
from .references import cited_in, with_citations

_INDENT = "    "
_ABOUT_BIAS = re.compile(r"bias|\binvariant\b", re.IGNORECASE)
_ABOUT_COST = re.compile(
    r"\bcosts?\b|\bpass(es)? over\b|\bbatches of rows\b|\bO\([dkn]", re.IGNORECASE
)
_ROWS_PER_STEP = {
    "fixed": "Each batch has `size` rows.",
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
    """A part of a method: what its file says."""

    axis: str
    name: str
    equation: str
    """The equations; empty if the file has none."""
    bias: tuple[str, ...]
    """The paragraphs about bias."""
    cost: tuple[str, ...]
    """The sentences about cost."""


class MethodDescription(NamedTuple):
    """A named method.

    >>> describe("sgld_cv").axes["gradient"]
    'ControlVariate'
    """

    name: str
    summary: str
    reference: str
    """Citation and place in the paper."""
    axes: dict[str, str]
    parts: tuple[PartDescription, ...]
    bias: tuple[str, ...]
    cost: tuple[str, ...]
    references: tuple[str, ...]
    """The papers, with title and venue."""
    example: str
    """An expression that makes the method."""

    def as_json(self) -> dict[str, Any]:
        """The description as a JSON object."""
        return {**self._asdict(), "parts": [part._asdict() for part in self.parts]}


def describe(name: str) -> MethodDescription:
    """Describe a named method.

    **Arguments:**

    - `name`: the name of the method, one of `tallmc.METHODS`.

    **Returns:** a `MethodDescription`.

    **Raises:** `InvalidInput` if there is no such method.

    >>> describe("sgld").example
    'tallmc.sgld(step_size=0.1, size=2)'
    """
    if name not in METHODS:
        raise InvalidInput("name", f"be one of {', '.join(METHODS)}", name)
    named = METHODS[name]
    method = named.make(1.0, **named.example)
    parts = tuple(_described(axis, part) for axis, part in _parts(method).items())
    bias = tuple(f"{part.name}: {paragraph}" for part in parts for paragraph in part.bias)
    settings = {"step_size": 0.1, **named.example}
    arguments = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return MethodDescription(
        name=name,
        summary=named.summary,
        reference=named.reference,
        axes=named.axes,
        parts=parts,
        bias=(*_bias_in_general(method), *bias),
        cost=(
            *_cost_in_general(method),
            *(f"{part.name}: {sentence}" for part in parts for sentence in part.cost),
        ),
        references=tuple(str(paper) for paper in cited_in(" ".join((named.reference, *bias)))),
        example=f"tallmc.{name}({arguments})",
    )


def _parts(method: AbstractMethod) -> dict[str, object]:
    if not isinstance(method, Method):
        return {"method": method}
    parts = {
        "dynamics": method.dynamics,
        "gradient": method.gradient,
        "subsample": method.subsample,
        "size": method.size,
        "step size": method.step_size,
        "correction": method.correction,
    }
    return {
        axis: part
        for axis, part in parts.items()
        if part is not None and not isinstance(part, int | float)
    }


def _described(axis: str, part: object) -> PartDescription:
    _, *paragraphs = (sys.modules[type(part).__module__].__doc__ or "").strip("\n").split("\n\n")
    blocks = [paragraph for paragraph in paragraphs if paragraph.startswith(_INDENT)]
    prose = [
        with_citations(_joined(paragraph)) for paragraph in paragraphs if paragraph not in blocks
    ]
    return PartDescription(
        axis=axis,
        name=type(part).__name__,
        equation="\n\n".join(_equation(block) for block in blocks),
        bias=tuple(paragraph for paragraph in prose if _ABOUT_BIAS.search(paragraph)),
        cost=tuple(
            sentence
            for paragraph in prose
            for sentence in re.split(r"(?<=\.)\s+(?=[A-Z\"])", paragraph)
            if _ABOUT_COST.search(sentence)
        ),
    )


def _equation(block: str) -> str:
    """A block without its indentation, with citations that need not be aligned."""
    dedented = textwrap.dedent(block).rstrip()
    cited = with_citations(dedented)
    return dedented if cited == dedented else re.sub(r"(?<=\S) {4,}", "   ", cited)


def _joined(paragraph: str) -> str:
    """A paragraph in one line; the items of a list keep theirs."""
    return re.sub(r"\s*\n(?!- )\s*", " ", paragraph)


def _bias_in_general(method: AbstractMethod) -> tuple[str, ...]:
    if method.exact:
        return ("None: the posterior is invariant at any step size.",)
    unseen = method.unseen_by_pairs
    return () if unseen is None else (f"A check with two step sizes does not see {unseen}.",)


def _cost_in_general(method: AbstractMethod) -> tuple[str, ...]:
    rows = _ROWS_PER_STEP.get(method.axes["size"])
    per_step = () if rows is None else (rows,)
    return (*per_step, _PREPARATION[method.needs], _ACCESS[method.row_access])
