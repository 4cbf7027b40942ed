"""How preferential was it? The law that rows are drawn from, in a hundred numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernel import AbstractKernel, Kernel
from ..subsample.law import UniformLaw

_POINTS = 101


def weight_curve(kernel: AbstractKernel) -> dict[str, Any] | None:
    """Shares of the draws that go to the most drawn 0 %, 1 %, …, 100 % of the rows; None where no fixed law is drawn from."""
    selection = kernel.selection if isinstance(kernel, Kernel) else None
    selection = getattr(selection, "base", selection)
    law = getattr(selection, "law", None)
    if law is None:
        return None
    certain = len(getattr(selection, "certain", ()))
    if isinstance(law, UniformLaw):
        return {"uniform": True, "certain": certain, "effective_rows": float(law.n_rows), "curve": []}
    p = np.sort(law.probabilities())[::-1]
    share = np.concatenate([[0.0], np.cumsum(p)]) / p.sum()
    at = np.linspace(0, len(p), _POINTS).round().astype(int)
    return {
        "uniform": False,
        "certain": certain,
        "effective_rows": float(1 / np.sum((p / p.sum()) ** 2)),
        "curve": [round(float(value), 5) for value in share[at]],
    }
