"""Figure 2: distance from the posterior by minibatch size, on sparse and on dense counts.

The distance is the Kolmogorov–Smirnov distance of a component from its Beta posterior, averaged
over the components. For each method and size the best step size of the grid is shown.
"""

from __future__ import annotations

import jax
import numpy as np

from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from .simplices import DENSE, METHODS, SPARSE, distances, drawn, step_sizes

SIZES = (1, 10, 50, 100)
QUICK_SIZES = (10, 100)
PROBLEMS = {"sparse": SPARSE, "dense": DENSE}


def as_stated(setting: ExperimentSetting) -> Result:
    sizes = QUICK_SIZES if setting.quick else SIZES
    found: dict[tuple[str, str], np.ndarray] = {}
    rows = []
    with jax.enable_x64(True):
        for problem, counts in PROBLEMS.items():
            for method in METHODS:
                best = []
                for size in sizes:
                    of_steps = {}
                    for step_size in step_sizes(method, setting):
                        values = drawn(counts, method, step_size, size, setting)
                        of_steps[step_size] = float(distances(values, counts).mean())
                    chosen = min(of_steps, key=lambda step_size: of_steps[step_size])
                    best.append(of_steps[chosen])
                    rows.append([problem, method, str(size), f"{chosen:g}", f"{best[-1]:.3f}"])
                found[problem, method] = np.array(best)
    curves = [
        Curve(problem, method, np.array(sizes, float), values)
        for (problem, method), values in found.items()
    ]
    ratio = found["sparse", "SGRLD"] / found["sparse", "SCIR"]
    claims = [
        Claim(
            "sparse counts: SCIR is closer to the posterior than SGRLD at every minibatch size",
            "ratio of the distances above 2",
            f"at least {ratio.min():.1f}",
            bool(ratio.min() > 2),
        ),
        Claim(
            "dense counts: SCIR is no worse than SGRLD at the largest minibatch size",
            "distance lower, or higher by less than 0.05",
            f"{found['dense', 'SCIR'][-1]:.3f} against {found['dense', 'SGRLD'][-1]:.3f}",
            bool(found["dense", "SCIR"][-1] < found["dense", "SGRLD"][-1] + 0.05),
        ),
    ]
    panels = [
        Panel(problem, f"{problem} counts", "rows per step", "mean distance", log_x=True)
        for problem in PROBLEMS
    ]
    columns = ["counts", "method", "rows per step", "best step size", "mean distance"]
    title = "Kolmogorov–Smirnov distance, mean over components"
    return Result(panels, curves, claims, [ResultTable(title, columns, rows)])
