"""The race in docs/performance.md: a plot and a table, drawn from `benchmarks/race-*.json`.

The picture of the README has its seconds, and the rows that docs/exact.md reports.
`python -m benchmarks.race_page` draws them without running the race. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .report import Table

_HERE = Path(__file__).resolve().parent
_DOCS = _HERE.parent / "docs"
_BEGIN, _END = "<!-- race -->", "<!-- end of race -->"
_COLOURS = {"tallmc": "#c23b3b", "NUTS": "#1f77b4", "HMCECS": "#2a9d5c", "SGLD-CV-PS": "#8659c7"}
_BAR_GOAL = 1_000
_GREY = "#808080"  # readable on white and on black
_BESIDE: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
_COLUMNS = (100, 1_000, 10_000, 100_000)
_WORDS = """## The race

Seconds until every parameter has k effective draws: logistic regression on covertype, 435,759 rows
and 55 coefficients. Every sampler runs in fresh processes with empty caches. The clock starts when
the posterior is in memory, and counts preparation, compilation and warm-up. tallmc's default runs
once per k. The others run once, and their draws count as they come: SGLD-CV-PS with the settings
of `tallmc.suggest`, NumPyro's NUTS on all rows, and NumPyro's HMCECS with 1,000 rows. NumPyro's
samplers use coordinates whitened by tallmc's anchor. On a GPU, NUTS runs 64 chains together.
SGLD-CV-PS is biased, so its effective draws overstate its accuracy.

![Seconds to k effective draws of four samplers, on a CPU and on a GPU](images/race.svg)
"""


def write(paths: Sequence[Path] = (), docs: Path = _DOCS) -> None:
    """Draw the plot and replace the section of the page. Does nothing without results."""
    records = [json.loads(path.read_text()) for path in paths or sorted(_HERE.glob("race-*.json"))]
    if not records:
        return
    image = docs / "images" / "race.svg"
    draw(records, image)
    exact = (docs / "exact.md").read_text(encoding="utf-8")
    draw_bars(records[0], exact, docs / "images" / "readme.svg")
    page = docs / "performance.md"
    text = page.read_text()
    if _BEGIN in text:
        before, after = text.split(_BEGIN)[0], text.split(_END)[1].lstrip("\n")
    else:
        before, _, after = text.partition("\n## ")
        before, after = f"{before}\n", f"## {after}"
    tables = "\n\n".join(_table(record) for record in records)
    page.write_text(f"{before}{_BEGIN}\n{_WORDS}\n{tables}\n{_END}\n\n{after}")
    print(f"{image}: {image.stat().st_size / 1000:.0f} kB")


def draw(records: Sequence[dict[str, Any]], image: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "race",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with plt.rc_context(style):
        figure, panels = plt.subplots(
            1, len(records), figsize=(4.4 * len(records), 3.6), sharey=True, squeeze=False
        )
        for axes, record in zip(panels[0], records, strict=True):
            for name, points in record["samplers"].items():
                found = curve(points)
                if not found:
                    continue
                k, seconds = zip(*found, strict=True)
                line = {"color": _COLOURS[name], "marker": "o", "markersize": 2.5}
                axes.plot(k, seconds, label=name, **line)
            axes.legend(labelcolor="linecolor", frameon=False)
            axes.set(xscale="log", yscale="log", xlim=(70, 6e5), xlabel="effective draws k")
            axes.set_xticks([10**power for power in range(2, 6)])
            axes.minorticks_off()
            axes.grid(color="#e1e4e2", linewidth=0.6)
            axes.set_title(_machine(record), fontsize=9)
        panels[0][0].set_ylabel("seconds, everything included")
        figure.tight_layout()
        image.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(image, metadata={"Date": None})
        plt.close(figure)


def draw_bars(record: dict[str, Any], exact: str, image: Path) -> None:
    """The picture of the README: seconds to 1,000 effective draws, and rows read as N grows."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "bars", "font.size": 10}
    style |= dict.fromkeys(("xtick.color", "ytick.color", "axes.titlecolor"), _GREY)
    with plt.rc_context(style):
        figure, (bars, lines) = plt.subplots(2, 1, figsize=(5.4, 3.4), height_ratios=(1, 1.2))
        _draw_seconds(record, bars)
        _draw_rows(rows_per_draw(exact), lines)
        figure.tight_layout()
        figure.savefig(image, metadata={"Date": None}, transparent=True)
        plt.close(figure)


def _draw_seconds(record: dict[str, Any], axes: Any) -> None:
    """One bar per sampler that made any progress."""
    samplers = {name: curve(of) for name, of in record["samplers"].items() if curve(of)}
    for place, (name, found) in enumerate(samplers.items()):
        reached = next((s for k, s in found if k >= _BAR_GOAL), None)
        k, seconds = found[-1] if reached is None else (_BAR_GOAL, reached)
        said = f"{seconds:,.0f} s" + ("" if reached else f" for {k:,.0f} draws")
        axes.barh(place, seconds, color=_COLOURS[name], alpha=1.0 if reached else 0.5)
        axes.annotate(said, (seconds, place), va="center", color=_GREY, **_BESIDE)
    axes.set_yticks(range(len(samplers)), samplers)
    title = f"Seconds to {_BAR_GOAL:,} effective draws of covertype, {_machine(record)}"
    axes.set_title(title, fontsize=10)
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.margins(x=0.25)


def _draw_rows(found: dict[str, list[tuple[float, float]]], axes: Any) -> None:
    """Rows per effective draw of exact draws, beside one pass over all rows."""
    numbers = sorted({n for points in found.values() for n, _ in points})
    lines = {"one pass": [(n, n) for n in numbers], **found}
    for (name, points), colour in zip(lines.items(), (_GREY, "#8659c7", "#c23b3b"), strict=True):
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=2.5)
        axes.annotate(name, points[-1], va="center", color=colour, fontsize=9, **_BESIDE)
    axes.set(xscale="log", yscale="log")
    axes.set_title("Rows that subsampled_mh reads per exact draw, of N rows", fontsize=10)
    axes.set_xticks(numbers)
    axes.set_yticks([10.0**power for power in (-3, 0, 3, 6)])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(_GREY)
    axes.tick_params(length=0, labelsize=8)
    axes.set_xlim(right=5e7)


def rows_per_draw(exact: str) -> dict[str, list[tuple[float, float]]]:
    """Rows per effective draw against N of the page on exact draws, with 10 parameters."""
    lines = [line.strip("| ").split(" | ") for line in exact.splitlines()]
    numbers = [10.0**power for power in (4, 5, 6, 7)]
    return {
        name.partition(", ")[2]: list(zip(numbers, map(float, cells), strict=True))
        for name, *cells in lines
        if name.startswith("d = 10, order")
    }


def curve(points: Sequence[dict[str, float]]) -> list[tuple[float, float]]:
    """Pairs (k, seconds to k effective draws) with k increasing."""
    found: list[tuple[float, float]] = []
    for point in points:
        k = min(point["ess"], point.get("goal", point["ess"]))
        if k >= 50 and (not found or k > found[-1][0]):
            found.append((k, point["seconds"]))
    return found


def _table(record: dict[str, Any]) -> str:
    rows = []
    for name, points in record["samplers"].items():
        first = [
            next((p["seconds"] for p in points if p["ess"] >= k <= p.get("goal", k)), None)
            for k in _COLUMNS
        ]
        rows.append((name, *("–" if s is None else f"{s:,.1f}" for s in first)))
    facts = record["facts"]
    title = f"Seconds to k effective draws: {facts['machine']}"
    columns = ("sampler", *(f"k = {k:,}" for k in _COLUMNS))
    note = (
        f"Measured on {facts['date']} with jax {facts['jax']}. "
        f"–: not by draws that began within {record['limit']:,.0f} seconds."
    )
    return f"#{Table(title, columns, rows).markdown()}\n\n{note}"


def _machine(record: dict[str, Any]) -> str:
    machine = record["facts"]["machine"]  # such as "aarch64, 2 cores, cpu (cpu)"
    architecture, cores, device = machine.split(", ", 2)
    return f"{cores}, {architecture}" if "(cpu)" in device else device.partition(" (")[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race_page", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="default: benchmarks/race-*.json")
    write(parser.parse_args().paths)
