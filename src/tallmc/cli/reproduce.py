"""`tallmc reproduce` runs a paper's experiment; `tallmc data` lists the datasets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..core.packages import check_installed
from ..experiments import (
    EXPERIMENTS,
    Experiment,
    ExperimentSetting,
    Result,
    Variant,
    experiment_named,
)
from ..experiments.data import DATASETS, data_folder, find
from ..experiments.output import write_result
from .save import make_folder

_CLAIM_FAILED_STATUS = 1


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
        "--as on two cores without --quick, which takes about a minute."
    )


def _facts(experiment: Experiment) -> str:
    """Ways, time, panels and data of an experiment, in one line."""
    facts = [f"as {' or '.join(experiment.variants)}", _duration(experiment.minutes)]
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
    check_installed("matplotlib", *experiment.packages, needed_by=f"tallmc reproduce {name}")
    folder, console = data_folder(data), Console(highlight=False, soft_wrap=True)
    out = Path("reproduction") / name if out is None else out
    make_folder(out)
    failed = False
    for way in experiment.variants if variant == "both" else (variant,):
        start = time.perf_counter()
        result = _run(experiment, way, folder, console, quick=quick)
        files = write_result(out, name, experiment.title, way, result)
        _print_result(console, f"{name}, as {way}", result, time.perf_counter() - start)
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
        verdict = (
            "holds" if claim.holds else "does not hold" if claim.required else "does not survive"
        )
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
