"""The charts of the report."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from .content import Content, evenly
from .svg import Chart, limits

_PAIRS_OF = 4
_PAIR_POINTS = 600
_DENSITY_POINTS = 120
_WINDOWS = 100
_COLOURS = 8


def traces(content: Content) -> tuple[list[str], dict[str, Any]]:
    """One trace chart per chosen parameter, and the values shown when the pointer is on it."""
    charts, hover = [], {}
    for parameter in content.chosen:
        at, values = content.trace(parameter)
        last = content.draws.positions.shape[1]
        chart = Chart(
            content.names[parameter],
            (1, last),
            limits(values),
            x_label="draw",
            name=f"trace-{parameter}",
        )
        for chain, of_chain in enumerate(values):
            chart.line(at, of_chain, f"c{chain % _COLOURS}")
        charts.append(chart.rendered())
        rounded = [
            [None if not np.isfinite(v) else float(f"{v:.5g}") for v in of_chain]
            for of_chain in values
        ]
        hover[chart.name] = {"x": at.tolist(), "y": rounded}
    return charts, hover


def marginals(content: Content) -> list[str]:
    """Densities of all chains combined, with the central 90 % shaded, and of each chain."""
    charts = []
    for parameter in content.chosen:
        values = np.asarray(
            content.complete[:, evenly(content.complete.shape[1], 4000), parameter], np.float64
        )
        if not values.size or not np.ptp(values):
            continue
        low, high = limits(values)
        at = np.linspace(low, high, _DENSITY_POINTS)
        pooled = density(values.ravel(), at)
        each = [density(of_chain, at) for of_chain in values]
        top = max(float(curve.max()) for curve in [pooled, *each])
        chart = Chart(content.names[parameter], (low, high), (0, 1.05 * top), y_label="density")
        q05, q95 = np.quantile(values, [0.05, 0.95])
        inside = at[(at >= q05) & (at <= q95)]
        chart.band(inside, np.zeros(len(inside)), np.interp(inside, at, pooled), "shade")
        for chain, curve in enumerate(each):
            chart.line(at, curve, f"c{chain % _COLOURS} thin")
        chart.line(at, pooled, "strong")
        charts.append(chart.rendered())
    return charts


def density(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Gaussian kernel density estimate with Silverman's bandwidth, from binned values.

    >>> at = np.linspace(-4, 4, 9)
    >>> density(np.random.default_rng(0).normal(size=100_000), at).round(2)
    array([0.  , 0.01, 0.05, 0.24, 0.39, 0.24, 0.05, 0.  , 0.  ])
    """
    spread = (
        min(values.std(), float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / 1.34)
        or values.std()
        or 1.0
    )
    width = 0.9 * spread * len(values) ** -0.2
    counts, edges = np.histogram(values, bins=512)
    centres = (edges[:-1] + edges[1:]) / 2
    kernel = np.exp(-0.5 * ((at[:, None] - centres) / width) ** 2)
    return kernel @ counts / (len(values) * width * np.sqrt(2 * np.pi))


def pairs(content: Content) -> list[str]:
    """Scatter plots of the first few parameters against each other."""
    complete = content.complete
    if not len(complete):
        return []
    at = evenly(complete.shape[1], max(1, _PAIR_POINTS // len(complete)))
    charts = []
    for first, second in itertools.combinations(content.chosen[:_PAIRS_OF], 2):
        x, y = (np.asarray(complete[:, at, parameter], np.float64) for parameter in (first, second))
        names = content.names[first], content.names[second]
        chart = Chart(
            f"{names[1]} against {names[0]}",
            limits(x),
            limits(y),
            x_label=names[0],
            y_label=names[1],
        )
        for chain in range(len(x)):
            chart.dots(x[chain], y[chain], f"c{chain % _COLOURS}")
        charts.append(chart.rendered())
    return charts


def along_the_chain(content: Content, stat: str, title: str, label: str) -> Chart | None:
    """A statistic along the run, in windows: its mean over chains, and its range."""
    values = content.draws.sample_stats.get(stat)
    if values is None or not values.shape[1]:
        return None
    edges = np.linspace(0, values.shape[1], min(_WINDOWS, values.shape[1]) + 1).astype(int)
    windows = [np.asarray(values[:, a:b], np.float64) for a, b in itertools.pairwise(edges)]
    at = [(a + b + 1) / 2 for a, b in itertools.pairwise(edges)]
    mean, low, high = (
        [float(reduce(window)) for window in windows] for reduce in (np.mean, np.min, np.max)
    )
    chart = Chart(
        title, (1, values.shape[1]), limits(np.array([*low, *high])), x_label="draw", y_label=label
    )
    chart.band(at, low, high, "shade")
    chart.line(at, mean, "strong")
    return chart


def discrepancies(content: Content) -> Chart | None:
    """KSD against rows touched, on logarithmic axes."""
    found = content.discrepancies
    if found is None:
        return None
    fine = np.isfinite(found.ksd) & (found.ksd > 0)
    if not fine.any():
        return None
    rows, ksd = found.rows[fine], found.ksd[fine]
    labels = {"x_label": "rows touched by the chains", "y_label": "KSD"}
    x, y = (rows.min() * 0.95, rows.max() * 1.05), (ksd.min() * 0.8, ksd.max() * 1.25)
    chart = Chart("Kernel Stein discrepancy", x, y, log_x=True, log_y=True, **labels)
    chart.line(rows, ksd, "strong")
    chart.dots(rows, ksd, "strong")
    return chart


def weights(content: Content) -> Chart | None:
    """Cumulative share of the draws against the share of the rows, most drawn rows first."""
    found = content.opened.setup.content["weights"]
    if not found or found["uniform"] or not found["curve"]:
        return None
    at = np.linspace(0, 100, len(found["curve"]))
    chart = Chart(
        "Share of draws, most drawn rows first",
        (0, 100),
        (0, 100),
        x_label="% of the rows",
        y_label="% of the draws",
    )
    chart.line([0, 100], [0, 100], "faint")
    chart.band(at, at, 100 * np.asarray(found["curve"], float), "shade")
    chart.line(at, 100 * np.asarray(found["curve"], float), "strong")
    return chart


def time_split(content: Content) -> str:
    """Seconds per phase as an HTML bar with a legend."""
    parts = vars(content.draws.timing)
    total = sum(parts.values()) or 1.0
    decimals = 2 if total < 100 else 0
    bars = "".join(
        f'<span class="part {name}" style="flex-grow:{max(seconds / total, 0.004):.4f}"'
        f' title="{name}"></span>'
        for name, seconds in parts.items()
    )
    legend = "".join(
        f'<li><span class="key {name}"></span>{name} <b>{seconds:,.{decimals}f} s</b>'
        f" ({seconds / total:.0%})</li>"
        for name, seconds in parts.items()
    )
    return f'<div class="split">{bars}</div><ul class="legend">{legend}</ul>'
