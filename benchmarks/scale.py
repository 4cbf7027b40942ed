"""Rows beyond memory: the default on a row store, in a process with little memory.

`python -m benchmarks.scale --rows 1e8 --columns 20 --limit 3` simulates a row store in `--folder`,
unless there is one, and fits it in a process that may use 3 GB: a memory cgroup, which counts the
page cache too, where this process may make one; otherwise a limit on its data segment. It prints
the peak, and the time against that of reading the same bytes from the disk without computing.

`--in-memory` compares with the same rows in memory, `--update` with adding 1 % new rows to the fit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from tallmc._rows.manifest import MANIFEST, RowManifest
from tallmc.cli.demo import Simulation

_CGROUPS = Path("/sys/fs/cgroup/memory")
_GB = 1e9


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--limit", type=float, help="GB that the process may use")
    parser.add_argument("--folder", type=Path, default=Path(".bench"))
    parser.add_argument("--in-memory", action="store_true", help="compare with rows in memory")
    parser.add_argument("--update", action="store_true", help="add 1 %% new rows to the fit")
    parser.add_argument("--fit", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    simulation = Simulation(int(options.rows), options.columns, seed=0)
    if options.fit is not None:
        print(json.dumps(_fit(options.fit, simulation, options.in_memory, options.update)))
        return
    store = options.folder / f"rows-{simulation.n_rows}-{simulation.n_columns}-0"
    if not (store / MANIFEST).exists():
        began = time.perf_counter()
        simulation.into_row_store(store)
        print(f"simulated {simulation.n_bytes / _GB:.1f} GB in {time.perf_counter() - began:.0f} s")
    found = _in_process(sys.argv[1:], store, options.limit)
    for name, value in found.items():
        print(f"{name}: {value}")


def _in_process(arguments: list[str], store: Path, limit: float | None) -> dict[str, Any]:
    """Fit in a process of its own; return what it found, and its peak."""
    command = [sys.executable, "-m", "benchmarks.scale", *arguments, "--fit", str(store)]
    with _limited(limit) as (kind, enter, peak):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
        if done.returncode:
            raise SystemExit(f"the process ended with status {done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        return {"limit": kind, **found, **peak()}


@contextlib.contextmanager
def _limited(limit: float | None) -> Any:
    """Limit a process: what limits it, a function that it calls first, and its peak."""
    if limit is None:
        yield "none", lambda: None, dict
        return
    group, n_bytes = _CGROUPS / f"tallmc-{os.getpid()}", int(limit * _GB)
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(n_bytes))
    except OSError:
        yield (
            f"data segment of {limit:g} GB (RLIMIT_DATA)",
            lambda: resource.setrlimit(resource.RLIMIT_DATA, (n_bytes, n_bytes)),
            dict,
        )
        return

    def peak() -> dict[str, Any]:
        used = int((group / "memory.max_usage_in_bytes").read_text())
        return {"peak with page cache, GB": round(used / _GB, 2)}

    try:
        yield (
            f"memory cgroup of {limit:g} GB, page cache included",
            lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
            peak,
        )
    finally:
        group.rmdir()


def _fit(store: Path, simulation: Simulation, both: bool, updates: bool) -> dict[str, Any]:
    import tallmc

    rows = tallmc.rows.open(store)
    posterior = tallmc.models.logistic_regression(rows, prior_variance=10.0)
    speed = _read_speed(store)
    read_before = _bytes_read()
    first, draws = _timed(lambda: tallmc.sample(posterior, progress=True))
    seconds, read = first.clock, _bytes_read() - read_before
    mean, sd = draws.positions.mean(axis=(0, 1)), draws.positions.std(axis=(0, 1))
    truth, passes = simulation.truth.to_numpy(), draws.n_row_evals / rows.n_rows
    found = {
        "rows": f"{rows.n_rows:,} × {simulation.n_columns}, {simulation.n_bytes / _GB:.1f} GB",
        "seconds": round(seconds, 1),
        "processor seconds": round(first.processors, 1),
        "timing": {name: round(value, 2) for name, value in vars(draws.timing).items()},
        "passes": round(passes, 1),
        "bytes read from the disk, GB": round(read / _GB, 1),
        "bytes read / bytes of the passes": round(read / (passes * simulation.n_bytes), 2),
        "sequential read, GB/s": round(speed / _GB, 2),
        "time / time to read these bytes": round(seconds / max(read / speed, 1e-9), 2),
        "time / time of the passes at read speed": round(
            seconds / (passes * simulation.n_bytes / speed), 2
        ),
        "peak resident, GB": round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _GB, 2
        ),
        "largest |mean − truth| / sd": round(float(np.abs((mean - truth) / sd).max()), 2),
        "verdict": str(draws.report.verdict),
    }
    anchor = tallmc.anchor.find_anchor(posterior)
    laplace_sd = np.sqrt(np.diag(np.asarray(anchor.covariance, np.float64)))
    ratios = sd / laplace_sd
    found["sds / Laplace sds"] = f"{ratios.min():.3f} to {ratios.max():.3f}"
    if both:
        found |= _compared(store, posterior, draws)
    if updates:
        found |= _updated(posterior, draws, simulation, first)
    return found


class Seconds(NamedTuple):
    """By the clock and of all processors: other work on the machine hardly changes the latter."""

    clock: float
    processors: float


def _timed(call: Callable[[], Any]) -> tuple[Seconds, Any]:
    began = time.perf_counter(), time.process_time()
    result = call()
    return Seconds(time.perf_counter() - began[0], time.process_time() - began[1]), result


def _updated(posterior: Any, draws: Any, simulation: Simulation, first: Seconds) -> dict[str, Any]:
    """Add 1 % new rows, without and with their programs compiled; the same for the fit.

    Then a fit of all shards but the last ones, and its update by the store.
    """
    import tallmc

    def compared(what: str, updates: Sequence[Seconds]) -> dict[str, str]:
        return {
            f"{what} / all again, {when}": ", ".join(
                f"{a:.2f} s / {b:.2f} s = {a / b:.3f} {kind}"
                for a, b, kind in zip(update, fit, ("by the clock", "of processors"), strict=True)
            )
            for when, update, fit in zip(("first", "compiled"), updates, fits, strict=True)
        }

    x, y = simulation.in_memory()
    new = x[: simulation.n_rows // 100], y[: simulation.n_rows // 100].astype(np.float32)
    updates = [_timed(lambda: draws.update(new, progress=False))[0] for _ in range(2)]
    fits = [first, _timed(lambda: tallmc.sample(posterior, progress=False))[0]]
    found, rows = compared("1 % new rows", updates), posterior.rows
    known = min(math.ceil(0.99 * rows.n_shards), rows.n_shards - 1)
    if known:
        before = rows.of_shards(range(known))
        old = tallmc.sample(eqx.tree_at(lambda p: p.rows, posterior, before), progress=False)
        grown = [_timed(lambda: old.update(rows, progress=False))[0] for _ in range(2)]
        more = f"{1 - before.n_rows / rows.n_rows:.1%} more rows in the store"
        found |= compared(more, grown)
    return found


def _compared(store: Path, posterior: Any, draws: Any) -> dict[str, Any]:
    import tallmc

    began = time.perf_counter()
    resident = tallmc.sample(posterior.in_memory(), progress=False)
    seconds = time.perf_counter() - began
    a, b = (each.positions.reshape(-1, each.positions.shape[2]) for each in (draws, resident))
    shift = np.abs(a.mean(axis=0) - b.mean(axis=0)) / b.std(axis=0)
    ratio = a.std(axis=0) / b.std(axis=0)
    return {
        "in memory, seconds": round(seconds, 1),
        "in memory, timing": {k: round(v, 2) for k, v in vars(resident.timing).items()},
        "sampling, out of core / in memory": round(
            draws.timing.sampling / resident.timing.sampling, 2
        ),
        "means differ by, sd": round(float(shift.max()), 4),
        "sds, ratio": f"{ratio.min():.4f} to {ratio.max():.4f}",
    }


def _read_speed(store: Path) -> float:
    """Bytes per second of reading shards from the disk, one after the other, for some seconds."""
    buffer, read, began = bytearray(2**23), 0, time.perf_counter()
    for shard in RowManifest.read(store).shards:
        with open(store / shard.name, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while count := file.readinto(buffer):
                read += count
        if time.perf_counter() - began > 10:
            break
    return read / (time.perf_counter() - began)


def _bytes_read() -> int:
    """Bytes that this process has read from the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


if __name__ == "__main__":
    main()
