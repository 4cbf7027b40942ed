"""The anchor's mode, gradient, Hessian and covariance, by every optimiser and in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import design, exact_posterior, linear, logistic, slow_after
from tallmc._anchor.modes import other_modes
from tallmc._anchor.optimisers import CountedPasses, _drawn_part, in_posterior_sds


@pytest.mark.parametrize(
    "optimiser", slow_after(1, [tallmc.anchor.Newton(), tallmc.anchor.LBFGS()])
)
def test_optimisers_find_the_mode(optimiser):
    posterior = logistic(n_rows=3000, dim=4)
    anchor = tallmc.anchor.find_anchor(posterior, optimiser=optimiser)
    assert anchor.decrement < 1e-2
    np.testing.assert_allclose(
        anchor.gradient, posterior.gradient(anchor.position), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(anchor.hessian, posterior.hessian(anchor.position), rtol=1e-9)
    np.testing.assert_allclose(anchor.covariance @ anchor.hessian, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(
        anchor.factor @ anchor.factor.T, anchor.covariance, rtol=1e-9, atol=1e-15
    )


def test_rows_that_cost_much_are_searched_in_few_passes(monkeypatch):
    """Groups whose effects are integrated out are such rows."""
    posterior = logistic(n_rows=40_000, dim=4)
    monkeypatch.setattr(type(posterior.model), "row_cost", 64)
    monkeypatch.setattr(type(posterior.model), "log_concave", False)
    anchor = tallmc.anchor.find_anchor(posterior)
    assert anchor.decrement < 0.1 and anchor.n_row_evals < 5 * posterior.n_rows
    passes = CountedPasses(posterior)
    assert other_modes(posterior, anchor, passes=passes) == []
    assert passes.n_row_evals < 10 * posterior.n_rows


def test_newton_is_exact_on_a_gaussian_posterior():
    posterior = linear(n_rows=500, dim=3)
    mean, covariance = exact_posterior(posterior)
    anchor = tallmc.anchor.find_anchor(posterior)
    np.testing.assert_allclose(anchor.position, mean, rtol=1e-10)
    np.testing.assert_allclose(anchor.covariance, covariance, rtol=1e-10)


def test_a_search_of_many_short_steps_ends_on_a_part_of_the_rows(monkeypatch):
    """As from zero correlations of many effects; passes over all rows must not do its work."""
    posterior = logistic(n_rows=40_000, dim=4)
    mode = tallmc.anchor.find_anchor(posterior).position
    posterior = eqx.tree_at(lambda of: of.model.init, posterior, mode + 1)
    longest, model = 2 / 55, type(posterior.model)
    monkeypatch.setattr(model, "row_cost", 64)
    monkeypatch.setattr(model, "step_share", lambda _, step: min(1, longest / np.linalg.norm(step)))
    search, ends = tallmc.anchor.Newton.search_part, []

    def recorded(*args):
        ends.append(search(*args))
        return ends[-1]

    monkeypatch.setattr(tallmc.anchor.Newton, "search_part", recorded)
    assert tallmc.anchor.find_anchor(posterior).decrement < 0.1
    assert np.linalg.norm(ends[0] - mode) < 0.2


def test_newton_survives_a_start_where_full_steps_overshoot():
    x = design(400, 3) * 10
    posterior = tallmc.models.poisson_regression(
        x / 30, np.random.default_rng(0).poisson(2.0, 400), prior_variance=10.0
    )
    assert tallmc.anchor.find_anchor(posterior).decrement < 1e-3


def test_newton_leaves_a_saddle():
    """In a double well whose Hessian is negative at the start, Newton finds the mode."""
    posterior = tallmc.Posterior(
        log_likelihood=lambda theta, row: row * (theta**2 / 2 - theta**4 / 4),
        log_prior=lambda theta: 0.01 * theta,
        data=jnp.ones(10),
        init=0.1,
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    assert float(anchor.position[0]) == pytest.approx(1.0, abs=1e-2)


def test_adam_is_the_papers_optimiser():
    """Adam equals a plain transcription of Kingma and Ba with the papers' settings."""
    posterior = logistic(n_rows=300, dim=2)
    found = tallmc.anchor.find_anchor(
        posterior,
        optimiser=tallmc.anchor.Adam(step_size=1e-3, steps=200, size=10, seed=4),
        hessian=False,
    )
    keys = jax.random.split(jax.random.key(4), 200)
    theta, m, v = np.zeros(2), np.zeros(2), np.zeros(2)
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    for t, key in enumerate(keys, start=1):
        i = np.asarray(jax.random.randint(key, (10,), 0, 300))
        g = theta / 2.0 + 300 / 10 * ((1 / (1 + np.exp(-x[i] @ theta)) - y[i]) @ x[i])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - 1e-3 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(found.position, theta, rtol=1e-8)
    assert found.n_row_evals == 200 * 10 + 300
    assert found.hessian is None


def test_an_anchor_anywhere_and_a_warning_when_it_is_far_from_the_mode():
    posterior = logistic(n_rows=300, dim=2)
    there = tallmc.anchor.find_anchor(posterior, at={"beta": np.array([0.3, 0.4])})
    np.testing.assert_array_equal(there.position, [0.3, 0.4])
    with pytest.warns(UserWarning, match="posterior standard deviations from the mode"):
        tallmc.anchor.find_anchor(posterior, optimiser=tallmc.anchor.Adam(steps=5))


@pytest.mark.slow
def test_a_part_of_the_rows_leads_to_the_mode_of_all():
    """With this many rows the search starts on a part of them. The last block is not full."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200_001, 2)).astype(np.float32)
    posterior = tallmc.models.logistic_regression(
        x, rng.random(200_001) < 1 / (1 + np.exp(-x[:, 0])), prior_variance=10.0
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    assert anchor.decrement < 1e-2
    np.testing.assert_allclose(anchor.gradient, posterior.gradient(anchor.position), atol=1e-2)
    assert anchor.n_row_evals < 15 * 200_001


def test_no_anchor_where_the_potential_is_not_finite():
    posterior = logistic(n_rows=300, dim=2)
    with pytest.raises(tallmc.PreparationError, match="not finite at the anchor"):
        tallmc.anchor.find_anchor(posterior, at={"beta": np.array([np.nan, 0.0])})
    nowhere = tallmc.Posterior(lambda t, row: jnp.log(t) * row, lambda t: -t, jnp.ones(5), -1.0)
    with pytest.raises(tallmc.PreparationError, match="not finite at init"):
        tallmc.anchor.find_anchor(nowhere)


@pytest.mark.slow
def test_lbfgs_stops_when_rounding_does_and_says_when_it_did_not_arrive():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5000, 30)).astype(np.float32)
    posterior = tallmc.models.logistic_regression(
        x, rng.random(5000) < 1 / (1 + np.exp(-x[:, 0])), prior_variance=10.0
    )
    anchor = tallmc.anchor.find_anchor(posterior, optimiser=tallmc.anchor.LBFGS())
    assert anchor.decrement < 0.05
    assert anchor.n_row_evals < 100 * 5000
    with pytest.warns(UserWarning, match="stopped after 2 steps, before the mode"):
        tallmc.anchor.find_anchor(
            posterior, optimiser=tallmc.anchor.LBFGS(max_steps=2), hessian=False
        )


@pytest.mark.slow
def test_an_improper_posterior_has_no_anchor():
    posterior = tallmc.Posterior(
        lambda t, row: row * t[0],
        lambda t: -0.5 * t[0] ** 2 + 0.0 * t[1],
        jnp.ones(5),
        jnp.zeros(2),
    )
    with pytest.raises(tallmc.PreparationError, match="positive definite"):
        tallmc.anchor.find_anchor(posterior)


def test_a_failed_search_says_so():
    posterior = tallmc.Posterior(lambda t, row: row * t, lambda t: 0.0 * t, jnp.ones(5), 0.0)
    with pytest.raises(tallmc.PreparationError, match="did not reach the mode"):
        tallmc.anchor.find_anchor(posterior, optimiser=tallmc.anchor.Newton(max_steps=5))


@pytest.mark.slow
def test_single_precision_anchor_of_an_ill_conditioned_posterior():
    """At condition number 10⁵, the mode is within 0.01 sd and the sds are within 1 %."""
    rng = np.random.default_rng(0)
    x = np.c_[np.ones(100_000), rng.normal(size=(100_000, 3)), rng.random(100_000) < 1e-4].astype(
        np.float32
    )
    y = rng.random(100_000) < 1 / (1 + np.exp(-x @ [0.5, 1.0, -1.0, 0.2, 1.0]))
    single = tallmc.anchor.find_anchor(tallmc.models.logistic_regression(x, y, prior_variance=10.0))
    double = tallmc.anchor.find_anchor(
        tallmc.models.logistic_regression(x.astype(float), y, prior_variance=10.0)
    )
    sd = np.sqrt(np.diag(double.covariance))
    assert single.position.dtype == jnp.float32
    assert np.abs((np.asarray(single.position, float) - double.position) / sd).max() < 0.01
    assert np.abs(np.sqrt(np.diag(single.covariance)) / sd - 1).max() < 0.01


def test_a_search_that_looks_too_far_away_is_quiet_and_names_no_absurd_distance():
    passes = CountedPasses(linear())
    with np.errstate(all="raise"):
        value, _ = passes.value_and_gradient(np.array([1e200, 0.0]))
    assert not np.isfinite(value)
    assert in_posterior_sds(0.314) == "0.31 posterior standard deviations"
    assert in_posterior_sds(1e11) == "more than 100 posterior standard deviations"


def test_a_column_that_the_sums_of_squares_missed_adds_few_rows():
    n_rows, uniform = 2**16, 0.01
    leverages = np.full(n_rows, 1e-4, np.float32)
    usual, _ = _drawn_part(uniform, 100.0, 0, leverages)
    assert len(usual) == pytest.approx(2 * uniform * n_rows, abs=1)
    leverages[: n_rows // 3] = 1e38  # its leverages should add up to 1
    numbers, weights = _drawn_part(uniform, 100.0, 0, leverages)
    assert len(numbers) == pytest.approx(4 * uniform * n_rows, abs=1)
    # Systematic draws of two kinds of rows, one after the other: each kind has its number.
    assert weights.sum() == pytest.approx(n_rows, rel=0.02)
