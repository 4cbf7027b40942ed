"""`tallmc demo`: fit a simulated logistic regression and compare with the true coefficients."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console

from ..models import logistic_regression
from .design import INTERCEPT
from .plan import Settings
from .plot import plot_posterior
from .report import (
    DIAGNOSTICS,
    exit_status,
    print_coefficients,
    print_cost,
    print_plan,
    print_warnings,
    say,
    summarise,
)
from .run import run
from .save import check_out, make_folder, save_draws

_COLUMNS = {"true": "true", "mean": "mean", "sd": "sd", "z": "z", **DIAGNOSTICS}


class SimulatedData(NamedTuple):
    """A simulated design matrix, its responses and the true coefficients by name."""

    x: np.ndarray
    y: np.ndarray
    truth: pd.Series


def run_demo(*, rows: int, columns: int, settings: Settings, out: Path) -> int:
    """Simulate, fit, print and save. Returns the exit status."""
    console = Console(highlight=False, markup=False)
    check_out(out, overwrite=True)
    make_folder(out)
    data = simulate(rows, columns, settings.seed)
    names = list(data.truth.index)
    say(
        console,
        f"simulated: a logistic regression with {rows:,} rows and {columns} coefficients "
        f"(seed {settings.seed})",
    )
    posterior = logistic_regression(data.x, data.y, prior_variance=10.0)
    finished = run(posterior, settings, lambda plan: print_plan(console, settings, plan))

    summary = summarise(finished.draws, names)
    files = save_draws(out, finished.draws, summary, names)
    if summary is not None:
        compared = summary.assign(true=data.truth, z=(summary["mean"] - data.truth) / summary["sd"])
        print_coefficients(console, compared, _COLUMNS)
        outside = int((compared["z"].abs() > 2).sum())
        say(
            console,
            f"z = (mean − true) / sd: beyond ±2 for {outside} of {columns}; 1 in 20 is expected",
        )
        files.append(plot_posterior(out / "posterior.png", finished.draws, data.truth))
    print_cost(console, finished.draws)
    print_warnings(console, finished, summary)
    status = exit_status(console, finished)
    say(console, f"saved: {', '.join(files)} in {out}")
    return status


def simulate(rows: int, columns: int, seed: int) -> SimulatedData:
    """Simulate an intercept and standard normal covariates.

    The coefficients are small enough that both responses are common.
    """
    rng = np.random.default_rng(seed)
    names = [INTERCEPT, *(f"x{j}" for j in range(1, columns))]
    truth = pd.Series(rng.normal(0.0, 1.5 / np.sqrt(columns), columns), index=names)
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    x[:, 0] = 1.0
    odds = np.exp(x @ truth.to_numpy(np.float32))
    return SimulatedData(x, rng.random(rows, dtype=np.float32) < odds / (1 + odds), truth)
