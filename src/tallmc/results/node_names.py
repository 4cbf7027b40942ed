"""Names of variables and dimensions that every file format of xarray can hold.

NetCDF refuses slashes, control characters, some first characters, spaces at the end, and names of
more than 256 bytes. `chain` and `draw` are dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_LONGEST = 240  # bytes, so that there is room for a number
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def node_names(names: Iterable[str], taken: Iterable[str] = ("chain", "draw")) -> dict[str, str]:
    r"""A name for each variable or dimension: its own where possible, and no name twice.

    >>> node_names(["age", "a/b", "a∕b", "<dose>", "draw", "x\n"])
    {'age': 'age', 'a/b': 'a∕b_2', 'a∕b': 'a∕b', '<dose>': '_<dose>', 'draw': 'draw_2', 'x\n': 'x'}
    """
    given, used = list(names), set(taken)
    found = {name: name for name in given if _plain(name) == name and name not in used}
    used |= set(found)
    for name in given:
        if name in found:
            continue
        plain = unused = _plain(name)
        number = 2
        while unused in used:
            unused, number = f"{plain}_{number}", number + 1
        found[name] = unused
        used.add(unused)
    return {name: found[name] for name in given}


def _plain(name: str) -> str:
    """The name without what NetCDF refuses."""
    kept = _CONTROL.sub(" ", name).replace("/", "∕")
    first = kept[:1]
    starts_well = first.isalnum() or first == "_" or not first.isascii()
    kept = kept if starts_well and first else f"_{kept}"
    return kept.encode()[:_LONGEST].decode(errors="ignore").rstrip()
