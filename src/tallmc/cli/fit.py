"""`tallmc fit` turns a table into draws and a summary; `tallmc resume` continues a stored run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console

from ..core.errors import InvalidInput
from ..core.words import counted
from ..frontends.loading import FIT_FILE
from ..frontends.regression_model import RegressionModel
from ..ingestion.parquet_shards import ParquetShards
from ..methods.method import Method
from ..methods.named import METHODS
from ..models.curvature import has_bounded_curvature
from ..rows.sharded import ShardedRows
from ..store import Folder
from ..store.reader import open_store
from ..subsample import SizeChoice
from .in_place import times_slower
from .plan import Settings
from .problem import FitProblem
from .readers import NO_READERS, Readers
from .report import (
    DIAGNOSTICS,
    exit_status,
    print_coefficients,
    print_cost,
    print_outdated,
    print_plan,
    print_warnings,
    say,
    shortened,
    summarise,
)
from .run import Finished, go_on, run
from .save import check_out, make_folder, save_draws, save_json

_COLUMNS = {"mean": "mean", "sd": "sd", "q05": "q05", "q95": "q95", **DIAGNOSTICS}


def run_fit(
    path: Path,
    model: RegressionModel,
    settings: Settings,
    out: Path,
    *,
    overwrite: bool,
    store: Path | None,
    progress: bool,
    max_seconds: float | None = None,
    readers: Readers = NO_READERS,
    out_of_core: bool = False,
) -> int:
    """Fit, print and save. Returns the exit status."""
    console = Console(highlight=False, markup=False)
    check_out(out, overwrite=overwrite)
    _check_known(settings.method)
    problem = FitProblem.read(path, model, out_of_core)
    _check_size(problem, settings.method)
    make_folder(out)
    _print_problem(console, problem)
    about = problem.about() | {
        "settings": dataclasses.asdict(settings),
        "results": str(out.resolve()),
    }
    folder = None if store is None else Folder(store, about)
    with readers.executor() as executor:
        finished = run(
            problem.posterior,
            settings,
            lambda plan: print_plan(console, settings, plan),
            store=folder,
            progress=progress,
            max_seconds=max_seconds,
            executor=executor,
        )
    return _report_and_save(console, problem, settings, finished, out)


def run_resume(
    store: Path,
    *,
    table: Path | None,
    formula: str | None = None,
    draws: int | None,
    ess: float | None,
    out: Path | None,
    overwrite: bool,
    progress: bool,
    max_seconds: float | None = None,
    readers: Readers = NO_READERS,
) -> int:
    """Continue a run of `tallmc fit --store`. Returns the exit status."""
    console = Console(highlight=False, markup=False)
    opened = open_store(store)
    about, draws_before = opened.setup.content["about"], opened.manifest.n_draws
    if out is not None:
        check_out(out, overwrite=overwrite)
    problem = FitProblem.of_run(about, table, formula)
    if out is not None:
        make_folder(out)
    _print_problem(console, problem)
    with readers.executor() as executor:
        finished = go_on(
            problem.posterior,
            store,
            draws=draws,
            ess=ess,
            max_seconds=max_seconds,
            progress=progress,
            executor=executor,
        )
    status = _report_and_save(console, problem, Settings(**about["settings"]), finished, out)
    if finished.draws.positions.shape[1] > draws_before:
        print_outdated(console, store, Path(about.get("results", "")), out)
    return status


def _print_problem(console: Console, problem: FitProblem) -> None:
    regression, rows = problem.regression, problem.posterior.rows
    contents = (
        f"{counted(problem.posterior.n_rows, 'row')}, {counted(regression.n_columns, 'column')} "
        f"and the response {regression.response}"
    )
    verb = "opened" if problem.is_out_of_core else "read"
    say(console, f"{verb}: {contents} from {_shown(problem.path)}")
    for note in regression.notes:
        say(console, f"note: {note}")
    for part in ("prior", "prior of shared parameters"):
        if part in problem.posterior.description:
            say(console, f"{part}: {shortened(problem.posterior.description[part])}")
    if isinstance(rows, ShardedRows) and isinstance(rows.shards, ParquetShards):
        slower = times_slower(rows.shards)
        say(
            console,
            f"a pass takes about {slower:.0f} times as long as with a row store: for many passes, "
            f"first run `tallmc ingest {problem.path} -o ROWS --response {regression.response}`",
        )


def _shown(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


def _report_and_save(
    console: Console, problem: FitProblem, settings: Settings, finished: Finished, out: Path | None
) -> int:
    """Save to `out` if given, print, and return the exit status."""
    files: list[str] = []
    summary = summarise(finished.draws)
    if out is not None:
        files = save_draws(out, finished.draws, summary)
        files.append(save_json(out / FIT_FILE, _fit_content(problem, settings, finished)))
    if summary is not None:
        print_coefficients(console, summary, _COLUMNS)
        say(console, f"Results are {problem.posterior.description['results']}.")
    print_cost(console, finished.draws)
    print_warnings(console, finished, summary)
    status = exit_status(console, finished)
    if out is not None:
        say(console, f"saved: {', '.join(files)} in {out}")
    if finished.store is not None:
        say(console, f"stored: {finished.store}; see `tallmc report {finished.store}`")
    return status


def _check_known(method: str | None) -> None:
    if method is not None and method not in METHODS:
        raise InvalidInput(
            "--method", f"be one of {', '.join(METHODS)}", method, "See `tallmc methods`."
        )


def _check_size(problem: FitProblem, method: str | None) -> None:
    """Refuse adaptive sizes where the curvature has no bound."""
    if method is None or METHODS[method].axes["size"] != "adaptive":
        return
    if not has_bounded_curvature(problem.posterior.model):
        family = problem.posterior.description["family"]
        rule = (
            f"have a fixed size with --family {family} (adaptive sizes need a bound on the "
            "curvature, and this model has none)"
        )
        other = ", or pass --noise-variance" if family == "gaussian" else ""
        raise InvalidInput("--method", rule, method, f"Use {method.removeprefix('a')}{other}.")


def _fit_content(problem: FitProblem, settings: Settings, finished: Finished) -> dict[str, Any]:
    """Return what is needed to interpret the draws, to reproduce them and to predict with them."""
    run_settings = finished.draws.settings
    method = run_settings["method"]
    size = method.size if isinstance(method, Method) else None
    schedule = getattr(method, "step_size", None)
    columns = problem.regression.form.columns
    return {
        **problem.about(),
        "description": dict(problem.posterior.description),
        "columns": list(columns.names),
        "means": columns.means.tolist(),
        "sds": columns.sds.tolist(),
        "settings": {
            **dataclasses.asdict(settings),
            "chains": finished.draws.positions.shape[0],
            "step_size": getattr(schedule, "step_size", schedule),
            "size": size.size if isinstance(size, SizeChoice) else size,
            "draws": finished.draws.positions.shape[1],  # fewer than requested after Ctrl-C
            "burn_in": run_settings["burn_in"],
            "thin": run_settings["thin"],
        },
        "tallmc_version": run_settings["tallmc_version"],
        "jax_version": run_settings["jax_version"],
    }
