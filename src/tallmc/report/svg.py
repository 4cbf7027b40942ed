"""Small SVG charts: axes with round ticks, lines, bands and points.

Colours come from the style sheet of the page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np

WIDTH, HEIGHT = 360, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 10, 38


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between `low` and `high`.

    >>> nice_ticks(0.0, 1.0), nice_ticks(-3.2, 11.0)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 5.0, 10.0])
    """
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * rough)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def shown(value: float) -> str:
    """A number in short form, with a suffix for large values.

    >>> shown(1500000), shown(0.25), shown(-0.00002)
    ('1.5M', '0.25', '-2e-05')
    """
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if limit <= size < 1e13:
            return f"{value / (limit if limit > 1e4 else 1e3):.3g}{unit}"
    return f"{value:.4g}"


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
        self.parts: list[str] = []

    def line(
        self, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, css: str
    ) -> None:
        """Draw a line through the finite points."""
        self.parts.append(f'<path class="line {css}" d="{self._path(x, y)}"/>')

    def band(
        self,
        x: Sequence[float] | np.ndarray,
        low: Sequence[float] | np.ndarray,
        high: Sequence[float] | np.ndarray,
        css: str,
    ) -> None:
        """Fill the area between `low` and `high`."""
        there, back = self._points(x, high), self._points(list(x)[::-1], list(low)[::-1])
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*there, *back])
        self.parts.append(f'<polygon class="band {css}" points="{corners}"/>')

    def dots(
        self, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, css: str
    ) -> None:
        """Draw points as one path with round caps; thousands of circles would take megabytes."""
        moves = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in self._points(x, y))
        self.parts.append(f'<path class="dots {css}" d="{moves}"/>')

    def rendered(self, words: str = "") -> str:
        """The chart as an HTML card with `words` below it."""
        label = html.escape(self.title)
        name = f' data-chart="{html.escape(self.name)}"' if self.name else ""
        note = f'<p class="note">{html.escape(words)}</p>' if words else ""
        body = "".join([*self._axes(), *self.parts])
        return (
            f'<figure class="card"{name}><figcaption>{label}</figcaption>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{body}</svg>'
            f"{note}</figure>"
        )

    def _axes(self) -> list[str]:
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        parts = []
        for value, text in self._ticks(self.x_range, self.log_x):
            at = self._x(value)
            parts.append(
                f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            )
            parts.append(
                f'<text class="tick" x="{at:.1f}" y="{bottom + 14}" text-anchor="middle">'
                f"{text}</text>"
            )
        for value, text in self._ticks(self.y_range, self.log_y):
            at = self._y(value)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
            parts.append(
                f'<text class="tick" x="{_LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">'
                f"{text}</text>"
            )
        middle = (_LEFT + right) / 2
        if self.x_label:
            parts.append(
                f'<text class="label" x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">'
                f"{_short(self.x_label)}</text>"
            )
        if self.y_label:
            at = (_TOP + bottom) / 2
            turned = f'transform="rotate(-90 11 {at})"'
            parts.append(
                f'<text class="label" x="11" y="{at}" text-anchor="middle" {turned}>'
                f"{_short(self.y_label, 24)}</text>"
            )
        return parts

    def _ticks(self, limits: tuple[float, float], log: bool) -> list[tuple[float, str]]:
        if log and limits[1] - limits[0] >= 1:
            powers = range(math.ceil(limits[0] - 1e-9), math.floor(limits[1] + 1e-9) + 1)
            every = max(1, len(powers) // 5)
            return [(float(power), shown(10.0**power)) for power in powers[::every]]
        return [(tick, shown(10**tick if log else tick)) for tick in nice_ticks(*limits, most=5)]

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
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def _points(
        self, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray
    ) -> list[tuple[float, float]]:
        with np.errstate(divide="ignore", invalid="ignore"):
            a = np.log10(np.asarray(x, float)) if self.log_x else np.asarray(x, float)
            b = np.log10(np.asarray(y, float)) if self.log_y else np.asarray(y, float)
        finite = np.isfinite(a) & np.isfinite(b)
        return [(self._x(p), self._y(q)) for p, q in zip(a[finite], b[finite], strict=True)]

    def _path(self, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> str:
        return "".join(
            f"{'L' if number else 'M'}{a:.1f} {b:.1f}"
            for number, (a, b) in enumerate(self._points(x, y))
        )


def _short(text: str, most: int = 40) -> str:
    return html.escape(text if len(text) <= most else text[: most - 1] + "…")


def limits(values: np.ndarray, room: float = 0.05) -> tuple[float, float]:
    """The range of the finite values, widened by the share `room` on each side."""
    finite = np.asarray(values, float)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    return low - room * (high - low), high + room * (high - low)
