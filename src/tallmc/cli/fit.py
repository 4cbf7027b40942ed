"""`tallmc fit`, `tallmc update` with new rows, and `tallmc resume` of a stored run."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from .._core.errors import InvalidInput, counted
from .._core.packages import check_installed
from .._fit.fit import RegressionProblem, regression_problem, smooths_of_fit
from .._fit.model import RegressionModel
from .._fit.prior_predictive import simulated_from_priors
from .._fit.reading import read_table
from .._fit.regression import saved_form
from .._fit.stored import load_fit_and_form, resume
from .._ingestion.parquet_shards import ParquetShards, parquet_shards
from .._rows.manifest import MANIFEST
from .._rows.opening import open_rows
from .._rows.sharded import ShardedRows
from .._rows.shards import ByName
from .._store import Folder
from .._store.reader import open_store
from ..methods.method import Method
from ..methods.registry import method_named
from ..models.posterior import ModelPosterior
from ..report import write_prior_predictive
from ..results.draws import Draws
from ..results.saved import FIT_FILE
from ..results.smooths import notes_on_dimensions
from ..subsample import SizeChoice
from .output import (
    DIAGNOSTICS,
    check_out,
    make_folder,
    print_coefficients,
    print_end,
    print_outdated,
    print_plan,
    save_draws,
    save_json,
    say,
    shortened,
    summarise,
)
from .run import Finished, Settings, run

PRIOR_PAGE = "prior.html"
_RUN_KIND = "tallmc fit"
_COLUMNS = {"mean": "mean", "sd": "sd", "q05": "q05", "q95": "q95", **DIAGNOSTICS}


@dataclasses.dataclass(frozen=True)
class Readers:
    """Who reads a row store: this process, several processes, or a Dask cluster."""

    workers: int | None = None  # number of processes on this machine
    scheduler: str | None = None  # address of a Dask scheduler

    def __post_init__(self) -> None:
        if self.scheduler is None:
            return
        check_installed("dask", "distributed", needed_by="--scheduler")
        if self.workers is not None:
            rule = "be left out with --scheduler, whose cluster has its own workers"
            raise InvalidInput("--workers", rule, self.workers)

    @contextlib.contextmanager
    def executor(self) -> Iterator[Executor | None]:
        """The executor, which ends with the block; None if this process reads the rows."""
        if self.workers is not None:
            # JAX has threads, and a forked process would not have them.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(self.workers, context) as pool:
                yield pool
        elif self.scheduler is not None:
            with _client(self.scheduler) as client:
                yield client.get_executor()
        else:
            yield None


def _client(address: str) -> contextlib.AbstractContextManager:
    from dask.distributed import Client

    try:
        return Client(address)
    except OSError as error:
        cure = "Start one with `dask scheduler`, and workers with `dask worker ADDRESS`."
        found = f"{address}: {error}"
        raise InvalidInput("--scheduler", "be the address of one", found, cure) from None


@dataclasses.dataclass(frozen=True)
class Job:
    """What commands that sample have in common: where results go, who reads rows, how long."""

    out: Path | None
    overwrite: bool
    progress: bool
    max_seconds: float | None
    readers: Readers


def times_slower(shards: ParquetShards) -> float:
    """How many times longer it takes to decode rows than to read them from a row store.

    Measured with the first row group.
    """
    began = time.perf_counter()
    rows = shards.array(0)
    decoding = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "rows.npy"
        np.save(copy, rows, allow_pickle=False)
        began = time.perf_counter()
        np.load(copy, mmap_mode="r", allow_pickle=False).sum()
        reading = time.perf_counter() - began
    return decoding / reading


@dataclasses.dataclass(frozen=True)
class FitProblem:
    """A table or row store on disk, also that of a stored run, and the regression fitted to it."""

    path: Path
    regression: RegressionProblem

    @classmethod
    def read(
        cls,
        path: Path,
        model: RegressionModel,
        out_of_core: bool = False,
        *,
        integrate: bool = True,
    ) -> FitProblem:
        """Read a table into memory, or open a row store; `out_of_core` opens Parquet in place."""
        if not out_of_core or (path / MANIFEST).is_file():
            return cls(path, regression_problem(path, model, integrate=integrate))
        if model.response is None:
            cure = "Pass --response; the formula needs a row store or memory."
            raise InvalidInput("--formula", "be left out with --out-of-core", model.formula, cure)
        choices = {"standardise": model.standardise, "intercept": model.intercept}
        shards = parquet_shards([path], model.response, **choices)
        rows = ShardedRows(shards, ByName(shards.manifest.names))
        return cls(path, RegressionProblem.of_rows(rows, model))

    @classmethod
    def of_run(
        cls, about: Mapping[str, Any], table: Path | None, formula: str | None = None
    ) -> FitProblem:
        """Rebuild the problem that `about` in a store describes.

        `table` replaces a moved file. A formula that is not plain must be passed again.
        """
        form = saved_form(about, formula)
        if form is None:
            cure = "Resume it from Python: tallmc.resume(store, posterior)."
            rule = "come from `tallmc fit --store` or tallmc.fit(..., store=...)"
            raise InvalidInput("RUN", rule, "a run of another posterior", cure)
        path = Path(about.get("table", "-")) if table is None else table
        if table is None and str(path) == "-":
            cure = "Pass --table with the file, or --table - to read standard input."
            found = "a run on standard input, or on a table in memory"
            raise InvalidInput("--table", "be given", found, cure)
        return cls.read(path, form.model, bool(about.get("out_of_core", False)))

    @property
    def posterior(self) -> ModelPosterior:
        return self.regression.posterior

    @property
    def is_out_of_core(self) -> bool:
        return isinstance(self.posterior.rows, ShardedRows)

    def about(self) -> dict[str, Any]:
        """What a store needs to rebuild the problem."""
        is_stream = str(self.path) == "-"
        return {
            "kind": _RUN_KIND,
            "table": "-" if is_stream else str(self.path.resolve()),
            **self.regression.form.to_json(),
            "out_of_core": self.is_out_of_core,
        }


def run_fit(
    path: Path,
    model: RegressionModel,
    settings: Settings,
    job: Job,
    *,
    store: Path | None,
    out_of_core: bool,
    prior_only: bool,
) -> int:
    """Fit, print and save. Returns the exit status."""
    console, out = Console(highlight=False, markup=False), job.out
    assert out is not None, "the command needs it"
    check_out(out, overwrite=job.overwrite)
    if prior_only and store is not None:
        raise InvalidInput("--store", "be left out with --prior-only, which runs no chain", store)
    problem = FitProblem.read(path, model, out_of_core, integrate=not prior_only)
    if prior_only:
        make_folder(out)
        _print_problem(console, problem)
        found = simulated_from_priors(problem.posterior, seed=settings.seed)
        write_prior_predictive(found, out / PRIOR_PAGE)
        say(console, f"wrote: {PRIOR_PAGE} in {out}")
        return 0
    _check_size(problem, settings.method)
    make_folder(out)
    _print_problem(console, problem)
    about = problem.about() | {
        "settings": dataclasses.asdict(settings),
        "results": str(out.resolve()),
    }
    folder = None if store is None else Folder(store, about)
    with job.readers.executor() as executor:
        finished = run(
            problem.posterior,
            settings,
            lambda plan: print_plan(console, settings, plan),
            store=folder,
            progress=job.progress,
            max_seconds=job.max_seconds,
            executor=executor,
        )
    return _report_and_save(console, finished, out, _fit_content(problem, settings, finished))


def run_resume(
    store: Path,
    job: Job,
    *,
    table: Path | None,
    formula: str | None,
    n_draws: int | None,
    ess: float | None,
) -> int:
    """Continue a run of a fit. Returns the exit status."""
    console, out = Console(highlight=False, markup=False), job.out
    opened = open_store(store)
    about, draws_before = opened.setup.content["about"], opened.manifest.n_draws
    if out is not None:
        check_out(out, overwrite=job.overwrite)
    problem = FitProblem.of_run(about, table, formula)
    if out is not None:
        make_folder(out)
    _print_problem(console, problem)
    with (
        job.readers.executor() as executor,
        warnings.catch_warnings(record=True, action="always") as caught,
    ):
        draws = resume(
            store,
            problem.posterior,
            n_draws=n_draws,
            ess=ess,
            max_seconds=job.max_seconds,
            progress=job.progress,
            executor=executor,
        )
    planning = about.get("planning", {"seconds": 0.0, "rows": 0})  # a run of Python has none
    settings = Settings(**about.get("settings", {}))
    finished = Finished.of(draws, planning, caught, store)
    content = _fit_content(problem, settings, finished)
    status = _report_and_save(console, finished, out, content)
    if draws.positions.shape[1] > draws_before:
        print_outdated(console, store, Path(about.get("results", "")), out)
    return status


def run_update(
    fit: Path,
    table: Path,
    settings: Settings,
    job: Job,
    *,
    old_rows: Path | None,
    formula: str | None,
) -> int:
    """Add the rows of a table, or those that a row store has grown by. Returns the exit status."""
    console, out = Console(highlight=False, markup=False), job.out
    check_out(out or fit, overwrite=job.overwrite or out is None)
    draws, form, about = load_fit_and_form(fit, formula)
    if out is None and not (fit / FIT_FILE).is_file():
        raise InvalidInput("--out", "be given to update a stored run", None)

    def read(path: Path) -> Any:
        if (path / MANIFEST).is_file():
            return RegressionProblem.of_rows(open_rows(path), form.model).posterior.rows
        return read_table(path, separator=form.model.separator)

    rows = read(table)
    with (
        job.readers.executor() as executor,
        warnings.catch_warnings(record=True, action="always") as caught,
    ):
        updated = draws.update(
            rows,
            old_rows=None if old_rows is None else read(old_rows),
            chains=settings.chains,
            n_draws=settings.n_draws,
            ess=settings.ess,
            max_seconds=job.max_seconds,
            seed=settings.seed,
            progress=job.progress,
            executor=executor,
        )
    finished = Finished.of(updated, {"seconds": 0.0, "rows": 0}, caught, None)
    old, new = draws.settings["n_rows"], finished.draws.settings["n_rows"]
    say(console, f"updated: {counted(new - old, 'new row')} from {table} beside {old:,} old ones")
    kept = out or (fit if finished.draws.stopped_by is None else None)
    if kept is not None:
        make_folder(kept)
    updates = [*about.get("updates", ()), {"table": str(table), "n_rows": new - old}]
    return _report_and_save(console, finished, kept, {**about, "updates": updates})


def _print_problem(console: Console, problem: FitProblem) -> None:
    regression, rows = problem.regression, problem.posterior.rows
    contents = (
        f"{counted(problem.posterior.n_rows, 'row')}, {counted(regression.n_columns, 'column')} "
        f"and the response {regression.response}"
    )
    verb = "opened" if problem.is_out_of_core else "read"
    source = "standard input" if str(problem.path) == "-" else str(problem.path)
    say(console, f"{verb}: {contents} from {source}")
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


def _report_and_save(
    console: Console, finished: Finished, out: Path | None, content: dict[str, Any]
) -> int:
    """Save to `out` if given, with this description; print, and return the exit status."""
    files: list[str] = []
    summary = summarise(finished.draws)
    if out is not None:
        files = save_draws(out, finished.draws, summary)
        files.append(save_json(out / FIT_FILE, content))
    if summary is not None:
        print_coefficients(console, summary, _COLUMNS)
        _print_smooths(console, finished.draws)
        say(console, f"Results are {finished.draws.settings['model']['results']}.")
    status = print_end(console, finished, summary, files, out)
    if finished.store is not None:
        say(console, f"stored: {finished.store}; see `tallmc report {finished.store}`")
    return status


def _print_smooths(console: Console, draws: Draws) -> None:
    """A line per smooth term, and notes on those whose k is too small."""
    table = smooths_of_fit(draws)
    if table is None:
        return
    for name, edf, most, sd in table[["edf", "most", "sd"]].itertuples():
        say(console, f"{name}: {edf:.1f} of {most:.0f} degrees of freedom, sd {sd:.3g}")
    for note in notes_on_dimensions(table):
        say(console, note)


def _check_size(problem: FitProblem, method: str | None) -> None:
    """Refuse adaptive sizes where the curvature has no bound."""
    if method is None or method_named(method).axes["size"] != "adaptive":
        return
    if not problem.posterior.model.bounded_curvature:
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
    size = method.batch_size if isinstance(method, Method) else None
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
            "batch_size": size.size if isinstance(size, SizeChoice) else size,
            "n_draws": finished.draws.positions.shape[1],  # fewer than requested after Ctrl-C
            "burn_in": run_settings["burn_in"],
            "thin": run_settings["thin"],
        },
        "tallmc_version": run_settings["tallmc_version"],
        "jax_version": run_settings["jax_version"],
    }
