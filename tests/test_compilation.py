"""A default run compiles few programs, and other data with the same columns need no others."""

import numpy as np
import pytest
from jax._src import compiler

import tallmc
from problems import by_control_variates
from tallmc.methods.trajectories import SurrogateHMC

_MOST_PROGRAMS, _MOST_BY_SERIES = 15, 9


@pytest.fixture
def compiled(monkeypatch, drop_programs):
    """The programs that are compiled, or read from a cache, while the test runs."""
    drop_programs()
    found, original = [], compiler.compile_or_get_cached

    def spy(backend, computation, *args, **options):
        found.append(str(computation.operation.attributes["sym_name"]))
        return original(backend, computation, *args, **options)

    monkeypatch.setattr(compiler, "compile_or_get_cached", spy)
    return found


def regression(n_rows, seed, outliers=0):
    rng = np.random.default_rng(seed)
    x = np.c_[np.ones(n_rows), rng.normal(size=(n_rows, 2))]
    x[:outliers] *= 12.0  # rows that are in every step
    y = rng.random(n_rows) < 1 / (1 + np.exp(-x @ [0.5, 1.0, -1.0]))
    return tallmc.models.logistic_regression(x, y, prior_variance=10.0)


@pytest.mark.slow
def test_a_default_run_compiles_few_programs_and_other_data_none(compiled, monkeypatch):
    by_control_variates(monkeypatch)
    first = regression(30_000, seed=0)
    compiled.clear()
    tallmc.sample(first, ess=500)
    assert 5 <= len(compiled) <= _MOST_PROGRAMS, compiled

    other = regression(41_234, seed=1, outliers=3)
    compiled.clear()
    draws = tallmc.sample(other, ess=500)
    weights_again = ['"jit__of_block"']  # only where the pilot's noise asks for other weights
    assert compiled in ([], weights_again), compiled
    assert draws.report.trusted, draws.report


@pytest.mark.slow
def test_a_run_by_series_compiles_few_programs_and_other_data_none(compiled):
    first = regression(30_000, seed=0, outliers=3)
    compiled.clear()
    tallmc.sample(first)
    assert 5 <= len(compiled) <= _MOST_BY_SERIES, compiled

    other = regression(41_234, seed=1, outliers=3)
    compiled.clear()
    draws = tallmc.sample(other)
    assert isinstance(draws.settings["method"], SurrogateHMC)
    assert compiled == [], compiled
    new = regression(9_000, seed=2, outliers=3).data
    draws.update(new)
    assert compiled == [], compiled


def test_a_posterior_of_arrays_compiles_nothing(compiled):
    """Checks of the user's numbers are NumPy's: each would be a program, compiled before a run."""
    first = regression(700, seed=0)
    assert not compiled
    first.rows.batch_of(np.arange(300), np.ones(300), np.float32)
    assert not compiled
