"""Summarise the row weights of a run in about a hundred numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.kernel import AbstractKernel, Kernel
from ..rows.law import UniformLaw

_CURVE_POINTS = 101


def weight_curve(kernel: AbstractKernel) -> dict[str, Any] | None:
    """The share of draws that goes to the most-drawn 0 %, 1 %, …, 100 % of the rows.

    None if rows are not drawn from a fixed law.
    """
    selection = kernel.selection if isinstance(kernel, Kernel) else None
    selection = getattr(selection, "base", selection)
    stream = getattr(selection, "stream", None)
    law = getattr(stream, "law", None) or getattr(selection, "law", None)
    if law is None:
        return None
    certain = len(getattr(selection, "certain", ()))
    if isinstance(law, UniformLaw):
        return {
            "uniform": True,
            "certain": certain,
            "effective_rows": float(law.n_rows),
            "curve": [],
        }
    p = np.sort(law.probabilities())[::-1]
    share = np.concatenate([[0.0], np.cumsum(p)]) / p.sum()
    at = np.linspace(0, len(p), _CURVE_POINTS).round().astype(int)
    return {
        "uniform": False,
        "certain": certain,
        "effective_rows": float(1 / np.sum((p / p.sum()) ** 2)),
        "curve": [round(float(value), 5) for value in share[at]],
    }
