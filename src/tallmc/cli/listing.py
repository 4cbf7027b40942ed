"""`tallmc methods`: list the named methods with their choice on each axis."""

from __future__ import annotations

import json

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from ..methods.named import METHODS

_AXES = ("dynamics", "gradient", "subsample", "size")


def print_methods(*, as_json: bool) -> None:
    entries = method_entries()
    if as_json:
        print(json.dumps(entries, indent=2, ensure_ascii=False))
        return
    # One block per method: a row with the name and all axes needs more than 80 columns.
    console = Console(highlight=False)
    console.print(f"Each method with its {', '.join(_AXES[:-1])} and {_AXES[-1]}:")
    for entry in entries:
        console.print()
        console.print(Text(entry["method"], style="bold"))
        axes = " · ".join(entry[name] for name in _AXES)
        about = f"{entry['description']} {entry['equation']}."
        console.print(Padding(Text(f"{axes}\n{about}"), (0, 0, 0, 4)))
    console.print(
        "\nPutcha et al. (2023) is Putcha, Nemeth and Fearnhead (2023), Preferential subsampling "
        "for stochastic gradient Langevin dynamics."
    )
    console.print("Nemeth and Fearnhead (2021) is Stochastic gradient Markov chain Monte Carlo.")


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
