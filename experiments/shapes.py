"""Curves of distributions: ellipses of a Gaussian, densities of draws and their contours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import contourpy
import numpy as np
from jaxtyping import Float
from scipy.stats import gaussian_kde

from .results import Curve

SHARES = (0.5, 0.95)
"""How much of a distribution lies inside each contour."""
_GRID = 80


def ellipses(
    panel: str,
    label: str,
    mean: Float[np.ndarray, " 2"],
    covariance: Float[np.ndarray, "2 2"],
    shares: Sequence[float] = SHARES,
) -> Curve:
    """The ellipses that hold these shares of a Gaussian, as one dashed curve."""
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) @ np.linalg.cholesky(covariance).T
    lines = [mean + np.sqrt(-2 * np.log(1 - share)) * circle for share in shares]
    return joined(panel, label, lines, kind="reference")


def share_inside(
    draws: Float[np.ndarray, "k 2"],
    mean: Float[np.ndarray, " 2"],
    covariance: Float[np.ndarray, "2 2"],
    share: float,
) -> float:
    """The share of the draws inside the ellipse that holds `share` of a Gaussian."""
    squares = np.sum((draws - mean) * np.linalg.solve(covariance, (draws - mean).T).T, axis=1)
    return float(np.mean(squares < -2 * np.log(1 - share)))


def density(
    panel: str, label: str, draws: Float[np.ndarray, " k"], grid: Float[np.ndarray, " g"]
) -> Curve:
    """A kernel estimate of the density of draws; flat draws have none."""
    finite = draws[np.isfinite(draws)]
    spread = np.ptp(finite) if len(finite) else 0.0
    values = gaussian_kde(finite)(grid) if spread > 0 else np.full(len(grid), np.nan)
    return Curve(panel, label, grid, values)


def kernel_contours(panel: str, label: str, draws: Float[np.ndarray, "k 2"]) -> Curve:
    """Contours of a kernel estimate that hold the shares of `SHARES`, as one curve."""
    low, high = draws.min(axis=0), draws.max(axis=0)
    x, y = np.meshgrid(*(np.linspace(a, b, _GRID) for a, b in zip(low, high, strict=True)))
    values = gaussian_kde(draws.T)(np.stack([x.ravel(), y.ravel()])).reshape(x.shape)
    return joined(panel, label, contour_lines(x, y, values), kind="line")


def contour_lines(
    x: Float[np.ndarray, "m n"], y: Float[np.ndarray, "m n"], values: Float[np.ndarray, "m n"]
) -> list[Float[np.ndarray, "k 2"]]:
    """The contours of a density on a grid that hold the shares of `SHARES`."""
    falling = np.sort(values.ravel())[::-1]
    held = np.cumsum(falling) / falling.sum()
    generator = contourpy.contour_generator(x, y, values)
    return [
        np.asarray(line)
        for share in SHARES
        for line in generator.lines(falling[np.searchsorted(held, share)])
    ]


def joined(
    panel: str, label: str, lines: Sequence[np.ndarray], kind: Literal["line", "reference"]
) -> Curve:
    """Several lines as one curve."""
    gap = np.full((1, 2), np.nan)
    points = np.concatenate([part for line in lines for part in (line, gap)])
    return Curve(panel, label, points[:, 0], points[:, 1], kind=kind)
