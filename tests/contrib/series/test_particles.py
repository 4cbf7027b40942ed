"""Buffered particle filters: their scores are those of Fisher's identity."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from series import autoregression

import tallmc
from tallmc.contrib.series import nonlinear_state_space, state_space
from tallmc.contrib.series.windows import fixed_buffer_log_density, likelihood_of, past_log_density

LIMIT = 4.6
PARAMS = {"transition": 0.8, "state_scales": 0.9, "noise_scales": 0.6, "mean": 0.3}


def stationary_start(params):
    sd = params["state_scales"] / jnp.sqrt(1 - params["transition"] ** 2)
    return jnp.zeros(1), sd[None]


def autoregressive(params, x):
    return params["transition"] * x


def scale_of(params):
    return params["state_scales"][None]


def gaussian_observation(params, x, y):
    return norm.logpdf(y[0], params["mean"] + x[0], params["noise_scales"])


def flat(params):
    return -jnp.sum(jnp.stack([leaf**2 for leaf in jax.tree.leaves(params)])) / 200


def series(n=11):
    y = autoregression(n)
    y[4] = np.nan
    return y


def linear_posterior(y, **settings):
    functions = (stationary_start, autoregressive, scale_of, gaussian_observation)
    names = ("start", "drift", "scale", "log_observation")
    return nonlinear_state_space(
        y,
        **dict(zip(names, functions, strict=True)),
        log_prior=flat,
        init=PARAMS,
        **settings,
    )


def test_scores_and_densities_are_those_of_the_kalman_filter():
    """In windows at the start, in the middle and at the end of a series with a missing value."""
    y = series()
    exact = state_space(y, window=4, buffer=2, messages="both")
    kalman = likelihood_of(exact.model)
    posterior = linear_posterior(y, window=4, buffer=2, particles=1000)
    likelihood, rows = posterior.model.log_likelihood.function, posterior.data
    params = {name: jnp.asarray(value) for name, value in PARAMS.items()}

    def kalman_terms(params, piece):
        lines = {name: value[None] for name, value in params.items()}
        return fixed_buffer_log_density(kalman.series.factors(lines), piece, kalman)

    def kalman_density(params, piece):
        lines = {name: value[None] for name, value in params.items()}
        return past_log_density(kalman.series.factors(lines), piece, kalman)

    def estimate(key, piece):
        score = jax.grad(lambda at: likelihood.filtered(at, piece, key)[1])(params)
        return score, likelihood.filtered(params, piece, key)[0]

    keys = jax.random.split(jax.random.key(0), 200)
    both = jax.jit(jax.vmap(jax.vmap(estimate, (0, None)), (None, 0)))
    scores, densities = both(keys, rows)
    exact_scores = jax.jit(jax.vmap(jax.grad(kalman_terms), (None, 0)))(params, exact.data)
    exact_densities = np.asarray(jax.jit(jax.vmap(kalman_density, (None, 0)))(params, exact.data))
    for name, expected in exact_scores.items():
        found = np.asarray(scores[name])
        error = found.std(axis=1, ddof=1) / np.sqrt(found.shape[1])
        z = (found.mean(axis=1) - np.asarray(expected)) / error
        assert np.abs(z).max() < LIMIT, (name, z)
        assert (error < 0.05 * np.abs(exact_scores["state_scales"]).max()).all()
    # The density itself is unbiased for windows without a buffer before them.
    ratio = np.exp(np.asarray(densities)[0] - exact_densities[0])
    assert abs(ratio.mean() - 1) < LIMIT * ratio.std(ddof=1) / np.sqrt(len(ratio))


@pytest.mark.smoke
def test_every_position_has_noise_of_its_own_and_derivatives_are_scores():
    posterior = linear_posterior(series(), window=4, buffer=2, particles=16)
    model, rows = posterior.model, posterior.data
    potentials = eqx.filter_jit(model.row_potentials)
    here = posterior.init
    near = here.at[0].add(1e-5)
    np.testing.assert_array_equal(potentials(here, rows), potentials(here, rows))
    # The density moves by 1e-5, the noise of 16 particles by far more.
    assert np.abs(np.asarray(potentials(near, rows) - potentials(here, rows))).max() > 1e-2
    with pytest.raises(tallmc.InvalidInput, match="first derivatives only"):
        posterior.hessian(here)


def log_variance_observation(params, x, y):
    return norm.logpdf(y[0], 0.0, jnp.exp(x[0] / 2))


@pytest.mark.slow
def test_stochastic_volatility_is_found_by_sgld():
    """Chains that start far away end around the truth."""
    from numpyro.distributions import constraints

    rng = np.random.default_rng(0)
    x = np.zeros(1000)
    for t in range(1, 1000):
        x[t] = 0.9 * x[t - 1] + 0.4 * rng.standard_normal()
    posterior = nonlinear_state_space(
        np.exp(x / 2) * rng.standard_normal(1000),
        start=stationary_start,
        drift=autoregressive,
        scale=scale_of,
        log_observation=log_variance_observation,
        log_prior=flat,
        init={"transition": 0.5, "state_scales": 1.2},
        transforms={"state_scales": "positive", "transition": constraints.interval(-1.0, 1.0)},
        particles=64,
    )
    options = {"chains": 2, "n_draws": 300, "burn_in": 300, "measure_bias": False}
    method = tallmc.methods.sgld(2e-3, 8)
    draws = tallmc.sample(posterior, method, progress=False, **options)
    assert draws.ok.all()
    for name, truth, widest in (("transition", 0.9, 0.08), ("state_scales", 0.4, 0.15)):
        found = np.asarray(draws.params[name])
        assert found.std() < widest
        assert abs(found.mean() - truth) < 4.6 * found.std(), (name, found.mean(), found.std())


def test_bad_input_is_refused():
    for wrong, message in (
        ({"window": 99}, "window"),
        ({"window": 4, "buffer": 0}, "buffer"),
        ({"window": 4, "particles": 1}, "particles"),
    ):
        with pytest.raises(tallmc.InvalidInput, match=message):
            linear_posterior(series(), **wrong)
