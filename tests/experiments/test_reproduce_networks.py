"""The runs of the network experiments: parametrisations, scores, averages and gradient descent."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data import movielens
from experiments.li2021 import fig3, networks
from experiments.nemeth2021 import fig5, fig6
from experiments.predictive_runs import (
    PredictiveRun,
    _WindowMean,
    error_per_cent,
    log_loss,
    predictive_run,
    root_mean_square_error,
)
from tallmc import models
from tallmc.methods import sghmc, sgld


def regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = x @ [1.0, -1.0] + 0.5 * rng.normal(size=40)
    return models.neural_network([], x, y, response="gaussian", noise_variance=0.25), x, y


def test_steps_of_the_mean_potential_are_those_of_the_sum_in_other_units():
    """θ' = θ + hr, r' = r − h(∇V/N + γr) + √(2γh/N) ξ, one step by hand."""
    posterior, _, y = regression()
    n, h, friction = len(y), 0.01, 0.7
    h_of_sum, scaled = networks.in_units_of_sum(h, friction, n, "mean")
    assert h_of_sum == pytest.approx(h / np.sqrt(n))
    momentum = np.array([0.3, -0.2, 0.1])  # r; the library's ρ is √N r
    gradient = np.asarray(posterior.gradient(posterior.init))
    by_hand = momentum - h * (gradient / n + friction * momentum)
    library = np.sqrt(n) * momentum - h_of_sum * (gradient + scaled * np.sqrt(n) * momentum)
    np.testing.assert_allclose(library / np.sqrt(n), by_hand, rtol=1e-12)
    # The injected noise has variance 2γh/N per step in units of r.
    assert 2 * scaled * h_of_sum / n == pytest.approx(2 * friction * h / n)


def test_the_momentum_form_of_table_3_is_that_of_chen_et_al():
    """v' = (1 − α)v − η∇V + √(2αη) ξ with v = hρ: η = h², α = γh."""
    h, friction = networks.momentum_form(0.05, 60_000)
    assert h**2 == pytest.approx(0.05 / 60_000)
    assert friction * h == pytest.approx(networks.ALPHA)


def test_predictions_of_a_pool_are_the_mean_over_its_chains():
    posterior, x, y = regression()
    rows, settings = posterior.predictive.encode((x, y)), {"steps": 3, "evaluations": 2, "seed": 0}
    scores = {"rmse": root_mean_square_error(y)}
    starts = np.zeros((4, 3))
    found = predictive_run(posterior, sgld(1e-3, 10), rows, scores, starts, pool=2, **settings)
    assert found.current["rmse"].shape == (2, 2)
    assert found.predictions.shape == (4, 40)
    by_hand = np.stack([found.predictions[:2].mean(axis=0), found.predictions[2:].mean(axis=0)])
    np.testing.assert_allclose(found.current["rmse"][:, -1], scores["rmse"](by_hand))


def test_groups_of_chains_are_scored_by_their_mean_prediction():
    predictions = np.array([[[0.9, 0.1]], [[0.4, 0.6]], [[0.2, 0.8]], [[0.45, 0.55]]])
    run = PredictiveRun({}, {}, jnp.zeros((4, 1)), predictions, 0.0)
    labels = np.array([0])
    np.testing.assert_array_equal(fig3.errors_of_groups(run, labels, 1), [0, 100, 100, 100])
    np.testing.assert_array_equal(fig3.errors_of_groups(run, labels, 2), [0, 100])
    np.testing.assert_array_equal(fig3.errors_of_groups(run, labels, 4), [100])


def test_the_printed_step_of_sgld_is_that_of_the_sum():
    for potential in ("sum", "mean"):
        chosen = networks.methods(networks.NETWORKS["MLP"], potential)
        assert chosen["SGLD"].step_size == pytest.approx(2e-7)
    n = 60_000
    assert chosen["SGHMC"] == sghmc(4e-3 / n**0.5, 100, 0.1 * n**0.5)


def test_ewsg_takes_half_as_many_steps_per_epoch():
    assert networks.steps_per_epoch(100) == 600
    assert networks.steps_per_epoch(200) == 300


def test_descent_without_noise_reaches_the_least_squares_solution():
    posterior, x, y = regression()
    rows = posterior.predictive.encode((x, y))
    found = predictive_run(
        posterior,
        sgld(2e-3, 40),
        rows,
        {"rmse": root_mean_square_error(y)},
        np.zeros((2, 3)),
        steps=400,
        evaluations=2,
        seed=0,
        with_noise=False,
    )
    design = np.column_stack([np.ones(40), x])
    ridge = np.linalg.solve(design.T @ design + 0.25 * np.eye(3), design.T @ y)
    # Rows are drawn with replacement, so descent keeps some noise.
    np.testing.assert_allclose(found.positions, np.tile(ridge, (2, 1)), atol=0.1)
    best = np.sqrt(np.mean((design @ ridge - y) ** 2))
    np.testing.assert_allclose(found.averaged["rmse"][:, -1], best, atol=0.01)


def test_chains_differ_and_do_not_depend_on_the_evaluations():
    posterior, x, y = regression()
    rows = posterior.predictive.encode((x, y))

    def last(steps, evaluations):
        return predictive_run(
            posterior,
            sgld(1e-3, 10),
            rows,
            {"rmse": root_mean_square_error(y)},
            np.zeros((2, 3)),
            steps=steps,
            evaluations=evaluations,
            seed=0,
        ).positions

    once, thrice = last(12, 1), last(4, 3)
    np.testing.assert_allclose(once, thrice, rtol=1e-12)
    assert not np.allclose(once[0], once[1])


def test_averages_are_over_the_second_half():
    window, values = _WindowMean(), np.arange(1.0, 8.0)
    found = [float(window.add(np.array([value]))[0]) for value in values]
    expected = [np.mean(values[n // 2 : n]) for n in range(1, 8)]
    np.testing.assert_allclose(found, expected)


def test_scores():
    means = np.array([[[0.7, 0.3], [0.4, 0.6]], [[0.1, 0.9], [np.nan, np.nan]]])
    y = np.array([0, 0])
    np.testing.assert_allclose(error_per_cent(y)(means), [50.0, 100.0])
    np.testing.assert_allclose(log_loss(y)(means[:1]), [-np.mean(np.log([0.7, 0.4]))])
    rmse = root_mean_square_error(np.array([1.0, 5.0]), 1, 5)
    np.testing.assert_allclose(rmse(np.array([[0.0, 4.0]])), [np.sqrt(0.5)])


def test_simulated_ratings_have_the_shape_of_movielens():
    data = fig6.simulated()
    table = np.concatenate([data.train, data.held_out])
    assert (len(data.train), len(data.held_out)) == (80_000, 20_000)
    assert len(np.unique(table[:, 0] * 1_682 + table[:, 1])) == 100_000
    assert table[:, 0].max() < 943
    assert table[:, 1].max() < 1_682
    assert set(np.unique(table[:, 2])) == {1, 2, 3, 4, 5}
    assert "simulated" in data.source


def test_momentum_of_the_review_is_that_of_the_library():
    """ν' = ν + εg − αν, θ' = θ + ν' has h = √ε and γ = α/√ε in units ν = √ε ρ."""
    for name, step in (("SGHMC", 4e-6), ("SGNHT", 7e-6), ("SGNHT-CV", 7e-6)):
        method = fig5.methods()[name]
        h = method.step_size / 2
        assert h**2 == pytest.approx(step)
        assert method.dynamics.friction * h == pytest.approx(0.01)
    assert method.dynamics.momentum_first
    assert jnp.isclose(fig5.methods(fig5.SMALLER)["SGLD"].step_size, 1e-5)


def test_movielens_is_read_from_its_own_folder(tmp_path):
    (tmp_path / "u1.base").write_text("1\t2\t5\t881\n2\t1\t3\t882\n")
    (tmp_path / "u1.test").write_text("2\t3\t4\t883\n")
    found = movielens(tmp_path)
    assert found.train.tolist() == [[0, 1, 5], [1, 0, 3]]
    assert found.held_out.tolist() == [[1, 2, 4]]
    assert (found.n_users, found.n_items) == (2, 3)
