"""Passes over a row store: two Dask workers against one process, and the cost of a pass itself.

One process with one thread, and two workers with one thread each, take turns. XLA is limited to one
thread in each process. A pass that does nothing measures the cost that is not work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import tallmc
from tallmc._rows.manifest import Column
from tallmc._rows.writer import RowStoreWriter

from .report import print_table
from .timing import best_seconds

N_ROWS, DIM, ROUNDS = 4_000_000, 20, 5
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


def measure(folder: Path) -> dict[str, float]:
    """Seconds of each pass by each reader, and the cores that the one process kept busy."""
    from distributed import Client, LocalCluster

    with (
        ThreadPoolExecutor(1) as thread,
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        one, two = _passes(folder, thread), _passes(folder, client.get_executor())
        calls = {f"one {name}": call for name, call in one.items()}
        calls |= {f"two {name}": call for name, call in two.items()}
        seconds = best_seconds(calls, ROUNDS)
        began, busy = time.perf_counter(), time.process_time()
        one["Hessian"]()
        cores = (time.process_time() - busy) / (time.perf_counter() - began)
    return {**seconds, "cores": cores}


def _passes(folder: Path, executor: Executor) -> dict[str, Callable[[], Any]]:
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
    for name, target in (("gradient", "≥ 1.5"), ("Hessian", "≥ 1.5"), ("nothing", "≤ 50 ms")):
        one, two = seconds[f"one {name}"], seconds[f"two {name}"]
        ratio = "" if name == "nothing" else f"{one / two:.2f}"
        rows.append((name, f"{1e3 * one:.0f}", f"{1e3 * two:.0f}", ratio, target))
    title = f"Passes over a row store of {N_ROWS:,} × {DIM}: milliseconds"
    header = (
        "pass",
        f"one process ({seconds['cores']:.1f} cores busy)",
        "two Dask workers",
        "times faster",
        "target",
    )
    print_table(title, header, rows)


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
