"""The sparse and the dense problem: N = 1,000 observations of K = 10 categories, α = 0.1.

    sparse: counts (800, 100, 100, 0, …, 0)
    dense:  counts (112, 119, 92, 98, 95, 96, 102, 92, 91, 103)

The posterior is Dirichlet(α + counts). Its components are Beta, so the Kolmogorov–Smirnov distance
of the draws of a component from the posterior is exact up to Monte-Carlo error.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from tallmc.contrib.simplex import SimplexSampler, dirichlet_multinomial
from tallmc.models.posterior import ModelPosterior

from ..chains import quiet_sample
from ..results import ExperimentSetting

N_ROWS, PRIOR = 1000, 0.1
TIME_BETWEEN, BURN_IN = 1.0, 12.0
"""In the time of the process, which forgets its start as e^{−t/2}."""
SPARSE = np.array([800, 100, 100, 0, 0, 0, 0, 0, 0, 0])
DENSE = np.array([112, 119, 92, 98, 95, 96, 102, 92, 91, 103])
METHODS = {"SGRLD": "expanded mean", "SCIR": "cir"}
STEP_SIZES = {"SGRLD": (1e-2, 1e-3, 1e-4), "SCIR": (1.0, 0.1, 0.01)}
"""Of each method the best is shown. SGRLD is unstable for ε above about 4θ./N."""


def step_sizes(method: str, setting: ExperimentSetting) -> tuple[float, ...]:
    """The grid of a method. The reduced form leaves out the smallest, which takes most steps."""
    return STEP_SIZES[method][:-1] if setting.quick else STEP_SIZES[method]


def posterior_of(counts: np.ndarray) -> ModelPosterior:
    """One row per observation."""
    rows = np.repeat(np.eye(len(counts), dtype=int), counts, axis=0)
    return dirichlet_multinomial(rows, PRIOR)


def drawn(
    counts: np.ndarray,
    method: str,
    step_size: float,
    size: int,
    setting: ExperimentSetting,
) -> Float[np.ndarray, "chains draws k"]:
    """Draws of the probabilities, at equal distances in the time of the process."""
    draws = quiet_sample(
        posterior_of(counts),
        SimplexSampler(step_size=step_size, batch_size=size, transition=METHODS[method]),
        chains=setting.pick(80, 40),
        n_draws=setting.pick(12, 10),
        thin=max(1, round(TIME_BETWEEN / step_size)),
        burn_in=round(BURN_IN / step_size),
        seed=1,
        share=setting.part(f"{method}, ε = {step_size:g}, n = {size}"),
    )
    return draws.values["probabilities"]


def distance(values: Float[np.ndarray, "chains draws"], count: float) -> float:
    """Kolmogorov–Smirnov distance of draws of a component from its Beta posterior."""
    from scipy.stats import beta, kstest  # a slow import

    a, total = PRIOR + count, N_ROWS + len(SPARSE) * PRIOR
    return float(kstest(values.ravel(), beta(a, total - a).cdf).statistic)


def distances(
    values: Float[np.ndarray, "chains draws k"], counts: np.ndarray
) -> Float[np.ndarray, " k"]:
    """The distance of every component."""
    return np.array([distance(values[..., k], counts[k]) for k in range(len(counts))])
