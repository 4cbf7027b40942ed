"""`tallmc fit`: a table in, draws and a summary out. `tallmc resume`: the same, from where a stored run got to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console

from .._errors import InvalidInput
from .._method import Method
from ..methods import METHODS
from ..store import Folder
from ..store.reader import open_store
from ..subsample import SizeChoice
from .design import Family
from .plan import Settings
from .problem import Model, Problem
from .report import DIAGNOSTICS, exit_status, print_coefficients, print_cost, print_plan, print_warnings, say, summarise
from .run import Finished, go_on, run
from .save import check_out, make_folder, save_draws, save_json

_COLUMNS = {"mean": "mean", "sd": "sd", "q05": "q05", "q95": "q95", **DIAGNOSTICS}


def run_fit(
    path: Path, response: str, model: Model, settings: Settings, out: Path, *, overwrite: bool, store: Path | None, progress: bool
) -> int:
    """Fit, print, save; returns the exit status."""
    console = Console(highlight=False, markup=False)
    check_out(out, overwrite=overwrite)
    _check_method(model.family, settings.method)
    problem = Problem.read(path, response, model)
    make_folder(out)
    _print_problem(console, problem)
    if model.noise_variance is None and problem.model.noise_variance is not None:
        unit = " of the standardised response" if model.standardise else ""
        say(console, f"noise variance{unit}: {problem.model.noise_variance:.4g}, that of the least-squares residuals")
    about = problem.about() | {"settings": dataclasses.asdict(settings)}
    folder = None if store is None else Folder(store, problem.labels, about)
    finished = run(
        problem.posterior, settings, console, lambda plan: print_plan(console, settings, plan), store=folder, progress=progress
    )
    return _show(console, problem, settings, finished, out)


def run_resume(
    store: Path, *, table: Path | None, draws: int | None, ess: float | None, out: Path | None, overwrite: bool, progress: bool
) -> int:
    """Go on with a run that `tallmc fit --store` began; returns the exit status."""
    console = Console(highlight=False, markup=False)
    about = open_store(store).setup.content["about"]
    if out is not None:
        check_out(out, overwrite=overwrite)
    problem = Problem.of_run(about, table)
    if out is not None:
        make_folder(out)
    _print_problem(console, problem)
    finished = go_on(problem.posterior, store, draws=draws, ess=ess, progress=progress)
    return _show(console, problem, Settings(**about["settings"]), finished, out)


def _print_problem(console: Console, problem: Problem) -> None:
    read = f"{problem.n_rows:,} rows, {problem.n_columns} columns and the response {problem.response}"
    say(console, f"read: {read} from {problem.path}")


def _show(console: Console, problem: Problem, settings: Settings, finished: Finished, out: Path | None) -> int:
    """Save where that is asked for, print, and return the exit status."""
    names, files = problem.design.names, []
    summary = summarise(finished.draws, names)
    if out is not None:
        files = save_draws(out, finished.draws, summary, names)
        files.append(save_json(out / "scaling.json", _scaling(problem, settings, finished)))
    if summary is not None:
        print_coefficients(console, summary, _COLUMNS)
        if problem.design.sds:
            unit = "in standard deviations of the response " if problem.model.family == "gaussian" else ""
            say(console, f"Coefficients are {unit}per standard deviation of their column; scaling.json has both.")
    print_cost(console, finished.draws)
    print_warnings(console, finished, summary)
    status = exit_status(console, finished)
    if out is not None:
        say(console, f"saved: {', '.join(files)} in {out}")
    if finished.store is not None:
        say(console, f"stored: {finished.store}; see `tallmc report {finished.store}`")
    return status


def _check_method(family: Family, method: str | None) -> None:
    if method is None:
        return
    if method not in METHODS:
        raise InvalidInput("--method", f"be one of {', '.join(METHODS)}", method, "See `tallmc methods`.")
    if family == "poisson" and METHODS[method].axes["size"] == "adaptive":
        rule = "have a fixed size with --family poisson, whose curvature has no bound for a size to adapt to"
        raise InvalidInput("--method", rule, method, f"Use {method.removeprefix('a')}.")


def _scaling(problem: Problem, settings: Settings, finished: Finished) -> dict[str, Any]:
    """How to read the draws, and how to make them again."""
    ran, plan, design = finished.draws.settings, finished.plan, problem.design
    size = ran["method"].size if isinstance(ran["method"], Method) else plan.size
    return {
        "table": str(problem.path),
        "response": problem.response,
        "coefficients": list(design.names),
        "means": design.means,
        "sds": design.sds,
        **dataclasses.asdict(problem.model),
        "settings": {
            **dataclasses.asdict(settings),
            "chains": finished.draws.positions.shape[0],
            "step_size": plan.step_size if plan.step_size else ran["method"].step_size,
            "size": size.size if isinstance(size, SizeChoice) else size,
            "draws": finished.draws.positions.shape[1],  # fewer than asked for after Ctrl-C
            "burn_in": ran["burn_in"],
            "thin": ran["thin"],
        },
        "tallmc_version": ran["tallmc_version"],
        "jax_version": ran["jax_version"],
    }
