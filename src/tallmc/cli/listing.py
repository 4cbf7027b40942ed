"""`tallmc methods`: the named methods on their axes."""

from __future__ import annotations

import json

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..methods import METHODS

_AXES = ("dynamics", "gradient", "subsample", "size")


def print_methods(*, as_json: bool) -> None:
    entries = method_entries()
    if as_json:
        print(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    # Two tables: axes and sentences side by side do not fit a terminal.
    axes = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("method", *_AXES):
        axes.add_column(name, style="bold" if name == "method" else None, overflow="fold")
    sentences = Table.grid(padding=(0, 2))
    sentences.add_column(style="bold", no_wrap=True)
    for entry in entries:
        axes.add_row(*(Text(entry[name]) for name in ("method", *_AXES)))
        sentences.add_row(entry["method"], Text(f"{entry['description']} {entry['equation']}"))
    console = Console(highlight=False)
    console.print(axes)
    console.print(sentences)
    console.print("\nEquations are those of Putcha, Nemeth and Fearnhead (2023) unless named otherwise.")


def method_entries() -> list[dict[str, str]]:
    """An entry for each of `tallmc.METHODS`, all strings."""
    return [
        {
            "method": name,
            **named.axes,
            "equation": named.equation,
            "description": (named.make.__doc__ or "").strip().partition("\n")[0],
        }
        for name, named in METHODS.items()
    ]
