"""The commands.

Function bodies import what they need, so that `--help` and `--version` stay fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.main import get_command

from .._core.programs import cache
from .._version import __version__
from . import options
from .options import flag, known, option, out, placed
from .signals import exit_on_signals

_SAMPLED = (
    "Exit status: 0 fine; 1 some chain failed; 2 bad input; "
    "3 the draws should not be trusted, for the reasons printed; "
    "4 the store could not be written, e.g. because the disk is full; 130 Ctrl-C; 143 SIGTERM. "
    "Except with status 2, the draws so far are written."
)
_INGESTED = (
    "Exit status: 0 fine; 2 bad input; 4 the store could not be written, e.g. because the "
    "disk is full; 130 Ctrl-C; 143 SIGTERM. After 4, 130 and 143, the same command goes on after "
    "the last shard."
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bayesian inference on millions of rows, in seconds, with a verdict on the answer.",
    epilog="Compiled programs are kept in the user's cache folder (at most 1 GiB), so that later "
    "runs start sooner. TALLMC_CACHE=DIR changes the folder; TALLMC_CACHE=off disables the cache.",
)


def command(app: typer.Typer) -> Any:
    """The application as a command. Flags have no type in `--help`; typer would show `<bool>`."""
    made: Any = get_command(app)
    context = typer.Context(made, **made.context_settings)
    for each in (made, *getattr(made, "commands", {}).values()):
        for parameter in each.get_params(typer.Context(each, parent=context)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
    return made


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tallmc {__version__}")
        raise typer.Exit


@app.callback()
def tallmc(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    cache()


@app.command()
def methods(
    name: Annotated[str | None, placed("methods.name")] = None, *, json: options.Json = False
) -> None:
    """List the methods with their components and references, or describe one of them."""
    from .methods import print_method, print_methods

    if name is None:
        print_methods(as_json=json)
    else:
        print_method(name, as_json=json)


@app.command(epilog=_INGESTED)
def ingest(
    tables: Annotated[list[Path], placed("ingest.tables")],
    *,
    out: Annotated[Path, out("OUT", "New folder for the row store.")],
    response: Annotated[str | None, known("ingest.response")] = None,
    no_standardise: Annotated[bool, known("ingest.no_standardise")] = False,
    no_intercept: Annotated[bool, flag("--no-intercept", "Do not add a column of ones.")] = False,
    float64: Annotated[bool, known("ingest.float64")] = False,
    max_levels: Annotated[int, known("ingest.max_levels", min=1)] = 2**20,
    missing: Annotated[Literal["raise", "drop", "indicator"], known("ingest.missing")] = "raise",
    append: Annotated[bool, known("ingest.append")] = False,
    no_progress: Annotated[bool, flag("--no-progress", "Do not show progress.")] = False,
) -> None:
    """Write tables of any size into a row store: a folder of .npy files with a manifest.

    The tables are read in pieces: memory does not grow with them.
    Columns of text become one 0/1 column per level but the first one.
    An interrupted command goes on where it stopped when it is run again.
    """
    import time

    from .._ingestion import ingest
    from .._ingestion.errors import some

    began = time.perf_counter()
    try:
        with exit_on_signals("stopped; the same command goes on from here"):
            manifest = ingest(
                tables,
                out,
                response=response,
                standardise=not no_standardise,
                intercept=not no_intercept,
                dtype="float64" if float64 else "float32",
                max_levels=max_levels,
                missing=missing,
                append=append,
                progress=False if no_progress else None,
            )
    except OSError as error:
        typer.echo(f"tallmc: {out} could not be written: {error}", err=True)
        raise typer.Exit(4) from None
    seconds = time.perf_counter() - began
    megabytes = sum((out / shard.name).stat().st_size for shard in manifest.shards) / 1e6
    print(
        f"wrote {out}: {manifest.n_rows:,} rows of {len(manifest.columns)} numbers, "
        f"{megabytes:,.1f} MB in {seconds:.1f} s ({megabytes / seconds:,.0f} MB/s)"
    )
    print(f"columns: {some(manifest.names)}")
    for category in manifest.categories:
        if category.name != response:
            print(f"{category.name}: compared with {category.levels[0]!r}")
    named = "" if response is None else f" --response {response}"
    print(f"fit it with: tallmc fit {out}{named} --family FAMILY -o fit")


@app.command(epilog=_SAMPLED)
def fit(
    table: Annotated[Path, placed("fit.table")],
    *,
    formula: Annotated[str | None, known("formula")] = None,
    response: Annotated[str | None, known("response")] = None,
    family: Annotated[str, known("family")],
    link: Annotated[str | None, known("link")] = None,
    prior: Annotated[list[str] | None, known("prior")] = None,
    prior_only: Annotated[bool, known("prior_only")] = False,
    noise_variance: Annotated[float | None, known("noise_variance")] = None,
    quantile: Annotated[float | None, known("quantile")] = None,
    breaks: Annotated[list[float] | None, known("breaks")] = None,
    no_standardise: Annotated[bool, known("no_standardise")] = False,
    no_intercept: Annotated[bool, known("no_intercept")] = False,
    standardised: Annotated[bool, known("standardised")] = False,
    weights: Annotated[str | None, known("weights")] = None,
    offset: Annotated[str | None, known("offset")] = None,
    exposure: Annotated[str | None, known("exposure")] = None,
    trials: Annotated[str | None, known("trials")] = None,
    exclude: Annotated[list[str] | None, known("exclude")] = None,
    categorical: Annotated[list[str] | None, known("categorical")] = None,
    level: Annotated[list[str] | None, known("level")] = None,
    missing: Annotated[str, known("missing")] = "raise",
    separator: Annotated[str | None, known("separator")] = None,
    method: Annotated[str | None, known("method")] = None,
    step_size: Annotated[float | None, known("step_size")] = None,
    batch_size: Annotated[int | None, known("batch_size", min=1)] = None,
    within: Annotated[str | None, known("within")] = None,
    exact: Annotated[bool, known("exact")] = False,
    chains: options.Chains = None,
    draws: options.DrawsPerChain = None,
    ess: options.Ess = None,
    max_seconds: options.MaxSeconds = None,
    thin: Annotated[int | None, known("thin", min=1)] = None,
    burn_in: Annotated[int | None, known("burn_in", min=0)] = None,
    seed: options.Seed = 0,
    out: Annotated[Path, out("OUT", "Folder for the results.")],
    overwrite: options.Overwrite = False,
    store: Annotated[Path | None, known("fit.store")] = None,
    out_of_core: Annotated[bool, known("out_of_core")] = False,
    workers: options.Workers = None,
    scheduler: options.Scheduler = None,
    no_progress: options.NoProgress = False,
) -> None:
    """Fit a regression to a table; write draws.nc, summary.csv and fit.json into a folder.

    Columns of text are categories; the first level is the baseline. The command prints what it
    chose: baselines, the level that counts as 1, priors.

    Without --method, pilot runs choose all settings.
    The command prints the choice, the reasons for it and the possible error of the draws.
    With --method, the curvature at the mode determines step size and thinning unless given.
    """
    with exit_on_signals():
        from .._fit.model import RegressionModel
        from ..priors import parse_priors
        from .fit import Job, Readers, run_fit
        from .run import Settings

        levels = tuple(level or ())
        model = RegressionModel(
            family=family,
            link=link,
            response=response or (None if formula else "y"),
            formula=formula,
            prior={term: found.shown for term, found in parse_priors(prior or []).items()},
            noise_variance=noise_variance,
            weights=weights,
            offset=offset,
            exposure=exposure,
            trials=trials,
            quantile=quantile,
            breaks=tuple(breaks) if breaks else None,
            exclude=tuple(exclude or ()),
            categorical=tuple(categorical or ()),
            missing=missing,
            standardise=not no_standardise,
            intercept=not no_intercept,
            level=levels if len(levels) > 1 else (levels[0] if levels else None),
            standardised_results=standardised,
            separator=separator,
        )
        settings = Settings(
            method, step_size, batch_size, chains, draws, ess, burn_in, thin, seed, exact, within
        )
        job = Job(out, overwrite, not no_progress, max_seconds, Readers(workers, scheduler))
        status = run_fit(
            table, model, settings, job, store=store, out_of_core=out_of_core, prior_only=prior_only
        )
    raise typer.Exit(status)


@app.command(epilog=_SAMPLED)
def update(
    fit: options.FitFolder,
    table: Annotated[Path, placed("update.table")],
    *,
    old_rows: Annotated[Path | None, known("update.old_rows", show_default=False)] = None,
    formula: options.FormulaAgain = None,
    chains: options.Chains = None,
    draws: options.DrawsPerChain = None,
    ess: options.Ess = None,
    max_seconds: options.MaxSeconds = None,
    seed: options.Seed = 0,
    out: Annotated[
        Path | None, out("OUT", "Folder for the results. Default: FIT, whose are replaced.")
    ] = None,
    overwrite: options.Overwrite = False,
    workers: options.Workers = None,
    scheduler: options.Scheduler = None,
    no_progress: options.NoProgress = False,
) -> None:
    """Add new rows to a fit of the default method, without fitting the old rows again.

    The fit keeps what it needs to know about its rows: the cost depends on the new ones.
    Columns are scaled as in the first fit, whose default priors stay.
    """
    with exit_on_signals():
        from .fit import Job, Readers, run_update
        from .run import Settings

        job = Job(out, overwrite, not no_progress, max_seconds, Readers(workers, scheduler))
        settings = Settings(chains=chains, n_draws=draws, ess=ess, seed=seed)
        status = run_update(fit, table, settings, job, old_rows=old_rows, formula=formula)
    raise typer.Exit(status)


@app.command(epilog=_SAMPLED)
def resume(
    run: options.RunFolder,
    *,
    table: options.TablePath = None,
    formula: options.FormulaAgain = None,
    draws: options.DrawsPerChain = None,
    ess: options.Ess = None,
    max_seconds: options.MaxSeconds = None,
    out: Annotated[Path | None, out("OUT", "Folder for the results.")] = None,
    overwrite: options.Overwrite = False,
    workers: options.Workers = None,
    scheduler: options.Scheduler = None,
    no_progress: options.NoProgress = False,
) -> None:
    """Continue or extend a stored run of a fit; the draws equal those of one long run."""
    with exit_on_signals():
        from .fit import Job, Readers, run_resume

        job = Job(out, overwrite, not no_progress, max_seconds, Readers(workers, scheduler))
        status = run_resume(run, job, table=table, formula=formula, n_draws=draws, ess=ess)
    raise typer.Exit(status)


@app.command(epilog="Exit status: 0 no warnings; 1 warnings printed; 2 no such run.")
def diagnose(run: options.RunFolder, json: options.Json = False) -> None:
    """Print the warnings about the draws of a stored run, each with a remedy."""
    import math
    from json import dumps

    from .._store.reader import draws_of, open_store
    from ..report.content import stored_doubts

    opened = open_store(run)
    draws = draws_of(opened)
    report, found = draws.report, stored_doubts(opened, draws)
    if json:
        chains, n_draws, d = draws.positions.shape
        content = {
            "run": str(run),
            "finished": opened.manifest.finished,
            "chains": chains,
            "draws": n_draws,
            "parameters": d,
            "ess": report.ess,
            "rhat": report.rhat if math.isfinite(report.rhat) else None,
            "verdict": str(report.verdict),
            "unknown": report.unknown,
            "warnings": found,
        }
        print(dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for message in found:
            print(f"warning: {message}")
        if not found:
            print(f"{report.verdict}: {report.meaning}")
        if report.unknown is not None:
            print(f"unknown: {report.unknown}")
    raise typer.Exit(1 if found else 0)


@app.command(epilog="Exit status: 0 fine; 2 bad input.")
def compare(
    fits: Annotated[list[Path], placed("compare.fits")],
    *,
    table: options.TablePath = None,
    formula: options.FormulaAgain = None,
    rows: Annotated[int, option("N", "How many rows are left out, one at a time.", min=2)] = 1000,
    folds: Annotated[int | None, known("compare.folds", min=2)] = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Compare fits by the log density of rows left out, by stacking and by their evidence."""
    from .._core.errors import InvalidInput
    from .._fit.stored import load_fit_and_form
    from ..diagnose.comparison import compare
    from .fit import FitProblem

    if len(set(fits)) < len(fits):
        raise InvalidInput("FIT", "be different folders", " ".join(map(str, fits)))
    loaded, of_fits = {}, []
    for path in fits:
        loaded[str(path)], form, about = load_fit_and_form(path, formula)
        problem = FitProblem.of_run(about, table, formula)
        # The rows of a posterior whose effects are integrated out are groups.
        of_fits.append(problem.path if form.integrates_effects else problem.posterior)
    found = compare(loaded, of_fits, n=rows, folds=folds, seed=seed)
    if json:
        print(found.to_json(orient="index", indent=2))
        return
    print(found.drop(columns="rank").to_string(float_format="{:.2f}".format))
    if found["warning"].any():
        cure = "pass --folds 10 for new fits without them"
        print(f"warning: rows with Pareto k > 0.7 have unreliable densities; {cure}")


@app.command(epilog="Exit status: 0 fine; 2 bad input.")
def effects(
    fit: options.FitFolder,
    *,
    column: Annotated[str | None, known("effects.column")] = None,
    by: Annotated[list[str] | None, known("effects.by")] = None,
    at: Annotated[list[str] | None, known("effects.at")] = None,
    ratio: Annotated[bool, flag("--ratio", "Ratios of averages, not differences.")] = False,
    robust: Annotated[bool, flag("--robust", "Robust (sandwich) errors.")] = False,
    cluster: Annotated[str | None, known("effects.cluster")] = None,
    table: options.TablePath = None,
    formula: options.FormulaAgain = None,
    json: options.Json = False,
) -> None:
    """Average the response over the rows of a fit, or the effect of a column on it."""
    from .. import diagnose
    from .._fit.marginal import marginal_effects
    from .._fit.stored import load_fit_and_form
    from .fit import FitProblem

    draws, _, about = load_fit_and_form(fit, formula)
    problem = FitProblem.of_run(about, table, formula)
    draws = draws.with_posterior(problem.posterior)
    if robust or cluster is not None:
        draws = diagnose.robust(draws, problem.path, cluster=cluster)
    comparison = "ratio" if ratio else "difference"
    found = marginal_effects(
        draws, problem.path, column, by=by or [], at=_values(at or []), comparison=comparison
    )
    frame = found.to_frame().reset_index(names=column or "response")
    if json:
        print(frame.to_json(orient="records", indent=2))
        return
    print(frame.to_string(index=False, float_format="{:.4g}".format))
    if draws.settings.get("errors"):
        print(f"errors: {draws.settings['errors']}")


def _values(texts: list[str]) -> dict[str, list[float | str]]:
    """Values of columns, from texts such as age=30,40."""
    from .._core.errors import InvalidInput

    found: dict[str, list[float | str]] = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or not values:
            raise InvalidInput("--at", "name a column and its values, as in age=30,40", text)
        found[name] = [_number(value) for value in values.split(",")]
    return found


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@app.command(epilog="Exit status: 0 written; 2 no such run.")
def report(
    run: options.RunFolder,
    *,
    out: Annotated[Path, out("FILE", "The HTML file to write.", show_default=True)] = Path(
        "report.html"
    ),
    parameter: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Parameter to plot; may be repeated. Default: the first six.",
            None,
            "--parameter",
            "-p",
        ),
    ] = None,
    table: options.TablePath = None,
    formula: options.FormulaAgain = None,
) -> None:
    """Write a self-contained HTML page on a stored run: its setup, posterior and reliability."""
    from rich.console import Console

    from .._fit.formulas import FormulaNeeded
    from .._store.reader import open_store
    from ..report import write_report
    from .fit import FitProblem

    # If the table no longer exists, or the formula is needed and not passed, the page omits the
    # parts that need it and says so.
    posterior = None
    about = open_store(run).setup.content["about"]
    if table is not None or Path(str(about.get("table", ""))).is_file():
        try:
            posterior = FitProblem.of_run(about, table, formula).posterior
        except FormulaNeeded:
            if table is not None:
                raise
    with Console(stderr=True).status("computing diagnostics and simulating responses"):
        write_report(run, out, posterior=posterior, parameters=parameter)
    print(f"written: {out}")


@app.command(epilog="Exit status: 0 written; 2 bad input.")
def predict(
    fit: options.FitFolder,
    table: Annotated[Path, placed("predict.table")],
    *,
    out: Annotated[
        Path,
        out("FILE", "File for the predictions: .parquet, .csv or .feather.", show_default=True),
    ] = Path("predictions.csv"),
    kind: Annotated[Literal["mean", "response", "median"], known("predict.kind")] = "mean",
    times: Annotated[list[float] | None, known("predict.times")] = None,
    interval: Annotated[float, known("predict.interval", min=0, max=1)] = 0.9,
    formula: options.FormulaAgain = None,
    seed: Annotated[int, option("N", "Random seed of simulated responses.", min=0)] = 0,
    missing: Annotated[Literal["raise", "nan"], known("predict.missing")] = "raise",
    new_groups: Annotated[Literal["raise", "draw"], known("predict.new_groups")] = "raise",
    overwrite: Annotated[bool, flag("--overwrite", "Replace a file that exists.")] = False,
) -> None:
    """Predict the response of new rows: mean, sd and an interval per row, averaged over draws."""
    from rich.console import Console

    from .._core.errors import counted
    from .._fit.reading import read_table
    from .._fit.stored import load_fit
    from .._rows.opening import is_row_store, open_rows
    from .output import check_table, say, write_table

    console = Console(highlight=False, markup=False)
    check_table(out, overwrite=overwrite)
    draws = load_fit(fit, formula)
    rows: Any = open_rows(table) if is_row_store(table) else read_table(table)
    if times:
        prediction = draws.survival(
            rows, times, interval=interval, missing=missing, new_groups=new_groups
        )
    else:
        prediction = draws.predict(
            rows, kind=kind, interval=interval, seed=seed, missing=missing, new_groups=new_groups
        )
    write_table(prediction.to_arrow(), out)
    say(console, f"read: {counted(rows.n_rows, 'row')} from {table}")
    say(console, f"predicted: {prediction}")
    say(console, f"saved: {out} with the columns {', '.join(prediction.columns())}")
    for doubt in draws.report.doubts:
        say(console, f"warning: {doubt}")


@app.command(epilog=_SAMPLED)
def demo(
    rows: Annotated[int, option("N", "Number of rows to simulate.", min=100)] = 1_000_000,
    columns: Annotated[int, known("demo.columns", min=2)] = 20,
    seed: options.Seed = 0,
    chains: options.Chains = None,
    draws: options.DrawsPerChain = None,
    ess: options.Ess = None,
    out: Annotated[
        Path,
        out("OUT", "Folder for the results. Existing results are replaced.", show_default=True),
    ] = Path("tallmc-demo"),
) -> None:
    """Simulate a logistic regression, fit it and compare the posterior with the true values.

    A million rows take seconds. More than a gigabyte of rows is written to a row store in OUT, and
    fitted from there: memory does not grow with the number of rows.
    """
    with exit_on_signals():
        from .demo import run_demo
        from .run import Settings

        settings = Settings(chains=chains, n_draws=draws, ess=ess, seed=seed)
        status = run_demo(rows=rows, columns=columns, settings=settings, out=out)
    raise typer.Exit(status)
