"""What storing a run costs: time against `store=None`, interleaved in one process, and peak memory of processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import tallmc
from tallmc.dynamics import LeimkuhlerMatthews
from tallmc.geometry import Dense
from tallmc.gradient import ControlVariate
from tallmc.subsample import Preferential

from .problem import DIM, covertype_shaped
from .timing import print_table

CHAINS, DRAWS, ROUNDS = 8, 125_000, 3
METHOD = tallmc.Method(
    dynamics=LeimkuhlerMatthews(),
    gradient=ControlVariate(2),
    subsample=Preferential("residual"),
    size=64,
    geometry=Dense(),
    step_size=1.0,
)


class Peak(threading.Thread):
    """The most memory that is not backed by a file, as Linux counts it; pages of mapped files can be given back at any time."""

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


def run(draws: int, store: Path | None, anchor: tallmc.Anchor) -> float:
    """Seconds in `sample`, without preparing and compiling."""
    began = time.perf_counter()
    timing = tallmc.sample(
        covertype_shaped(), METHOD, chains=CHAINS, draws=draws, burn_in=0, anchor=anchor, store=store, progress=False
    ).timing
    return time.perf_counter() - began - timing.preparation - timing.compilation


def compare() -> dict[str, float]:
    anchor = tallmc.laplace(covertype_shaped())
    best: dict[str, float] = {}
    for number in range(ROUNDS):
        for name in ("memory", "store"):
            with tempfile.TemporaryDirectory(dir=".") as folder:
                took = run(DRAWS, Path(folder) / "run" if name == "store" else None, anchor)
            best[name] = min(took, best.get(name, took)) if number else took
    return best


def child(name: str, draws: int) -> dict[str, Any]:
    """Peak memory of a run beyond what it had before, in MB."""
    anchor = tallmc.laplace(covertype_shaped())
    run(100, None, anchor)
    peak = Peak()
    peak.start()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        run(draws, Path(folder) / "run" if name == "store" else None, anchor)
    return {"peak": peak.most - peak.first}


def peak_of(name: str, draws: int) -> float:
    command = [sys.executable, "-m", "benchmarks.store", name, str(draws)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["peak"])


def main() -> None:
    seconds = compare()
    ratio = seconds["store"] / seconds["memory"] - 1
    row = (f"{CHAINS * DRAWS:,}", f"{seconds['memory']:.1f}", f"{seconds['store']:.1f}", f"{ratio:+.1%}", "≤ 5 %")
    print_table(f"Storing {DIM} parameters of {CHAINS} chains", ("draws", "s in memory", "s stored", "cost", "target"), [row])
    rows = []
    for draws in (DRAWS // 4, DRAWS):
        peaks = [peak_of(name, draws) for name in ("none", "store")]
        rows.append((f"{CHAINS * draws:,}", f"{CHAINS * draws * DIM * 4 / 2**20:.0f}", *(f"{peak:.0f}" for peak in peaks)))
    print_table("Memory beyond that before the run", ("draws", "MB of draws", "peak MB in memory", "peak MB stored (flat)"), rows)


if __name__ == "__main__":
    print(json.dumps(child(sys.argv[1], int(sys.argv[2]))))
