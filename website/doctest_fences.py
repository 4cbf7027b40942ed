"""A griffe extension: examples of docstrings become code blocks, and classes get a signature.

Docstrings are Markdown, in which a line that begins with `>>>` is a quotation. griffe reads files,
and does not know that fields of an `eqx.Module` or a `NamedTuple` are the arguments of its class.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from typing import Any

import griffe

_LONGEST = 40


class DoctestFences(griffe.Extension):
    """Puts fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)
        if isinstance(obj, griffe.Class) and "__init__" not in obj.members:
            parameters = parameters_of(obj.path)
            if parameters:
                function = griffe.Function("__init__", parameters=griffe.Parameters(*parameters))
                obj.set_member("__init__", function)


def parameters_of(path: str) -> list[griffe.Parameter]:
    """The arguments of a class, with `self` first; none for what is not called by users."""
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None) if module else None
    if not inspect.isclass(found) or issubclass(found, enum.Enum | BaseException):
        return []
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return []
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
    for each in signature.parameters.values():
        is_given = each.default is not inspect.Parameter.empty
        has_annotation = each.annotation is not inspect.Parameter.empty
        parameters.append(
            griffe.Parameter(
                each.name,
                annotation=str(each.annotation) if has_annotation else None,
                kind=griffe.ParameterKind[each.kind.name.lower()],
                default=_short(each.default) if is_given else None,
            )
        )
    return parameters


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST and "<" not in text else "..."


def with_fences(text: str) -> str:
    """The text with each example, and the output that follows it, in a code block.

    >>> print(with_fences("Add.\\n\\n>>> 1 + 1\\n2"))
    Add.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith(">>>") and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, *(["```"] if inside else [])])
