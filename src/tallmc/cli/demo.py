"""`tallmc demo`: fit a simulated logistic regression and compare with the true coefficients."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console

from .._core.arrays import Parameters
from .._core.errors import InvalidInput
from .._core.packages import check_installed
from .._core.supervision import core_count, in_threads
from .._ingestion.errors import INTERCEPT
from .._ingestion.ingest import shown
from .._rows.manifest import MANIFEST, Column
from .._rows.opening import open_rows
from .._rows.writer import RowStoreWriter
from ..models import logistic_regression
from ..models.posterior import ModelPosterior
from ..results.draws import Draws
from .output import (
    DIAGNOSTICS,
    check_out,
    make_folder,
    print_coefficients,
    print_end,
    print_plan,
    save_draws,
    say,
    summarise,
)
from .run import Settings, run

RESPONSE = "y"
_ROWS_PER_PIECE = 2**17
_LARGEST_IN_MEMORY = 2**30  # bytes of rows
_COLUMNS = {"true": "true", "mean": "mean", "sd": "sd", "z": "z", **DIAGNOSTICS}
_BLUE, _RED = "#2a6f97", "#c1121f"


class Simulation(NamedTuple):
    """A logistic regression with an intercept and standard normal covariates.

    The coefficients are small enough that both responses are common.
    """

    n_rows: int
    n_columns: int
    seed: int

    @property
    def truth(self) -> pd.Series:
        """The true coefficients by name."""
        names = [INTERCEPT, *(f"x{j}" for j in range(1, self.n_columns))]
        rng = np.random.default_rng(self.seed)
        scale = 1.5 / np.sqrt(self.n_columns)
        return pd.Series(rng.normal(0.0, scale, self.n_columns), index=names)

    @property
    def n_bytes(self) -> int:
        """Bytes that the rows take."""
        return 4 * self.n_rows * (self.n_columns + 1)

    def in_memory(self) -> tuple[np.ndarray, np.ndarray]:
        """The design matrix and the responses."""
        rng = np.random.default_rng(self.seed)
        coefficients = self.truth.to_numpy(np.float32)
        rng.normal(size=self.n_columns)  # the numbers of the coefficients
        x = rng.standard_normal((self.n_rows, self.n_columns), dtype=np.float32)
        x[:, 0] = 1.0
        return x, _responses(rng, x, coefficients)

    def into_row_store(self, folder: Path) -> None:
        """Write the rows into a new row store, or go on with an unfinished one."""
        names = self.truth.index
        columns = [Column(name, name, standardised=name != INTERCEPT) for name in names]
        response = Column(RESPONSE, RESPONSE, mean=0.5, sd=0.5, low=0.0, high=1.0, whole=True)
        source = {"simulation": list(self)}
        with RowStoreWriter(folder, [*columns, response], "float32", RESPONSE, source) as writer:
            pieces = self._pieces(writer.n_rows)
            for piece in shown(pieces, "simulating", writer.n_rows, self.n_rows, None):
                writer.append(piece)
            writer.finish()

    def _pieces(self, done: int) -> Iterator[np.ndarray]:
        """All rows but the first `done`, a piece per core at a time."""
        coefficients = self.truth.to_numpy(np.float32)
        count, at_once = -(-self.n_rows // _ROWS_PER_PIECE), core_count()
        for number in range(done // _ROWS_PER_PIECE, count, at_once):
            some = range(number, min(number + at_once, count))
            made = in_threads(functools.partial(self._piece, coefficients), some)
            for k, rows in zip(some, made, strict=True):
                yield rows[max(0, done - k * _ROWS_PER_PIECE) :]

    def _piece(self, coefficients: np.ndarray, number: int) -> np.ndarray:
        """Some rows, with random numbers of their own."""
        rng = np.random.default_rng([self.seed, number])
        count = min(_ROWS_PER_PIECE, self.n_rows - number * _ROWS_PER_PIECE)
        lines = np.empty((count, self.n_columns + 1), np.float32)
        x = rng.standard_normal((count, self.n_columns), dtype=np.float32)
        x[:, 0] = 1.0
        lines[:, :-1], lines[:, -1] = x, _responses(rng, x, coefficients)
        return lines


def _responses(rng: np.random.Generator, x: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    odds = np.exp(x @ coefficients)
    return rng.random(len(x), dtype=np.float32) < odds / (1 + odds)


def plot_posterior(path: Path, draws: Draws, truth: pd.Series) -> str:
    """Plot 50 % and 90 % intervals and the true values. Returns the file name.

    The intervals are drawn relative to the true values, because with many rows they are much
    narrower than the spread of the coefficients.
    """
    from matplotlib.figure import Figure  # an extra

    positions = np.asarray(draws.positions[draws.ok], np.float64).reshape(-1, len(truth))
    q05, q25, q50, q75, q95 = np.quantile(positions, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    true, at = truth.to_numpy(), np.arange(len(truth))

    figure = Figure(figsize=(10, min(1.8 + 0.3 * len(truth), 120)), layout="constrained")
    values, errors = figure.subplots(1, 2, sharey=True, width_ratios=[2, 3])
    values.scatter(q50, at, s=30, color=_BLUE, label="posterior median", zorder=2)
    values.scatter(true, at, s=70, marker="|", color=_RED, label="true value", zorder=3)
    values.set(xlabel="coefficient", yticks=at, yticklabels=list(truth.index))
    values.invert_yaxis()

    errors.axvline(0, color=_RED, linewidth=1.5, label="true value", zorder=1)
    for low, high, width, share in ((q05, q95, 1.5, "90 %"), (q25, q75, 5, "50 %")):
        look = {"color": _BLUE, "linewidth": width, "label": f"{share} interval", "zorder": 2}
        errors.hlines(at, low - true, high - true, **look)
    errors.scatter(q50 - true, at, s=14, color="white", edgecolor=_BLUE, zorder=3)
    errors.set(xlabel="coefficient − true value")

    for axes in (values, errors):
        axes.grid(axis="y", color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.legend(
            loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=9
        )
    n_rows = draws.settings["n_rows"]
    figure.suptitle(f"Logistic regression, {n_rows:,} rows: posterior and truth")
    figure.savefig(path, dpi=150)
    return path.name


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
        try:
            check_installed("matplotlib", needed_by="the plot of the demo")
            files.append(plot_posterior(out / "posterior.png", finished.draws, truth))
        except ModuleNotFoundError as error:
            say(console, f"no plot: {error}")
    return print_end(console, finished, summary, files, out)


def _check_room(out: Path, n_bytes: int) -> None:
    """Check that there is room for the rows, and for the weights beside them."""
    existing = next(folder for folder in (out, *out.resolve().parents) if folder.exists())
    free, needed = shutil.disk_usage(existing).free, 1.1 * n_bytes
    if free < needed:
        rule = f"be on a disk with {needed / 1e9:.1f} GB of free space"
        raise InvalidInput("--out", rule, f"{free / 1e9:.1f} GB", "Pass fewer --rows.")
