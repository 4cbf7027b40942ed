"""Hidden Markov and state-space models by buffered windows: densities, gradients, buffers."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as stats

import tallmc
from series import (
    MEANS,
    SCALES,
    TRANSITION,
    dense_gaussian_log_density,
    enumerated_log_densities,
    hidden_markov_series,
    stationary,
)
from tallmc.models import hidden_markov, state_space
from tallmc.models.buffer_length import likelihood_of
from tallmc.models.hidden_markov import stationary_law

T = 9
MISSING = np.array([0, 4])


def position_of(posterior, **params):
    """The unconstrained position of constrained parameters."""
    constraints = posterior.model.log_prior.constraints
    free = {
        name: constraints.transforms[name].inv(jnp.asarray(value, float))
        if name in constraints.transforms
        else jnp.asarray(value, float)
        for name, value in params.items()
    }
    return posterior.layout.ravel(free)


def normal_series(missing=True):
    y, _ = hidden_markov_series(T, seed=3)
    if missing:
        y[MISSING] = np.nan
    return y


def normal_position(posterior):
    return position_of(posterior, transition=TRANSITION, means=MEANS, scales=SCALES)


def log_emissions(y):
    return np.where(np.isnan(y)[:, None], 0.0, stats.norm.logpdf(y[:, None], MEANS, SCALES))


def rows_of(posterior, position):
    return -np.asarray(posterior.model.row_potentials(position, posterior.data))


def test_stationary_law_is_that_of_the_eigenvector():
    np.testing.assert_allclose(stationary_law(jnp.asarray(TRANSITION)), stationary(TRANSITION))


@pytest.mark.parametrize("window", [1, 4, 9])
def test_windows_with_whole_buffers_sum_to_the_enumerated_log_density(window):
    y = normal_series()
    posterior = hidden_markov(y, 2, window=window, buffer=T)
    expected = enumerated_log_densities(log_emissions(y), TRANSITION, stationary(TRANSITION))
    found = rows_of(posterior, normal_position(posterior))
    ends = np.minimum(np.arange(window, T + window, window), T) - 1
    np.testing.assert_allclose(found.cumsum(), expected[ends], rtol=1e-10)


def test_a_window_is_its_conditional_density_given_the_buffer():
    """log p(y_4 y_5 | y_3), which starts at time 3 with the stationary law."""
    y = normal_series(missing=False)
    posterior = hidden_markov(y, 2, window=2, buffer=1)
    piece = enumerated_log_densities(log_emissions(y[3:6]), TRANSITION, stationary(TRANSITION))
    found = rows_of(posterior, normal_position(posterior))
    np.testing.assert_allclose(found[2], piece[2] - piece[0], rtol=1e-10)


def test_a_given_initial_law_belongs_to_the_first_observation_only():
    y, initial = normal_series(missing=False), np.array([0.05, 0.95])
    posterior = hidden_markov(y, 2, window=2, buffer=2, initial=initial)
    found = rows_of(posterior, normal_position(posterior))
    from_start = enumerated_log_densities(log_emissions(y[:4]), TRANSITION, initial)
    later = enumerated_log_densities(log_emissions(y[2:6]), TRANSITION, stationary(TRANSITION))
    expected = [from_start[1], from_start[3] - from_start[1], later[3] - later[1]]
    np.testing.assert_allclose(found[:3], expected, rtol=1e-10)


EMISSIONS = {
    "poisson": ({"rates": [0.7, 4.0]}, lambda y: stats.poisson.logpmf(y[:, None], [0.7, 4.0])),
    "categorical": (
        {"emission": [[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]]},
        lambda y: np.log(np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])[:, y.astype(int)]).T,
    ),
}


@pytest.mark.parametrize("emission", EMISSIONS)
def test_counts_and_categories_have_their_enumerated_log_density(emission):
    params, log_density = EMISSIONS[emission]
    y = np.array([0.0, 2.0, 1.0, 2.0, 2.0, 0.0, 0.0])
    posterior = hidden_markov(y, 2, emission, window=3, buffer=7)
    position = position_of(posterior, transition=TRANSITION, **params)
    expected = enumerated_log_densities(log_density(y), TRANSITION, stationary(TRANSITION))[-1]
    np.testing.assert_allclose(rows_of(posterior, position).sum(), expected, rtol=1e-10)


A = np.array([[0.8, 0.1], [-0.3, 0.5]])
STATE, NOISE, MEAN = np.array([0.7, 1.2]), np.array([0.5, 0.9]), np.array([1.0, -2.0])


@pytest.mark.parametrize("form", ["diagonal", "full", "level"])
@pytest.mark.parametrize("tall", [False, True])
def test_kalman_filter_is_the_dense_gaussian(form, tall):
    """Also with more observations per time than states, and with missing ones."""
    loadings = np.array([[1.0, 0.2], [0.0, 1.0], [0.5, -1.0]]) if tall else np.eye(2)
    p = len(loadings)
    y = np.random.default_rng(0).normal(size=(T, p)) + 1.0
    y[2, 0], y[5] = np.nan, np.nan
    posterior = state_space(y, form, loadings=loadings, window=4, buffer=T)
    noise, mean = np.resize(NOISE, p), np.resize(MEAN, p)
    params = {"state_scales": STATE, "noise_scales": noise}
    series = likelihood_of(posterior.model).series
    start, offset = np.diag(np.asarray(series.wide) ** 2), mean
    a = {"diagonal": np.diag(np.diag(A)), "full": A, "level": np.eye(2)}[form]
    if form == "level":
        # The start of a level has a mean, which stays.
        offset = loadings @ np.asarray(series.start_mean)
    else:
        params |= {"mean": mean, "transition": np.diag(A) if form == "diagonal" else A}
    if form == "diagonal":
        start = np.diag(STATE**2 / (1 - np.diag(A) ** 2))
    expected = dense_gaussian_log_density(y, a, STATE, noise, offset, start, loadings)
    found = rows_of(posterior, position_of(posterior, **params)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_messages_from_both_sides_have_the_exact_gradient_with_whole_buffers():
    y = normal_series()
    past, both = (
        hidden_markov(y, 2, window=4, buffer=T, messages=messages) for messages in ("past", "both")
    )
    position = normal_position(past)
    np.testing.assert_allclose(both.gradient(position), past.gradient(position), rtol=1e-9)
    np.testing.assert_allclose(both.potential(position), past.potential(position), rtol=1e-12)


def test_second_derivatives_of_messages_from_both_sides_are_refused():
    posterior = hidden_markov(normal_series(), 2, window=4, buffer=2, messages="both")
    with pytest.raises(tallmc.InvalidInput, match='Use messages="past"'):
        tallmc.laplace(posterior)
    anchor = tallmc.laplace(posterior, hessian=False, optimiser=tallmc.LBFGS())
    assert np.isfinite(anchor.position).all()
