"""Figure 1: a random walk on a two-dimensional Gaussian: its path, its draws, their density.

The poster gives no settings. Here the target is the posterior of the mean of 10,000 rows, and the
random walk is random-walk Metropolis.
"""

from __future__ import annotations

import jax
import numpy as np

from tallmc._anchor.anchor import find_anchor
from tallmc.methods import random_walk

from ..chains import quietly_sampled
from ..results import Claim, Curve, ExperimentSetting, Panel, Result
from ..shapes import SHARES, ellipses, kernel_contours, share_inside
from .gaussian_mean import gaussian_mean

SEED, PATH, SHOWN = 1, 100, 2000
STEP_SHARE = 1.5
"""ε in units of the smallest posterior variance."""


def as_stated(setting: ExperimentSetting) -> Result:
    with jax.enable_x64(True):
        problem = gaussian_mean()
        start = problem.mean + 6 * np.sqrt(np.diag(problem.covariance)) * np.array([-1, 1])
        draws = quietly_sampled(
            problem.target,
            random_walk(STEP_SHARE * problem.smallest_variance),
            find_anchor(problem.target),
            chains=4,
            n_draws=setting.pick(8_000, 2_000),
            thin=1,
            seed=SEED,
            share=setting.part("random walk"),
            start=start,
        )
    chains = np.asarray(draws.positions)
    kept = chains[:, 200:]
    every = max(1, kept[:, :, 0].size // SHOWN)
    shown = kept.reshape(-1, 2)[::every]
    first, axes = np.vstack([start, chains[0, :PATH]]), ("θ₁", "θ₂")
    panels = [
        Panel("path", "the first 100 steps of a chain", *axes),
        Panel("draws", "draws", *axes),
        Panel("density", "kernel density estimate, 50 and 95 %", *axes),
    ]
    curves = [
        Curve("path", "random walk", first[:, 0], first[:, 1]),
        Curve("draws", "random walk", shown[:, 0], shown[:, 1], kind="cloud"),
        kernel_contours("density", "random walk", shown),
        *(
            ellipses(panel.key, "target, 50 and 95 %", problem.mean, problem.covariance)
            for panel in panels
        ),
    ]
    claims = []
    for share in SHARES:
        parts = [part for half in np.array_split(kept, 4, axis=1) for part in half]
        inside = np.array(
            [share_inside(part, problem.mean, problem.covariance, share) for part in parts]
        )
        error = inside.std(ddof=1) / np.sqrt(len(inside))
        claims.append(
            Claim(
                f"share of the draws inside the {share:.0%} ellipse",
                f"{share} ± 4 standard errors",
                f"{inside.mean():.4f} ± {error:.4f}",
                bool(abs(inside.mean() - share) < 4 * error),
            )
        )
    return Result(panels, curves, claims)
