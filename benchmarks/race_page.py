"""The race in docs/performance.md: a plot and a table, drawn from `benchmarks/race-*.json`.

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
    draw_bars(records[0], docs / "images" / "readme.svg")
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
                axes.plot(k, seconds, color=_COLOURS[name], marker="o", markersize=2.5)
                axes.annotate(
                    name,
                    (k[-1], seconds[-1]),
                    xytext=(4, 3),
                    textcoords="offset points",
                    color=_COLOURS[name],
                )
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


def draw_bars(record: dict[str, Any], image: Path) -> None:
    """Seconds to 1,000 effective draws, one bar per sampler that made any progress."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    grey = "#808080"  # readable on white and on black
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "bars", "font.size": 10}
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(6.4, 1.7))
        samplers = {name: curve(of) for name, of in record["samplers"].items() if curve(of)}
        for place, (name, found) in enumerate(samplers.items()):
            reached = next((s for k, s in found if k >= _BAR_GOAL), None)
            k, seconds = found[-1] if reached is None else (_BAR_GOAL, reached)
            said = f" {seconds:,.0f} s" + ("" if reached else f" for {k:,.0f} draws")
            axes.barh(place, seconds, color=_COLOURS[name], alpha=1.0 if reached else 0.5)
            axes.annotate(said, (seconds, place), va="center", color=grey)
        axes.set_yticks(range(len(samplers)), samplers, color=grey)
        axes.set_title(
            f"Seconds to {_BAR_GOAL:,} effective draws, covertype, {_machine(record)}",
            fontsize=10,
            color=grey,
        )
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.margins(x=0.25)
        figure.tight_layout()
        figure.savefig(image, metadata={"Date": None}, transparent=True)
        plt.close(figure)


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
        f"–: not within {record['limit']:,.0f} seconds."
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
