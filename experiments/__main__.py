"""`python -m experiments NAME` runs an experiment of a paper."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tallmc._core.packages import check_installed
from tallmc._core.programs import cache
from tallmc.cli import run_command
from tallmc.cli.app import command
from tallmc.cli.options import argument, flag, option, out
from tallmc.cli.output import make_folder

from .data import DATASETS, data_folder, find
from .experiment import Experiment
from .output import Origin, write_result
from .registry import EXPERIMENTS, experiment_named
from .results import ExperimentSetting, Result, Variant

_CLAIM_FAILED_STATUS = 1

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the experiments on `arguments`, by default `sys.argv[1:]`, and exit with the status."""
    run_command(lambda: command(app), "python -m experiments", arguments)


@app.command(
    epilog="Exit status: 0 fine; 1 with --check, a required claim does not hold; 2 bad input."
)
def reproduce(
    name: Annotated[str | None, argument("NAME", "An experiment listed by --list.")] = None,
    list_: Annotated[bool, flag("--list", "List the experiments and exit.")] = False,
    datasets: Annotated[
        bool,
        flag("--datasets", "List the datasets, where they are, or their sources, and exit."),
    ] = False,
    out: Annotated[
        Path | None, out("OUT", "Folder for the results. Default: reproduction/NAME.")
    ] = None,
    quick: Annotated[bool, flag("--quick", "Use fewer chains or passes: about a minute.")] = False,
    check: Annotated[
        bool, flag("--check", "Exit with status 1 if a required claim does not hold.")
    ] = False,
    data: Annotated[
        Path | None,
        option(
            "DIR",
            "Folder of datasets. Default: TALLMC_DATA if set, else ../shared/data.",
            show_default=False,
        ),
    ] = None,
    as_: Annotated[
        Literal["run", "meant", "stated", "works", "both"],
        option(
            "HOW",
            "run (what the authors' code does), meant or stated (what the paper says), works "
            "(what works where the paper cannot be right), or both (all that there are).",
            None,
            "--as",
        ),
    ] = "both",
) -> None:
    """Run an experiment of a paper; write its numbers, its figure and a verdict."""
    cache()
    if list_:
        print_experiments()
    elif datasets:
        print_data(data)
    elif name is None:
        cure = "give the NAME of an experiment, or --list"
        raise typer.BadParameter(cure, param_hint="NAME")
    else:
        status = run_reproduction(name, out=out, quick=quick, check=check, data=data, variant=as_)
        raise typer.Exit(status)


def print_experiments() -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 1, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, experiment in EXPERIMENTS.items():
        table.add_row(name, f"{experiment.title}\n{_facts(experiment)}")
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "The name of a panel, e.g. putcha2023-fig3a, runs its figure. Times are for one way of "
        "--as without --quick, which takes about a minute on two cores."
    )


def _facts(experiment: Experiment) -> str:
    """Ways, time, panels and data of an experiment, in one line."""
    cost = f"{_duration(experiment.minutes)} on {experiment.place}"
    facts = [f"as {' or '.join(experiment.variants)}", cost]
    if experiment.panels:
        facts.append(f"panels {', '.join(panel.lstrip('-') for panel in experiment.panels)}")
    if experiment.data:
        facts.append(f"data {', '.join(experiment.data)}")
    return "; ".join(facts)


def _duration(minutes: int) -> str:
    for unit, length in (("days", 24 * 60), ("hours", 60)):
        if minutes >= 2 * length:
            return f"{minutes / length:.0f} {unit}"
    return f"{minutes} minutes"


def print_data(given: Path | None) -> None:
    folder, console = data_folder(given), Console(highlight=False, soft_wrap=True)
    where = folder if folder is not None else "none; pass --data DIR or set TALLMC_DATA"
    console.print(f"data folder: {where}\n")
    for name, dataset in DATASETS.items():
        path = find(name, folder)
        status = f"found: {path}" if path else "not found"
        console.print(f"[bold]{name}[/bold]: {dataset.about}. {status}")
        if path is None:
            console.print(f"    source: {dataset.source}", markup=False)
            console.print(f"    arrays: {dataset.arrays}", markup=False)
            console.print(f"    convert: {dataset.convert}", markup=False)


def run_reproduction(
    name: str,
    *,
    out: Path | None,
    quick: bool,
    check: bool,
    data: Path | None,
    variant: Variant | Literal["both"],
) -> int:
    """Return the exit status: 1 if `check` is set and a required claim does not hold."""
    name, experiment = experiment_named(name)
    check_installed("matplotlib", *experiment.packages, needed_by=f"experiments {name}")
    folder, console = data_folder(data), Console(highlight=False, soft_wrap=True)
    out = Path("reproduction") / name if out is None else out
    make_folder(out)
    failed = False
    for way in experiment.variants if variant == "both" else (variant,):
        start = time.perf_counter()
        result = _run(experiment, way, folder, console, quick=quick)
        seconds = time.perf_counter() - start
        command = f"python -m experiments {name} --as {way}{' --quick' if quick else ''}"
        files = write_result(out, name, experiment.title, way, result, Origin.now(command, seconds))
        _print_result(console, f"{name}, as {way}", result, seconds)
        console.print(f"written to {out}: {', '.join(files)}\n")
        failed |= not result.holds
    return _CLAIM_FAILED_STATUS if check and failed else 0


def _run(
    experiment: Experiment, variant: Variant, folder: Path | None, console: Console, *, quick: bool
) -> Result:
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("preparing", total=1.0)

        def update_bar(activity: str, share: float) -> None:
            bar.update(task, description=activity, completed=share)

        return experiment.run(variant, ExperimentSetting(folder, quick, update_bar))


def _print_result(console: Console, title: str, result: Result, seconds: float) -> None:
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 2, 0, 0),
        title=f"{title} ({seconds:.0f} s)",
        title_justify="left",
    )
    for column in ("claim", "expected", "found", ""):
        table.add_column(column)
    for claim in result.claims:
        verdict = "holds" if claim.holds else "does not hold"
        if claim.required and not claim.holds:
            verdict += " (required)"
        table.add_row(claim.statement, claim.expected, claim.found, verdict)
    console.print(table)
    for result_table in result.tables:
        printed_table = Table(
            *result_table.columns,
            box=box.SIMPLE_HEAD,
            title=result_table.title,
            title_justify="left",
        )
        for row in result_table.rows:
            printed_table.add_row(*row)
        console.print(printed_table)
    for remark in result.remarks:
        console.print(remark)


if __name__ == "__main__":
    main()
