"""The cost of preparation in full-gradient evaluations, and its memory in addition to the data."""

from __future__ import annotations

import itertools
import resource
import threading
import time
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc._rows.law import AliasLaw

from .problem import covertype_shaped
from .report import print_table
from .timing import best_seconds


class PeakMemory:
    """Peak resident memory of a `with` block, minus the resident memory at its start, in MB."""

    def __enter__(self) -> PeakMemory:
        self.start = self.peak = self._resident()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def megabytes(self) -> float:
        return (self.peak - self.start) / 1e6

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self.peak = max(self.peak, self._resident())

    @staticmethod
    def _resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()


def main() -> None:
    posterior = covertype_shaped()
    gradient = eqx.filter_jit(lambda posterior, at: posterior.gradient(at))
    one = best_seconds({"gradient": lambda: gradient(posterior, posterior.init)}, rounds=10)[
        "gradient"
    ]

    def prepare() -> list[tuple[str, float]]:
        marks = [("", time.perf_counter())]
        anchor = tallmc.anchor.find_anchor(posterior)
        marks.append(
            (
                f"mode and Hessian ({anchor.n_row_evals / posterior.n_rows:.1f} passes)",
                time.perf_counter(),
            )
        )
        weights = np.asarray(tallmc.subsample.curvature_weights(posterior, anchor))
        marks.append(("weights, eq. 16", time.perf_counter()))
        AliasLaw.of(tallmc.subsample.probabilities(weights, 0.05), jnp.float32)
        marks.append(("alias table", time.perf_counter()))
        return [(name, at - began) for (_, began), (name, at) in itertools.pairwise(marks)]

    with PeakMemory() as memory:
        first = sum(took for _, took in prepare())
    runs = [prepare() for _ in range(3)]
    best = min(runs, key=lambda run: sum(took for _, took in run))
    total = sum(took for _, took in best)
    rows = [(name, f"{took * 1e3:.0f}", f"{took / one:.1f}", "") for name, took in best]
    rows.append(("all", f"{total * 1e3:.0f}", f"{total / one:.1f}", "≤ 40"))
    rows.append(
        ("all, first time, with compilation", f"{first * 1e3:.0f}", f"{first / one:.1f}", "")
    )
    print_table(
        f"Preparation; one full gradient takes {one * 1e3:.0f} ms",
        ("part", "ms", "full gradients", "target"),
        rows,
    )
    peak = f"{memory.megabytes:.0f} MB (target ≤ 1000 MB)"
    print(f"\nPeak memory of the first preparation, in addition to the data: {peak}")
