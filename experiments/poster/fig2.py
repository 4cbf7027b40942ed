"""Figure 2: densities after 100 passes of SGLD, SGLD-CV, MALA and ULA, and their errors.

The poster gives no settings. Here the target is the posterior of the mean of 10,000 rows,
subsamples have 1 % of the rows, and each method starts at the mode. A step of MALA or ULA is one
pass, a step of the others 0.01 passes. The error is KL(posterior ‖ Gaussian with the chain's mean
and covariance).

As stated: SGLD and SGLD-CV with the printed gradient, which has 1/n in the place of N/n. The
likelihood then counts as if there were one row. At the same step size a chain is nearly a free
random walk, whose variance after t steps has a closed form.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from tallmc import diagnose
from tallmc._anchor.anchor import find_anchor
from tallmc.methods import mala, sgld, sgld_cv, ula
from tallmc.methods.method import Method

from ..chains import quietly_sampled
from ..results import (
    Claim,
    Curve,
    ExperimentSetting,
    Panel,
    Result,
    ResultTable,
    lower,
    over_chains,
)
from ..shapes import density
from .gaussian_mean import N_ROWS, GaussianMean, gaussian_mean, printed_target

SIZE, PASSES, SEED = 100, 100, 3
STEPS_PER_PASS = N_ROWS // SIZE
# In units of the smallest posterior variance. SGLD needs smaller steps because of its noise.
STEP_SHARES = {"SGLD": 0.02, "SGLD-CV": 0.2, "MALA": 2.0, "ULA": 0.4}
_CHECKED_PASSES = np.arange(20, PASSES + 1, 5)


def as_stated(setting: ExperimentSetting) -> Result:
    with jax.enable_x64(True):
        problem = gaussian_mean()
        paths = _paths(problem, setting, printed=True)
    claims = []
    for label in ("SGLD", "SGLD-CV"):
        step = STEP_SHARES[label] * problem.smallest_variance
        expected = free_walk_variance(problem, step)
        found = ((paths[label] - problem.mean) ** 2).sum(axis=2).mean(axis=1)
        ratio = found / expected
        error = ratio.std(ddof=1) / np.sqrt(len(ratio))
        claims.append(
            Claim(
                f"mean square of {label} as printed, in units of its closed form",
                "1 ± 4 standard errors",
                f"{ratio.mean():.2f} ± {error:.2f}",
                bool(abs(ratio.mean() - 1) < 4 * error),
            )
        )
        claims.append(_has_posterior_spread(f"{label} as printed", paths[label], problem))
    return _result(paths, problem, claims, "as printed: 1/n")


def as_works(setting: ExperimentSetting) -> Result:
    with jax.enable_x64(True):
        problem = gaussian_mean()
        paths = _paths(problem, setting, printed=False)
    ends = {label: kl_path(values, problem)[:, -1] for label, values in paths.items()}
    claims = [
        _has_posterior_spread("SGLD-CV", paths["SGLD-CV"], problem, required=True),
        lower("SGLD-CV has a lower KL than SGLD at 100 passes", ends["SGLD-CV"], ends["SGLD"]),
        lower("SGLD-CV has a lower KL than MALA at 100 passes", ends["SGLD-CV"], ends["MALA"]),
        lower("SGLD has a lower KL than MALA at 100 passes", ends["SGLD"], ends["MALA"]),
    ]
    return _result(paths, problem, claims, "N/n")


def free_walk_variance(problem: GaussianMean, step: float) -> float:
    """E‖θ_t − mode‖², averaged over the steps, with the printed gradient and no gradient noise.

    The noise of the printed gradient, of variance 1/n, adds ε/4n to 1 and is left out.
    """
    steps = np.arange(1, PASSES * STEPS_PER_PASS + 1)
    total = 0.0
    for variance in N_ROWS * np.linalg.eigvalsh(problem.covariance):
        keep = 1 - step / (2 * variance)
        total += float(np.mean(step * (1 - keep ** (2 * steps)) / (1 - keep**2)))
    return total


def kl_path(
    values: Float[np.ndarray, "chains draws 2"], problem: GaussianMean
) -> Float[np.ndarray, "chains checked"]:
    """KL at some numbers of passes, from all draws up to then."""
    per_pass = values.shape[1] // PASSES
    found = np.empty((len(values), len(_CHECKED_PASSES)))
    for chain, draws in enumerate(values):
        for place, passes in enumerate(_CHECKED_PASSES):
            used = draws[: passes * per_pass]
            found[chain, place] = diagnose.gaussian_kl(
                problem.mean, problem.covariance, used.mean(axis=0), np.cov(used.T)
            )
    return found


def _paths(
    problem: GaussianMean, setting: ExperimentSetting, *, printed: bool
) -> dict[str, Float[np.ndarray, "chains draws 2"]]:
    paths = {}
    wrong = printed_target(problem) if printed else problem.target
    for label, share in STEP_SHARES.items():
        step = share * problem.smallest_variance
        method: Method = {
            "SGLD": sgld(step, SIZE),
            "SGLD-CV": sgld_cv(step, SIZE),
            "MALA": mala(step),
            "ULA": ula(step),
        }[label]
        of_subsamples = label.startswith("SGLD")
        target = wrong if of_subsamples else problem.target
        draws = quietly_sampled(
            target,
            method,
            find_anchor(target),
            chains=setting.pick(10, 5),
            n_draws=PASSES * (STEPS_PER_PASS if of_subsamples else 1),
            thin=1,
            seed=SEED,
            share=setting.part(label),
            start=problem.mean,
        )
        paths[label] = np.asarray(draws.positions)
    return paths


def _has_posterior_spread(
    label: str,
    values: Float[np.ndarray, "chains draws 2"],
    problem: GaussianMean,
    *,
    required: bool = False,
) -> Claim:
    ratio = np.sqrt(
        ((values - problem.mean) ** 2).mean(axis=(0, 1)) / np.diag(problem.covariance)
    ).mean()
    return Claim(
        f"the draws of {label} have the spread of the posterior",
        "sd within 10 %",
        f"{ratio:.2f} times the posterior's",
        bool(abs(ratio - 1) < 0.1),
        required,
    )


def _result(
    paths: dict[str, Float[np.ndarray, "chains draws 2"]],
    problem: GaussianMean,
    claims: list[Claim],
    gradient: str,
) -> Result:
    panels = [
        Panel("density", f"densities after 100 passes ({gradient})", "θ₁", "density"),
        Panel("kl", f"error ({gradient})", "passes through the data", "KL divergence", log_y=True),
    ]
    sd = np.sqrt(problem.covariance[0, 0])
    grid = problem.mean[0] + sd * np.linspace(-5, 5, 201)
    exact = np.exp(-(((grid - problem.mean[0]) / sd) ** 2) / 2) / (sd * np.sqrt(2 * np.pi))
    curves = [Curve("density", "posterior", grid, exact, kind="reference")]
    rows = []
    for label, values in paths.items():
        errors = kl_path(values, problem)
        curves.append(density("density", label, values[0, :, 0], grid))
        curves.append(over_chains("kl", label, _CHECKED_PASSES, errors))
        spread = np.sqrt(((values - problem.mean) ** 2).mean(axis=(0, 1)))
        ratio = (spread / np.sqrt(np.diag(problem.covariance))).mean()
        rows.append([label, f"{ratio:.2f}", f"{errors[:, -1].mean():.3g}"])
    table = ResultTable(
        "after 100 passes", ["method", "sd in posterior sds", "KL, mean over chains"], rows
    )
    return Result(panels, curves, claims, [table])
