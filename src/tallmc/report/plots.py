"""The charts of the report, as SVG.

The SVG is written by hand: the page must be one small file without dependencies, and matplotlib is
an extra. Colours come from the style sheet of the page, also those of dark mode.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float

from .._core.statistics import evenly, evenly_in_weight
from ..diagnose.scores import binned
from .content import Content, PredictiveCheck, SmoothCurve

# Ticks of an axis: round numbers, at least two of them, written with the same digits.

_FEWEST, _MOST = 3, 6
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between `low` and `high`, at most `most` + 1 of them."""
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power, 2 * power, 5 * power, 10 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first <= most:
            break
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between `low` and `high`, both positive, for a logarithmic axis.

    Powers of ten if there are enough, otherwise their multiples, otherwise evenly spaced numbers.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1,), (1, 3), (1, 2, 5)):
        numbers = [float(f"{multiple}e{power}") for power in powers for multiple in multiples]
        inside = [number for number in numbers if 0.999 * low <= number <= 1.001 * high]
        if len(inside) >= _FEWEST:
            return inside[:: math.ceil(len(inside) / _MOST)]
    return nice_ticks(low, high)


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """Evenly spaced ticks as text, all with the same number of decimals and the same unit."""
    largest = max(map(abs, ticks))
    gaps = [b - a for a, b in itertools.pairwise(ticks)]
    step = min(gaps, default=0) or largest or 1.0
    if largest and largest < 1e-4:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(step) + 1e-9))
        return [f"{tick:.{digits}e}" if tick else "0" for tick in ticks]
    unit, suffix = _unit(largest) if largest >= 1e4 else (1.0, "")
    decimals = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    return [f"{tick / unit:,.{decimals}f}{suffix if tick else ''}" for tick in ticks]


def shown(value: float) -> str:
    """A number in short form, with a suffix for large values."""
    if 1e4 <= abs(value) < 1e13:
        unit, suffix = _unit(value)
        return f"{value / unit:.3g}{suffix}"
    return f"{value:,.0f}" if abs(value) < 1e4 and value == int(value) else f"{value:.4g}"


def _unit(value: float) -> tuple[float, str]:
    return next(((unit, text) for unit, text in _UNITS if abs(value) >= unit), (1.0, ""))


# Small SVG charts: axes with round ticks, lines, bands and points.

WIDTH, HEIGHT = 360, 210
_LEAST_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 10, 38
_LETTER = 7.0  # width of a digit of a tick, 11 pixels high, in the widest usual font
_LABEL_WIDTH = 16.0  # of the turned label of the y axis


Numbers = Sequence[float] | np.ndarray


class Chart:
    """One pair of axes. `log_x` and `log_y` need positive data."""

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        x_label: str = "",
        y_label: str = "",
        log_x: bool = False,
        log_y: bool = False,
        name: str = "",
    ):
        self.title, self.name = title, name
        self.x_label, self.y_label = x_label, y_label
        self.log_x, self.log_y = log_x, log_y
        self.x_range, self.y_range = self._transformed(x, log_x), self._transformed(y, log_y)
        self.y_ticks = _ticks(self.y_range, log_y)
        widest = max((len(text) for _, text in self.y_ticks), default=0) * _LETTER
        beside = _LABEL_WIDTH if y_label else 2.0
        self.left = max(_LEAST_LEFT, math.ceil(beside + widest + 5))
        self.x_ticks = self._x_ticks()
        self.parts: list[str] = []

    def line(self, x: Numbers, y: Numbers, css: str) -> None:
        points = enumerate(self._points(x, y))
        path = "".join(f"{'L' if number else 'M'}{a:.1f} {b:.1f}" for number, (a, b) in points)
        self.parts.append(f'<path class="line {css}" d="{path}"/>')

    def band(self, x: Numbers, low: Numbers, high: Numbers, css: str) -> None:
        """Fill the area between `low` and `high`."""
        there, back = self._points(x, high), self._points(list(x)[::-1], list(low)[::-1])
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*there, *back])
        self.parts.append(f'<polygon class="band {css}" points="{corners}"/>')

    def dots(self, x: Numbers, y: Numbers, css: str) -> None:
        """Draw points as one path with round caps; thousands of circles would take megabytes."""
        moves = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in self._points(x, y))
        self.parts.append(f'<path class="dots {css}" d="{moves}"/>')

    def rendered(self, words: str = "") -> str:
        """The chart as an HTML card with `words` below it."""
        label, name = html.escape(self.title), ""
        if self.name:
            name = f' data-chart="{html.escape(self.name)}" data-left="{self.left}"'
        note = f'<p class="note">{html.escape(words)}</p>' if words else ""
        body = "".join([*self._axes(), *self.parts])
        return (
            f'<figure class="card"{name}><figcaption>{label}</figcaption>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{body}</svg>'
            f"{note}</figure>"
        )

    def _axes(self) -> list[str]:
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT

        def text(kind: str, x: float | str, y: float | str, words: str, more: str = "") -> str:
            anchor = more or 'text-anchor="middle"'
            return f'<text class="{kind}" x="{x}" y="{y}" {anchor}>{words}</text>'

        def grid(x1: object, x2: object, y1: object, y2: object) -> str:
            return f'<line class="grid" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>'

        parts = []
        for value, words in self.x_ticks:
            at, room = self._x(value), len(words) * _LETTER / 2
            middle = min(max(at, room), WIDTH - room)
            parts += [grid(f"{at:.1f}", f"{at:.1f}", _TOP, bottom)]
            parts += [text("tick", f"{middle:.1f}", bottom + 14, words)]
        for value, words in self.y_ticks:
            at = self._y(value)
            parts += [grid(self.left, right, f"{at:.1f}", f"{at:.1f}")]
            parts += [text("tick", self.left - 5, f"{at + 4:.1f}", words, 'text-anchor="end"')]
        if self.x_label:
            parts += [text("label", (self.left + right) / 2, HEIGHT - 5, _short(self.x_label))]
        if self.y_label:
            at = (_TOP + bottom) / 2
            turned = f'text-anchor="middle" transform="rotate(-90 11 {at})"'
            parts += [text("label", 11, at, _short(self.y_label, 22), turned)]
        return parts

    def _x_ticks(self) -> list[tuple[float, str]]:
        """As many ticks as have room beside each other, two at least."""
        for most in (5, 4, 3):
            found = _ticks(self.x_range, self.log_x, most)
            places = [self._x(value) for value, _ in found]
            widest = max((len(text) for _, text in found), default=0) * _LETTER
            fits = all(b - a >= widest + 6 for a, b in itertools.pairwise(places))
            if fits and len(found) > 1:
                return found
        found = _ticks(self.x_range, self.log_x)
        return [found[0], found[-1]]

    def _transformed(self, limits: tuple[float, float], log: bool) -> tuple[float, float]:
        low, high = (math.log10(max(value, 1e-300)) if log else float(value) for value in limits)
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = 0.0, 1.0
        if high <= low:
            room = abs(low) * 0.05 or 0.5
            low, high = low - room, high + room
        return low, high

    def _x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (WIDTH - self.left - _RIGHT)

    def _y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def _points(self, x: Numbers, y: Numbers) -> list[tuple[float, float]]:
        with np.errstate(divide="ignore", invalid="ignore"):
            a = np.log10(np.asarray(x, float)) if self.log_x else np.asarray(x, float)
            b = np.log10(np.asarray(y, float)) if self.log_y else np.asarray(y, float)
        finite = np.isfinite(a) & np.isfinite(b)
        return [(self._x(p), self._y(q)) for p, q in zip(a[finite], b[finite], strict=True)]


def _ticks(limits: tuple[float, float], log: bool, most: int = 5) -> list[tuple[float, str]]:
    """Places and texts of the ticks. `limits` are logarithms, and so are the places, if `log`."""
    if not log:
        ticks = nice_ticks(*limits, most=most)
        return list(zip(ticks, tick_texts(ticks), strict=True))
    ticks = log_ticks(10 ** limits[0], 10 ** limits[1])
    units = map(_unit, ticks)  # each tick has its own
    return [
        (math.log10(tick), f"{tick / u:g}{text}")
        for tick, (u, text) in zip(ticks, units, strict=True)
    ]


def _short(text: str, most: int = 40) -> str:
    return html.escape(text if len(text) <= most else text[: most - 1] + "…")


def limits(values: np.ndarray, room: float = 0.05) -> tuple[float, float]:
    """The range of the finite values, widened by the share `room` on each side."""
    finite = np.asarray(values, float)[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return low - room * (high - low), high + room * (high - low)


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
        draws, name = (1, content.draws.positions.shape[1]), f"trace-{parameter}"
        chart = Chart(content.names[parameter], draws, limits(values), x_label="draw", name=name)
        for chain, of_chain in enumerate(values):
            chart.line(at, of_chain, f"c{chain % _COLOURS}")
        charts.append(chart.rendered())
        rounded = [
            [float(f"{v:.5g}") if np.isfinite(v) else None for v in chain] for chain in values
        ]
        hover[chart.name] = {"x": at.tolist(), "y": rounded}
    return charts, hover


def marginals(content: Content) -> list[str]:
    """Densities of all chains combined, with the central 90 % shaded, and of each chain."""
    charts, weights = [], content.complete_weights
    kept = evenly(content.complete.shape[1], 4000)
    for parameter in content.chosen:
        values = np.asarray(content.complete[:, kept, parameter], np.float64)
        if weights is not None:  # draws that count the same
            values = np.stack(
                [
                    of_chain[evenly_in_weight(weight, len(kept))]
                    for of_chain, weight in zip(values, weights[:, kept], strict=True)
                ]
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
    """Gaussian kernel density estimate with Silverman's bandwidth, from binned values."""
    quartiles = float(np.subtract(*np.quantile(values, [0.75, 0.25])))
    spread = min(values.std(), quartiles / 1.34) or values.std() or 1.0
    width = 0.9 * spread * len(values) ** -0.2
    counts, edges = np.histogram(values, bins=512)
    centres = (edges[:-1] + edges[1:]) / 2
    kernel = np.exp(-0.5 * ((at[:, None] - centres) / width) ** 2)
    return kernel @ counts / (len(values) * width * np.sqrt(2 * np.pi))


def smooth_charts(curves: Sequence[SmoothCurve]) -> list[str]:
    """Curves with bands; of two columns, curves of the first at three values of the second."""
    charts = []
    for curve in curves:
        x, others, table = curve.variables[0], curve.variables[1:], curve.table
        ends = np.asarray(table[["low", "high"]] if not others else table[["mean"]])
        words = f"{curve.edf:.1f} of at most {curve.most:.0f} degrees of freedom."
        chart = Chart(
            curve.name, limits(np.asarray(table[x])), limits(ends), x_label=x, y_label=curve.name
        )
        if not others:
            chart.band(list(table[x]), table["low"], table["high"], "shade")
            chart.line(table[x], table["mean"], "strong")
        else:
            values = np.unique(table[others[0]])
            chosen = values[[len(values) // 10, len(values) // 2, -1 - len(values) // 10]]
            for number, value in enumerate(chosen):
                at = table[table[others[0]] == value]
                chart.line(at[x], at["mean"], f"c{number}")
            shown_values = ", ".join(f"{value:.4g}" for value in chosen)
            words += f" Means where {others[0]} is {shown_values}."
        charts.append(chart.rendered(words))
    return charts


def pairs(content: Content) -> list[str]:
    """Scatter plots of the first few parameters against each other."""
    complete = content.complete
    if not len(complete):
        return []
    at = evenly(complete.shape[1], max(1, _PAIR_POINTS // len(complete)))
    charts = []
    for first, second in itertools.combinations(content.chosen[:_PAIRS_OF], 2):
        x, y = (np.asarray(complete[:, at, parameter], np.float64) for parameter in (first, second))
        a, b = content.names[first], content.names[second]
        chart = Chart(f"{b} against {a}", limits(x), limits(y), x_label=a, y_label=b)
        for chain in range(len(x)):
            chart.dots(x[chain], y[chain], f"c{chain % _COLOURS}")
        charts.append(chart.rendered())
    return charts


def along_the_chain(content: Content, stat: str, title: str, label: str) -> Chart | None:
    """A statistic along the run, in windows: its mean over chains, and its range."""
    values = content.draws.sample_stats.get(stat)
    if values is None or not values.shape[1]:
        return None
    n_draws = values.shape[1]
    edges = np.linspace(0, n_draws, min(_WINDOWS, n_draws) + 1).astype(int)
    windows = [np.asarray(values[:, a:b], np.float64) for a, b in itertools.pairwise(edges)]
    at = [(a + b + 1) / 2 for a, b in itertools.pairwise(edges)]
    mean, low, high = ([float(of(w)) for w in windows] for of in (np.mean, np.min, np.max))
    y = limits(np.array([*low, *high]))
    chart = Chart(title, (1, n_draws), y, x_label="draw", y_label=label)
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
    if not rows.min():  # steps read none
        rows, labels["x_label"] = np.flatnonzero(fine) + 1.0, "parts of the run"
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
    at, share = np.linspace(0, 100, len(found["curve"])), 100 * np.asarray(found["curve"], float)
    title, all_ = "Share of draws, most drawn rows first", (0, 100)
    chart = Chart(title, all_, all_, x_label="% of the rows", y_label="% of the draws")
    chart.line([0, 100], [0, 100], "faint")
    chart.band(at, at, share, "shade")
    chart.line(at, share, "strong")
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


# Charts of the posterior predictive check: responses, quantile residuals, calibration of 0 and 1.

_MOST_BARS = 40
_PANEL_POINTS = 120
_LEVELS = (0.05, 0.95)
_TAILS = 0.002
_CALIBRATION_BINS = 10
_NORMAL_QUANTILE = 1.6449  # of 95 %, for intervals of 90 %


def predictive_charts(check: PredictiveCheck | None) -> list[str]:
    """The charts of the check; none without one."""
    if check is None:
        return []
    charts = [response_chart(check)]
    if check.probability is not None:
        return [*charts, _calibration(check)]
    return charts if check.classes is not None else [*charts, _residuals(check)]


def response_chart(check: PredictiveCheck, tails: float = _TAILS) -> str:
    """Observed and simulated responses; of a density the share `tails` is left out on each side."""
    observed = check.observed
    is_discrete = observed.size and (observed % 1 == 0).all() and np.ptp(observed) < _MOST_BARS
    return _bars(check) if is_discrete else _densities(check, tails)


def quantile_levels(check: PredictiveCheck) -> Float[np.ndarray, " n"]:
    """Where each response is among those simulated for its row, as a level in (0, 1).

    Ties are broken at random, so that levels are uniform for counts too if the model holds (Dunn
    and Smyth, 1996).
    """
    below, equal = (
        np.count_nonzero(of, axis=0)
        for of in (check.simulated < check.observed, check.simulated == check.observed)
    )
    at_random = np.random.default_rng(0).random(len(check.observed))
    return (below + at_random * (equal + 1)) / (len(check.simulated) + 1)


def _residuals(check: PredictiveCheck) -> str:
    """Quantile residuals Φ⁻¹(level) against normal quantiles."""
    ordered = np.sort(quantile_levels(check))
    n_rows, normal = len(ordered), NormalDist().inv_cdf
    chosen = evenly(n_rows, _PANEL_POINTS)
    levels = (chosen + 0.5) / n_rows
    half = _NORMAL_QUANTILE * np.sqrt(levels * (1 - levels) / n_rows)
    # Levels beyond those that the simulations can tell apart would have no finite quantile.
    least = 0.5 / (len(check.simulated) + 1) / n_rows
    expected, found, low, high = (
        np.array([normal(level) for level in np.clip(of, least, 1 - least)])
        for of in (levels, ordered[chosen], levels - half, levels + half)
    )
    ends = min(expected[0], found[0]) - 0.2, max(expected[-1], found[-1]) + 0.2
    title, label = f"Quantile residuals of {check.response}", "normal quantile"
    chart = Chart(title, ends, ends, x_label=label, y_label="residual")
    chart.band(expected, np.clip(low, *ends), np.clip(high, *ends), "shade")
    chart.line(ends, ends, "faint")
    chart.dots(expected, found, "strong")
    return chart.rendered(
        "Where each response is among those simulated for its row. Band: 90 % if the model holds."
    )


def _bars(check: PredictiveCheck) -> str:
    """Shares of the values: bars for the rows, intervals for the simulated responses.

    Those of counts are on the scale of roots, on which rare values are seen too: a rootogram.
    """
    first, last = check.observed.min(), check.observed.max()
    if check.classes is not None:
        first, last = 0.0, len(check.classes) - 1.0
    values = np.arange(first, last + 1)
    observed = np.array([(check.observed == value).mean() for value in values])
    shares = np.array([(check.simulated == value).mean(axis=1) for value in values])
    is_count = check.classes is None and last > 1
    if is_count:
        observed, shares = np.sqrt(observed), np.sqrt(shares)
    low, high = np.quantile(shares, _LEVELS, axis=1)
    top = 1.08 * max(observed.max(), high.max())
    label = check.response
    if check.classes is not None:
        label += ": " + ", ".join(f"{k} = {name}" for k, name in enumerate(check.classes))
    title = f"Observed and simulated {check.response}"
    unit = "root of the share" if is_count else "share"
    chart = Chart(title, (first - 0.6, last + 0.6), (0, top), x_label=label, y_label=unit)
    for value, share, *ends in zip(values, observed, low, high, strict=True):
        chart.band([value - 0.4, value + 0.4], [0, 0], [share, share], "shade")
        chart.line([value, value], ends, "strong")
    chart.dots(values, shares.mean(axis=1), "strong")
    return chart.rendered(
        f"Bars: {unit} in the data. Points: means of that of simulated data, with 90 % intervals."
    )


def _densities(check: PredictiveCheck, tails: float) -> str:
    """Densities: a line for the rows, a band for the simulated responses."""
    pooled = np.concatenate([check.observed, check.simulated.ravel()])
    pooled = pooled[np.isfinite(pooled)]  # exp of a large predictor overflows
    low, high = np.quantile(pooled, (tails, 1 - tails)) if pooled.size else (0.0, 0.0)
    title = f"Observed and simulated {check.response}"
    if not high > low:
        return Chart(title, (low, high), (0, 1)).rendered("All responses are equal.")
    at = np.linspace(low, high, _PANEL_POINTS)
    observed, *curves = (_density_within(one, at) for one in (check.observed, *check.simulated))
    bottom, top = np.quantile(curves, _LEVELS, axis=0)
    highest = 1.05 * max(observed.max(), top.max())
    chart = Chart(title, (low, high), (0, highest), x_label=check.response, y_label="density")
    chart.band(at, bottom, top, "shade")
    words = "Band: 90 % of the simulated data sets."
    if check.observed.size:
        chart.line(at, observed, "strong")
        words = f"Line: the data. {words}"
    return chart.rendered(words)


def _density_within(values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The density at points, from the values between their ends; zero if there are none."""
    inside = values[(values >= at[0]) & (values <= at[-1])]
    return density(inside, at) * len(inside) / len(values) if len(inside) else np.zeros(len(at))


def _calibration(check: PredictiveCheck) -> str:
    """Observed shares against predicted probabilities, in bins of equally many rows."""
    assert check.probability is not None
    predicted, shares, counts = binned(check.probability, check.observed, _CALIBRATION_BINS)
    low, high = wilson_interval(shares, counts)
    label = f"predicted probability of {check.response}"
    chart = Chart("Calibration", (0, 1), (0, 1), x_label=label, y_label="observed share")
    chart.line([0, 1], [0, 1], "faint")
    for x, *ends in zip(predicted, low, high, strict=True):
        chart.line([x, x], ends, "strong")
    chart.dots(predicted, shares, "strong")
    return chart.rendered(
        "Ten bins of equally many rows, with 90 % intervals. Good predictions are near the line."
    )


def wilson_interval(shares: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 90 % interval of a probability, given shares of successes among so many rows."""
    z2 = _NORMAL_QUANTILE**2 / counts
    centre = (shares + z2 / 2) / (1 + z2)
    half = np.sqrt(z2 * (shares * (1 - shares) + z2 / 4)) / (1 + z2)
    return centre - half, centre + half
