"""Passes over a row store: two Dask workers against one, and against one process on all cores.

Each worker has a core of its own; they and the process take turns. XLA is limited to one thread
per call. A pass that does nothing measures the cost that is not work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

import tallmc
from tallmc._rows.manifest import Column
from tallmc._rows.writer import RowStoreWriter

from .report import print_table
from .timing import best_seconds

N_ROWS, DIM, ROUNDS = 12_000_000, 20, 5
READERS = "one worker", "two workers", "one process"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def write_rows(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 1.5 / np.sqrt(DIM), DIM)
    names = [f"x{k}" for k in range(DIM)]
    columns = [*(Column(n, n) for n in names), Column("y", "y", low=0.0, high=1.0, whole=True)]
    writer = RowStoreWriter(folder, columns, response="y")
    for first in range(0, N_ROWS, 2**18):
        x = rng.standard_normal((min(2**18, N_ROWS - first), DIM), dtype=np.float32)
        y = rng.random(len(x)) < 1 / (1 + np.exp(-x @ truth))
        writer.append(np.column_stack([x, y]))
    writer.finish()
    return folder


def measure(folder: Path) -> Mapping[str, float]:
    """Seconds of each pass by each reader."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        cores, workers = sorted(os.sched_getaffinity(0)), sorted(client.nthreads())
        for worker, core in zip(workers, cores, strict=False):
            client.run(os.sched_setaffinity, 0, {core}, workers=[worker])
        executors = client.get_executor(workers=workers[:1]), client.get_executor(), None
        calls = {
            f"{reader} {name}": call
            for reader, executor in zip(READERS, executors, strict=True)
            for name, call in _passes(folder, executor).items()
        }
        return best_seconds(calls, ROUNDS)


def _passes(folder: Path, executor: Executor | None) -> dict[str, Callable[[], Any]]:
    rows = tallmc.rows.open(folder, executor=executor)
    posterior = tallmc.models.logistic_regression(rows, prior_variance=10.0)
    shards = dict.fromkeys(range(rows.n_shards))
    return {
        "gradient": lambda: posterior.gradient(posterior.init),
        "Hessian": lambda: posterior.hessian(posterior.init),
        "nothing": lambda: rows.workers.each(_nothing, None, shards),
    }


def _nothing(common: Any, number: int, argument: Any) -> None:
    pass


def main() -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
    with tempfile.TemporaryDirectory(dir=".") as temporary:
        folder = write_rows(Path(temporary).resolve() / "rows")
        finished = subprocess.run(
            [sys.executable, "-m", "benchmarks.cluster", str(folder)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_FLAGS": flags},
        )
    seconds = json.loads(finished.stdout)
    rows = []
    for name in ("gradient", "Hessian", "nothing"):
        one, two, process = (seconds[f"{reader} {name}"] for reader in READERS)
        ratios = ("", "") if name == "nothing" else (f"{one / two:.2f}", f"{process / two:.2f}")
        rows.append((name, *(f"{1e3 * each:.0f}" for each in (one, two, process)), *ratios))
    title = f"Passes over a row store of {N_ROWS:,} × {DIM}: milliseconds"
    header = ("pass", *READERS, "two workers / one (≥ 1.8)", "two workers / process (≥ 0.95)")
    print_table(title, header, rows)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
