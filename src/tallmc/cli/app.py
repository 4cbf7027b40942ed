"""The command line application, and the commands that inspect or reproduce.

Function bodies import what they need, so that `--help` and `--version` stay fast. The commands
that sample are in `sampling_commands`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .._version import __version__
from ..core.cache import cache
from .ingest import EXIT_STATUSES as INGEST_STATUSES
from .ingest import ingest
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
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list instead of tables.")
    ] = False,
) -> None:
    """List the methods with their components and references."""
    from .listing import print_methods

    print_methods(as_json=json)


def diagnose(
    run: RunFolder,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Print the warnings about the draws of a stored run, each with a remedy."""
    from .stored import print_findings

    raise typer.Exit(print_findings(run, as_json=json))


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
) -> None:
    """Write a self-contained HTML page on a stored run: its setup, posterior and reliability."""
    from .stored import write_report

    raise typer.Exit(write_report(run, out, parameter, table))


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
        Literal["run", "meant", "both"],
        typer.Option(
            "--as",
            metavar="HOW",
            help="run (what the authors' code does), meant (what the paper says) or both.",
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
        run_reproduction(name, out=out, quick=quick, check=check, data=data, variants=as_)
    )


def data(folder: _DataFolder = None) -> None:
    """List the datasets of the experiments, their location if found, and otherwise their source."""
    from .reproduce import print_data

    print_data(folder)


# `--help` lists the commands in this order.
app.command()(methods)
app.command(epilog=INGEST_STATUSES)(ingest)
app.command(epilog=EXIT_STATUSES)(fit)
app.command(epilog=EXIT_STATUSES)(resume)
app.command(epilog="Exit status: 0 no warnings; 1 warnings printed; 2 no such run.")(diagnose)
app.command(epilog="Exit status: 0 written; 2 no such run.")(report)
app.command(epilog=EXIT_STATUSES)(demo)
app.command(
    epilog="Exit status: 0 fine; 1 with --check, a required claim does not hold; 2 bad input."
)(reproduce)
app.command()(data)
