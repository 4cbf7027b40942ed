"""Print the plan, coefficients, cost and warnings of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..core.words import counted
from ..results.draws import Draws
from ..results.health import Verdict
from ..results.summary_cells import cell_text
from .plan import Plan, Settings
from .run import Finished
from .save import RESULT_FILES

if TYPE_CHECKING:
    import pandas as pd

_MAX_ROWS = 40
_MAX_TEXT = 400
_NARROWEST = 12
_BREAK = re.compile(r"[:,|\]_](?!$)| ")
_STATUS_OF_STOP = {"Ctrl-C": 130, "SIGTERM": 143, "the store": 4}
DIAGNOSTICS = {"ess_bulk": "ESS", "rhat": "R-hat"}


def say(console: Console, message: str | Text) -> None:
    """Print a message. Terminals wrap it at words; files get it on one line."""
    console.print(message, soft_wrap=not console.is_terminal)


def print_plan(console: Console, settings: Settings, plan: Plan) -> None:
    suggested = plan.suggested
    if suggested is None:
        say(console, "method: chosen by pilot runs; pass --method to choose another")
        return
    chosen = "" if suggested.rule is None else f" ({suggested.rule})"
    say(console, f"method: {settings.method}, step size {suggested.step_size:.3g}{chosen}")
    if suggested.inflation > 0:
        say(
            console,
            f"gradient noise: predicted to inflate variances by {suggested.inflation:.1%} at most",
        )
    size = suggested.size
    rows = "" if size is None else f"{counted(size, 'row')} per step, "
    thinning = "" if suggested.thin == 1 else f", one per {suggested.thin} steps"
    chains = counted(settings.chains, "chain") if settings.chains else "chains"
    length = (
        f"{plan.draws:,} draws"
        if plan.draws
        else f"{settings.ess:,.0f} effective draws per coefficient"
    )
    say(console, f"run: {rows}{chains} {'of' if plan.draws else 'until'} {length}{thinning}")
    for message in suggested.warnings:
        say(console, _warning(message))


def exit_status(console: Console, finished: Finished) -> int:
    """Print why the run stopped, or the health of its draws. Returns the exit status."""
    stopped = finished.draws.stopped_by or ""
    for reason, status in _STATUS_OF_STOP.items():
        if stopped.startswith(reason):
            say(
                console,
                f"stopped by {stopped}"
                + (f"; `tallmc resume {finished.store}` continues" if finished.store else ""),
            )
            return status
    for line in str(finished.draws.health).splitlines():
        say(console, line)
    if not finished.draws.ok.all():
        return 1
    return 3 if finished.draws.health.verdict is Verdict.DOUBTFUL else 0


def summarise(draws: Draws) -> pd.DataFrame | None:
    """Return the summary by coefficient. None if no chain completed."""
    return draws.summary().rename_axis("coefficient") if draws.ok.any() else None


def shortened(text: str) -> str:
    """The text, or its beginning if it is long."""
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT].rpartition(';')[0]}; …"


def in_lines(name: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken after one of :,|]_ or a space.

    >>> in_lines("age:C(region)[south]", 16).splitlines()
    ['age:', 'C(region)[south]']
    >>> in_lines("a_name_without_a_place", 16).splitlines()
    ['a_name_without_', 'a_place']
    """
    lines, width = [], max(width, _NARROWEST)
    while len(name) > width:
        places = [found.end() for found in _BREAK.finditer(name, 0, width)]
        place = places[-1] if places else width
        lines.append(name[:place].rstrip())
        name = name[place:]
    return "\n".join([*lines, name])


def print_coefficients(console: Console, summary: pd.DataFrame, columns: Mapping[str, str]) -> None:
    """Print one row per coefficient. `columns` maps columns of `summary` to headings."""
    shown = summary.head(_MAX_ROWS)
    cells = [
        [cell_text(column, row[column], row["sd"]) for column in columns]
        for _, row in shown.iterrows()
    ]
    widths = [max(map(len, column)) for column in zip(columns.values(), *cells, strict=True)]
    room = console.width - sum(widths) - 2 * len(widths) - 2
    fits = max(len(str(name)) for name in shown.index) + len(widths) + 2 <= room
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1) if fits else (0, 1, 0, 0), pad_edge=fits)
    table.add_column("coefficient", overflow="fold")
    for heading in columns.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for name, line in zip(shown.index, cells, strict=True):
        table.add_row(Text(in_lines(str(name), room)), *line)
    console.print(table)
    if len(summary) > _MAX_ROWS:
        console.print(f"{len(summary) - _MAX_ROWS} more coefficients are in summary.csv.\n")


def print_cost(console: Console, draws: Draws) -> None:
    n_rows, timing = draws.settings["n_rows"], draws.timing
    passes, preparing = draws.n_row_evals / n_rows, draws.n_row_evals_preparation / n_rows
    say(
        console,
        f"rows touched: {draws.n_row_evals:,} = {passes:.1f} passes over the data, "
        f"including {preparing:.1f} for preparation",
    )
    phases = {name: value for name, value in vars(timing).items() if value > 0}
    total, parts = sum(phases.values()), " + ".join(f"{k} {v:.1f}" for k, v in phases.items())
    say(console, f"time: {total:.1f} s = {parts}")


def print_warnings(console: Console, finished: Finished, summary: pd.DataFrame | None) -> None:
    """Print the warnings that are not doubts; `exit_status` prints these with the verdict."""
    said = (*finished.draws.health.doubts, *finished.draws.health.notes)
    found = [text for text in finished.warnings if text not in said]
    if summary is None:
        found.append("no chain completed, so there is no summary.")
    for message in dict.fromkeys(found):
        say(console, _warning(message))


def print_outdated(console: Console, store: Path, results: Path, out: Path | None) -> None:
    """Name the files in `results` that lack the new draws, unless they were written to `out`."""
    old = [name for name in RESULT_FILES if (results / name).is_file()]
    if not old or (out is not None and out.resolve() == results.resolve()):
        return
    cure = f"`tallmc resume {store} -o {results} --overwrite` replaces them"
    say(console, f"old: {', '.join(old)} in {results} lack the new draws; {cure}")


def _warning(message: str) -> Text:
    return Text("warning: ", style="bold yellow").append(message, style="default")
