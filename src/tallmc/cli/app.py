"""The command line application, and the commands that ingest, inspect or reproduce.

Function bodies import what they need, so that `--help` and `--version` stay fast. The commands
that sample are in `sampling_commands`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.main import get_command

from .._version import __version__
from ..core.cache import cache
from .model_options import FormulaAgain
from .sampling_commands import EXIT_STATUSES, RunFolder, TablePath, demo, fit, resume

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bayesian inference on tall data by stochastic-gradient MCMC with preferential "
    "subsampling.",
    epilog="Compiled programs are kept in the user's cache folder (at most 1 GiB), so that later "
    "runs start sooner. TALLMC_CACHE=DIR changes the folder; TALLMC_CACHE=off disables the cache.",
)

_DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Folder of datasets. Default: TALLMC_DATA if set, else ../shared/data.",
        show_default=False,
    ),
]


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


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A method, to print its equations, bias, cost and references.",
            show_default=False,
        ),
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List the methods with their components and references, or describe one of them."""
    from .listing import print_method, print_methods

    if name is None:
        print_methods(as_json=json)
    else:
        print_method(name, as_json=json)


def ingest(
    tables: Annotated[
        list[Path],
        typer.Argument(
            metavar="TABLE...",
            help="Files (.csv, .csv.gz, .parquet, .arrow, .feather, .npz), or folders of them.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="OUT", help="New folder for the row store.", show_default=False
        ),
    ],
    response: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the response column, which is stored as it is, after the others.",
            show_default=False,
        ),
    ] = None,
    no_standardise: Annotated[
        bool,
        typer.Option("--no-standardise", help="Do not scale the columns to mean 0 and sd 1."),
    ] = False,
    no_intercept: Annotated[
        bool, typer.Option("--no-intercept", help="Do not add a column of ones.")
    ] = False,
    float64: Annotated[
        bool, typer.Option("--float64", help="Store float64 instead of float32: twice the bytes.")
    ] = False,
    max_levels: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most levels that a column of text may have.")
    ] = 100,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Do not show progress.")] = (
        False
    ),
) -> None:
    """Write tables of any size into a row store: a folder of .npy files with a manifest.

    The tables are read twice, in pieces: memory does not grow with them.
    Columns of text become one 0/1 column per level but the most frequent one.
    An interrupted command goes on where it stopped when it is run again.
    """
    from .ingest import run_ingest

    status = run_ingest(
        tables,
        out,
        response,
        standardise=not no_standardise,
        intercept=not no_intercept,
        dtype="float64" if float64 else "float32",
        max_levels=max_levels,
        progress=not no_progress,
    )
    raise typer.Exit(status)


def diagnose(
    run: RunFolder,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Print the warnings about the draws of a stored run, each with a remedy."""
    from .stored import print_findings

    raise typer.Exit(print_findings(run, as_json=json))


def predict(
    fit: Annotated[
        Path,
        typer.Argument(
            metavar="FIT",
            help="Folder of the results of `tallmc fit`, or of its stored run.",
            show_default=False,
        ),
    ],
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="New rows: a table with the columns of the fit; - for standard input.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File for the predictions: .parquet, .csv or .feather.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        Literal["mean", "response"],
        typer.Option(
            metavar="NAME",
            help="mean: the expected response, with the uncertainty of the coefficients; "
            "response: the response itself, with its noise.",
        ),
    ] = "mean",
    interval: Annotated[
        float,
        typer.Option(min=0, max=1, metavar="X", help="Probability of the central interval."),
    ] = 0.9,
    formula: FormulaAgain = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Random seed of simulated responses.")
    ] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that exists.")
    ] = False,
) -> None:
    """Predict the response of new rows: mean, sd and an interval per row, averaged over draws."""
    from .predict import run_predict

    raise typer.Exit(
        run_predict(
            fit,
            table,
            out,
            formula=formula,
            kind=kind,
            interval=interval,
            seed=seed,
            overwrite=overwrite,
        )
    )


def report(
    run: RunFolder,
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file to write.")
    ] = Path("report.html"),
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="NAME",
            help="Parameter to plot; may be repeated. Default: the first six.",
        ),
    ] = None,
    table: TablePath = None,
    formula: FormulaAgain = None,
) -> None:
    """Write a self-contained HTML page on a stored run: its setup, posterior and reliability."""
    from .stored import write_report

    raise typer.Exit(write_report(run, out, parameter, table, formula))


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="An experiment listed by --list.", show_default=False),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="OUT",
            help="Folder for the results. Default: reproduction/NAME.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use fewer chains or passes: about a minute.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with status 1 if a required claim does not hold.")
    ] = False,
    data: _DataFolder = None,
    as_: Annotated[
        Literal["run", "meant", "stated", "works", "both"],
        typer.Option(
            "--as",
            metavar="HOW",
            help="run (what the authors' code does), meant or stated (what the paper says), works "
            "(what works where the paper cannot be right), or both (all that there are).",
        ),
    ] = "both",
) -> None:
    """Run an experiment of a paper; write its numbers, its figure and a verdict."""
    from .reproduce import print_experiments, run_reproduction

    if list_:
        print_experiments()
        return
    if name is None:
        raise typer.BadParameter("give the NAME of an experiment, or --list", param_hint="NAME")
    raise typer.Exit(
        run_reproduction(name, out=out, quick=quick, check=check, data=data, variant=as_)
    )


def data(folder: _DataFolder = None) -> None:
    """List the datasets of the experiments, their location if found, and otherwise their source."""
    from .reproduce import print_data

    print_data(folder)


# `--help` lists the commands in this order.
app.command()(methods)
app.command(
    epilog="Exit status: 0 fine; 2 bad input; 4 the store could not be written, e.g. because the "
    "disk is full; 130 Ctrl-C; 143 SIGTERM. After 4, 130 and 143, the same command goes on after "
    "the last shard."
)(ingest)
app.command(epilog=EXIT_STATUSES)(fit)
app.command(epilog=EXIT_STATUSES)(resume)
app.command(epilog="Exit status: 0 no warnings; 1 warnings printed; 2 no such run.")(diagnose)
app.command(epilog="Exit status: 0 written; 2 no such run.")(report)
app.command(epilog="Exit status: 0 written; 2 bad input.")(predict)
app.command(epilog=EXIT_STATUSES)(demo)
app.command(
    epilog="Exit status: 0 fine; 1 with --check, a required claim does not hold; 2 bad input."
)(reproduce)
app.command()(data)


def command() -> Any:
    """The application as a command. Flags have no type in `--help`; typer would show `<bool>`."""
    group: Any = get_command(app)
    context = typer.Context(group, **group.context_settings)
    for each in (group, *group.commands.values()):
        for parameter in each.get_params(typer.Context(each, parent=context)):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
    return group
