"""The kernel Stein discrepancy of many draws: seconds and peak memory."""

from __future__ import annotations

import numpy as np

from tallmc.diagnose import ksd

from .preparation import PeakMemory
from .report import print_table
from .timing import best_seconds

DRAWS, DIM = 10_000, 55


def main() -> None:
    positions = np.random.default_rng(0).normal(size=(DRAWS, DIM))
    with PeakMemory() as memory:
        took = best_seconds({"ksd": lambda: ksd(positions, positions)}, rounds=3)["ksd"]
    rows = [
        (
            f"{DRAWS:,} draws, d = {DIM}",
            f"{took:.1f} (+{took.spread:.0%})",
            "≤ 10",
            f"{memory.megabytes:.0f}",
            "≤ 1000",
        )
    ]
    print_table("KSD, gradients given", ("problem", "seconds", "target", "peak MB", "target"), rows)
