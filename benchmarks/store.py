"""The cost of storing a run: time and peak memory, relative to `store=None`.

Timed runs alternate in one process. Peak memory is measured in a separate process per run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import tallmc
from tallmc.dynamics import LeimkuhlerMatthews
from tallmc.geometry import Dense
from tallmc.gradient import ControlVariate
from tallmc.subsample import Preferential

from .problem import DIM, covertype_shaped
from .report import print_table

CHAINS, DRAWS, ROUNDS = 8, 125_000, 3
METHOD = tallmc.Method(
    dynamics=LeimkuhlerMatthews(),
    gradient=ControlVariate(2),
    subsample=Preferential("residual"),
    batch_size=64,
    geometry=Dense(),
    step_size=1.0,
)


class Peak(threading.Thread):
    """Peak memory that is not backed by a file (`RssAnon` of Linux), in MB.

    Pages of mapped files do not count: the system can reclaim them at any time.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first = self.most = self._now()

    def run(self) -> None:
        while True:
            self.most = max(self.most, self._now())
            time.sleep(0.02)

    def _now(self) -> float:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) / 1024


class RunSeconds(NamedTuple):
    """Seconds of a run, without preparation and compilation."""

    clock: float
    processors: float
    """The sum over all processors."""


def run(n_draws: int, store: Path | None, anchor: tallmc.anchor.Anchor) -> RunSeconds:
    began = time.perf_counter(), time.process_time()
    timing = tallmc.sample(
        covertype_shaped(),
        METHOD,
        chains=CHAINS,
        n_draws=n_draws,
        burn_in=0,
        anchor=anchor,
        store=store,
        progress=False,
    ).timing
    before = timing.preparation + timing.compilation
    clock, processors = time.perf_counter() - began[0], time.process_time() - began[1]
    return RunSeconds(clock - before, processors - before)


def compare(n_draws: int, rounds: int) -> dict[str, RunSeconds]:
    """The fastest of several runs of each kind; the two kinds alternate."""
    anchor = tallmc.anchor.find_anchor(covertype_shaped())
    run(100, None, anchor)
    found: dict[str, list[RunSeconds]] = {"memory": [], "store": []}
    for _ in range(rounds):
        for name, runs in found.items():
            with tempfile.TemporaryDirectory(dir=".") as folder:
                runs.append(run(n_draws, Path(folder) / "run" if name == "store" else None, anchor))
    return {name: RunSeconds(*map(min, zip(*runs, strict=True))) for name, runs in found.items()}


def child(name: str, n_draws: int) -> dict[str, Any]:
    """Peak memory of a run, minus the memory before the run, in MB."""
    anchor = tallmc.anchor.find_anchor(covertype_shaped())
    run(100, None, anchor)
    peak = Peak()
    peak.start()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run(n_draws, Path(folder) / "run" if name == "store" else None, anchor)
    return {"peak": peak.most - peak.first}


def peak_of(name: str, n_draws: int) -> float:
    command = [sys.executable, "-m", "benchmarks.store", name, str(n_draws)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(finished.stdout)["peak"])


def main() -> None:
    carried, stored = compare(DRAWS, ROUNDS).values()
    rows: list[tuple[str, ...]] = [
        (unit, f"{a:.1f}", f"{b:.1f}", f"{b / a - 1:+.1%}", target)
        for unit, a, b, target in zip(
            ("clock", "processors"), carried, stored, ("≤ 5 %", ""), strict=True
        )
    ]
    title = f"Storing {CHAINS * DRAWS:,} draws of {DIM} parameters over {CHAINS} chains"
    print_table(title, ("seconds by", "in memory", "stored", "cost", "target"), rows)
    rows = []
    for draws in (DRAWS // 4, DRAWS):
        peaks = [peak_of(name, draws) for name in ("none", "store")]
        rows.append(
            (
                f"{CHAINS * draws:,}",
                f"{CHAINS * draws * DIM * 4 / 2**20:.0f}",
                *(f"{peak:.0f}" for peak in peaks),
            )
        )
    print_table(
        "Memory beyond that before the run",
        ("draws", "MB of draws", "peak MB in memory", "peak MB stored (flat)"),
        rows,
    )


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], int(sys.argv[2]))))
