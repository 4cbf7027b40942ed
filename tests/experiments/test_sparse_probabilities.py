"""The sparse probabilities of Theorem 4.1 of li-2021."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from experiments.li2021.theorem41 import sparse_probabilities
from problems import logistic, residual_matrix


def gradients_of(n_rows, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n_rows, dim))


def relative_moment_error(gradients, p):
    """|E N∇V_I − ∇V| in units of the uniform standard deviation of N∇V_I."""
    errors = len(gradients) * gradients - gradients.sum(axis=0)
    return np.abs(p @ errors).max() / np.sqrt(np.mean(np.sum(errors**2, axis=1)))


def least_variance_by_enumeration(gradients):
    """The least Σ p_i ‖b_i‖² over all vertices: sets of d + 1 rows whose equations have p ≥ 0."""
    n_rows, dim = gradients.shape
    errors = n_rows * gradients - gradients.sum(axis=0)
    equations = np.vstack([errors.T, np.ones(n_rows)])
    right = np.append(np.zeros(dim), 1.0)
    variances = []
    for rows in itertools.combinations(range(n_rows), dim + 1):
        p = np.linalg.solve(equations[:, rows], right)
        if p.min() >= 0:
            variances.append(p @ np.sum(errors[list(rows)] ** 2, axis=1))
    return min(variances)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n_rows", "dim"), [(5, 1), (50, 2), (300, 5), (1000, 20), (4, 6)])
def test_support_is_at_most_the_number_of_equations_and_moments_match(n_rows, dim, seed):
    gradients = gradients_of(n_rows, dim, seed)
    found = sparse_probabilities(gradients)
    p = found.probabilities
    assert len(found.support) <= min(dim + 1, n_rows)
    assert p.min() >= 0
    assert abs(p.sum() - 1) < 1e-9
    assert relative_moment_error(gradients, p) < 1e-9
    assert found.variance <= found.uniform_variance * (1 + 1e-9)


@pytest.mark.parametrize(("n_rows", "dim"), [(8, 1), (9, 2), (10, 3)])
def test_variance_is_the_least_of_all_vertices(n_rows, dim):
    gradients = gradients_of(n_rows, dim, seed=3)
    least = least_variance_by_enumeration(gradients)
    np.testing.assert_allclose(sparse_probabilities(gradients).variance, least, rtol=1e-9)


def test_scale_of_the_gradients_changes_no_probability():
    gradients = gradients_of(40, 3)
    p = sparse_probabilities(gradients).probabilities
    for scale in (1e-8, 1e8):
        np.testing.assert_allclose(
            sparse_probabilities(scale * gradients).probabilities, p, rtol=1e-9, atol=1e-12
        )


def test_gradients_of_a_model_are_estimated_without_bias_from_few_rows():
    posterior, position = logistic(n_rows=60, dim=3), jnp.array([0.7, -1.3, 0.2])
    kernel = tallmc.methods.sgld(0.1, batch_size=1).prepare(posterior).kernel.kernel
    gradients = residual_matrix(kernel.gradient, posterior.rows, position)
    found = sparse_probabilities(gradients)
    assert len(found.support) <= 4
    np.testing.assert_allclose(60 * found.probabilities @ gradients, gradients.sum(0), rtol=1e-9)


def test_equal_rows_have_no_variance():
    assert sparse_probabilities(np.ones((5, 2))).variance == 0


@pytest.mark.parametrize("wrong", [np.ones(3), np.ones((0, 2)), np.array([[np.nan]])])
def test_what_is_not_a_matrix_of_numbers_is_refused(wrong):
    with pytest.raises(tallmc.InvalidInput, match="row_gradients must"):
        sparse_probabilities(wrong)
