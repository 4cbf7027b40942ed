"""`tallmc methods`: list the named methods, or print all there is to know about one of them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..methods.description import describe
from ..methods.references import cited_in
from ..methods.registry import all_methods

_AXES = ("dynamics", "gradient", "subsample", "size")


def print_methods(*, as_json: bool) -> None:
    """List all methods with their choice on each axis, then the papers."""
    entries = [
        {"method": name, **named.axes, "reference": named.reference, "description": named.summary}
        for name, named in all_methods().items()
    ]
    if as_json:
        _print_json(entries)
        return
    # One block per method: a row with the name and all axes needs more than 80 columns.
    console = Console(highlight=False)
    console.print(f"Each method with its {', '.join(_AXES[:-1])} and {_AXES[-1]}:")
    for entry in entries:
        axes = " · ".join(entry[name] for name in _AXES)
        _print_section(
            console, entry["method"], [axes, f"{entry['description']} {entry['reference']}."]
        )
    console.print("\nPapers:\n")
    papers = cited_in("; ".join(entry["reference"] for entry in entries))
    _print_indented(console, map(str, papers))
    console.print("\n`tallmc methods NAME` prints the equations, bias and cost of a method.")


def print_method(name: str, *, as_json: bool) -> None:
    """Print the equations, axes, bias, cost and references of one method, and an example."""
    method = describe(name)
    if as_json:
        _print_json(method.as_json())
        return
    console = Console(highlight=False)
    console.print(Text(method.name, style="bold"))
    _print_indented(console, [f"{method.summary} {method.reference}."])
    _print_section(console, "axes", (f"{axis:<10}  {method.axes[axis]}" for axis in _AXES))
    _print_section(console, "equations", ())
    for part in method.parts:
        if part.equation:
            console.print(Text(f"    {part.name}"))
            for line in part.equation.splitlines():
                # Equations are up to 100 columns wide, and must not be wrapped.
                console.print(Text(f"        {line}".rstrip()), soft_wrap=True)
    _print_section(console, "bias", method.bias)
    _print_section(console, "cost", method.cost)
    _print_section(console, "references", method.references)
    sampled = f'tallmc.sample(posterior, tallmc.suggest(posterior, "{name}").method)'
    command = f"tallmc fit TABLE --method {name}"
    _print_section(console, "example", (sampled, method.example, command))


def _print_json(content: object) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=False))


def _print_section(console: Console, title: str, paragraphs: Iterable[str]) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    _print_indented(console, paragraphs)


def _print_indented(console: Console, paragraphs: Iterable[str]) -> None:
    for paragraph in paragraphs:
        console.print(Padding(Text(paragraph), (0, 0, 0, 4), expand=False))
