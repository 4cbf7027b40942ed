"""An anchor where the search for the mode is hard: kinks, saddles, valleys, single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import logistic
from tallmc._anchor import optimisers as lbfgs
from tallmc._anchor.optimisers import CountedPasses, double_passes
from tallmc.geometry import Diagonal


def test_a_well_behaved_posterior_is_searched_by_newton_alone(monkeypatch):
    posterior = logistic(n_rows=500, dim=3)
    newton = tallmc.anchor.find_anchor(posterior, optimiser=tallmc.anchor.Newton())
    for optimiser in (tallmc.anchor.LBFGS, tallmc.anchor.Adam):
        monkeypatch.setattr(optimiser, "search", None)
    default = tallmc.anchor.find_anchor(posterior)
    np.testing.assert_array_equal(default.position, newton.position)
    assert default.n_row_evals == newton.n_row_evals
    assert default.converged is True and newton.converged is True


def lasso(n_rows: int, dim: int, scale: float) -> tuple[tallmc.Posterior, np.ndarray]:
    """Linear regression with a Laplace prior, and its mode by coordinate descent."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_rows, dim))
    y = x[:, 0] - 0.5 * x[:, 1] + rng.normal(size=n_rows)
    posterior = tallmc.Posterior(
        lambda beta, row: -0.5 * (row["y"] - row["x"] @ beta) ** 2,
        lambda beta: -jnp.sum(jnp.abs(beta)) / scale,
        {"x": jnp.asarray(x), "y": jnp.asarray(y)},
        jnp.full(dim, 0.2),
    )
    mode = np.zeros(dim)
    for _ in range(200):
        for j in range(dim):
            slope = x[:, j] @ (y - x @ mode + x[:, j] * mode[j])
            mode[j] = np.sign(slope) * max(abs(slope) - 1 / scale, 0) / (x[:, j] @ x[:, j])
    return posterior, mode


@pytest.mark.slow
def test_kinks_give_the_best_point_with_the_smooth_hessian():
    posterior, mode = lasso(100, 3, scale=0.02)
    with pytest.warns(UserWarning, match="no search reached the mode"):
        anchor = tallmc.anchor.find_anchor(posterior)
    assert anchor.converged is False
    assert anchor.potential < float(posterior.potential(jnp.asarray(mode))) + 0.1
    x = np.asarray(posterior.data["x"])
    np.testing.assert_allclose(anchor.covariance, np.linalg.inv(x.T @ x), rtol=1e-8, atol=1e-12)


def test_a_start_at_a_saddle_ends_at_a_mode():
    posterior = tallmc.Posterior(
        lambda theta, row: -((row - theta**2) ** 2) / 6,
        lambda theta: -(theta**2) / 200,
        jnp.linspace(2.0, 6.0, 50),
        0.0,
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    assert anchor.converged is True
    assert abs(float(anchor.position[0])) == pytest.approx(2.0, abs=0.01)
    # Newton sees that init is a saddle, also without a Hessian for the anchor.
    assert abs(float(tallmc.anchor.find_anchor(posterior, hessian=False).position[0])) > 1.9


@pytest.mark.slow
def test_a_negative_prior_curvature_is_left_out_of_the_covariance_only():
    """At zero, the rows have curvature 10 in both directions, and the prior −20 in the first."""
    posterior = tallmc.Posterior(
        lambda t, row: -0.5 * jnp.sum((t - row) ** 2),
        lambda t: 10.0 * t[0] ** 2 - jnp.sum(t**4) / 40,
        jnp.zeros((10, 2)),
        jnp.zeros(2),
    )
    anchor = tallmc.anchor.find_anchor(posterior, at=jnp.array([0.0, 0.0]))
    np.testing.assert_allclose(anchor.hessian, np.diag([-10.0, 10.0]), atol=1e-12)
    np.testing.assert_allclose(anchor.covariance, np.diag([0.1, 0.1]), atol=1e-12)
    assert anchor.converged is False
    np.testing.assert_allclose(Diagonal().prepare(posterior, anchor).scale, np.sqrt([0.1, 0.1]))


def test_an_infinite_prior_curvature_is_left_out():
    posterior = tallmc.Posterior(
        lambda t, row: -0.5 * (t - row) ** 2,
        lambda t: -(jnp.where(t > 0, t, 0.0) ** 1.5) - jnp.where(t < 0, -t, 0.0) ** 1.5,
        jnp.zeros(8),
        0.5,
    )
    anchor = tallmc.anchor.find_anchor(posterior, at=0.0)
    np.testing.assert_allclose(anchor.covariance, [[1 / 8]])


def test_a_given_optimiser_is_not_replaced_and_its_failure_says_what_to_do():
    posterior = tallmc.Posterior(lambda t, row: row * t, lambda t: 0.0 * t, jnp.ones(5), 0.0)
    with pytest.raises(tallmc.PreparationError, match="leave out the optimiser") as failure:
        tallmc.anchor.find_anchor(posterior, optimiser=tallmc.anchor.Newton(max_steps=5))
    assert "columns" not in str(failure.value)
    with pytest.raises(tallmc.PreparationError, match="Standardise the columns"):
        tallmc.anchor.find_anchor(
            logistic(n_rows=300, dim=3), optimiser=tallmc.anchor.Newton(max_steps=1)
        )


def test_lbfgs_starts_where_it_is_told():
    posterior = logistic(n_rows=200, dim=2)
    passes = CountedPasses(posterior)
    mode = np.asarray(tallmc.anchor.find_anchor(posterior).position)
    end = lbfgs.LBFGS(max_steps=1).search(passes, mode)
    np.testing.assert_allclose(end.position, mode, atol=1e-3)


def test_a_row_with_nan_is_named():
    rows = jnp.ones(10).at[7].set(jnp.nan)
    posterior = tallmc.Posterior(lambda t, row: -0.5 * (t - row) ** 2, lambda t: -(t**2), rows, 0.0)
    with pytest.raises(tallmc.PreparationError, match=r"not finite at init.*row 7, counted from 0"):
        tallmc.anchor.find_anchor(posterior)
    with pytest.raises(tallmc.PreparationError, match=r"at the anchor.*row 7"):
        tallmc.anchor.find_anchor(posterior, at=1.0)


def hierarchy(dtype, n_rows=2000, groups=6, noise=0.0158) -> tallmc.Posterior:
    """A non-centred hierarchy. The rows do not determine `mean` and `z` apart."""
    rng = np.random.default_rng(0)
    group, effect = rng.integers(0, groups, n_rows), rng.normal(size=groups)
    y = (2 + 0.5 * effect[group] + noise * rng.normal(size=n_rows)).astype(np.float32)

    def log_likelihood(params, row):
        mean = params["mean"] + jnp.exp(params["log_sd"]) * params["z"][row["group"]]
        return -0.5 * ((row["y"] - mean) / noise) ** 2

    def log_prior(params):
        normal = (params["mean"] / 10) ** 2 + params["log_sd"] ** 2 + jnp.sum(params["z"] ** 2)
        return -0.5 * normal

    init = {"mean": jnp.zeros((), dtype), "log_sd": jnp.zeros((), dtype)}
    return tallmc.Posterior(
        log_likelihood,
        log_prior,
        {"y": y.astype(dtype), "group": group},
        {**init, "z": jnp.zeros(groups, dtype)},
    )


def test_a_likelihood_that_fails_in_double_precision_stays_in_single():
    """`lax.select` does not mix precisions, so the copy in float64 cannot be evaluated."""
    with jax.enable_x64(False):
        posterior = tallmc.Posterior(
            lambda t, row: jax.lax.select(row > 0, -(t[0] ** 2), jnp.float32(0)),
            lambda t: jnp.float32(0.0),
            jnp.ones(4),
            jnp.zeros(1),
        )
        assert double_passes(posterior) is None


@pytest.mark.slow
def test_single_precision_falls_back_to_double():
    """The smallest eigenvalue, 0.7, is lost in single precision beside the largest, 10⁷."""
    with jax.enable_x64(False), pytest.warns(UserWarning, match="jax_enable_x64") as caught:
        single = tallmc.anchor.find_anchor(hierarchy(np.float32))
    assert sum("jax_enable_x64" in str(warning.message) for warning in caught) == 1
    assert single.position.dtype == jnp.float32 and single.converged is True
    double = hierarchy(np.float64)
    passes = CountedPasses(double)
    position = np.asarray(single.position, np.float64)
    for _ in range(10):  # plain Newton steps from the anchor, in double precision
        gradient = passes.value_and_gradient(position)[1]
        position = position - np.linalg.solve(passes.hessian(position), gradient)
    exact = tallmc.anchor.find_anchor(double, at=double.layout.unravel(jnp.asarray(position)))
    assert exact.decrement < 1e-6
    sd = np.sqrt(np.diag(exact.covariance))
    assert np.abs((np.asarray(single.position, float) - exact.position) / sd).max() < 0.01
    np.testing.assert_allclose(np.sqrt(np.diag(single.covariance)), sd, rtol=0.01)
