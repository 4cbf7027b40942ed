"""Bayesian probabilistic matrix factorisation: density, gradients, sampling and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as stats
from scipy.special import digamma

import tallmc
from tallmc.contrib.groups import matrix_factorisation

USERS, ITEMS = np.array([0, 0, 1, 2, 2]), np.array([0, 3, 1, 1, 2])
RATINGS = np.array([5.0, 3.0, 1.0, 4.0, 2.0])


def moved(posterior, seed=1):
    rng = np.random.default_rng(seed)
    return np.asarray(posterior.init) + 0.3 * rng.normal(size=posterior.dim)


def potential(posterior, position):
    return float(posterior.potential(jnp.asarray(position)))


def test_density_is_that_of_scipy_with_each_prior_counted_once():
    posterior = matrix_factorisation(
        USERS, ITEMS, RATINGS, 4, 5, 2, noise_precision=3.0, prior_mean=0.2, precisions=(2.0, 5.0)
    )
    position = moved(posterior)
    free = jax.tree.map(np.asarray, posterior.layout.unravel(position))
    products = free["user_factors"][USERS] * free["item_factors"][ITEMS]
    expected = stats.norm.logpdf(RATINGS, 3.0 + products.sum(axis=1), 3.0**-0.5).sum()
    for side in ("user", "item"):
        log_precision, mean = free[f"{side}_precision"], free[f"{side}_mean"]
        sd = np.exp(-log_precision / 2)
        expected += stats.norm.logpdf(free[f"{side}_factors"], mean, sd).sum()
        expected += stats.norm.logpdf(mean, 0.2, sd).sum() + log_precision.sum()
        expected += stats.gamma.logpdf(np.exp(log_precision), 2.0, scale=1 / 5.0).sum()
    np.testing.assert_allclose(-potential(posterior, position), expected, rtol=1e-10)


def test_gradient_is_the_difference_quotient():
    posterior = matrix_factorisation(USERS, ITEMS, RATINGS, rank=2)
    position, direction, step = moved(posterior), moved(posterior, seed=2), 1e-5
    ends = [potential(posterior, position + sign * step * direction) for sign in (1, -1)]
    slope = float(posterior.gradient(jnp.asarray(position)) @ direction)
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-7)


def test_estimates_over_all_batches_of_one_rating_average_to_the_gradient():
    """The prior must not be scaled with the minibatch."""
    posterior = matrix_factorisation(USERS, ITEMS, RATINGS, rank=2)
    position, gradient = jnp.asarray(moved(posterior)), tallmc.gradient.Simple()
    estimator = gradient.prepare(posterior, None)
    weight = jnp.full(1, float(len(RATINGS)))
    estimates = [
        estimator(position, tallmc.rows.Batch(posterior.rows.take(jnp.array([row])), weight))
        for row in range(len(RATINGS))
    ]
    np.testing.assert_allclose(
        np.mean(estimates, axis=0), posterior.gradient(position), rtol=1e-10, atol=1e-12
    )


def test_a_user_without_ratings_keeps_its_prior():
    posterior = matrix_factorisation(USERS, ITEMS, RATINGS, n_users=4, rank=2)
    likelihood = jax.grad(lambda at: posterior.model.row_potentials(at, posterior.data).sum())
    slopes = posterior.layout.unravel(likelihood(jnp.asarray(moved(posterior))))
    np.testing.assert_array_equal(slopes["user_factors"][3], 0)
    assert np.all(np.asarray(slopes["user_factors"][:3]) != 0)


def test_sampling_gives_the_prior_precision_where_the_prior_dominates():
    """Ratings without information: precisions keep their Gamma(4, 2) law, of mean 2."""
    posterior = matrix_factorisation(
        [0], [0], [1.0], rank=1, noise_precision=1e-6, precisions=(4.0, 2.0)
    )
    draws = tallmc.sample(
        posterior, tallmc.methods.mala(0.2), chains=8, n_draws=4000, burn_in=500, seed=3
    )
    precision = posterior.quantities.of(draws.positions)["user_precision"][..., 0]
    for values, expected in ((precision, 2.0), (np.log(precision), digamma(4.0) - np.log(2.0))):
        means = values.mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert error < 0.1
        assert abs(means.mean() - expected) < 5.4 * error  # t with 7 degrees of freedom, 1 in 1,000


def test_predictions_are_those_of_the_factors():
    posterior = matrix_factorisation(USERS, ITEMS, RATINGS, rank=2)
    pairs, position = np.array([[0, 2], [2, 3]]), jnp.asarray(moved(posterior))
    free = jax.tree.map(np.asarray, posterior.layout.unravel(position))
    expected = 3.0 + (free["user_factors"][[0, 2]] * free["item_factors"][[2, 3]]).sum(axis=1)
    predictive = posterior.predictive
    np.testing.assert_allclose(
        predictive.mean(position, predictive.encode(pairs)), expected, rtol=1e-10
    )
    rows = predictive.encode((pairs, [4.0, 1.0]), response=True)
    np.testing.assert_allclose(
        predictive.log_likelihood(position, rows),
        stats.norm.logpdf([4.0, 1.0], expected, 3.0**-0.5),
        rtol=1e-10,
    )


BAD = {
    "negative user": ({"users": -USERS}, "users"),
    "user out of range": ({"n_users": 2}, "n_users"),
    "items not integers": ({"items": ITEMS + 0.5}, "items"),
    "ratings not finite": ({"ratings": RATINGS * np.nan}, "ratings"),
    "too few users": ({"users": USERS[:3]}, "one entry per rating"),
    "rank zero": ({"rank": 0}, "rank"),
    "noise precision zero": ({"noise_precision": 0.0}, "noise_precision"),
    "precisions not a pair": ({"precisions": 1.0}, "precisions"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    change, message = BAD[case]
    with pytest.raises(tallmc.InvalidInput, match=message):
        matrix_factorisation(**{"users": USERS, "items": ITEMS, "ratings": RATINGS, **change})


@pytest.mark.parametrize("pairs", [[0, 1], [[0, 1, 2]], [[0, 99]], [[0, 0.5]]])
def test_new_pairs_must_fit(pairs):
    predictive = matrix_factorisation(USERS, ITEMS, RATINGS).predictive
    with pytest.raises(tallmc.InvalidInput):
        predictive.encode(np.array(pairs))
