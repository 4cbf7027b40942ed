"""Charts of the posterior predictive check, and the calibration of a binary response."""

from __future__ import annotations

import numpy as np

from ..diagnose.calibration import binned
from .plots import density
from .predictive_check import PredictiveCheck
from .svg import Chart

_MOST_BARS = 40
_DENSITY_POINTS = 120
_LEVELS = (0.05, 0.95)
_CALIBRATION_BINS = 10
_NORMAL_QUANTILE = 1.6449  # of 95 %, for intervals of 90 %


def predictive_charts(check: PredictiveCheck | None) -> list[str]:
    """The charts of the check; none without one."""
    if check is None:
        return []
    charts = [_bars(check) if _is_discrete(check) else _densities(check)]
    return charts if check.probability is None else [*charts, _calibration(check)]


def _is_discrete(check: PredictiveCheck) -> bool:
    values = check.observed
    return bool((values % 1 == 0).all()) and np.ptp(values) < _MOST_BARS


def _bars(check: PredictiveCheck) -> str:
    """Shares of the values: bars for the rows, intervals for the simulated responses."""
    first, last = check.observed.min(), check.observed.max()
    if check.classes is not None:
        first, last = 0.0, len(check.classes) - 1.0
    values = np.arange(first, last + 1)
    observed = np.array([(check.observed == value).mean() for value in values])
    shares = np.array([(check.simulated == value).mean(axis=1) for value in values])
    low, high = np.quantile(shares, _LEVELS, axis=1)
    top = 1.08 * max(observed.max(), high.max())
    label = check.response
    if check.classes is not None:
        label += ": " + ", ".join(f"{k} = {name}" for k, name in enumerate(check.classes))
    title = f"Observed and simulated {check.response}"
    chart = Chart(title, (first - 0.6, last + 0.6), (0, top), x_label=label, y_label="share")
    for value, share, ends in zip(values, observed, zip(low, high, strict=True), strict=True):
        chart.band([value - 0.4, value + 0.4], [0, 0], [share, share], "shade")
        chart.line([value, value], ends, "strong")
    chart.dots(values, shares.mean(axis=1), "strong")
    return chart.rendered(
        "Bars: shares in the data. Points: means of the simulated shares, with 90 % intervals."
    )


def _densities(check: PredictiveCheck) -> str:
    """Densities: a line for the rows, a band for the simulated responses."""
    pooled = np.concatenate([check.observed, check.simulated.ravel()])
    low, high = np.quantile(pooled, (0.002, 0.998))
    title = f"Observed and simulated {check.response}"
    if not high > low:
        return Chart(title, (low, high), (0, 1)).rendered("All responses are equal.")
    at = np.linspace(low, high, _DENSITY_POINTS)
    observed = density(np.clip(check.observed, low, high), at)
    curves = np.array([density(np.clip(one, low, high), at) for one in check.simulated])
    bottom, top = np.quantile(curves, _LEVELS, axis=0)
    highest = 1.05 * max(observed.max(), top.max())
    chart = Chart(title, (low, high), (0, highest), x_label=check.response, y_label="density")
    chart.band(at, bottom, top, "shade")
    chart.line(at, observed, "strong")
    return chart.rendered("Line: the data. Band: 90 % of the simulated data sets.")


def _calibration(check: PredictiveCheck) -> str:
    """Observed shares against predicted probabilities, in bins of equally many rows."""
    assert check.probability is not None
    predicted, shares, counts = binned(check.probability, check.observed, _CALIBRATION_BINS)
    low, high = wilson_interval(shares, counts)
    chart = Chart(
        "Calibration",
        (0, 1),
        (0, 1),
        x_label=f"predicted probability of {check.response}",
        y_label="observed share",
    )
    chart.line([0, 1], [0, 1], "faint")
    for x, ends in zip(predicted, zip(low, high, strict=True), strict=True):
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
