"""Figure 4(a): the mean of a bivariate Gaussian, with 1, 5 and 10 % of N = 10⁴ rows per step.

The figure shows KL(posterior ‖ Gaussian with the running mean and covariance of a chain) for SGLD
and SGLD-PS. The burn-in has as many passes as the chain.

As run, the sampler's model is not the paper's. Its likelihood has covariance [[1, −½], [−½, 3/2]]
and its prior has covariance 10 I. The rows have covariance [[1e5, 6e4], [6e4, 2e5]], and the KL is
from the posterior with this covariance and prior 1000 I. The curves show how much gradient noise
widens the chain relative to that posterior. The burn-in of SGLD-PS is Adam with step size 10⁻³,
which with 5 and 10 % does not reach the mode. The weights are those at its last position.

As meant, the model is the stated one throughout. Its curvature is 10⁵ times smaller. With the
stated ε = 10⁻⁴ a chain does not cross the posterior in 500 passes. The figure shows ε = 10⁻⁴ and
ε = 1 side by side.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from tallmc import diagnose
from tallmc._anchor.anchor import find_anchor
from tallmc.methods import sgld, sgld_ps
from tallmc.models import gaussian
from tallmc.models.posterior import AbstractPosterior

from .. import synthetic
from ..chains import quietly_sampled
from ..published import published_curves
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, close, lower, over_chains
from .methods import burnt_in

N_ROWS, STEP_SIZE, PASSES, SEED = 10_000, 1e-4, 500, 100
MODEL_COVARIANCE, MODEL_PRIOR, STATED_PRIOR = np.array([[1.0, -0.5], [-0.5, 1.5]]), 10.0, 1000.0
TARGETS = {
    ("SGLD", 1): 2.493,
    ("SGLD", 5): 1.041,
    ("SGLD", 10): 0.549,
    ("SGLD-PS", 1): 2.366,
    ("SGLD-PS", 5): 0.916,
    ("SGLD-PS", 10): 0.437,
}
PER_CENT = (1, 5, 10)


def as_run(setting: ExperimentSetting) -> Result:
    x, chains = synthetic.bivariate(105, N_ROWS), setting.pick(10, 3)
    with jax.enable_x64(True):  # as in the authors' code
        target = gaussian(x, MODEL_COVARIANCE, np.zeros(2), MODEL_PRIOR * np.eye(2))
        starts = np.sqrt(STATED_PRIOR) * np.random.default_rng(SEED).standard_normal((chains, 2))
        paths: dict[tuple[str, int], np.ndarray] = {}
        for per_cent in PER_CENT:
            traces = burnt_in(
                setting,
                target,
                starts,
                per_cent=per_cent,
                passes=PASSES,
                step_size=STEP_SIZE,
                seed=SEED,
            )
            paths |= {
                (label, per_cent): kl_paths(trace.positions, x, 100 // per_cent)
                for label, trace in traces.items()
            }
    claims = [
        close(
            f"final KL of {label}, {per_cent} %",
            float(paths[label, per_cent][:, -1].mean()),
            value,
            0.03,
        )
        for (label, per_cent), value in TARGETS.items()
    ]
    panel = Panel("a", "bivariate Gaussian", "passes through the data", "KL divergence")
    labels = {f"{label}_{per_cent}": f"{label}, {per_cent} %" for label, per_cent in TARGETS}
    published_kl = published_curves("fig4a_bvg_KL_passes", "a", labels)
    return Result([panel], [*_curves("a", paths), *published_kl], claims)


def as_meant(setting: ExperimentSetting) -> Result:
    x, chains = synthetic.bivariate(105, N_ROWS), setting.pick(10, 3)
    panels, curves, claims = [], [], []
    with jax.enable_x64(True):
        target = gaussian(x, synthetic.COVARIANCE, np.zeros(2), STATED_PRIOR * np.eye(2))
        for step_size in (STEP_SIZE, 1.0):
            paths = _stated_paths(setting, target, x, step_size, chains)
            key = f"ε = {step_size:g}"
            panels.append(
                Panel(
                    key,
                    f"the stated model, {key}",
                    "passes through the data",
                    "KL divergence",
                    log_y=True,
                )
            )
            curves += _curves(key, paths)
            claims += [_lower_kl(paths, per_cent, key) for per_cent in PER_CENT]
    return Result(panels, curves, claims)


def _stated_paths(
    setting: ExperimentSetting,
    target: AbstractPosterior,
    x: Float[np.ndarray, "N 2"],
    step_size: float,
    chains: int,
) -> dict[tuple[str, int], Float[np.ndarray, "chains passes"]]:
    anchor, paths = find_anchor(target), {}
    for per_cent in PER_CENT:
        size = N_ROWS * per_cent // 100
        per_pass = N_ROWS // size
        for label, method in {
            "SGLD": sgld(step_size, size),
            "SGLD-PS": sgld_ps(step_size, size),
        }.items():
            share = setting.part(f"{label}, {per_cent} %, ε = {step_size:g}")
            steps = PASSES * per_pass
            draws = quietly_sampled(
                target, method, anchor, chains=chains, n_draws=steps, thin=1, seed=SEED, share=share
            )
            paths[label, per_cent] = kl_paths(draws.positions, x, per_pass)
    return paths


def kl_paths(
    positions: Float[np.ndarray, "chains steps 2"], x: Float[np.ndarray, "N 2"], per_pass: int
) -> Float[np.ndarray, "chains passes"]:
    mean, covariance = synthetic.conjugate_posterior(x, synthetic.COVARIANCE, STATED_PRIOR)
    counts = np.arange(per_pass, positions.shape[1] + 1, per_pass)
    sums, sums_of_products = (
        np.cumsum(positions, axis=1),
        np.cumsum(positions[..., :, None] * positions[..., None, :], axis=1),
    )
    n = counts[:, None]
    means = sums[:, counts - 1] / n
    covariances = (
        sums_of_products[:, counts - 1] - n[..., None] * means[..., :, None] * means[..., None, :]
    ) / (n[..., None] - 1)
    return np.array(
        [
            [
                diagnose.gaussian_kl(mean, covariance, m, s)
                for m, s in zip(means_of_chain, covariances_of_chain, strict=True)
            ]
            for means_of_chain, covariances_of_chain in zip(means, covariances, strict=True)
        ]
    )


def _curves(
    panel: str, paths: dict[tuple[str, int], Float[np.ndarray, "chains passes"]]
) -> list[Curve]:
    return [
        over_chains(panel, f"{label}, {per_cent} %", np.arange(values.shape[1]), values)
        for (label, per_cent), values in paths.items()
    ]


def _lower_kl(
    paths: dict[tuple[str, int], Float[np.ndarray, "chains passes"]], per_cent: int, where: str
) -> Claim:
    statement = f"SGLD-PS has a lower final KL than SGLD, {per_cent} %, {where}"
    return lower(statement, paths["SGLD-PS", per_cent][:, -1], paths["SGLD", per_cent][:, -1])
