"""Pages on the named methods: a table to choose from, and all there is to know about each."""

from __future__ import annotations

from pathlib import Path

from tallmc._anchor.anchor import AnchorLevel
from tallmc._rows.access import RowAccess
from tallmc.methods.abstract import AbstractMethod
from tallmc.methods.description import MethodDescription, describe
from tallmc.methods.registry import all_methods

_NEEDS = {
    AnchorLevel.NOTHING: "nothing",
    AnchorLevel.MODE: "mode",
    AnchorLevel.HESSIAN: "mode, Hessian",
}
_IN_A_ROW_STORE = {RowAccess.STREAM: "yes", RowAccess.TAKE: "no"}
_HEAD = "| method | what it is | bias | rows per step | needs | in a row store |"


def write_pages(folder: Path) -> None:
    """Write the table (`methods-table.txt`, part of `choose.md`) and the details."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "methods-table.txt").write_text(table(), encoding="utf-8")
    details = [_details(describe(name)) for name in all_methods()]
    intro = "# Named methods\n\nWhat `tallmc methods NAME` prints, for every method.\n\n"
    (folder / "named-methods.md").write_text(intro + "\n".join(details), encoding="utf-8")


def table() -> str:
    """One line per named method."""
    lines = [_HEAD, "| --- " * (_HEAD.count("|") - 1) + "|"]
    for name, named in all_methods().items():
        method = named.build()
        cells = (
            f"[`{name}`](reference/named-methods.md#{name})",
            named.summary.rstrip("."),
            _bias(method),
            method.axes["size"],
            _NEEDS[method.needs],
            _IN_A_ROW_STORE[method.row_access],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _bias(method: AbstractMethod) -> str:
    if method.exact:
        return "none"
    unseen = method.unseen_by_pairs
    if unseen and method.axes["gradient"].startswith("surrogate"):  # an approximate accept step
        return unseen.removeprefix("the bias by ") + "; pairs do not see it"
    noise = "" if method.axes["size"] == "all rows" else " and gradient noise"
    return f"step size{noise}" + ("; pairs do not see all of it" if unseen else "")


def _details(method: MethodDescription) -> str:
    lines = [f"## {method.name} {{ #{method.name} }}", "", f"{method.summary} {method.reference}."]
    axes = ", ".join(f"{axis}: {value}" for axis, value in method.axes.items())
    lines += ["", f"*{axes}*", ""]
    for part in method.parts:
        if part.equation:
            lines += [f"`{part.name}`", "", "```text", part.equation, "```", ""]
    for title, paragraphs in (
        ("Bias", method.bias),
        ("Cost", method.cost),
        ("Papers", method.references),
    ):
        if paragraphs:
            lines += [f"**{title}**", "", *(f"- {text}" for text in paragraphs), ""]
    return "\n".join([*lines, "```python", method.example, "```", ""])
