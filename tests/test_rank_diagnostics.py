"""ESS and R-hat from normal scores: the numbers of ArviZ, at less cost."""

import functools

import numpy as np
import pytest
from arviz_stats.base import array_stats

from tallmc._core import statistics as convergence
from tallmc._core import statistics as rank_diagnostics
from tallmc._core.arrays import layout_of
from tallmc._core.errors import Outcome
from tallmc._core.statistics import (
    agreement,
    diagnostics,
    ess,
    for_each_parameter,
    nested_rhat,
    rhat,
    suspects,
)
from tallmc.methods.abstract import Account
from tallmc.results.draws import Draws, Timing
from tallmc.results.report import make_report

GROUPS = 16
CONSTANT = 3
AXES = {"chain_axis": 0, "draw_axis": 1}


def draws_of(shape, correlation, dtype):
    """Autocorrelated draws: continuous, with ties, with chains apart, and constant."""
    rng = np.random.default_rng(shape[1])
    x = rng.normal(size=(*shape, CONSTANT + 1))
    for t in range(1, shape[1]):
        x[:, t] = correlation * x[:, t - 1] + np.sqrt(1 - correlation**2) * x[:, t]
    x[:, :, 1] = np.round(2 * x[:, :, 1])
    x[0, :, 2] += 3
    x[:, :, CONSTANT] = 7
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.6, 0.99])
@pytest.mark.parametrize(
    "shape", [(1, 4), (1, 301), (2, 5), (3, 7), (4, 8), (3, 35), (4, 500), (64, 33), (300, 40)]
)
def test_the_numbers_are_those_of_arviz(shape, correlation, dtype):
    positions = draws_of(shape, correlation, dtype)
    exact = positions.astype(np.float64)
    np.testing.assert_allclose(
        ess(positions), array_stats.ess(exact, method="bulk", **AXES), rtol=1e-10
    )
    assert ess(positions)[CONSTANT] == shape[0] * (shape[1] // 2 * 2)
    if shape[0] > 1:
        with np.errstate(invalid="ignore"):
            expected = array_stats.rhat(exact, method="rank", **AXES)
        np.testing.assert_allclose(rhat(positions), expected, rtol=1e-10)
        assert np.isnan(expected[CONSTANT])


@pytest.mark.parametrize("correlation", [-0.8, 0.6])
@pytest.mark.parametrize("shape", [(1, 301), (3, 7), (4, 500), (64, 33)])
def test_the_numbers_of_a_summary_are_those_of_arviz(shape, correlation):
    x = draws_of(shape, correlation, np.float64)[:, :, :CONSTANT]
    found = diagnostics(x)
    expected = {
        "ess_bulk": array_stats.ess(x, method="bulk", **AXES),
        "ess_tail": array_stats.ess(x, method="tail", prob=(0.11, 0.89), **AXES),
        "rhat": array_stats.rhat(x, method="rank", **AXES),
        "mcse_mean": array_stats.mcse(x, method="mean", **AXES),
        "mcse_sd": array_stats.mcse(x, method="sd", **AXES),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("shape", [(64, 7), (64, 150), (512, 20)])
def test_nested_rhat_is_that_of_arviz(shape):
    positions = draws_of(shape, 0.5, np.float32)[:, :, :CONSTANT]
    found = for_each_parameter(
        lambda scores: (scores.rhat(functools.partial(nested_rhat, GROUPS)),), positions
    )[:, 0]
    groups = np.arange(shape[0]) % GROUPS
    expected = array_stats.rhat_nested(positions.astype(np.float64), groups, **AXES)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_single_chain_is_ranked_once_and_its_halves_are_compared(monkeypatch):
    chain, ranked, original = draws_of((1, 400), 0.6, np.float32), [], rank_diagnostics._sorted
    monkeypatch.setattr(rank_diagnostics, "_sorted", lambda x: ranked.append(1) or original(x))
    found = agreement(chain)
    assert len(ranked) == chain.shape[2]
    monkeypatch.undo()
    halves = np.concatenate([chain[:, :200], chain[:, 200:]])
    assert found.largest_rhat == np.nanmax(rhat(halves))
    np.testing.assert_array_equal(found.bulk, ess(chain))


def test_draws_closer_than_single_precision_are_ranked():
    positions = 1e8 + draws_of((4, 100), 0.5, np.float64)
    expected = array_stats.ess(positions, method="bulk", **AXES)
    np.testing.assert_allclose(ess(positions), expected, rtol=1e-10)
    assert expected[0] < 400


def test_threads_do_not_change_the_numbers(monkeypatch):
    positions = draws_of((4, 500), 0.6, np.float32)
    one = ess(positions)
    monkeypatch.setattr(rank_diagnostics, "_FEWEST_FOR_THREADS", 1)
    monkeypatch.setattr(rank_diagnostics, "core_count", lambda: 3)
    np.testing.assert_array_equal(ess(positions), one)


@pytest.fixture
def few_examined(monkeypatch):
    monkeypatch.setattr(convergence, "_DRAWS_EXAMINED", 1)


FAULTS = {
    "slow": lambda x, rng: np.cumsum(0.05 * rng.normal(size=x.shape), axis=1) + 0.1 * x,
    "chains apart": lambda x, rng: x + np.arange(len(x))[:, None],
    "wider chains": lambda x, rng: x * (1 + np.arange(len(x))[:, None]),
    "halves apart": lambda x, rng: x + (np.arange(x.shape[1]) > x.shape[1] // 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_worst_parameter_is_among_the_suspects(fault, few_examined):
    rng = np.random.default_rng(0)
    # The others mix slowly, so that their means spread more than those of independent draws.
    x = rng.normal(size=(8, 400, 60)) * 10.0 ** rng.uniform(-3, 3, size=60)
    for t in range(1, 400):
        x[:, t] = 0.8 * x[:, t - 1] + 0.6 * x[:, t]
    clean = rng.normal(size=(8, 400))
    x[:, :, 17] = 100 + FAULTS[fault](clean, rng)
    found = suspects(x)
    assert len(found) <= 24 and 17 in found
    agreed = agreement(x)
    assert not agreed.reached
    assert agreed.rhat == pytest.approx(rhat(x[:, :, 17:18])[0], rel=1e-12)


def test_suspects_include_the_parameter_with_the_fewest_effective_draws(few_examined):
    rng = np.random.default_rng(0)
    correlation = rng.uniform(0, 0.95, size=60)
    x = rng.normal(size=(8, 400, 60))
    for t in range(1, 400):
        x[:, t] = correlation * x[:, t - 1] + np.sqrt(1 - correlation**2) * x[:, t]
    assert np.argmin(ess(x)) in suspects(x)


def test_the_report_is_the_same_with_an_agreement_that_is_known():
    positions = np.random.default_rng(0).normal(size=(4, 200, 1))
    timing, (layout, _) = Timing(0.0, 0.0, 0.0), layout_of({"slope": 0.0})
    draws = Draws(positions, {}, (Outcome.OK,) * 4, 0, 0, timing, layout, {})
    agreed = agreement(draws.positions)
    at = np.zeros(4, int)
    assert draws.judged(at, None, agreed=agreed).report == draws.report
    other = draws.judged(at, None, agreed=agreed._replace(largest_rhat=1.5)).report
    assert other.rhat == 1.5 and other != draws.report


def test_chains_in_equilibrium_agree_although_their_distances_from_the_median_mix_slowly():
    # Exact Hamiltonian trajectories of random length, on a standard Gaussian.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 300))
    positions = np.empty((8, 300, 300))
    for k in range(300):
        time = rng.uniform(0, np.pi, size=(8, 1))
        x = x * np.cos(time) + rng.normal(size=x.shape) * np.sin(time)
        positions[:, k] = x
    agreed = agreement(positions)
    assert agreed.reached
    # Judged with the ESS of the draws, R-hat of the distances would be too large. The fewer
    # effective draws count.
    slower = agreement(np.abs(positions)).ess
    assert np.median(slower) < 0.7 * np.median(ess(positions))
    assert np.median(agreed.ess) < 0.7 * np.median(ess(positions))


@pytest.mark.parametrize(
    ("law", "mean_is_known", "sd_is_known"),
    [
        ("normal", True, True),
        ("exponential", True, True),
        ("laplace", True, True),
        ("t3", True, False),
        ("cauchy", False, False),
    ],
)
def test_the_sd_of_a_heavy_tail_is_not_reported(law, mean_is_known, sd_is_known):
    rng = np.random.default_rng(1)
    draw = {"t3": lambda size: rng.standard_t(3, size), "cauchy": rng.standard_cauchy}
    positions = np.stack(
        [rng.normal(size=(8, 1500)), draw.get(law, getattr(rng, law, None))(size=(8, 1500))], axis=2
    )
    report = make_report(positions, np.ones(8, bool), {}, Account(None, exact=True))
    assert (report.mean_error is not None) == mean_is_known
    assert (report.sd_error is not None) == sd_is_known
    assert ("the tails of parameter 1 are heavy" in str(report)) != sd_is_known
    assert report.trusted


def test_a_heavy_tail_has_the_name_of_the_summary():
    rng = np.random.default_rng(1)
    positions = np.stack([rng.normal(size=(8, 1500)), rng.standard_cauchy((8, 1500))], axis=2)
    layout, _ = layout_of({"age": 0.0, "income": 0.0})
    timing, outcomes = Timing(0.0, 0.0, 0.0), (Outcome.OK,) * 8
    exact = Account(None, exact=True)
    draws = Draws(positions, {}, outcomes, 0, 0, timing, layout, {}, exact)
    assert list(draws.summary().index) == ["age", "income"]
    assert "the tails of income are heavy" in str(draws.report)


def test_a_constant_has_no_heavy_tail():
    """Such as the share of R² of the only column."""
    assert convergence.kurtosis(np.ones(1000)) == 0
    assert convergence.tail_index(np.ones(1000), 1000.0) == -np.inf
