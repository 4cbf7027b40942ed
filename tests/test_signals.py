"""Real signals to real processes: a status of their own, no crash, and no broken store."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import tallmc
from problems import linear, slow_after
from tallmc._core.supervision import checkpoint, supervised
from tallmc._engine.run import Run, chain_keys
from tallmc._store.reader import open_store
from test_cli import call

# A shell makes background processes ignore Ctrl-C.
_HEAR_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
_COMMAND = "from tallmc.cli import main; main()"
_PREPARE = """
import sys, numpy as np, tallmc
rng = np.random.default_rng(0)
x = rng.normal(size=(20_000, 5))
posterior = tallmc.models.logistic_regression(x, rng.random(20_000) < 0.3, prior_variance=10.0)
print("read:", flush=True)
tallmc.sample(posterior)
"""
_BURN_IN = """
import sys, numpy as np, tallmc
x = np.random.default_rng(0).normal(size=(100, 2))
posterior = tallmc.models.linear_regression(x, x @ [1.0, 2.0], 10.0, noise_variance=1.0)
tell = lambda now: None if now.is_preparing else print("read:", now.step, flush=True)
method = tallmc.methods.sgld(1e-3, batch_size=3)
draws = tallmc.sample(posterior, method, chains=2, n_draws=10, burn_in=10**9, callback=tell)
print(draws.positions.shape, draws.stopped_by)
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Enough rows for pilot runs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 5)).astype(np.float32)
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, 5)))).astype(int)
    path = tmp_path_factory.mktemp("table") / "table.npz"
    np.savez(path, X=x, y=y)
    return path


def signalled(number, delay, code, *arguments):
    """Start a process, send it a signal `delay` seconds after it has read its data.

    Returns its exit status and what it printed. Compiled programs are not cached, neither by JAX
    nor by the library: an exit during compilation is what crashes, and a preparation that loads
    its programs can end before the signal comes.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"
    }
    source = str(Path(tallmc.__file__).parents[1])
    environment |= {
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
        "PYTHONUNBUFFERED": "1",
        "TALLMC_CACHE": "off",
    }
    child = subprocess.Popen(
        [sys.executable, "-c", _HEAR_CTRL_C + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    said = child.stdout.readline()
    assert said.startswith("read:"), child.stderr.read()
    time.sleep(delay)
    child.send_signal(number)
    rest, errors = child.communicate(timeout=300)
    return child.returncode, rest, errors


def end_fit(number, delay, table, tmp_path):
    arguments = ["fit", table, "--family", "bernoulli", "-o", tmp_path / "out", "--ess", 10**7]
    return signalled(number, delay, _COMMAND, *arguments, "--store", tmp_path / "run")


def check_store(path, said, errors):
    """Nothing is left of a run that was stopped in its preparation; any other can be resumed."""
    if "stopped before the first draw" in errors and not path.exists():
        return
    draws = open_store(path).manifest.n_draws + 50
    with jax.enable_x64(False):  # as in the process that began
        assert call("resume", path, "--no-progress", "--draws", draws) in (0, 3), (said, errors)
    assert tallmc.load(path).positions.shape[1] == draws


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "delay"),
    slow_after(
        1, [(signal.SIGINT, 130, 0.3), (signal.SIGINT, 130, 1.0), (signal.SIGTERM, 143, 0.3)]
    ),
)
def test_a_signal_in_preparation_ends_the_command_with_its_status(
    number, status, delay, table, tmp_path
):
    found, _, errors = end_fit(number, delay, table, tmp_path)
    assert found == status, errors
    assert errors.endswith("tallmc: stopped before the first draw\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_status_130_50_of_50_times(table, tmp_path):
    """From the first to the last moment of the preparation, and beyond it while chains run."""
    for trial, delay in enumerate(np.linspace(0, 10, 50)):
        folder = tmp_path / str(trial)
        found, said, errors = end_fit(signal.SIGINT, delay, table, folder)
        assert found == 130, (delay, said, errors)
        check_store(folder / "run", said, errors)


_FIND_ANCHOR = _PREPARE.replace("tallmc.sample(posterior)", "tallmc.anchor.find_anchor(posterior)")


@pytest.mark.slow
@pytest.mark.parametrize(("code", "delay"), [(_PREPARE, 0.3), (_PREPARE, 1.0), (_FIND_ANCHOR, 0.1)])
def test_ctrl_c_in_preparation_ends_a_script_without_a_crash(code, delay):
    status, _, errors = signalled(signal.SIGINT, delay, code)
    assert status == -signal.SIGINT, errors
    assert errors.endswith("KeyboardInterrupt\n")


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_in_burn_in_returns_what_there_is():
    def interrupt(now):
        if not now.is_preparing:
            signal.raise_signal(signal.SIGINT)

    method = tallmc.methods.sgld(0.01, batch_size=3)
    settings = {"chains": 2, "n_draws": 10, "burn_in": 10**9, "callback": interrupt}
    with pytest.warns(
        tallmc.SamplingWarning, match=r"interrupted in step .*there are no draws yet"
    ):
        draws = tallmc.sample(linear(), method, **settings)
    assert draws.positions.shape == (2, 0, 2)
    assert draws.stopped_by == "Ctrl-C"


@pytest.mark.slow
def test_ctrl_c_in_burn_in_of_a_script_returns_what_there_is():
    status, said, errors = signalled(signal.SIGINT, 0.5, _BURN_IN)
    assert status == 0, errors
    assert said.endswith("(2, 0, 2) Ctrl-C\n")
    assert "interrupted in step " in errors and "there are no draws yet" in errors


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_deferred_signal_raises_at_the_next_checkpoint():
    reached = []

    def work(*, raises_again):
        with supervised():
            signal.raise_signal(signal.SIGINT)
            reached.append("after the signal")
            with supervised():
                if raises_again:
                    checkpoint()
                    reached.append("after the checkpoint")

    checkpoint()  # outside a block it does nothing
    for raises_again in (True, False):  # the end of a block is a checkpoint too
        with pytest.raises(KeyboardInterrupt):
            work(raises_again=raises_again)
    assert reached == ["after the signal"] * 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_linear_algebra_has_one_thread_until_supervised_work_ends_or_fails():
    def threads():
        return {
            library["num_threads"] for library in threadpool_info() if "blas" in library["prefix"]
        }

    with threadpool_limits(2, "blas"):
        with contextlib.suppress(ZeroDivisionError), supervised():
            assert threads() == {1}
            raise ZeroDivisionError
        assert threads() == {2}


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_signal_whose_exception_was_discarded_raises_again():
    """Python discards exceptions that are raised in callbacks of the garbage collector."""
    reached = []

    def work():
        with supervised(signals_raise=True):
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
                reached.append("after the signal")
            checkpoint()
            reached.append("after the checkpoint")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not reached


@pytest.mark.usefixtures("hears_ctrl_c")
def test_a_pilot_run_that_is_interrupted_raises():
    posterior = linear()
    bound = tallmc.methods.sgld(0.01, batch_size=3).prepare(posterior).kernel
    start = jnp.asarray(np.zeros((2, posterior.dim)))
    run = Run(bound, chain_keys(0, 2), start, burn_in=0, thin=1, n_draws=10**6)

    def interrupt():
        if run.completed > 200:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run.run_to(10**6, after_call=interrupt)
    assert 200 < run.completed < 10**6


def test_ctrl_c_during_the_import_of_the_command_is_quiet():
    program = f"""{_HEAR_CTRL_C}
import os, signal, sys
sys.argv = ["tallmc"]
class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == sys.orig_argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Impatient())
from tallmc.cli import main
main(["--version"])
"""
    for package in ("jax", "typer"):
        done = subprocess.run(
            [sys.executable, "-c", program, package], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
