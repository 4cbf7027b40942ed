"""Plot a result, with one set of axes per panel, at most three in a row (four panels: two).

Bands are ±2 sd over chains (not on log axes). Published curves are dotted, exact ones dashed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .results import Curve, Panel, Result

_COLOURS = (
    "#1b6ca8",
    "#d1495b",
    "#2e933c",
    "#8e44ad",
    "#e08e0b",
    "#00798c",
    "#6b705c",
    "#c06c84",
    "#343a40",
    "#7f5539",
)
_DPI = 110
_MOST_IN_A_ROW = 3
_FEW_POINTS = 30
_LEGEND_MARK = 6


def plot(path: Path, result: Result, title: str) -> None:
    count = len(result.panels)
    columns = 2 if count == 4 else min(count, _MOST_IN_A_ROW)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(5.4 * columns, 5.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    colours = _colour_by_label(result.curves)
    for panel, panel_axes in zip(result.panels, axes, strict=False):
        _draw(
            panel_axes,
            panel,
            [curve for curve in result.curves if curve.panel == panel.key],
            colours,
        )
    for unused in axes[len(result.panels) :]:
        unused.set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=_DPI)


def _colour_by_label(curves: Sequence[Curve]) -> dict[str, str]:
    labels = list(dict.fromkeys(curve.label for curve in curves))
    return {label: _COLOURS[index % len(_COLOURS)] for index, label in enumerate(labels)}


def _draw(axes: Axes, panel: Panel, curves: Sequence[Curve], colours: dict[str, str]) -> None:
    for curve in curves:
        _draw_curve(axes, curve, colours[curve.label], with_band=not panel.log_y)
    if not any(np.isfinite(curve.y).any() for curve in curves):
        axes.text(0.5, 0.5, "all chains failed", ha="center", transform=axes.transAxes)
    kinds = {curve.kind for curve in curves}
    notes = [
        text
        for kind, text in (
            ("points", "dots: simulated"),
            ("published", "dotted line: published"),
            ("published marks", "crosses: published"),
        )
        if kind in kinds
    ]
    for note in notes:
        axes.plot(np.nan, np.nan, " ", label=note)
    axes.set(xlabel=panel.x, ylabel=panel.y, title=panel.title)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.log_x:
        axes.set_xscale("log")
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for axis, is_log in ((axes.xaxis, panel.log_x), (axes.yaxis, panel.log_y)):
        if not is_log:
            axis.get_major_formatter().set_useOffset(False)  # type: ignore[attr-defined]
    _add_legend(axes)


def _add_legend(axes: Axes) -> None:
    """One entry per label, below the axes, with clouds as marks that can be seen."""
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    legend = axes.legend(
        by_label.values(),
        by_label.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=2,
        frameon=False,
        fontsize=8,
    )
    for line in legend.get_lines():
        line.set_markersize(max(line.get_markersize(), _LEGEND_MARK))
        line.set_alpha(1)


def _draw_curve(axes: Axes, curve: Curve, colour: str, *, with_band: bool) -> None:
    if curve.kind == "points":
        axes.plot(
            curve.x,
            curve.y,
            "o",
            markersize=4,
            color=colour,
            markeredgecolor="white",
            markeredgewidth=0.5,
            zorder=3,
        )
    elif curve.kind == "cloud":
        axes.plot(
            curve.x,
            curve.y,
            ".",
            markersize=2 if len(curve.x) > _FEW_POINTS else 6,
            alpha=0.4,
            color=colour,
            label=curve.label,
            zorder=2,
        )
    elif curve.kind == "reference":
        axes.plot(
            curve.x, curve.y, "--", linewidth=1.3, color=colour, label=curve.label, zorder=2.7
        )
    elif curve.kind == "published":
        axes.plot(curve.x, curve.y, ":", linewidth=1.6, color=colour, zorder=2.5)
    elif curve.kind == "published marks":
        axes.plot(curve.x, curve.y, "x", markersize=7, color=colour, zorder=3)
    else:
        axes.plot(curve.x, curve.y, "-", linewidth=1.5, color=colour, label=curve.label, zorder=2)
        if curve.sd is not None and with_band:
            axes.fill_between(
                curve.x,
                curve.y - 2 * curve.sd,
                curve.y + 2 * curve.sd,
                color=colour,
                alpha=0.12,
                linewidth=0,
            )
