"""Print the plan, coefficients, cost and warnings of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._core.errors import InvalidInput, counted
from .._core.packages import check_installed
from ..results.draws import Draws
from ..results.report import Verdict, cell_text
from ..results.saved import FILE, FIT_FILE
from .run import Finished, Plan, Settings

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

RESULT_FILES = (FILE, "summary.csv", FIT_FILE)
"""The files that `tallmc fit` writes, without pickles."""


def check_out(out: Path, *, overwrite: bool) -> None:
    """Check before a run that its results can be written."""
    check_installed("arviz_base", "arviz_stats", "netCDF4", needed_by="--out")
    if (out / "draws.nc").exists() and not overwrite:
        cure = "Pass --overwrite or another folder."
        raise InvalidInput("--out", "be a folder without draws.nc", f"{out}, which has one", cure)


def check_table(out: Path, *, overwrite: bool) -> None:
    """Check that a table can be written into the file `out`."""
    if out.suffix not in (".parquet", ".csv", ".feather"):
        raise InvalidInput("--out", "end in one of .parquet, .csv, .feather", out.name)
    if out.exists() and not overwrite:
        raise InvalidInput("--out", "be a new file", f"{out}, which exists", "Pass --overwrite.")
    if not out.absolute().parent.is_dir():
        raise InvalidInput("--out", "be in a folder that exists", str(out.absolute().parent))


def write_table(table: pa.Table, out: Path) -> None:
    from pyarrow import csv, feather, parquet

    write = {
        ".csv": csv.write_csv,
        ".parquet": parquet.write_table,
        ".feather": feather.write_feather,
    }
    write[out.suffix](table, out)


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        rule, found = "be a folder that exists or can be created", f"{out}: {error.strerror}"
        raise InvalidInput("--out", rule, found) from None


def save_draws(out: Path, draws: Draws, summary: pd.DataFrame | None) -> list[str]:
    """Write draws.nc and, if there is a summary, summary.csv. Returns the file names."""
    draws.save(out / FILE)
    if summary is None:  # otherwise an old summary.csv would seem to describe these draws
        (out / "summary.csv").unlink(missing_ok=True)
        return [FILE]
    summary.to_csv(out / "summary.csv")
    return [FILE, "summary.csv"]


def save_json(path: Path, content: dict[str, Any]) -> str:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path.name


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
        say(console, "method: chosen for these rows; pass --method to choose another")
        return
    chosen = "" if suggested.rule is None else f" ({suggested.rule})"
    say(console, f"method: {settings.method}, step size {suggested.step_size:.3g}{chosen}")
    if suggested.inflation > 0:
        inflation = f"predicted to inflate variances by {suggested.inflation:.1%} at most"
        say(console, f"gradient noise: {inflation}")
    size = suggested.batch_size
    rows = "" if size is None else f"{counted(size, 'row')} per step, "
    thinning = "" if suggested.thin == 1 else f", one per {suggested.thin} steps"
    chains = counted(settings.chains, "chain") if settings.chains else "chains"
    if plan.n_draws:
        length = f"of {plan.n_draws:,} draws"
    else:
        length = f"until {settings.ess:,.0f} effective draws per coefficient"
    say(console, f"run: {rows}{chains} {length}{thinning}")
    for message in suggested.warnings:
        say(console, _warning(message))


def print_end(
    console: Console,
    finished: Finished,
    summary: pd.DataFrame | None,
    files: list[str],
    out: Path | None,
) -> int:
    """Print the cost, the warnings, the verdict and the files. Returns the exit status."""
    _print_cost(console, finished.draws)
    # Doubts and notes are not among the warnings: they come with the verdict.
    said = (*finished.draws.report.doubts, *finished.draws.report.notes)
    found = [text for text in finished.warnings if text not in said]
    if summary is None:
        found.append("no chain completed, so there is no summary.")
    for message in dict.fromkeys(found):
        say(console, _warning(message))
    status = _exit_status(console, finished)
    if out is not None:
        say(console, f"saved: {', '.join(files)} in {out}")
    return status


def _exit_status(console: Console, finished: Finished) -> int:
    """Print why the run stopped, or the report of its draws. Returns the exit status."""
    stopped = finished.draws.stopped_by or ""
    for reason, status in _STATUS_OF_STOP.items():
        if stopped.startswith(reason):
            cure = f"; `tallmc resume {finished.store}` continues" if finished.store else ""
            say(console, f"stopped by {stopped}{cure}")
            return status
    for line in str(finished.draws.report).splitlines():
        say(console, line)
    if not finished.draws.ok.all():
        return 1
    return 3 if finished.draws.report.verdict is Verdict.DOUBTFUL else 0


def summarise(draws: Draws) -> pd.DataFrame | None:
    """Return the summary by coefficient. None if no chain completed."""
    return draws.summary().rename_axis("coefficient") if draws.ok.any() else None


def shortened(text: str) -> str:
    """The text, or its beginning if it is long."""
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT].rpartition(';')[0]}; …"


def in_lines(name: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken after one of :,|]_ or a space."""
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


def _print_cost(console: Console, draws: Draws) -> None:
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


def print_outdated(console: Console, store: Path, results: Path, out: Path | None) -> None:
    """Name the files in `results` that lack the new draws, unless they were written to `out`."""
    old = [name for name in RESULT_FILES if (results / name).is_file()]
    if not old or (out is not None and out.resolve() == results.resolve()):
        return
    cure = f"`tallmc resume {store} -o {results} --overwrite` replaces them"
    say(console, f"old: {', '.join(old)} in {results} lack the new draws; {cure}")


def _warning(message: str) -> Text:
    return Text("warning: ", style="bold yellow").append(message, style="default")
