"""`max_seconds` counts the whole run, and every stage of it is announced.

The clock is set by the callback, so that no test depends on the speed of the machine.
"""

import dataclasses
import importlib
import itertools

import jax
import numpy as np
import pytest

import tallmc
from problems import by_control_variates, linear, logistic
from tallmc._core.errors import PreparationError
from tallmc._core.supervision import (
    Clock,
    checkpoint,
    current_clock,
    is_short_of_time,
    stage,
    supervised,
)
from tallmc._store.reader import open_store
from tallmc.methods.automatic.anchored import AnchoredPlanner
from tallmc.methods.automatic.exact import _Tuner
from tallmc.results import display as show
from test_cli import call

STAGES = [
    "preparing the method",
    "finding the mode",
    "computing the Hessian at the mode",
    "computing row weights at the mode",
    "checking step size and gradient noise with pairs of chains",
    "starting the chains",
    "compiling the step",
    "sampling",
    "finished",
]
LIMIT = 100.0


class FakeClock:
    """Seconds that pass only in a given stage."""

    def __init__(self, monkeypatch):
        self.seconds, self.stages = 0.0, []
        monkeypatch.setattr(Clock, "seconds", property(lambda clock: self.seconds))
        monkeypatch.setattr("tallmc._core.supervision._BETWEEN_REPORTS", 0.0)

    def sample(self, stage, seconds, **settings):
        """Sample; set the clock to `seconds` when `stage` begins."""

        def hear(now):
            self.stages.append(now.stage)
            if now.stage == stage:
                self.seconds = seconds

        posterior = logistic(n_rows=6000, dim=2)
        settings = {"chains": 2, "n_draws": 300, "max_seconds": LIMIT} | settings
        return tallmc.sample(posterior, callback=hear, **settings)


@pytest.fixture
def clock(monkeypatch):
    by_control_variates(monkeypatch)
    return FakeClock(monkeypatch)


@pytest.mark.slow
def test_every_stage_is_announced_in_order(clock):
    draws = clock.sample(None, 0.0)
    assert [name for name, _ in itertools.groupby(clock.stages)] == STAGES
    assert draws.stopped_by is None


@pytest.mark.slow
def test_the_stages_of_the_default_are_announced(monkeypatch):
    clock = FakeClock(monkeypatch)
    clock.sample(None, 0.0)
    assert [name for name, _ in itertools.groupby(clock.stages)] == [
        *STAGES[:3],
        "looking for hard rows",
        "expanding the rows",
        "tuning Hamiltonian Monte Carlo on the hard rows and the series",
        "checking the draws on all rows",
        *STAGES[5:],
        "checking the draws on all rows",
        "finished",
    ]


@pytest.mark.parametrize("stage", STAGES[1:5])
def test_a_limit_that_passes_in_preparation_names_the_stage_and_the_cure(stage, clock, tmp_path):
    said = f"the limit of 100 seconds passed while {stage}, before the first draw. Raise"
    with pytest.raises(PreparationError, match=said):
        clock.sample(stage, LIMIT, store=tmp_path / "run")
    assert clock.stages[-1] == stage
    assert not (tmp_path / "run").exists()


def test_half_of_the_limit_ends_the_search_for_settings_and_leaves_time_for_draws(
    clock, monkeypatch
):
    monkeypatch.setattr(AnchoredPlanner, "_largest_step", lambda planner, pilot: 0.01)
    draws = clock.sample(STAGES[4], 0.5 * LIMIT, n_draws=500)
    assert draws.positions.shape[1] == 500
    assert any("half of max_seconds passed" in doubt for doubt in draws.report.doubts)


@pytest.mark.slow
def test_half_of_the_limit_ends_the_tuning_of_the_exact_plan(clock, monkeypatch):
    monkeypatch.setattr(_Tuner, "_is_tuned", lambda tuner, visited: False)
    rows = []
    for seconds in (0.0, 0.5 * LIMIT):
        clock.seconds = 0.0

        def hear(now, seconds=seconds):
            if now.stage == "tuning Hamiltonian Monte Carlo on all rows":
                clock.seconds = seconds

        settings = {"chains": 2, "n_draws": 50, "max_seconds": LIMIT, "callback": hear}
        rows.append(tallmc.sample(linear(n_rows=50), **settings).n_row_evals_preparation)
    assert rows[1] < 0.75 * rows[0]


@pytest.mark.slow
def test_the_time_of_the_preparation_counts_when_chains_run(clock):
    draws = clock.sample("compiling the step", 0.99 * LIMIT, n_draws=500)
    assert draws.stopped_by is None
    clock.seconds = 0.0
    draws = clock.sample("sampling", LIMIT, n_draws=10**6, burn_in=0)
    assert draws.stopped_by == "the limit of 100 seconds"
    assert 0 < draws.positions.shape[1] < 10**6
    assert clock.stages[-1] == "stopped by the limit of 100 seconds"


@pytest.mark.slow
def test_a_limit_that_passes_in_burn_in_returns_no_draws_and_says_so(clock):
    with pytest.warns(tallmc.SamplingWarning, match="stopped by the limit of 100 seconds in step"):
        draws = clock.sample("compiling the step", LIMIT, burn_in=10**6)
    assert draws.positions.shape[1] == 0


def test_the_limit_of_a_resumed_run_is_that_of_the_call(tmp_path, monkeypatch):
    posterior, method = linear(), tallmc.methods.sgld(0.01, batch_size=3)
    tallmc.sample(posterior, method, n_draws=100, store=tmp_path / "run")
    module = importlib.import_module("tallmc._fit.stored")
    stored = module.restored
    long_ago = {"seconds": 1e6}  # the time that the stored part took
    monkeypatch.setattr(
        module, "restored", lambda *given: dataclasses.replace(stored(*given), **long_ago)
    )
    longer = tallmc.resume(tmp_path / "run", posterior, n_draws=110, max_seconds=1e5)
    assert longer.positions.shape[1] == 110 and longer.stopped_by is None
    with pytest.raises(PreparationError, match=r"the limit of 1e-06 seconds passed while"):
        tallmc.resume(tmp_path / "run", posterior, n_draws=10**6, max_seconds=1e-6)
    assert tallmc.resume(tmp_path / "run", posterior).positions.shape[1] == 110


def test_what_is_known_is_kept_if_the_time_is_up_before_the_first_draw(monkeypatch):
    clock = FakeClock(monkeypatch)
    with pytest.raises(PreparationError, match="The mode and the Gaussian there are known") as up:
        clock.sample("looking for hard rows", LIMIT)
    clock.seconds = 0.0
    draws = clock.sample(None, 0.0, anchor=up.value.anchor)
    assert draws.positions.shape[1] == 300 and "finding the mode" not in clock.stages[-8:]


def test_compilation_is_not_booked_as_preparation():
    clock = Clock()
    before = clock.compiling
    jax.jit(lambda x: x * 0.123 + before)(np.ones(3))
    assert clock.compiling > before
    draws = tallmc.sample(linear(n_rows=37), tallmc.methods.mala(0.1), chains=3, n_draws=41)
    assert draws.timing.compilation <= clock.compiling and draws.timing.preparation >= 0


def test_compilation_of_earlier_processes_stays_compilation(tmp_path, monkeypatch):
    posterior, method = linear(n_rows=37), tallmc.methods.mala(0.1)
    options = {"chains": 3, "store": tmp_path / "run", "progress": False}
    tallmc.sample(posterior, method, n_draws=41, **options)
    resume = importlib.import_module("tallmc._fit.stored")

    def opened_later(store):
        opened = open_store(store)
        opened.manifest.progress["seconds"] |= {"preparation": 3000.0, "compilation": 5000.0}
        return opened

    monkeypatch.setattr(resume, "open_store", opened_later)
    timing = tallmc.resume(tmp_path / "run", posterior, n_draws=50, progress=False).timing
    assert timing.compilation >= 5000.0 and 3000.0 <= timing.preparation < 5000.0


def test_a_block_without_its_own_clock_counts_from_the_outer_block():
    with supervised() as outer:
        assert current_clock() is outer.clock
        with supervised(max_seconds=1.0) as inner:
            assert inner.clock is outer.clock
    assert current_clock() is not outer.clock
    assert not is_short_of_time()
    stage("nothing is supervised")
    checkpoint()


def test_stages_are_shown_before_the_chains_run(monkeypatch, capsys):
    monkeypatch.setattr(show, "_FIRST_LINE", 0.0)
    method = tallmc.methods.sgld_cv(0.01, batch_size=3)
    tallmc.sample(linear(), method, chains=2, n_draws=50, progress=True)
    said = capsys.readouterr().err
    assert "tallmc: finding the mode · " in said
    assert (
        said.index("finding the mode") < said.index("compiling the step") < said.index("50 of 50")
    )


@pytest.fixture
def table(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 2))
    np.savez(tmp_path / "table.npz", X=x, y=(x[:, 0] > 0).astype(int))
    return tmp_path / "table.npz"


@pytest.mark.slow
def test_the_command_has_a_limit_on_seconds(table, tmp_path, capsys):
    options = ["fit", table, "--family", "bernoulli", "--chains", 2, "-o", tmp_path / "out"]
    limit = ["--max-seconds", 0.001]
    for method in ([], ["--method", "mala"]):
        assert call(*options, *method, *limit, "--overwrite") == 2
        assert "the limit of 0.001 seconds passed while" in capsys.readouterr().err
    store = tmp_path / "run"
    options += ["--method", "mala", "--draws", 50, "--store", store]
    assert call(*options, "--max-seconds", 10**6) in (0, 3)
    assert call("resume", store, "--draws", 10**6, *limit) == 2
