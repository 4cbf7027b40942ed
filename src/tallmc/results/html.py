"""HTML for notebooks. All text is escaped, and the verdict comes first."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_CELL = 'style="text-align:right"'
_COLOURS = {"checked": "#2c7a4b", "doubtful": "#b3401d"}
_OTHER_COLOUR = "#8a6d1a"
_CHOICE = "chosen: "


def health_html(report: str, verdict: str) -> str:
    """The lines of a report on draws: the last, which is the verdict, first; choices folded.

    >>> print(health_html("chosen: a < b\\nnote: c\\nverdict: doubtful; no", "doubtful"))
    <div><p><b style="color:#b3401d">verdict: doubtful; no</b></p><ul><li>note: c</li></ul>\
<details><summary>What was chosen</summary><ul><li>a &lt; b</li></ul></details></div>
    """
    *lines, last = report.splitlines()
    colour = _COLOURS.get(verdict, _OTHER_COLOUR)
    chosen = [line.removeprefix(_CHOICE) for line in lines if line.startswith(_CHOICE)]
    folded = f"<details><summary>What was chosen</summary>{_items(chosen)}</details>"
    return (
        f'<div><p><b style="color:{colour}">{html.escape(last)}</b></p>'
        f"{_items(line for line in lines if not line.startswith(_CHOICE))}"
        f"{folded if chosen else ''}</div>"
    )


def table_html(heads: Sequence[str], rows: Iterable[Sequence[str]], more: str = "") -> str:
    """A table with one row per parameter, whose name is in the first column.

    >>> table_html(["", "mean"], [["<x>", "1.0"]])
    '<div style="overflow-x:auto"><table><thead><tr><th></th><th>mean</th></tr></thead>\
<tbody><tr><th>&lt;x&gt;</th><td style="text-align:right">1.0</td></tr></tbody></table></div>'
    """
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td {_CELL}>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    note = f"<p>{html.escape(more)}</p>" if more else ""
    return (
        f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>{note}</div>"
    )


def draws_html(health: str, size: str, table: str) -> str:
    """The health and the table, which are HTML, with the size of the run between them.

    >>> draws_html("<p>fine</p>", "2 chains", "<table></table>")
    '<div><p>fine</p><p>2 chains</p><table></table></div>'
    """
    return f"<div>{health}<p>{html.escape(size)}</p>{table}</div>"


def _items(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
