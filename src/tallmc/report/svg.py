"""Small SVG charts: axes with round ticks, lines, bands and points.

Colours come from the style sheet of the page.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence

import numpy as np

from .ticks import log_tick_texts, log_ticks, nice_ticks, tick_texts

WIDTH, HEIGHT = 360, 210
_LEAST_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 10, 10, 38
_LETTER = 7.0  # width of a digit of a tick, 11 pixels high, in the widest usual font
_LABEL_WIDTH = 16.0  # of the turned label of the y axis


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
        name = ""
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
        parts = []
        for value, text in self.x_ticks:
            at = self._x(value)
            room = len(text) * _LETTER / 2
            middle = min(max(at, room), WIDTH - room)
            parts.append(
                f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            )
            parts.append(
                f'<text class="tick" x="{middle:.1f}" y="{bottom + 14}" text-anchor="middle">'
                f"{text}</text>"
            )
        for value, text in self.y_ticks:
            at = self._y(value)
            parts.append(
                f'<line class="grid" x1="{self.left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            )
            parts.append(
                f'<text class="tick" x="{self.left - 5}" y="{at + 4:.1f}" text-anchor="end">'
                f"{text}</text>"
            )
        middle = (self.left + right) / 2
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
                f"{_short(self.y_label, 22)}</text>"
            )
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


def _ticks(limits: tuple[float, float], log: bool, most: int = 5) -> list[tuple[float, str]]:
    """Places and texts of the ticks. `limits` are logarithms, and so are the places, if `log`."""
    if not log:
        ticks = nice_ticks(*limits, most=most)
        return list(zip(ticks, tick_texts(ticks), strict=True))
    ticks = log_ticks(10 ** limits[0], 10 ** limits[1])
    places = [math.log10(tick) for tick in ticks]
    return list(zip(places, log_tick_texts(ticks), strict=True))


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
