"""Figure 4: logistic regression on covertype: log-loss of SGLD, SGLD-CV and MALA.

570,000 rows for training and 10,000 for the test, 54 columns and an intercept. The poster gives
neither step sizes nor the prior. Settings of the vignette of the R package sgmcmc: ε = 5·10⁻⁶,
n = 500, 10,000 iterations after 1,000 of burn-in, columns scaled to [0, 1]. The prior is N(0, 2)
instead of Laplace(0, 1), which has the same variance but a kink at 0. The split is ours. SGLD
starts at 0. SGLD-CV and MALA start at the mode. The log-loss is that of single draws.

As stated: SGLD and SGLD-CV with the printed gradient, which has 1/n in the place of N/n. Each row
then has the weight 1/N. SGLD-CV keeps ∇f(θ̂) = 0 at the right mode θ̂, and its prior enters as
∇f₀(θ) − ∇f₀(θ̂), which is the gradient of the prior N(θ̂, 2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tallmc._anchor.anchor import find_anchor
from tallmc.methods import mala, sgld, sgld_cv
from tallmc.methods.method import Method
from tallmc.models.posterior import ModelPosterior

from ..chains import quietly_sampled
from ..results import (
    Claim,
    Curve,
    ExperimentSetting,
    Panel,
    Result,
    ResultTable,
    close,
    lower,
    over_chains,
)
from ..shapes import density
from .covertype import CovertypeRegression, covertype_regression, printed_target

STEP_SIZE, MALA_STEP, SIZE, BURN_IN, CHAINS, SEED = 5e-6, 5e-7, 500, 1000, 4, 13
COEFFICIENTS = {
    1: "elevation",
    4: "distance to water",
    6: "distance to roads",
    10: "distance to fires",
}
_EVERY, _PLOT_EVERY = 10, 5


class CovertypePath(NamedTuple):
    """Every tenth draw of each chain and its log-loss, and how many of them are burn-in."""

    draws: Float[np.ndarray, "chains records d"]
    losses: Float[np.ndarray, "chains records"]
    burn_in: int

    @property
    def kept(self) -> Float[np.ndarray, "chains kept d"]:
        return self.draws[:, self.burn_in :]

    @property
    def mean_losses(self) -> Float[np.ndarray, " chains"]:
        return self.losses[:, self.burn_in :].mean(axis=1)


def as_stated(setting: ExperimentSetting) -> Result:
    problem = covertype_regression(setting)
    of_sgld = printed_target(problem.split, np.zeros_like(problem.mode))
    of_cv = printed_target(problem.split, problem.mode)
    paths = _paths(setting, problem, of_sgld, of_cv)
    at_mode = problem.log_loss_at_mode
    claims = [_is_free_walk(problem, paths["SGLD-CV"])]
    claims += [_reaches_mode(label, paths[label], at_mode) for label in ("SGLD", "SGLD-CV")]
    return _result(problem, paths, claims, "1/n")


def as_works(setting: ExperimentSetting) -> Result:
    problem = covertype_regression(setting)
    paths = _paths(setting, problem, problem.target, problem.target)
    at_mode = problem.log_loss_at_mode
    claims = [
        _reaches_mode("SGLD", paths["SGLD"], at_mode),
        _reaches_mode("SGLD-CV", paths["SGLD-CV"], at_mode, required=True),
        lower(
            "SGLD-CV has a lower log-loss than SGLD",
            paths["SGLD-CV"].mean_losses,
            paths["SGLD"].mean_losses,
            digits=5,
        ),
    ]
    return _result(problem, paths, claims, "N/n")


def _paths(
    setting: ExperimentSetting,
    problem: CovertypeRegression,
    of_sgld: ModelPosterior,
    of_cv: ModelPosterior,
) -> dict[str, CovertypePath]:
    step, origin = STEP_SIZE * problem.step_factor, np.zeros_like(problem.mode)
    steps = setting.pick(10_000, 2_000)
    of_mala, mala_steps = mala(MALA_STEP * problem.step_factor), setting.pick(1_000, 200)
    runs: dict[str, tuple[ModelPosterior, Method, Float[np.ndarray, " d"], int]] = {
        "SGLD": (of_sgld, sgld(step, SIZE), origin, BURN_IN + steps),
        "SGLD-CV": (of_cv, sgld_cv(step, SIZE), problem.mode, steps),
        "MALA": (problem.target, of_mala, problem.mode, mala_steps),
    }
    paths = {}
    for label, (target, method, start, n_steps) in runs.items():
        draws = quietly_sampled(
            target,
            method,
            find_anchor(target, at={"beta": problem.mode}),
            chains=CHAINS,
            n_draws=n_steps // _EVERY,
            thin=_EVERY,
            seed=SEED,
            share=setting.part(label),
            start=start,
        )
        values = np.asarray(draws.positions)
        losses = problem.log_losses(values)
        paths[label] = CovertypePath(values, losses, BURN_IN // _EVERY if label == "SGLD" else 0)
    return paths


def _reaches_mode(
    label: str, path: CovertypePath, at_mode: float, *, required: bool = False
) -> Claim:
    return close(
        f"{label} has the log-loss of the mode",
        float(path.mean_losses.mean()),
        round(at_mode, 4),
        0.002,
        required=required,
    )


def _is_free_walk(problem: CovertypeRegression, path: CovertypePath) -> Claim:
    """E‖θ_t − θ̂‖² ≈ εtd: the printed gradient is of order 1, too small to matter."""
    n_chains, records, dim = path.draws.shape
    expected = STEP_SIZE * problem.step_factor * records * _EVERY * dim
    squares = ((path.draws[:, -1] - problem.mode) ** 2).sum(axis=1) / expected
    error = np.sqrt(2 / (dim * n_chains))
    return Claim(
        "SGLD-CV as printed is a free random walk: ‖θ_t − θ̂‖² in units of εtd",
        f"1 ± {4 * error:.2f} (4 standard errors)",
        f"{squares.mean():.2f}",
        bool(abs(squares.mean() - 1) < 4 * error),
    )


def _result(
    problem: CovertypeRegression,
    paths: dict[str, CovertypePath],
    claims: list[Claim],
    gradient: str,
) -> Result:
    panels = [
        Panel("all", f"log-loss on test rows ({gradient})", "iteration", "log-loss of a draw"),
        Panel("late", f"log-loss after burn-in ({gradient})", "iteration", "log-loss of a draw"),
    ]
    at_mode = problem.log_loss_at_mode
    curves, rows = [], []
    for panel in ("all", "late"):
        for label, path in paths.items():
            first = 0 if panel == "all" else path.burn_in
            iterations = _EVERY * (1 + np.arange(first, path.losses.shape[1], _PLOT_EVERY))
            shown = path.losses[:, first::_PLOT_EVERY]
            curves.append(over_chains(panel, label, iterations, shown))
        ends = _EVERY * np.array([1, paths["SGLD"].losses.shape[1]])
        curves.append(Curve(panel, "mode", ends, np.full(2, at_mode), kind="reference"))
    sds = np.sqrt(np.diag(np.asarray(problem.anchor.covariance)))
    for column, name in COEFFICIENTS.items():
        panels.append(Panel(name, f"{name} ({gradient})", "coefficient", "density"))
        curves += _densities(name, column, problem.mode[column], sds[column], paths)
    for label, path in paths.items():
        ratios = path.kept.std(axis=(0, 1)) / sds
        of_columns = [f"{ratios[column]:.2f}" for column in COEFFICIENTS]
        rows.append([label, f"{path.mean_losses.mean():.4f}", *of_columns])
    null = problem.log_loss_of_shares
    title = f"mode {at_mode:.4f}, class shares {null:.4f}; sd of draws in posterior sds (Laplace)"
    table = ResultTable(title, ["method", "log-loss", *COEFFICIENTS.values()], rows)
    better = Claim(
        "the log-loss at the mode is below that of the class shares",
        f"< {null:.4f}",
        f"{at_mode:.4f}",
        bool(at_mode < null),
    )
    return Result(panels, curves, [better, *claims], [table])


def _densities(
    panel: str, column: int, mode: float, sd: float, paths: dict[str, CovertypePath]
) -> list[Curve]:
    grid = mode + sd * np.linspace(-8, 8, 161)
    exact = np.exp(-(((grid - mode) / sd) ** 2) / 2) / (sd * np.sqrt(2 * np.pi))
    return [
        *(
            density(panel, label, path.kept[:, :, column].ravel(), grid)
            for label, path in paths.items()
        ),
        Curve(panel, "Laplace approximation", grid, exact, kind="reference"),
    ]
