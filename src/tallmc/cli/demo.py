"""`tallmc demo`: fit a simulated logistic regression and compare with the true coefficients."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.console import Console

from ..core.errors import InvalidInput
from ..core.quantities import Parameters
from ..models import logistic_regression
from ..models.posterior import ModelPosterior
from ..rows.manifest import MANIFEST
from ..rows.opening import open_rows
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
from .simulation import Simulation

_COLUMNS = {"true": "true", "mean": "mean", "sd": "sd", "z": "z", **DIAGNOSTICS}


_LARGEST_IN_MEMORY = 2**30  # bytes of rows


def run_demo(*, rows: int, columns: int, settings: Settings, out: Path) -> int:
    """Simulate, fit, print and save. Returns the exit status."""
    console = Console(highlight=False, markup=False)
    check_out(out, overwrite=True)
    simulation = Simulation(rows, columns, settings.seed)
    data = f"a logistic regression with {rows:,} rows and {columns} coefficients"
    if simulation.n_bytes <= _LARGEST_IN_MEMORY:
        make_folder(out)
        say(console, f"simulated: {data} (seed {settings.seed})")
        posterior = logistic_regression(*simulation.in_memory(), prior_variance=10.0)
    else:
        store = out / f"rows-{rows}-{columns}-{settings.seed}"
        if (store / MANIFEST).exists():
            say(console, f"found: {data} in {store}")
        else:
            _check_room(out, simulation.n_bytes)
            make_folder(out)
            disk = f"{simulation.n_bytes / 1e9:.1f} GB of disk space"
            say(console, f"simulating: {data} into {store}, which takes {disk}")
            simulation.into_row_store(store)
        posterior = logistic_regression(open_rows(store), prior_variance=10.0)
    truth = simulation.truth
    quantities = Parameters(posterior.layout.labelled({"beta": list(truth.index)}))
    posterior = ModelPosterior(posterior.model, posterior.rows, quantities)
    finished = run(posterior, settings, lambda plan: print_plan(console, settings, plan))

    summary = summarise(finished.draws)
    if summary is not None:
        summary.index = truth.index.rename(summary.index.name)
    files = save_draws(out, finished.draws, summary)
    if summary is not None:
        compared = summary.assign(true=truth, z=(summary["mean"] - truth) / summary["sd"])
        print_coefficients(console, compared, _COLUMNS)
        outside = int((compared["z"].abs() > 2).sum())
        say(
            console,
            f"z = (mean − true) / sd: beyond ±2 for {outside} of {columns}; 1 in 20 is expected",
        )
        files.append(plot_posterior(out / "posterior.png", finished.draws, truth))
    print_cost(console, finished.draws)
    print_warnings(console, finished, summary)
    status = exit_status(console, finished)
    say(console, f"saved: {', '.join(files)} in {out}")
    return status


def _check_room(out: Path, n_bytes: int) -> None:
    """Check that there is room for the rows, and for the weights beside them."""
    existing = next(folder for folder in (out, *out.resolve().parents) if folder.exists())
    free, needed = shutil.disk_usage(existing).free, 1.1 * n_bytes
    if free < needed:
        rule = f"be on a disk with {needed / 1e9:.1f} GB of free space"
        raise InvalidInput("--out", rule, f"{free / 1e9:.1f} GB", "Pass fewer --rows.")
