"""`tallmc methods`: list the named methods with their choice on each axis."""

from __future__ import annotations

import json

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..methods.named import METHODS

_AXES = ("dynamics", "gradient", "subsample", "size")


def print_methods(*, as_json: bool) -> None:
    entries = method_entries()
    if as_json:
        print(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    # Two tables, because axes and descriptions side by side do not fit a terminal.
    axes = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("method", *_AXES):
        axes.add_column(name, style="bold" if name == "method" else None, overflow="fold")
    descriptions = Table.grid(padding=(0, 2))
    descriptions.add_column(style="bold", no_wrap=True)
    for entry in entries:
        axes.add_row(*(Text(entry[name]) for name in ("method", *_AXES)))
        descriptions.add_row(entry["method"], Text(f"{entry['description']} {entry['equation']}"))
    console = Console(highlight=False)
    console.print(axes)
    console.print(descriptions)
    console.print(
        "\nEquation numbers refer to Putcha, Nemeth and Fearnhead (2023) unless stated otherwise."
    )


def method_entries() -> list[dict[str, str]]:
    """Return one entry per method in `tallmc.METHODS`; all values are strings."""
    return [
        {
            "method": name,
            **named.axes,
            "equation": named.equation,
            "description": (named.make.__doc__ or "").strip().partition("\n")[0],
        }
        for name, named in METHODS.items()
    ]
