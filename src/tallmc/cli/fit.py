"""`tallmc fit` turns a table into draws and a summary; `tallmc resume` continues a stored run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console

from ..core.errors import InvalidInput
from ..core.words import counted
from ..ingestion.parquet_shards import ParquetShards
from ..methods.method import Method
from ..methods.named import METHODS
from ..rows.sharded import ShardedRows
from ..store import Folder
from ..store.reader import open_store
from ..subsample import SizeChoice
from .in_place import times_slower
from .plan import Settings
from .problem import LOG_SCALE, FamilyModel, FitProblem
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
    summarise,
)
from .run import Finished, go_on, run
from .save import check_out, make_folder, save_draws, save_json

_COLUMNS = {"mean": "mean", "sd": "sd", "q05": "q05", "q95": "q95", **DIAGNOSTICS}


def run_fit(
    path: Path,
    response: str,
    model: FamilyModel,
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
    _check_method(model, settings.method)
    problem = FitProblem.read(path, response, model, out_of_core)
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
    problem = FitProblem.of_run(about, table)
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
    columns = f"{counted(problem.n_columns, 'column')} and the response {problem.response}"
    contents = f"{counted(problem.n_rows, 'row')}, {columns}"
    rows = problem.posterior.rows
    say(
        console,
        f"{'opened' if isinstance(rows, ShardedRows) else 'read'}: {contents} from {problem.path}",
    )
    if isinstance(rows, ShardedRows) and isinstance(rows.shards, ParquetShards):
        slower = times_slower(rows.shards)
        say(
            console,
            f"a pass takes about {slower:.0f} times as long as with a row store: for many passes, "
            f"first run `tallmc ingest {problem.path} -o ROWS --response {problem.response}`",
        )


def _report_and_save(
    console: Console, problem: FitProblem, settings: Settings, finished: Finished, out: Path | None
) -> int:
    """Save to `out` if given, print, and return the exit status."""
    names, files = problem.names, []
    summary = summarise(finished.draws, names)
    if out is not None:
        files = save_draws(out, finished.draws, summary, names)
        files.append(save_json(out / "scaling.json", _scaling_content(problem, settings, finished)))
    if summary is not None:
        print_coefficients(console, summary, _COLUMNS)
        if problem.sds:
            unit = (
                "in standard deviations of the response "
                if problem.model.family == "gaussian"
                else ""
            )
            say(
                console,
                f"Coefficients are {unit}per standard deviation of their column; "
                "scaling.json lists the standard deviations.",
            )
        if problem.model.has_unknown_noise:
            unit = ", in standard deviations of the response" if problem.sds else ""
            say(console, f"{LOG_SCALE} is the log of the standard deviation of the noise{unit}.")
    print_cost(console, finished.draws)
    print_warnings(console, finished, summary)
    status = exit_status(console, finished)
    if out is not None:
        say(console, f"saved: {', '.join(files)} in {out}")
    if finished.store is not None:
        say(console, f"stored: {finished.store}; see `tallmc report {finished.store}`")
    return status


def _check_method(model: FamilyModel, method: str | None) -> None:
    if method is None:
        return
    if method not in METHODS:
        raise InvalidInput(
            "--method", f"be one of {', '.join(METHODS)}", method, "See `tallmc methods`."
        )
    if METHODS[method].axes["size"] != "adaptive":
        return
    cure = f"Use {method.removeprefix('a')}."
    if model.family == "poisson":
        rule = (
            "have a fixed size with --family poisson (adaptive sizes need a bound on the "
            "curvature, and Poisson regression has none)"
        )
        raise InvalidInput("--method", rule, method, cure)
    if model.has_unknown_noise:
        rule = (
            "have a fixed size with --family gaussian and unknown noise (adaptive sizes need a "
            "bound on the curvature, and an unknown noise scale has none)"
        )
        raise InvalidInput("--method", rule, method, f"{cure[:-1]}, or pass --noise-variance.")


def _scaling_content(problem: FitProblem, settings: Settings, finished: Finished) -> dict[str, Any]:
    """Return what is needed to interpret and to reproduce the draws."""
    run_settings = finished.draws.settings
    method = run_settings["method"]
    size = method.size if isinstance(method, Method) else None
    schedule = getattr(method, "step_size", None)
    return {
        "table": str(problem.path),
        "response": problem.response,
        "coefficients": list(problem.names),
        "means": problem.means,
        "sds": problem.sds,
        **dataclasses.asdict(problem.model),
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
