"""Figure 1: the fifth component of the sparse problem by SGRLD, SCIR and exact draws.

The component has no observations, so its posterior is Beta(0.1, 1000.9): half of it is below 10⁻⁶.
Both methods have n = 10 rows per step and the step size of a grid whose draws are closest to the
posterior.
"""

from __future__ import annotations

import jax
import numpy as np

from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from .simplices import METHODS, N_ROWS, PRIOR, SPARSE, distance, drawn, step_sizes

COMPONENT, SIZE = 4, 10
LEVELS = (0.1, 0.5, 0.9)
LOWEST = -12.0


def as_stated(setting: ExperimentSetting) -> Result:
    from scipy.stats import beta  # a slow import

    law = beta(PRIOR, N_ROWS + len(SPARSE) * PRIOR - PRIOR)
    grid = np.linspace(LOWEST, -1, 200)
    curves = [Curve("cdf", "posterior", grid, law.cdf(10.0**grid), kind="reference")]
    rows, best = [["posterior", "", "0", *(f"{q:.1e}" for q in law.ppf(LEVELS))]], {}
    with jax.enable_x64(True):
        for method in METHODS:
            found = {}
            for step_size in step_sizes(method, setting):
                values = drawn(SPARSE, method, step_size, SIZE, setting)[..., COMPONENT]
                found[step_size] = distance(values, SPARSE[COMPONENT]), values
                quantiles = (f"{q:.1e}" for q in np.quantile(values, LEVELS))
                rows.append([method, f"{step_size:g}", f"{found[step_size][0]:.3f}", *quantiles])
            best[method], values = min(found.values(), key=lambda pair: pair[0])
            shares = [np.mean(values <= 10.0**at) for at in grid]
            curves.append(Curve("cdf", method, grid, np.array(shares)))
    claims = [
        Claim(
            "SGRLD is far from the posterior of a component without observations",
            "distance above 0.2",
            f"{best['SGRLD']:.3f}",
            bool(best["SGRLD"] > 0.2),
        ),
        Claim(
            "SCIR is close to it",
            "distance below 0.1",
            f"{best['SCIR']:.3f}",
            bool(best["SCIR"] < 0.1),
        ),
    ]
    title = "Kolmogorov–Smirnov distance and quantiles of the fifth probability"
    columns = ["method", "step size", "distance", *(f"{level:.0%}" for level in LEVELS)]
    panel = Panel("cdf", "the fifth probability", "log₁₀ ω₅", "share of draws below")
    return Result([panel], curves, claims, [ResultTable(title, columns, rows)])
