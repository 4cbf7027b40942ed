"""Figure 1: the mean of a Gaussian, with subsamples of 1 and 90 % of N = 10,000 rows.

y_i ~ N(θ, 1) with θ = 0, prior N(0, 10). The talk shows traces and draws of SGLD and SGLD-CV beside
the exact posterior; its step size is not given. Here ε = σ²/5, with σ² the posterior variance.

The variance of SGLD's gradient is v = N² s²/n, with s² the variance of the rows. That of SGLD-CV is
0, because all rows have the same curvature. With rows drawn with replacement, the stationary
variance of the chain is σ²(1 + εv/4)/(1 − ε/4σ²).
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from tallmc import diagnose
from tallmc._anchor.anchor import find_anchor
from tallmc.methods import sgld, sgld_cv
from tallmc.models import gaussian

from ..chains import quietly_sampled
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from ..shapes import density

N_ROWS, PRIOR_VARIANCE, SEED = 10_000, 10.0, 1
PER_CENT = (1, 90)
STEP_SHARE = 0.2
"""ε in posterior variances."""
_SHOWN = 500
_SCORES = np.linspace(-8, 8, 201)


def as_stated(setting: ExperimentSetting) -> Result:
    y = np.random.default_rng(SEED).normal(size=(N_ROWS, 1))
    precision = N_ROWS + 1 / PRIOR_VARIANCE
    mean, variance = float(y.sum() / precision), 1 / precision
    step_size = STEP_SHARE * variance
    claims, rows, curves = [], [], []
    with jax.enable_x64(True):
        target = gaussian(y, np.eye(1), np.zeros(1), PRIOR_VARIANCE * np.eye(1))
        anchor = find_anchor(target)
        for per_cent in PER_CENT:
            size = N_ROWS * per_cent // 100
            for label, method, noise in (
                ("SGLD", sgld(step_size, size), N_ROWS**2 * float(y.var()) / size),
                ("SGLD-CV", sgld_cv(step_size, size), 0.0),
            ):
                draws = quietly_sampled(
                    target,
                    method,
                    anchor,
                    chains=4,
                    n_draws=setting.pick(4_000, 600),
                    thin=1,
                    seed=SEED,
                    share=setting.part(f"{label}, {per_cent} %"),
                )
                values = np.asarray(draws.positions)[:, :, 0]
                name = f"{label}, {per_cent} %"
                factor = float(diagnose.langevin_inflation(variance, step_size, noise))
                claims.append(_variance_claim(name, values - mean, variance * factor))
                scores = (values - mean) / np.sqrt(variance)
                curves += _curves(per_cent, name, values, scores)
                found = np.sqrt(values.var() / variance)
                rows.append([name, f"{np.sqrt(factor):.3f}", f"{found:.3f}"])
    panels = [
        *(
            Panel(f"trace {per_cent}", f"{per_cent} % of the rows", "iteration", "θ")
            for per_cent in PER_CENT
        ),
        Panel("density", "densities", "θ, posterior sds from its mean", "density"),
    ]
    curves.append(_exact())
    title = "sd of the draws in posterior sds"
    tables = [ResultTable(title, ["method", "closed form", "found"], rows)]
    by_name = {row[0]: float(row[2]) for row in rows}
    claims.append(
        Claim(
            "SGLD-CV needs 1 % of the rows only",
            "sd within 5 % of that with 90 %",
            f"{by_name['SGLD-CV, 1 %']:.3f} against {by_name['SGLD-CV, 90 %']:.3f}",
            abs(by_name["SGLD-CV, 1 %"] / by_name["SGLD-CV, 90 %"] - 1) < 0.05,
            required=False,
        )
    )
    return Result(panels, curves, claims, tables)


def _variance_claim(
    name: str, centred: Float[np.ndarray, "chains draws"], variance: float
) -> Claim:
    """The mean square against the closed form, with its error from blocks of draws."""
    parts = np.array_split(centred[:, centred.shape[1] // 20 :] ** 2, 10, axis=1)
    blocks = np.concatenate([part.mean(axis=1) for part in parts]) / variance
    error = blocks.std(ddof=1) / np.sqrt(len(blocks))
    return Claim(
        f"variance of {name}, in units of the closed form",
        "1 ± 4 standard errors",
        f"{blocks.mean():.3f} ± {error:.3f}",
        bool(abs(blocks.mean() - 1) < 4 * error),
    )


def _curves(
    per_cent: int,
    name: str,
    values: Float[np.ndarray, "chains draws"],
    scores: Float[np.ndarray, "chains draws"],
) -> list[Curve]:
    shown = values[0, -_SHOWN:]
    return [
        Curve(f"trace {per_cent}", name, np.arange(_SHOWN), shown),
        density("density", name, scores[:, ::10].ravel(), _SCORES),
    ]


def _exact() -> Curve:
    exact = np.exp(-(_SCORES**2) / 2) / np.sqrt(2 * np.pi)
    return Curve("density", "posterior", _SCORES, exact, kind="reference")
