"""A likelihood that is not finite is traced to its row."""

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from tallmc import models
from tallmc._anchor.optimisers import first_bad_row

N_ROWS = 5000
WIDE = 400  # enough parameters for several blocks of rows


def log_of_rate(rate, row):
    return jnp.log(rate + row)


def square_root(rate, row):
    return -jnp.sqrt(jnp.abs(rate - row))


def exponential_of_many(theta, row):
    return -jnp.exp(row * jnp.sum(theta))


def flat(rate):
    return 0.0


def infinite_prior(rate):
    return jnp.where(rate > 0, -jnp.inf, 0.0)


@pytest.mark.parametrize("bad", [[0], [1234], [N_ROWS - 1], [4321, 17]])
@pytest.mark.parametrize("value", [pytest.param(-1.0, id="infinite"), pytest.param(-2.0, id="NaN")])
def test_the_first_row_that_is_not_finite_is_found(bad, value):
    data = np.zeros(N_ROWS)
    data[bad] = value
    posterior = tallmc.Posterior(log_of_rate, flat, data, 1.0)
    assert not np.isfinite(posterior.potential(posterior.init))
    assert first_bad_row(posterior, posterior.init) == min(bad)


def test_rows_in_many_blocks_are_counted_from_the_first():
    data = np.zeros(N_ROWS)
    data[[3210, 4000]] = 1e4
    posterior = tallmc.Posterior(exponential_of_many, flat, data, jnp.ones(WIDE))
    assert len(posterior.rows.subset(posterior.width).blocks[0][1]) > 1
    assert first_bad_row(posterior, posterior.init) == 3210


def test_a_gradient_that_is_not_finite_is_found_where_the_potential_is_finite():
    data = np.zeros(20)
    data[7] = 1.0
    posterior = tallmc.Posterior(square_root, flat, data, 1.0)
    assert np.isfinite(posterior.potential(posterior.init))
    assert first_bad_row(posterior, posterior.init) == 7


def test_a_ready_made_model_names_the_row_whose_gradient_overflows():
    x = np.ones((9, 1), np.float32)
    x[4] = 80.0
    posterior = models.poisson_regression(x, np.ones(9), prior_variance=1.0)
    assert first_bad_row(posterior, [2.0]) == 4


def test_finite_rows_with_a_bad_prior_give_none():
    posterior = tallmc.Posterior(log_of_rate, infinite_prior, np.zeros(20), 1.0)
    assert not np.isfinite(posterior.potential(posterior.init))
    assert first_bad_row(posterior, posterior.init) is None
