"""Smooth terms from draws: their curves with bands, and their effective degrees of freedom.

Draws hold no scale, but p(σ_m | u) ∝ w_m N(u; 0, σ_m²I) weights each of them for each scale: draws
with these weights follow the posterior given σ_m. So

    p(σ_m | y) = mean of p(σ_m | u)
    edf = n_free + Σ_m p(σ_m | y) [K − Σ_j Var(u_j | σ_m, y)/σ_m²]

The bracket is the trace of the shrinkage, tr(H + σ⁻²I)⁻¹H, if the posterior given σ is normal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..models.priors import ScaleMixturePrior
from ..models.smooths import SmoothEffect

if TYPE_CHECKING:
    import pandas as pd

_NO_WEIGHT = 1e-6
_NEARLY_ALL = 0.9
_AT_ONCE = 256


def smooth_table(
    effects: list[tuple[SmoothEffect, ScaleMixturePrior]],
    draws: Float[np.ndarray, "n d"],
    interval: float,
) -> pd.DataFrame:
    """One row per smooth term: effective degrees of freedom, their largest number, and σ."""
    import pandas as pd

    content = [_of_smooth(effect, prior, draws, interval) for effect, prior in effects]
    names = pd.Index([effect.name for effect, _ in effects], name="smooth")
    return pd.DataFrame(content, index=names, columns=["edf", "most", "sd", "low", "high"])


def notes_on_dimensions(table: pd.DataFrame | None) -> list[str]:
    """Smooth terms that use nearly all of their basis."""
    if table is None:
        return []
    return [
        f"{name} uses {edf:.1f} of {most:.0f} degrees of freedom: try a larger k"
        for name, edf, most in zip(table.index, table["edf"], table["most"], strict=True)
        if edf > _NEARLY_ALL * most
    ]


def _of_smooth(
    effect: SmoothEffect, prior: ScaleMixturePrior, draws: np.ndarray, interval: float
) -> tuple[float, ...]:
    u = draws[:, list(effect.wiggly)].astype(np.float64)
    log_scales = np.asarray(prior.log_scales, np.float64)
    squares = np.sum(u**2, axis=1)[:, None]
    logs = np.asarray(prior.log_weights, np.float64) - u.shape[1] * log_scales
    logs = logs - squares * np.exp(-2 * log_scales) / 2
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    shares = weights.mean(axis=0)
    used = shares > _NO_WEIGHT
    weights, shares, scales = weights[:, used], shares[used], np.exp(log_scales[used])
    weights /= weights.sum(axis=0)
    means = weights.T @ u
    variances = np.maximum(weights.T @ u**2 - means**2, 0).sum(axis=1)
    edf = len(effect.places) - shares @ (variances / scales**2) / shares.sum()
    tail = (1 - interval) / 2
    cumulated = np.cumsum(shares) - shares / 2
    low, high = np.exp(np.interp([tail, 1 - tail], cumulated, np.log(scales)))
    sds = shares @ scales / shares.sum() * effect.scale, low * effect.scale, high * effect.scale
    return float(edf), float(len(effect.places)), *map(float, sds)


def smooth_curve(
    effect: SmoothEffect, draws: Float[np.ndarray, "n d"], points: int, interval: float
) -> pd.DataFrame:
    """A smooth term on a grid of its range: the posterior mean, the sd and pointwise intervals."""
    import pandas as pd

    grid = effect.grid(points)
    columns = effect.columns(grid)
    coefficients = effect.scale * draws[:, list(effect.places)].astype(np.float64)
    tail, parts = (1 - interval) / 2, []
    for first in range(0, len(columns), _AT_ONCE):
        curves = coefficients @ columns[first : first + _AT_ONCE].T
        ends = np.quantile(curves, [tail, 1 - tail], axis=0)
        parts.append(np.stack([curves.mean(axis=0), curves.std(axis=0), *ends]))
    values = np.concatenate(parts, axis=1)
    content = dict(zip(effect.variables, grid.T, strict=True))
    return pd.DataFrame(content | dict(zip(("mean", "sd", "low", "high"), values, strict=True)))
