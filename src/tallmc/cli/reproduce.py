"""`tallmc reproduce` and `tallmc data`: run a paper's experiment, and say what data there are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..experiments import EXPERIMENTS, Experiment, Result, Setting, Variant, experiment_named
from ..experiments.data import DATASETS, data_folder, find
from ..experiments.output import write_result
from .save import make_folder

_CLAIM_FAILED = 1
_VARIANTS: dict[str, tuple[Variant, ...]] = {"run": ("run",), "meant": ("meant",), "both": ("run", "meant")}


def print_experiments() -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for column in ("experiment", "shows", "panels", "data", "minutes"):
        table.add_column(column, style="bold" if column == "experiment" else None)
    for name, experiment in EXPERIMENTS.items():
        panels = ", ".join(panel.lstrip("-") for panel in experiment.panels)
        table.add_row(name, experiment.title, panels, ", ".join(experiment.data) or "simulated", str(experiment.minutes))
    console = Console(highlight=False)
    console.print(table)
    console.print("A panel's name, as putcha2023-fig3a, runs its figure. Minutes are those of --as run, in full, on two cores.")


def print_data(given: Path | None) -> None:
    folder, console = data_folder(given), Console(highlight=False, soft_wrap=True)
    console.print(f"data folder: {folder if folder is not None else 'none; pass --data DIR or set TALLMC_DATA'}\n")
    for name, dataset in DATASETS.items():
        path = find(name, folder)
        console.print(f"[bold]{name}[/bold]: {dataset.about}. {'found: ' + str(path) if path else 'not found'}")
        if path is None:
            console.print(f"    get it from: {dataset.source}", markup=False)
            console.print(f"    it must hold: {dataset.arrays}", markup=False)
            console.print(f"    convert: {dataset.convert}", markup=False)


def run_reproduction(
    name: str, *, out: Path | None, quick: bool, check: bool, data: Path | None, variants: Literal["run", "meant", "both"]
) -> int:
    """Returns the exit status: 1 where a claim that must hold does not, and that was asked for."""
    name, experiment = experiment_named(name)
    folder, console = data_folder(data), Console(highlight=False, soft_wrap=True)
    out = Path("reproduction") / name if out is None else out
    make_folder(out)
    failed = False
    for variant in _VARIANTS[variants]:
        began = time.perf_counter()
        result = _run(experiment, variant, folder, console, quick=quick)
        files = write_result(out, name, experiment.title, variant, result)
        _print_result(console, f"{name}, as {variant}", result, time.perf_counter() - began)
        console.print(f"written to {out}: {', '.join(files)}\n")
        failed |= not result.holds
    return _CLAIM_FAILED if check and failed else 0


def _run(experiment: Experiment, variant: Variant, folder: Path | None, console: Console, *, quick: bool) -> Result:
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("preparing", total=1.0)

        def hear(doing: str, share: float) -> None:
            bar.update(task, description=doing, completed=share)

        return experiment.run(variant, Setting(folder, quick, hear))


def _print_result(console: Console, title: str, result: Result, seconds: float) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), title=f"{title} ({seconds:.0f} s)", title_justify="left")
    for column in ("claim", "expected", "found", ""):
        table.add_column(column)
    for claim in result.claims:
        verdict = "holds" if claim.holds else "does not hold" if claim.required else "does not survive"
        table.add_row(claim.statement, claim.expected, claim.found, verdict)
    console.print(table)
    for of_result in result.tables:
        listed = Table(*of_result.columns, box=box.SIMPLE_HEAD, title=of_result.title, title_justify="left")
        for row in of_result.rows:
            listed.add_row(*row)
        console.print(listed)
    for remark in result.remarks:
        console.print(remark)
