"""What formulaic remembers of a table (means, knots, levels) as JSON and back.

Objects are written as [type, content], so that arrays, tuples and dicts with keys that are numbers
come back as they were. Floats come back with the same bits. There are no pickles.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ingestion.errors import TableError
from .formula_text import FORMULA


def state_to_json(states: dict[str, Any]) -> dict[str, Any]:
    """The states of transforms, by their text.

    **Raises:** `TableError` that names the transform whose state cannot be written.

    >>> state_from_json(state_to_json({"center(x)": {"center": np.float64(0.1), "scale": None}}))
    {'center(x)': {'center': 0.1, 'scale': None}}
    """
    return {text: _to_json(state, text) for text, state in states.items()}


def state_from_json(content: dict[str, Any]) -> dict[str, Any]:
    """The states that `state_to_json` wrote."""
    return {text: _from_json(state) for text, state in content.items()}


def _to_json(value: Any, transform: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else ["float", repr(value)]
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        flat = [_to_json(number, transform) for number in value.ravel()]
        return ["array", {"dtype": value.dtype.str, "shape": list(value.shape), "values": flat}]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [_to_json(part, transform) for part in value]]
    if isinstance(value, dict):
        pairs = [[_to_json(key, transform), _to_json(v, transform)] for key, v in value.items()]
        return ["dict", pairs]
    rule = "use transforms whose state can be stored as JSON"
    found = f"{transform}, which keeps a {type(value).__name__}"
    raise TableError(FORMULA, rule, found, "Transform the column in the table first.")


def _from_json(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    kind, parts = content
    if kind == "float":
        return float(parts)
    if kind == "array":
        flat = np.array([_from_json(number) for number in parts["values"]], parts["dtype"])
        return flat.reshape(parts["shape"])
    if kind == "dict":
        return {_from_json(key): _from_json(value) for key, value in parts}
    values = [_from_json(part) for part in parts]
    return tuple(values) if kind == "tuple" else values
