"""A local Dask cluster of two processes: the same bits, also if a worker is killed or stopped."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

import dask
import jax.numpy as jnp
import numpy as np
import pytest
from distributed import Client, LocalCluster

import tallmc
from row_stores import assert_same_bits, fit, write_logistic
from tallmc._rows.manifest import RowManifest
from tallmc._rows.shards import AbstractShards, NpyShards
from tallmc._rows.workers import Workers

pytestmark = pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_logistic(tmp_path_factory.mktemp("rows") / "store")


@pytest.fixture(scope="module")
def expected(store):
    return fit(tallmc.rows.open(store))


@pytest.fixture(scope="module")
def client():
    # A worker that is not back within the timeout leaves the cluster for ever. On busy cores it
    # takes longer to start than the default of 15 seconds.
    patience = {
        "distributed.comm.timeouts.connect": "60s",
        "distributed.deploy.lost-worker-timeout": "10m",
    }
    with (
        dask.config.set(patience),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@dataclasses.dataclass(frozen=True)
class Traps(AbstractShards):
    """Shards that detain whoever reads shard 5 for the first time, until the file `sprung`."""

    shards: NpyShards
    reads: Path
    """In this folder; one trap for whole shards, and one for some lines."""

    @property
    def manifest(self) -> RowManifest:
        return self.shards.manifest

    @property
    def folder(self) -> Path:
        return self.shards.folder

    def array(self, number: int, part: slice | None = None) -> np.ndarray:
        self._detain(number, self.reads / "pass")
        return self.shards.array(number, part)

    def lines(self, number: int, lines: np.ndarray) -> np.ndarray:
        self._detain(number, self.reads / "lines")
        return self.shards.lines(number, lines)

    def _detain(self, number: int, trap: Path) -> None:
        sprung = trap.with_suffix(".sprung")
        if number == 5 and not sprung.exists():
            trap.write_text(f"{os.getpid()}\n")
            while not sprung.exists():
                time.sleep(0.01)


class Springer(threading.Thread):
    """Sends a signal to the process in each trap, or to a victim."""

    def __init__(self, traps: Sequence[Path], signal_number: int, victim: int | None = None):
        super().__init__(daemon=True)
        self.traps, self.signal_number, self.victim = traps, signal_number, victim
        self.pids: list[int] = []

    def run(self) -> None:
        left = list(self.traps)
        while left:
            time.sleep(0.01)
            for trap in [trap for trap in left if trap.exists()]:
                if (text := trap.read_text()).endswith("\n"):
                    self.pids.append(int(text))
                    os.kill(self.victim or self.pids[-1], self.signal_number)
                    trap.with_suffix(".sprung").touch()
                    left.remove(trap)


def trapped(store, folder, workers):
    rows = tallmc.rows.open(store)
    return dataclasses.replace(rows, shards=Traps(rows.shards, folder), workers=workers)


@pytest.mark.slow
def test_a_cluster_changes_no_bit(store, expected, client):
    rows = tallmc.rows.open(store)
    assert_same_bits(fit(rows, executor=client.get_executor()), expected)
    assert_same_bits(fit(rows.read_by(Workers(client.get_executor()))), expected)


@pytest.mark.slow
def test_killed_workers_change_no_bit(store, expected, client, tmp_path):
    """One is killed in a pass over the rows, one while it reads the rows of steps."""
    workers = Workers(client.get_executor(), folder=store)
    springer = Springer([tmp_path / "pass", tmp_path / "lines"], signal.SIGKILL)
    springer.start()
    assert_same_bits(fit(trapped(store, tmp_path, workers)), expected)
    springer.join(timeout=1)
    assert len(set(springer.pids)) == 2
    assert os.getpid() not in springer.pids


@pytest.mark.slow
def test_a_stopped_worker_is_named_and_the_result_is_right(store, expected, client, tmp_path):
    executor = client.get_executor()
    client.wait_for_workers(2)
    posterior = tallmc.models.logistic_regression(
        tallmc.rows.open(store, executor=executor), prior_variance=10.0
    )
    mode = jnp.asarray(expected["mode"])
    posterior.gradient(mode)  # starts JAX in the workers
    rows = trapped(store, tmp_path, Workers(executor, time_limit=2.0, folder=store))
    stopped = dataclasses.replace(posterior, rows=rows.viewed(posterior.rows.view))
    springer = Springer([tmp_path / "pass"], signal.SIGSTOP)
    springer.start()
    try:
        with pytest.warns(UserWarning, match="has not returned shards 4 to 5 within") as found:
            gradient = stopped.gradient(mode)
    finally:
        for pid in springer.pids:
            os.kill(pid, signal.SIGCONT)
    np.testing.assert_array_equal(gradient, posterior.gradient(mode))
    named = " ".join(str(warning.message) for warning in found)
    assert f"process {springer.pids[0]} on host" in named


@pytest.mark.slow
def test_a_client_is_not_an_executor(store, client):
    posterior = tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=10.0)
    with pytest.raises(tallmc.InvalidInput, match=r"client\.get_executor\(\)"):
        tallmc.sample(posterior, executor=client)


# The default, which reads rows in passes only.


def default_of(rows):
    posterior = tallmc.models.logistic_regression(rows, prior_variance=10.0)
    return tallmc.sample(posterior, n_draws=20, progress=False)


class Numbered(Executor):
    """An executor that writes the number of the pass, for the traps: tasks come pass by pass."""

    def __init__(self, executor, folder):
        self.executor, self.folder, self.n_passes = executor, folder, 0
        self.waiting: list[Future] = []
        self._client = executor._client

    def submit(self, function, *args, **options):
        if all(future.done() for future in self.waiting):
            self.n_passes, self.waiting = self.n_passes + 1, []
            (self.folder / "next").write_text(str(self.n_passes))
            (self.folder / "next").replace(self.folder / "number")  # never seen empty
        future = self.executor.submit(function, *args, **options)
        self.waiting.append(future)  # another thread may begin a pass
        return future


class TrapsOfPasses(Traps):
    """One trap in every pass."""

    def array(self, number: int, part: slice | None = None) -> np.ndarray:
        self._detain(number, self.reads / f"pass-{(self.reads / 'number').read_text()}")
        return self.shards.array(number, part)

    def lines(self, number: int, lines: np.ndarray) -> np.ndarray:
        return self.shards.lines(number, lines)


@pytest.mark.slow
def test_a_worker_killed_in_every_pass_of_the_default_changes_no_bit(store, client, tmp_path):
    expected = default_of(tallmc.rows.open(store))
    executor = Numbered(client.get_executor(), tmp_path)
    rows = tallmc.rows.open(store)
    workers = Workers(executor, folder=store)
    rows = dataclasses.replace(rows, shards=TrapsOfPasses(rows.shards, tmp_path), workers=workers)
    springer = Springer([tmp_path / f"pass-{k}" for k in range(1, 100)], signal.SIGKILL)
    springer.start()
    draws = default_of(rows)
    assert len(set(springer.pids)) >= 5
    assert os.getpid() not in springer.pids
    np.testing.assert_array_equal(draws.positions, expected.positions)
    np.testing.assert_array_equal(draws.account.bias.mean, expected.account.bias.mean)


@pytest.mark.slow
def test_a_scheduler_that_goes_away_is_an_error(store, tmp_path):
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    file = tmp_path / "scheduler.json"
    options = {
        "env": os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        "stderr": subprocess.DEVNULL,
    }
    scheduler = subprocess.Popen([*command, "--port", "0", "--scheduler-file", file], **options)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1"]
    workers = [subprocess.Popen([*worker, "--scheduler-file", file], **options) for _ in range(2)]
    try:
        with dask.config.set({"distributed.comm.timeouts.connect": "5s"}):
            client = Client(scheduler_file=str(file), timeout="60s")
            client.wait_for_workers(2, timeout=60)
            reader = Workers(client.get_executor(), time_limit=30.0, folder=store)
            Springer([tmp_path / "pass"], signal.SIGKILL, victim=scheduler.pid).start()
            with pytest.raises(tallmc.PreparationError, match="worker"):
                default_of(trapped(store, tmp_path, reader))
            with contextlib.suppress(Exception):
                client.close(timeout=1)
    finally:
        for process in (scheduler, *workers):
            process.kill()
            process.wait()
