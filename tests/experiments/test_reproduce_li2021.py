"""The experiments on Li, Wang, Zha and Tao (2021): closed forms, counting, and small runs."""

import numpy as np
import pytest

import tallmc
from experiments.li2021 import averages, fig4, gaussian
from experiments.li2021.ensemble import Ensemble
from experiments.li2021.table1 import _predictive


def ignore(share):
    pass


@pytest.mark.parametrize("label", ["SGLD", "SGHMC"])
def test_divergences_are_those_of_the_linear_recursion(label):
    points, schedule = gaussian.centres(3), gaussian.compared()[label]
    found = gaussian.kl_path(schedule, points, chains=2000, passes=4, seed=0, share=ignore)
    h = gaussian.STEP_SIZES[label]
    exact = gaussian.exact_kl(label, points, h, steps=200)
    assert abs(found.end - exact) < 4.6 * found.error
    # Half the noise, as with a wrong step size convention, is told apart.
    assert abs(found.end - gaussian.exact_kl(label, points, h / 2, steps=200)) > 4.6 * found.error


def test_a_pass_counts_calls_of_gradients():
    steps = np.array([25, 50, 51])
    svrg = gaussian.compared()["SVRG-LD"]
    np.testing.assert_allclose(gaussian.weighted(0.05, 1).passes(steps), [1, 2, 2.04])
    np.testing.assert_allclose(svrg.passes(steps), [2, 3, 4.04])
    every, records = svrg.records(passes=30, per_pass=5)
    assert svrg.passes(np.array([every * records])) <= 30
    assert svrg.passes(np.array([every * (records + 1)])) > 30


def test_the_limit_of_averages_is_that_of_exact_sampling_for_short_and_long_times():
    # For T → 0 the average is one draw: Var ‖θ − c̄‖² = 4/50².
    assert averages.limit_of_small_steps(1e-4) == pytest.approx(4 / 50**2, rel=1e-3)
    # ∫ρ² for γ = 10 and curvature 50 is (1/50²)(3/20).
    long = averages.limit_of_small_steps(1e5) * 1e5
    assert long == pytest.approx(2 * 4 / 50**2 * 3 / 20, rel=1e-3)


def test_averages_have_the_exact_bias():
    points, h = gaussian.centres(0), 0.05
    errors = averages.average_errors(
        gaussian.weighted(h, 0), points, h, np.array([5.0, 50.0]), chains=200, seed=0, share=ignore
    )
    assert errors.shape == (2, 200)
    error = errors[1].std(ddof=1) / np.sqrt(200)
    assert abs(errors[1].mean() - averages.exact_bias(points, h)) < 4.6 * error
    assert errors[1].mean() > 20 * error


def test_pieces_are_the_positions(monkeypatch):
    monkeypatch.setattr("experiments.li2021.ensemble._FLOATS_PER_PIECE", 40)
    points = gaussian.centres(0)
    method = tallmc.methods.sgld(1e-2, 1)
    ensemble = Ensemble(gaussian.target(points), method, np.zeros((4, 2)), 3, seed=2)
    pieces = list(ensemble.pieces(12, ignore))
    assert [piece.shape[1] for piece in pieces] == [5, 5, 2]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), ensemble.positions(12, ignore))


def test_the_friction_of_appendix_f_is_unstable_at_the_papers_step():
    assert all(0.05 * fig4.corrected_friction(draw, 0.05) > 2 for draw in range(4))
    assert all(0.02 * fig4.corrected_friction(draw, 0.02) < 2 for draw in range(4))


def test_scores_are_those_of_the_mean_probability():
    signed_rows = np.array([[1.0, 0.0], [-2.0, 1.0], [0.5, 0.5]], np.float32)
    positions = np.array([[1.0, 2.0], [-3.0, 0.5]], np.float32)
    mean = (1 / (1 + np.exp(-signed_rows @ positions.T))).mean(axis=1)
    accuracy, log_likelihood = _predictive(signed_rows, positions)
    assert float(accuracy) == pytest.approx(np.mean(mean > 0.5))
    assert float(log_likelihood) == pytest.approx(np.log(mean).mean(), rel=1e-5)
