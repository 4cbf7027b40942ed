"""Figure 2(a): linear regression on CASP with 0.1 % of the rows per step.

On CASP the squared norms of a few rows are up to 260 times the mean squared norm. With uniform
subsamples the recursion for E(θ − θ*)(θ − θ*)ᵀ,

    S' = ASA + (ε²/4n) [ Σ x_i x_iᵀ S x_i x_iᵀ/p_i − GSG ] + …
    A = I − (ε/2)(G + I/10),    G = XᵀX

has a spectral radius above 1 at this ε and n. The chain has no second moment, and the curves of
SGLD and SGLD-CV show its explosions. Preferential weights bring the radius below 1.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from tallmc._anchor.anchor import find_anchor
from tallmc.models import linear_regression
from tallmc.models.posterior import AbstractPosterior

from .. import data
from ..chains import kernel_of, stream_of
from ..published import published_curves
from ..results import Claim, ExperimentSetting, Panel, Result, ResultTable, close
from .discrepancy import THOUSANDS, curves, lower_end, rows_to_reach
from .methods import AsRun, fixed, ours, paths_as_meant

STEP_SIZE, SIZE, PRIOR_VARIANCE = 1e-5, 45, 10.0
PANEL = Panel("a", "CASP, 0.1 % subsample", "passes through the data", "log₁₀ KSD")


def posterior(setting: ExperimentSetting) -> AbstractPosterior:
    return linear_regression(
        *data.casp(setting.folder), prior_variance=PRIOR_VARIANCE, noise_variance=1.0
    )


def as_run(setting: ExperimentSetting) -> Result:
    target = posterior(setting)
    run = AsRun.prepared(
        setting, target, step_size=STEP_SIZE, size=SIZE, chains=setting.pick(10, 3)
    )
    paths = {label: run.path(label, run.fixed(label)) for label in fixed(STEP_SIZE, SIZE)}
    radii = second_moment_radii(target)
    claims = [
        close("log₁₀ KSD of SGLD-PS at 10 passes", paths["SGLD-PS"].end, 3.087, 0.1),
        close("log₁₀ KSD of SGLD-CV-PS at 10 passes", paths["SGLD-CV-PS"].end, 1.443, 0.15),
        *(
            _has_second_moment(label, radius, wanted=label.endswith("PS"))
            for label, radius in radii.items()
        ),
    ]
    published_ksd = published_curves("fig2a_casp_log10KSD", "a", {label: label for label in paths})
    return Result(
        [PANEL], [*curves("a", paths, scale=1e-3), *published_ksd], claims, [_radius_table(radii)]
    )


def as_meant(setting: ExperimentSetting) -> Result:
    target = posterior(setting)
    anchor = find_anchor(target)
    method_of = fixed(STEP_SIZE, SIZE) | ours(target, anchor, STEP_SIZE, SIZE)
    paths, _ = paths_as_meant(
        setting, target, anchor, method_of, chains=setting.pick(10, 3), thin=5
    )
    claims = [lower_end(paths, "SGLD-PS", "SGLD"), lower_end(paths, "SGLD-CV-PS", "SGLD-CV")]
    panel = PANEL._replace(x=THOUSANDS)  # not passes: the sizes differ
    return Result([panel], curves("a", paths, scale=1e-3), claims, [rows_to_reach(paths)])


def second_moment_radii(target: AbstractPosterior) -> dict[str, float]:
    """Return the spectral radius of the recursion at the exact mode, per method.

    Control variates do not change the recursion.
    """
    anchor = find_anchor(target)
    X = np.asarray(target.data.x, np.float64)
    radii = {}
    for label, method in fixed(STEP_SIZE, SIZE, floor=0.0).items():
        radii[label] = _radius(X, stream_of(kernel_of(method, target, anchor)).probabilities())
    return radii


def _radius(X: Float[np.ndarray, "N d"], p: Float[np.ndarray, " N"]) -> float:
    d, G = X.shape[1], X.T @ X
    A = np.eye(d) - STEP_SIZE / 2 * (G + np.eye(d) / PRIOR_VARIANCE)
    pairs = (X[:, :, None] * X[:, None, :]).reshape(len(X), -1)
    fourth_moments = (pairs / p[:, None]).T @ pairs
    # Σ x_a x_b x_c x_e / p maps S_be to S_ac.
    fourth_moments = fourth_moments.reshape(d, d, d, d).transpose(0, 2, 1, 3).reshape(d * d, d * d)
    recursion = np.kron(A, A) + STEP_SIZE**2 / (4 * SIZE) * (fourth_moments - np.kron(G, G))
    return float(np.abs(np.linalg.eigvals(recursion)).max())


def _has_second_moment(label: str, radius: float, *, wanted: bool) -> Claim:
    verb = "has a" if wanted else "has no"
    return Claim(
        f"{label} {verb} second moment",
        "radius < 1" if wanted else "radius > 1",
        f"{radius:.4f}",
        (radius < 1) == wanted,
    )


def _radius_table(radii: dict[str, float]) -> ResultTable:
    rows = [[label, f"{radius:.4f}"] for label, radius in radii.items()]
    return ResultTable("Spectral radius of the second-moment recursion", ["method", "radius"], rows)
