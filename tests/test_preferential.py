"""Which weights are best: Lemmas 3.1 and 3.2 of putcha-2023, and the weights of eqs. 11 and 16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import design, linear, logistic, logistic_by_autodiff, residual_matrix
from tallmc.gradient import ControlVariate, Simple
from tallmc.subsample import (
    Optimal,
    curvature_weights,
    gradient_weights,
    probabilities,
)

LEMMAS = {"lemma-3.1": Simple(), "lemma-3.2": ControlVariate()}


def pseudo_variance(residuals: np.ndarray, p: np.ndarray) -> float:
    """Tr Cov of the estimator at n = 1."""
    return np.sum(residuals**2 / p[:, None]) - np.sum(residuals.sum(0) ** 2)


@pytest.mark.parametrize("lemma", LEMMAS)
@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_beats_uniform_and_every_perturbation(lemma, seed):
    posterior = logistic(n_rows=40, dim=3, seed=seed)
    rng = np.random.default_rng(seed)
    method = tallmc.Method(gradient=LEMMAS[lemma], subsample=Optimal(), batch_size=4, step_size=0.1)
    bound = method.prepare(posterior).kernel
    gradient, selection, rows = bound.kernel.gradient, bound.kernel.selection, bound.rows
    position = jnp.asarray(rng.normal(size=3))
    residuals = residual_matrix(gradient, rows, position)
    optimum = np.asarray(selection.units(gradient, position, rows), float) / 2**32

    norms = np.linalg.norm(residuals, axis=1)
    share, others = norms / norms.sum(), np.arange(40) != np.argmax(norms)
    np.testing.assert_allclose(optimum[others], share[others], rtol=1e-4, atol=2 * 2.0**-32)
    assert optimum.sum() == 1
    least = pseudo_variance(residuals, optimum)
    assert least < pseudo_variance(residuals, np.full(40, 1 / 40))
    for _ in range(20):
        perturbed = optimum * rng.lognormal(0, 0.3, 40)
        assert least < pseudo_variance(residuals, perturbed / perturbed.sum())


def test_gradient_weights_are_the_optimum_at_the_mode():
    posterior = logistic(n_rows=30, dim=3)
    anchor = tallmc.anchor.find_anchor(posterior)
    gradient = Simple().prepare(posterior, None)
    norms = np.linalg.norm(residual_matrix(gradient, posterior.rows, anchor.position), axis=1)
    np.testing.assert_allclose(gradient_weights(posterior, anchor), norms, rtol=1e-10)


def test_curvature_weights_minimise_the_expected_noise_on_a_gaussian_posterior():
    """Eq. 16 is exact there: E‖r_i‖² = tr(H_i Σ H_iᵀ).

    No other fixed weights have less noise on average over the posterior.
    """
    posterior = linear(n_rows=30, dim=3)
    anchor = tallmc.anchor.find_anchor(posterior)
    weights = np.asarray(curvature_weights(posterior, anchor))
    x, noise = np.asarray(posterior.data.x), float(posterior.model.likelihood.noise_variance)
    hessians = np.einsum("ni,nj->nij", x, x) / noise
    traces = np.einsum("nij,jk,nik->n", hessians, np.asarray(anchor.covariance), hessians)
    np.testing.assert_allclose(weights, np.sqrt(traces), rtol=1e-10)

    expected_noise = lambda p: np.sum(traces / p)
    best = weights / weights.sum()
    rng = np.random.default_rng(0)
    for _ in range(20):
        perturbed = best * rng.lognormal(0, 0.2, 30)
        assert expected_noise(best) < expected_noise(perturbed / perturbed.sum())
    assert expected_noise(best) < expected_noise(np.full(30, 1 / 30))


@pytest.mark.parametrize(
    "weigh",
    [gradient_weights, curvature_weights, lambda posterior, _: posterior.lipschitz()],
    ids=["gradient", "curvature", "lipschitz"],
)
def test_weights_agree_between_closed_forms_and_autodiff(weigh):
    glm, general = logistic(n_rows=50, dim=3), logistic_by_autodiff(n_rows=50, dim=3)
    anchor = tallmc.anchor.find_anchor(glm)
    np.testing.assert_allclose(weigh(general, anchor), weigh(glm, anchor), rtol=1e-8)


@pytest.mark.slow
def test_weights_of_many_blocks_are_those_of_each_row():
    posterior = linear(n_rows=20_000, dim=2)  # blocks have 8192 rows
    anchor = tallmc.anchor.find_anchor(posterior)
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    noise = float(posterior.model.likelihood.noise_variance)
    gradient = np.abs(x @ np.asarray(anchor.position) - y) * np.linalg.norm(x, axis=1) / noise
    spread = np.sqrt(np.einsum("ni,ij,nj->n", x, np.asarray(anchor.covariance), x))
    curvature = np.linalg.norm(x, axis=1) * spread / noise
    np.testing.assert_allclose(gradient_weights(posterior, anchor), gradient, rtol=1e-9)
    np.testing.assert_allclose(curvature_weights(posterior, anchor), curvature, rtol=1e-9)
    np.testing.assert_allclose(posterior.lipschitz(), np.sum(x**2, axis=1) / noise, rtol=1e-9)


def test_curvature_weights_of_a_general_model_hold_no_matrix_for_each_row():
    """64 rows in 300 dimensions: a d×d Hessian for each would be an array of 64·300² numbers.

    No array of more than d² numbers may appear.
    """
    n_rows, d = 64, 300
    y = np.arange(n_rows) % 2
    glm = tallmc.models.logistic_regression(design(n_rows, d), y, prior_variance=1.0)
    general = logistic_like(glm)
    factor = jnp.eye(d)
    norms = lambda: general.model.curvature_norms(general.init, factor, general.data)
    jaxpr = jax.make_jaxpr(norms)()
    assert largest_array(jaxpr.jaxpr) <= d * d


def logit_log_likelihood(beta, row):
    return row.y * (row.x @ beta) - jnp.logaddexp(0.0, row.x @ beta)


def standard_normal_log_prior(beta):
    return -0.5 * jnp.sum(beta**2)


def logistic_like(glm):
    return tallmc.Posterior(logit_log_likelihood, standard_normal_log_prior, glm.data, glm.init)


def largest_array(jaxpr) -> int:
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [int(np.prod(v.aval.shape)) for v in equation.outvars if hasattr(v.aval, "shape")]
        is_leaf = lambda value: hasattr(value, "eqns") or hasattr(value, "jaxpr")
        for value in jax.tree.leaves(equation.params, is_leaf=is_leaf):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                sizes.append(largest_array(inner))
    return max(sizes)


def test_a_floor_bounds_every_importance_weight():
    raw = np.r_[np.zeros(50), np.random.default_rng(0).lognormal(0, 3, 50)]
    p = probabilities(raw, floor=0.05)
    assert p.sum() == pytest.approx(1)
    assert (1 / (100 * p)).max() <= 1 / 0.05 * (1 + 1e-12)
