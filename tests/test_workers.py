"""Who reads the rows changes no bit, and a worker that is lost or hangs is noticed."""

import asyncio
import dataclasses
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from distributed.cfexecutor import _cascade_future

import tallmc
from problems import slow_after
from row_stores import assert_same_bits, fit, write_logistic
from tallmc._core.supervision import supervised
from tallmc._rows.pickled import pickled, unpickled
from tallmc._rows.workers import WorkerError, Workers

pytestmark = pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
SHARDS = dict.fromkeys(range(8))


def processes(count):
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_logistic(tmp_path_factory.mktemp("rows") / "store")


@pytest.fixture(scope="module")
def expected(store):
    return fit(tallmc.rows.open(store))


@pytest.fixture(scope="module")
def pool():
    with processes(2) as executor:
        Workers(executor).each(_double, 1, SHARDS)  # starts the processes
        yield executor


def _double(common, number, _):
    return 2 * common * number


def _always_stop(common, number, _):
    if number == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return 2 * common * number


def _stop_once(mark, number, _):
    if number == 3 and not Path(mark).exists():
        Path(mark).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return 2 * number


def _wait_in_shard_3(mark, number, _):
    if number == 3:
        Path(mark).write_text(str(os.getpid()))
        time.sleep(60)
    return number


def _continue(executor):
    for pid in list(executor._processes):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("count", slow_after(1, [3, 1]))
def test_threads_of_an_executor_change_no_bit(store, expected, count):
    with ThreadPoolExecutor(count) as executor:
        assert_same_bits(fit(tallmc.rows.open(store, executor=executor)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_processes_change_no_bit(store, expected, count):
    with processes(count) as executor:
        assert_same_bits(fit(tallmc.rows.open(store, executor=executor)), expected)


def test_two_processes_change_no_bit(store, expected, pool):
    assert_same_bits(fit(tallmc.rows.open(store, executor=pool)), expected)


def test_an_executor_of_sample_changes_no_bit_and_leaves_nothing_behind(store, expected, pool):
    assert_same_bits(fit(tallmc.rows.open(store), executor=pool), expected)
    assert not list(store.glob(".tasks-*"))


SPLIT = {
    "sgld_cv_ps": tallmc.methods.sgld_cv_ps(step_size=1e-4, batch_size=8),
    "svrg_ld": tallmc.methods.svrg_ld(1e-4, batch_size=8, every=70),
    "measured": tallmc.Method(
        gradient=tallmc.gradient.ControlVariate(1),
        subsample=tallmc.subsample.Preferential("residual", take_all=True),
        batch_size=tallmc.subsample.TargetNoise(8, noise=1e-4, max_size=40),
        step_size=1e-4,
    ),
}


@pytest.mark.parametrize("name", slow_after(1, SPLIT))
def test_chains_split_over_processes_have_the_same_draws(store, pool, tmp_path, name):
    posterior = tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=10.0)
    options = {"chains": 10, "n_draws": 700, "burn_in": 5, "progress": False}
    whole = tallmc.sample(posterior, SPLIT[name], **options).positions
    split = {"executor": pool, "split_chains": True}
    run = tmp_path / "run"
    begun = tallmc.sample(posterior, SPLIT[name], store=run, **options | {"n_draws": 200}, **split)
    np.testing.assert_array_equal(begun.positions, whole[:, :200])
    resumed = tallmc.resume(run, posterior, n_draws=700, progress=False, **split)
    np.testing.assert_array_equal(resumed.positions, whole)


def test_chains_are_split_over_an_executor_only(store):
    posterior = tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=10.0)
    with pytest.raises(tallmc.InvalidInput, match="come with an executor"):
        tallmc.sample(posterior, SPLIT["sgld_cv_ps"], split_chains=True)


@pytest.mark.slow
def test_functions_of_the_user_are_read_by_processes(store, pool):
    def mean_of(executor):
        posterior = tallmc.Posterior(
            lambda params, row: -0.5 * (row["x0"] - params["mean"]) ** 2,
            lambda params: -0.5 * params["mean"] ** 2,
            tallmc.rows.open(store, executor=executor),
            {"mean": 0.0},
        )
        return np.asarray(tallmc.anchor.find_anchor(posterior).position)

    np.testing.assert_array_equal(mean_of(pool), mean_of(None))


def test_equal_functions_are_one_object_in_a_worker():
    def function_with(shift):
        return lambda x: x + shift

    first, again, other = (
        unpickled(pickled({"function": function_with(shift), "position": position}))
        for shift, position in ((1, 0.0), (1, 2.0), (3, 0.0))
    )
    assert first["function"] is again["function"]
    assert again["position"] == 2.0
    assert other["function"](1) == 4


@pytest.mark.slow
def test_a_killed_process_of_a_pool_is_a_worker_error(tmp_path):
    mark = tmp_path / "begun"

    def kill():
        while not (mark.exists() and mark.read_text()):
            time.sleep(0.01)
        os.kill(int(mark.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with processes(2) as executor:
        with pytest.raises(WorkerError, match=r"a worker was lost.* with a new executor"):
            Workers(executor).each(_wait_in_shard_3, str(mark), SHARDS)
        with pytest.raises(WorkerError, match="with a new executor"):  # the pool stays broken
            Workers(executor).each(_double, 1, SHARDS)
    killer.join()


def test_a_stopped_worker_is_named_and_its_task_goes_to_another(tmp_path, pool):
    mark = tmp_path / "stopped"
    try:
        with pytest.warns(UserWarning, match="has not returned shard 3 within 1 sec") as found:
            results = Workers(pool, time_limit=1.0, folder=tmp_path).each(
                _stop_once, str(mark), SHARDS
            )
    finally:
        _continue(pool)
    assert results == [2 * number for number in SHARDS]
    assert f"process {mark.read_text()} on host {os.uname().nodename}" in str(found[0].message)


def test_a_task_that_stops_two_workers_is_an_error_that_names_them(tmp_path, pool):
    try:
        with (
            pytest.warns(UserWarning, match="has not returned shard 3") as found,
            pytest.raises(WorkerError, match=r"process .* shard 3 .*, again") as error,
        ):
            Workers(pool, time_limit=1.0, folder=tmp_path).each(_always_stop, 1, SHARDS)
    finally:
        _continue(pool)
    named = [re.search(r"process (\d+)", str(text)) for text in (found[0].message, error.value)]
    assert {int(match[1]) for match in named if match} == set(pool._processes)


def test_tasks_that_nobody_begins_are_an_error():
    release = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(release.wait)
        try:
            with (
                pytest.warns(UserWarning, match="no worker has begun with shards 0 to 1"),
                pytest.raises(WorkerError, match="no worker has begun"),
            ):
                Workers(executor, time_limit=0.3).each(_double, 1, SHARDS)
        finally:
            release.set()


def test_an_error_in_a_shard_ends_the_pass_and_cancels_the_tasks_that_wait():
    release, run = threading.Event(), []

    def fail_first(common, number, _):
        run.append(number)
        if number == 0:
            raise ValueError("shard 0 is bad")
        release.wait()

    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(ValueError, match="shard 0 is bad"):
            Workers(executor).each(fail_first, None, dict.fromkeys(range(4)))
        release.set()
    assert run in ([0], [0, 1])


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("threads", [None, 1])
def test_interrupts_end_a_pass_between_two_shards(threads):
    read = []

    def slowly(common, number, _):
        if number == 0:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        read.append(number)

    executor = None if threads is None else ThreadPoolExecutor(threads)
    with pytest.raises(KeyboardInterrupt), supervised():
        Workers(executor).each(slowly, None, dict.fromkeys(range(100)))
    if executor is not None:
        executor.shutdown()
    assert len(read) < 100


def test_an_executor_needs_rows_to_read():
    posterior = tallmc.models.logistic_regression(
        np.ones((4, 1)), np.array([0, 1, 1, 0]), prior_variance=1.0
    )
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(tallmc.InvalidInput, match=r"executor must be None.*in memory"),
    ):
        tallmc.sample(posterior, executor=executor)


def test_what_is_not_an_executor_is_refused(store):
    posterior = tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=1.0)
    with pytest.raises(tallmc.InvalidInput, match=r"must be a concurrent\.futures\.Executor"):
        tallmc.sample(posterior, executor=4)


class Leaving(Executor):
    """Loses the tasks of one pass, as when a scheduler goes away, and accepts no others."""

    n_tasks = 0

    def submit(self, function, *args, **options):
        self.n_tasks += 1
        if self.n_tasks > 12:
            raise RuntimeError("cannot be asked again")
        future = Future()
        future.cancel()
        return future


def test_the_default_ends_where_workers_are_lost(store):
    """A lost worker says nothing about the posterior: no other plan is tried."""
    posterior = tallmc.models.logistic_regression(tallmc.rows.open(store), prior_variance=10.0)
    rows = posterior.rows.read_by(Workers(Leaving()))
    with pytest.raises(WorkerError, match="a worker was lost"):
        tallmc.sample(dataclasses.replace(posterior, rows=rows), progress=False)


class LosingResults(Executor):
    """Dask's own transfer of the first results, whose worker is lost once they are fetched."""

    def __init__(self, n_lost):
        self.n_lost = n_lost

    def submit(self, function, *args, **options):
        result, self.n_lost = function(*args, **options), self.n_lost - 1
        future = Future()
        fetched = DaskFuture(result, "lost" if self.n_lost >= 0 else "finished")

        async def transfer():
            await _cascade_future(fetched, future)

        asyncio.run(transfer())
        return future


class DaskFuture(NamedTuple):
    result: list[Any]
    status: str

    async def _result(self, raiseit):
        return self.result


@pytest.mark.parametrize("n_lost", [1, 3])
def test_a_result_that_dask_loses_is_computed_again(n_lost):
    workers = Workers(LosingResults(n_lost))
    assert list(workers.each(shard_number, None, dict.fromkeys(range(4)))) == [0, 1, 2, 3]


def shard_number(common, number, _):
    return number


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_workers_of_dask_keep_the_memory_that_blocks_free():
    """Each of 40 arrays of 2 MB has 512 pages, of which the system would clear every one anew."""
    work = """
import resource
import numpy as np
from tallmc._rows.workers import _keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(40):
        np.ones(2**18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults())
_keep_freed_memory()
print(faults())
"""
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, env=environment)
    before, after = map(int, done.stdout.split())
    assert after < 2 * 512 < 20_000 < before
