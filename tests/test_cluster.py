"""A local Dask cluster of two processes: the same bits, also if a worker is killed or stopped."""

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Sequence
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
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "60s"}),
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

    def array(self, number: int, whole: bool = True) -> np.ndarray:
        self._detain(number, self.reads / "pass")
        return self.shards.array(number, whole)

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
    """Sends a signal to the process in each trap."""

    def __init__(self, traps: Sequence[Path], signal_number: int):
        super().__init__(daemon=True)
        self.traps, self.signal_number = traps, signal_number
        self.pids: list[int] = []

    def run(self) -> None:
        for trap in self.traps:
            while not (trap.exists() and trap.read_text().endswith("\n")):
                time.sleep(0.01)
            self.pids.append(int(trap.read_text()))
            os.kill(self.pids[-1], self.signal_number)
            trap.with_suffix(".sprung").touch()


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
