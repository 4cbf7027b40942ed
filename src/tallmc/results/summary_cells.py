"""Numbers of a summary as text, with the digits that matter."""

from __future__ import annotations

import math

_FIXED = {"ess_bulk": ",.0f", "ess_tail": ",.0f", "rhat": ".3f", "z": "+.2f"}


def cell_text(column: str, value: float, sd: float) -> str:
    """Format diagnostics conventionally, other values to at least a hundredth of the sd.

    **Arguments:**

    - `column`: the name of a column of `Draws.summary`.
    - `value`: the number in this column.
    - `sd`: the posterior standard deviation of the same parameter.

    **Returns:** the text; "–" for a number that is not finite.

    >>> cell_text("mean", 0.4969847, 0.0078), cell_text("ess_bulk", 1574.3, 0.0078)
    ('0.49698', '1,574')
    >>> cell_text("mcse_mean", 0.00019134, 0.0078), cell_text("rhat", float("nan"), 0.0078)
    ('0.000191', '–')
    """
    if not math.isfinite(value):
        return "–"
    return format(value, _FIXED.get(column) or _decimals(column, sd))


def _decimals(column: str, sd: float) -> str:
    if not 0 < sd < math.inf:
        return ".4g"
    decimals = 2 - math.floor(math.log10(sd)) + column.startswith("mcse_")
    return f".{decimals}f" if 0 <= decimals <= 9 else ".4g"
