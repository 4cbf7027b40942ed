"""The commands and their options. Bodies import what they need, so that `--help` and `--version` load none of it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from .._version import __version__

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bayesian inference on tall data by stochastic-gradient MCMC with preferential subsampling.",
)

_STATUSES = (
    "Exit status: 0 fine; 1 some chain failed; 2 bad input; 3 the draws should not be trusted, for the reasons printed; "
    "4 the store could not be written, as on a full disk; 130 Ctrl-C; 143 SIGTERM. "
    "With all but 2 the draws so far are written all the same."
)

_MODEL = "Model"
_SAMPLING = "Sampling"

Chains = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Independent chains; 8, or 4 with --method.", rich_help_panel=_SAMPLING),
]
Draws = Annotated[
    int | None,
    typer.Option(
        min=4, metavar="N", help="Draws kept from each chain, in place of --ess; 2000 with --method.", rich_help_panel=_SAMPLING
    ),
]
Ess = Annotated[
    float | None,
    typer.Option(
        min=1, metavar="N", help="Go on until every coefficient has so many effective draws; 1000.", rich_help_panel=_SAMPLING
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace results that are in OUT already.")]
Seed = Annotated[
    int,
    typer.Option(min=0, max=2**32 - 1, metavar="N", help="The same seed gives the same draws.", rich_help_panel=_SAMPLING),
]


NoProgress = Annotated[bool, typer.Option("--no-progress", help="Do not show progress.", rich_help_panel=_SAMPLING)]
Store = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a stored run.", show_default=False)]


class Terminated(KeyboardInterrupt):
    """SIGTERM: stop as for Ctrl-C."""


def _terminate(number: int, frame: object) -> NoReturn:
    raise Terminated


@contextlib.contextmanager
def _heeding_signals() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does; where there is no draw yet to show, only the status tells."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt as error:
        typer.echo("tallmc: stopped before the first draw", err=True)
        raise typer.Exit(143 if isinstance(error, Terminated) else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tallmc {__version__}")
        raise typer.Exit


@app.callback()
def tallmc(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def methods(json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of tables.")] = False) -> None:
    """List the methods, what they are composed of and where they come from."""
    from .listing import print_methods

    print_methods(as_json=json)


@app.command(epilog=_STATUSES)
def fit(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A .csv, .parquet or .npz file.", show_default=False)],
    *,
    response: Annotated[
        str, typer.Option(metavar="NAME", help="Column to explain; all others explain it.", rich_help_panel=_MODEL)
    ] = "y",
    family: Annotated[
        Literal["bernoulli", "gaussian", "poisson"],
        typer.Option(metavar="NAME", help="bernoulli (0/1), gaussian or poisson (counts).", rich_help_panel=_MODEL),
    ],
    prior_variance: Annotated[
        float, typer.Option(metavar="X", help="Of each coefficient, around 0.", rich_help_panel=_MODEL)
    ] = 10.0,
    noise_variance: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Of the response as modelled; gaussian only. Estimated unless given.", rich_help_panel=_MODEL
        ),
    ] = None,
    no_standardise: Annotated[
        bool, typer.Option("--no-standardise", help="Leave columns as they are, not mean 0 and sd 1.", rich_help_panel=_MODEL)
    ] = False,
    no_intercept: Annotated[
        bool, typer.Option("--no-intercept", help="Do not put a column of ones first.", rich_help_panel=_MODEL)
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="One that `tallmc methods` lists. Chosen for the data unless given.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    step_size: Annotated[
        float | None,
        typer.Option(metavar="X", help="With --method; from the curvature unless given.", rich_help_panel=_SAMPLING),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Rows a step sees, with --method; a thousandth, at least 32, unless given.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    chains: Chains = None,
    draws: Draws = None,
    ess: Ess = None,
    thin: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Steps for each draw; enough for it to be news unless given.", rich_help_panel=_SAMPLING
        ),
    ] = None,
    burn_in: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Steps thrown away at first; unless given, a tenth of those kept, or as many for ula, mala and sgld.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Folder for the results.", show_default=False)],
    overwrite: Overwrite = False,
    store: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="New folder for the run itself, which `tallmc resume` and `tallmc report` take."),
    ] = None,
    no_progress: NoProgress = False,
) -> None:
    """Fit a regression to a table; write draws.nc, summary.csv and scaling.json into a folder.

    A CSV or Parquet file has a column of numbers or booleans for each variable.
    An .npz file has a 1-D array for each, or a matrix X, the response y and, if you like, feature_names.

    Without --method everything is chosen by pilot runs, and what was chosen, why, and how wrong the draws may be is printed.
    With it, step size and thinning are chosen from the curvature at the mode unless given.
    """
    from .fit import run_fit
    from .plan import Settings
    from .problem import Model

    model = Model(
        family=family,
        prior_variance=prior_variance,
        noise_variance=noise_variance,
        standardise=not no_standardise,
        intercept=not no_intercept,
    )
    settings = Settings(
        method=method,
        step_size=step_size,
        size=size,
        chains=chains,
        draws=draws,
        ess=ess,
        burn_in=burn_in,
        thin=thin,
        seed=seed,
    )
    with _heeding_signals():
        status = run_fit(table, response, model, settings, out, overwrite=overwrite, store=store, progress=not no_progress)
    raise typer.Exit(status)


@app.command(epilog=_STATUSES)
def resume(
    run: Store,
    *,
    table: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="The table, where it is no longer at its place.", show_default=False)
    ] = None,
    draws: Draws = None,
    ess: Ess = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT", help="Folder for the results.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
    no_progress: NoProgress = False,
) -> None:
    """Go on with a run that `tallmc fit --store` began, or extend it: the draws are those of a run that was never cut."""
    from .fit import run_resume

    with _heeding_signals():
        status = run_resume(run, table=table, draws=draws, ess=ess, out=out, overwrite=overwrite, progress=not no_progress)
    raise typer.Exit(status)


@app.command(epilog="Exit status: 0 nothing speaks against the draws; 1 something does; 2 no such run.")
def diagnose(run: Store, json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False) -> None:
    """Say what speaks against the draws of a stored run, with what can be done about it."""
    from .stored import print_findings

    raise typer.Exit(print_findings(run, as_json=json))


@app.command(epilog="Exit status: 0 written; 2 no such run.")
def report(
    run: Store,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write.")] = Path("report.html"),
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME", help="Draw this one; may be repeated. The first six unless given."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="The table, where it is no longer at its place.", show_default=False)
    ] = None,
) -> None:
    """Write one self-contained HTML page about a stored run: what was run, the posterior, and how far to trust it."""
    from .stored import write_report

    raise typer.Exit(write_report(run, out, parameter, table))


@app.command(epilog=_STATUSES)
def demo(
    rows: Annotated[int, typer.Option(min=100, metavar="N", help="Rows to simulate.")] = 1_000_000,
    columns: Annotated[int, typer.Option(min=2, metavar="N", help="Coefficients, the intercept among them.")] = 20,
    seed: Seed = 0,
    chains: Chains = None,
    draws: Draws = None,
    ess: Ess = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="OUT", help="Folder for the results; its files are replaced.")
    ] = Path("tallmc-demo"),
) -> None:
    """Simulate a logistic regression, fit it, and compare with the truth: a million rows in well under a minute."""
    from .demo import run_demo
    from .plan import Settings

    settings = Settings(chains=chains, draws=draws, ess=ess, seed=seed)
    with _heeding_signals():
        status = run_demo(rows=rows, columns=columns, settings=settings, out=out)
    raise typer.Exit(status)


DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Folder of datasets; else TALLMC_DATA, else ../shared/data.", show_default=False),
]


@app.command(epilog="Exit status: 0 fine; 1 with --check, a claim that should hold does not; 2 bad input.")
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An experiment that --list names.", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="OUT", help="Folder for the results; reproduction/NAME.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer chains or passes: about a minute.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Fail when a claim that should hold does not.")] = False,
    data: DataFolder = None,
    as_: Annotated[
        Literal["run", "meant", "both"],
        typer.Option("--as", metavar="HOW", help="run (what the authors' code does), meant (what the paper says) or both."),
    ] = "both",
) -> None:
    """Run an experiment of a paper; write its numbers, its figure and a verdict."""
    from .reproduce import print_experiments, run_reproduction

    if list_:
        print_experiments()
        return
    if name is None:
        raise typer.BadParameter("give the NAME of an experiment, or --list", param_hint="NAME")
    raise typer.Exit(run_reproduction(name, out=out, quick=quick, check=check, data=data, variants=as_))


@app.command()
def data(folder: DataFolder = None) -> None:
    """List the datasets of the experiments, where they were found, and where to get the others."""
    from .reproduce import print_data

    print_data(folder)
