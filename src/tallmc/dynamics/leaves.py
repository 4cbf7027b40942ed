"""Settings of a dynamics that are given per parameter, or once for the whole position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..core.errors import InvalidInput
from ..core.layout import Layout


class Leaf(NamedTuple):
    """A stretch of the flat position: one parameter, or all of them."""

    label: str
    start: int
    stop: int
    shape: tuple[int, ...]


def leaves_with(parameter: str, given: Any, layout: Layout) -> list[tuple[Leaf, Any]]:
    """The stretches of the position that `given` names, each with its setting.

    **Arguments:**

    - `parameter`: what the user calls the settings.
    - `given`: settings by the name of a leaf, or one setting for the whole position.
    - `layout`: the layout of the position.
    """
    if not isinstance(given, Mapping):
        return [(Leaf("position", 0, layout.dim, (layout.dim,)), given)]
    unknown = sorted(set(given) - set(layout.names))
    if unknown:
        rule = f"name parameters of the posterior ({', '.join(layout.names)})"
        raise InvalidInput(parameter, rule, unknown[0])
    found, start = [], 0
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        stop = start + math.prod(shape)
        if name in given:
            found.append((Leaf(name, start, stop, shape), given[name]))
        start = stop
    return found


def by_leaf(parameter: str, given: Any, kind: type, of_pair: Any, example: str) -> Any:
    """The settings with pairs of numbers replaced by `of_pair(low, high)`; raises for others."""
    if isinstance(given, Mapping):
        return {
            str(name): by_leaf(f"{parameter}[{name!r}]", value, kind, of_pair, example)
            for name, value in given.items()
        }
    if isinstance(given, tuple | list) and len(given) == 2:
        return of_pair(*given)
    if not isinstance(given, kind):
        rule = f"be {example}, a pair (low, high), or a dict of them by the name of a parameter"
        raise InvalidInput(parameter, rule, given)
    return given
