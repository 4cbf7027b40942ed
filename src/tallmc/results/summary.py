"""The table that `Draws.summary` returns: a data frame whose text fits the terminal.

pandas would replace the columns in the middle by dots at 80 columns: R-hat and ESS among them.
"""

from __future__ import annotations

import html
import shutil

import numpy as np
import pandas as pd

from .report import cell_text

COLUMNS = (
    "mean",
    "sd",
    "q05",
    "median",
    "q95",
    "ess_bulk",
    "ess_tail",
    "rhat",
    "mcse_mean",
    "mcse_sd",
)
_ALWAYS = ("mean", "sd", "q05", "q95", "ess_bulk", "rhat")
_IF_THERE_IS_ROOM = ("median", "ess_tail", "mcse_mean", "mcse_sd")
_SHORTEST_NAME = 8


class SummaryTable(pd.DataFrame):
    """A data frame with one row per parameter and the columns of `COLUMNS`.

    Its text has rounded numbers and as many columns as the terminal has room for; R-hat and ESS are
    always among them. Its values are not rounded. A table with other columns is shown by pandas.
    """

    @property
    def _constructor(self) -> type[SummaryTable]:
        return SummaryTable

    def __repr__(self) -> str:
        if not _is_summary(self):
            return super().__repr__()
        return as_text(self, shutil.get_terminal_size((80, 24)).columns)

    def _repr_html_(self) -> str | None:
        if not _is_summary(self):
            return super()._repr_html_()
        names, rows = _cells(self)
        head = "".join(f"<th>{html.escape(text)}</th>" for text in ["", *self.columns])
        body = "".join(
            f"<tr><th>{html.escape(name)}</th>"
            + "".join(f'<td style="text-align:right">{html.escape(cell)}</td>' for cell in cells)
            + "</tr>"
            for name, cells in zip(names, rows, strict=True)
        )
        notes = filter(None, [_left_out_rows(self), self.attrs.get("note")])
        note = "".join(f"<p>{html.escape(text)}</p>" for text in notes)
        return (
            f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>{note}</div>"
        )


def as_text(table: pd.DataFrame, width: int) -> str:
    """A summary as text of at most `width` columns, if its numbers allow it."""
    names, rows = _cells(table)
    lengths = {
        column: 2 + max(len(column), *(len(row[number]) for row in rows))
        for number, column in enumerate(table.columns)
    }
    longest = max(map(len, names))
    shown = [column for column in _ALWAYS if column in lengths]
    for column in _IF_THERE_IS_ROOM:
        if column in lengths and longest + sum(lengths[c] for c in [*shown, column]) <= width:
            shown.append(column)
    room = max(_SHORTEST_NAME, width - sum(lengths[column] for column in shown))
    stub = min(longest, room)
    kept = [(number, c) for number, c in enumerate(table.columns) if c in shown]
    lines = [" " * stub + "".join(column.rjust(lengths[column]) for _, column in kept)]
    for name, row in zip(names, rows, strict=True):
        cells = "".join(row[number].rjust(lengths[column]) for number, column in kept)
        lines.append(_shortened(name, stub).ljust(stub) + cells)
    hidden = [column for column in table.columns if column not in shown]
    notes = [_left_out_rows(table), f"not shown: {', '.join(hidden)}" if hidden else ""]
    return "\n".join([*lines, *filter(None, [*notes, table.attrs.get("note", "")])])


def _is_summary(table: pd.DataFrame) -> bool:
    columns = list(table.columns)
    return (
        len(table) > 0
        and len(set(columns)) == len(columns)
        and set(_ALWAYS) <= set(columns) <= set(COLUMNS)
    )


def _cells(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """The names of the rows that are shown, and the texts of their cells."""
    if not _left_out_rows(table):
        return _texts(table)
    half = max(1, pd.get_option("display.min_rows") // 2)
    first, last = _texts(table.head(half)), _texts(table.tail(half))
    dots = ["…"] * len(table.columns)
    return [*first[0], "…", *last[0]], [*first[1], dots, *last[1]]


def _texts(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    rows = [
        [cell_text(column, value, sd) for column, value in zip(table.columns, row, strict=True)]
        for row, sd in zip(np.asarray(table, float), np.asarray(table["sd"], float), strict=True)
    ]
    return [str(name) for name in table.index], rows


def _left_out_rows(table: pd.DataFrame) -> str:
    most = pd.get_option("display.max_rows")
    return f"{len(table):,} parameters" if most and len(table) > most else ""


def _shortened(name: str, length: int) -> str:
    """Cut a long name in the middle: names often differ at their ends only."""
    if len(name) <= length:
        return name
    end = (length - 1) // 2
    return f"{name[: length - 1 - end]}…{name[len(name) - end :]}"
