"""Control variates of order 2, residual weights of any order in any metric, and certain rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear, logistic, logistic_by_autodiff, residual_matrix, slow_after
from tallmc._core.arrays import DenseMap, DiagonalMap
from tallmc._rows.law import alias_table
from tallmc._rows.probabilities import certain_rows
from tallmc.diagnose import pseudo_variance
from tallmc.geometry import Dense
from tallmc.gradient import ControlVariate, Simple
from tallmc.subsample import Preferential, residual_weights

POSITION = jnp.array([0.7, -1.3])


def test_nothing_is_left_of_a_quadratic():
    """On a linear regression the residual of order 2 is zero at every position."""
    posterior = linear()
    gradient = ControlVariate(order=2).prepare(posterior, tallmc.anchor.find_anchor(posterior))
    r = residual_matrix(gradient, posterior.rows, POSITION)
    whole = residual_matrix(Simple().prepare(posterior, None), posterior.rows, POSITION)
    assert np.abs(r).max() < 1e-12 * np.abs(whole).max()
    np.testing.assert_allclose(gradient.known(POSITION), posterior.gradient(POSITION), rtol=1e-10)


@pytest.mark.parametrize("order", [1, 2])
def test_the_residual_falls_with_the_distance_as_its_order_says(order):
    """‖r(θ̂ + tv)‖ ∝ t^order for small t: halving the distance divides it by 2^order."""
    posterior = logistic()
    anchor = tallmc.anchor.find_anchor(posterior)
    gradient = ControlVariate(order).prepare(posterior, anchor)
    far, near = (
        np.linalg.norm(residual_matrix(gradient, posterior.rows, anchor.position + t * POSITION))
        for t in (1e-3, 5e-4)
    )
    assert far / near == pytest.approx(2.0**order, rel=1e-2)


def gradient_of(order):
    return Simple() if order == 0 else ControlVariate(order)


def expected_weights(posterior, anchor, order, factor, metric, width, nodes=60):
    """√E‖Cᵀr_i‖² by a product rule over the whole plane."""
    t, w = np.polynomial.hermite_e.hermegauss(nodes)
    gradient = gradient_of(order).prepare(posterior, anchor)
    points = np.stack(np.meshgrid(t, t, indexing="ij"), -1).reshape(-1, 2)
    weights = np.outer(w, w).ravel() / w.sum() ** 2
    positions = jnp.asarray(np.asarray(anchor.position) + width * points @ np.asarray(factor).T)
    rows = posterior.data
    residuals = jax.vmap(
        lambda at: posterior.model.expand(gradient.residuals(at, rows, None, None), rows)
    )(positions)
    squares = np.sum(np.asarray(residuals @ metric) ** 2, axis=2)
    return np.sqrt(weights @ squares)


@pytest.mark.parametrize("order", slow_after(1, [2, 0, 1]))
def test_weights_of_a_glm_are_the_integral_over_the_widened_gaussian(order):
    posterior = logistic()
    anchor = tallmc.anchor.find_anchor(posterior)
    metric = np.array([[0.8, 0.0], [-0.3, 1.7]])
    found = residual_weights(posterior, anchor, order, DenseMap(jnp.asarray(metric)))
    exact = expected_weights(posterior, anchor, order, anchor.factor, metric, 1.5)
    # 24 nodes, for a row whose predictor has a sd of several units.
    np.testing.assert_allclose(found, exact, rtol=5e-4)


def test_weights_without_a_hessian_take_the_metric_for_the_spread():
    posterior = logistic()
    anchor = tallmc.anchor.find_anchor(posterior, hessian=False)
    scale = np.array([0.5, 0.9])
    found = residual_weights(posterior, anchor, 1, DiagonalMap(jnp.asarray(scale)))
    exact = expected_weights(posterior, anchor, 1, np.diag(scale), np.diag(scale), 1.5)
    np.testing.assert_allclose(found, exact, rtol=5e-4)


@pytest.mark.parametrize("order", slow_after(1, [1, 0, 2]))
def test_probes_of_a_general_model_agree_with_the_quadrature_of_the_same_glm(order):
    """64 random projections per row.

    Their mean square has a relative deviation of a few tenths, and its root half of that.
    """
    glm, general = logistic(n_rows=400, dim=3), logistic_by_autodiff(n_rows=400, dim=3)
    anchor = tallmc.anchor.find_anchor(glm)
    metric = DenseMap(anchor.factor)
    exact, probed = (
        np.asarray(residual_weights(posterior, anchor, order, metric))
        for posterior in (glm, general)
    )
    ratio = np.log(probed / exact)
    assert np.abs(ratio).max() < 2
    assert abs(np.mean(ratio)) < 0.25
    assert np.corrcoef(np.log(probed), np.log(exact))[0, 1] > 0.95


@pytest.mark.slow
def test_each_step_of_the_ladder_takes_noise_away():
    """In the whitened metric: simple, order 1 with eq. 16, order 2 with its own weights."""
    posterior = logistic(n_rows=2000, dim=4)
    anchor = tallmc.anchor.find_anchor(posterior)
    position = anchor.position + anchor.factor @ jnp.array([1.0, -1.0, 1.0, -1.0])

    def noise(gradient, subsample):
        method = tallmc.Method(
            gradient=gradient, subsample=subsample, batch_size=10, geometry=Dense(), step_size=0.1
        )
        bound = method.prepare(posterior, anchor).kernel
        return pseudo_variance(bound, position, geometry=DenseMap(anchor.factor))

    simple = noise(Simple(), Preferential("gradient"))
    first = noise(ControlVariate(), Preferential("curvature"))
    first_own = noise(ControlVariate(), Preferential("residual"))
    second = noise(ControlVariate(2), Preferential("residual"))
    assert simple > 10 * first and first_own < 1.05 * first and first > 10 * second


def test_rows_expected_once_are_certain_until_none_is_left():
    certain, rest = certain_rows(np.array([0.5, 0.2, 0.1, 0.1, 0.1]), 4)
    # 4 · 0.5 ≥ 1; then 3 · 0.4 ≥ 1; then 2 · 1/3 < 1
    np.testing.assert_array_equal(certain, [0, 1])
    np.testing.assert_allclose(rest, [0, 0, 1 / 3, 1 / 3, 1 / 3])
    assert np.all(rest * 2 < 1)
    none, law = certain_rows(np.full(10, 0.1), 4)
    assert len(none) == 0
    np.testing.assert_allclose(law, 0.1)


def test_something_is_always_left_to_chance():
    certain, rest = certain_rows(np.array([1.0, 1e-3, 1e-3, 1e-3]), 3)
    assert len(certain) == 1 and rest[1:].min() > 0
    certain, _ = certain_rows(np.r_[np.full(20, 1.0), np.full(92, 1e-6)], 24)
    assert len(certain) == 18  # a quarter of the draws stays


def test_a_row_of_probability_zero_is_never_drawn_and_the_others_keep_their_law():
    p = np.array([0.0, 0.3, 0.0, 0.7, 0.0])
    table = alias_table(p)
    np.testing.assert_allclose(table.probability, p, atol=2**-32)
    units = table.threshold.astype(float)  # of each cell's own row; the others are its alias's
    np.add.at(units, table.alias, 2.0**32 - table.threshold)
    np.testing.assert_allclose(units[: len(p)] / units.sum(), p, atol=1e-9)
    assert units[0] == units[2] == units[4] == 0


@pytest.mark.slow
def test_many_parameters_need_no_matrix_for_any_row():
    """2,000 parameters, in blocks of rows. The weights of the papers stop at 60 parameters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 2000)).astype(np.float32) / np.sqrt(2000)
    y = rng.random(3000) < 0.5
    posterior = tallmc.models.logistic_regression(x, y, prior_variance=1.0)
    anchor = tallmc.anchor.find_anchor(posterior, hessian=False)
    scale = jnp.full(2000, 0.5, posterior.dtype)
    weights = np.asarray(residual_weights(posterior, anchor, 2, DiagonalMap(scale)))
    assert weights.shape == (3000,) and np.isfinite(weights).all() and (weights > 0).all()
    # For one row by hand: z is Gaussian with sd 1.5 · 0.5 ‖x‖.
    row, z0 = x[7].astype(float), float(x[7] @ np.asarray(anchor.position, float))
    t, w = np.polynomial.hermite_e.hermegauss(40)
    sigmoid = lambda z: 1 / (1 + np.exp(-z))
    move = 1.5 * 0.5 * np.linalg.norm(row) * t
    r = sigmoid(z0 + move) - sigmoid(z0) - sigmoid(z0) * (1 - sigmoid(z0)) * move
    expected = np.sqrt(w @ r**2 / w.sum()) * 0.5 * np.linalg.norm(row)
    assert weights[7] == pytest.approx(expected, rel=1e-3)
