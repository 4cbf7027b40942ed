"""The figure of `tallmc demo`: the coefficients, and the posterior relative to the true values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..results.draws import Draws

_BLUE, _RED = "#2a6f97", "#c1121f"


def plot_posterior(path: Path, draws: Draws, truth: pd.Series) -> str:
    """Plot 50 % and 90 % intervals and the true values. Returns the file name.

    The intervals are drawn relative to the true values, because with many rows they are much
    narrower than the spread of the coefficients.
    """
    positions = np.asarray(draws.positions[draws.ok], np.float64).reshape(-1, len(truth))
    q05, q25, q50, q75, q95 = np.quantile(positions, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    true, at = truth.to_numpy(), np.arange(len(truth))

    figure = Figure(figsize=(10, min(1.8 + 0.3 * len(truth), 120)), layout="constrained")
    values, errors = figure.subplots(1, 2, sharey=True, width_ratios=[2, 3])
    values.scatter(q50, at, s=30, color=_BLUE, label="posterior median", zorder=2)
    values.scatter(true, at, s=70, marker="|", color=_RED, label="true value", zorder=3)
    values.set(xlabel="coefficient", yticks=at, yticklabels=list(truth.index))
    values.invert_yaxis()

    errors.axvline(0, color=_RED, linewidth=1.5, label="true value", zorder=1)
    errors.hlines(
        at, q05 - true, q95 - true, color=_BLUE, linewidth=1.5, label="90 % interval", zorder=2
    )
    errors.hlines(
        at, q25 - true, q75 - true, color=_BLUE, linewidth=5, label="50 % interval", zorder=2
    )
    errors.scatter(q50 - true, at, s=14, color="white", edgecolor=_BLUE, zorder=3)
    errors.set(xlabel="coefficient − true value")

    for axes in (values, errors):
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=9
        )
    n_rows = draws.settings["n_rows"]
    figure.suptitle(f"Logistic regression, {n_rows:,} rows: posterior and truth")
    figure.savefig(path, dpi=150)
    return path.name
