"""Views: lines of a shard as the rows that a model sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

View = Callable[[Any], Any]
"""Turns lines of a shard, an array with one column per number, into the rows of a model.

A view only selects and scales numbers, so it works with NumPy as well as inside a program.
"""


@dataclasses.dataclass(frozen=True)
class ByName:
    """Shows each row as a dictionary of its numbers."""

    names: tuple[str, ...]

    def __call__(self, lines: Any) -> dict[str, Any]:
        return {name: lines[..., column] for column, name in enumerate(self.names)}


@dataclasses.dataclass(frozen=True)
class Viewed:
    """A function of rows, as a function of lines of a shard.

    The view is part of the compiled program: copying columns on the host takes more time.
    """

    function: Callable[..., Any]
    view: View

    def __call__(self, lines: Any, *args: Any) -> Any:
        return self.function(self.view(lines), *args)
