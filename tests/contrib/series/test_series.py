"""Hidden Markov and state-space models by buffered windows: densities, gradients, buffers."""

import itertools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as stats
from series import (
    MEANS,
    SCALES,
    TRANSITION,
    autoregression,
    dense_gaussian_log_density,
    enumerated_log_densities,
    hidden_markov_series,
    stationary,
)

import tallmc
from tallmc.contrib.series import hidden_markov, state_space
from tallmc.contrib.series import windows as buffer_length
from tallmc.contrib.series import windows as series
from tallmc.contrib.series.hidden_markov import HiddenMarkovSeries, stationary_law
from tallmc.contrib.series.windows import buffer_errors, likelihood_of, recut, series_pilot

T = 9
MISSING = np.array([0, 4])
INITIAL = np.array([0.05, 0.95])


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
    """Log p(y_4 y_5 | y_3), which starts at time 3 with the stationary law."""
    y = normal_series(missing=False)
    posterior = hidden_markov(y, 2, window=2, buffer=1)
    piece = enumerated_log_densities(log_emissions(y[3:6]), TRANSITION, stationary(TRANSITION))
    found = rows_of(posterior, normal_position(posterior))
    np.testing.assert_allclose(found[2], piece[2] - piece[0], rtol=1e-10)


def test_a_given_initial_law_belongs_to_the_first_observation_only():
    y = normal_series(missing=False)
    posterior = hidden_markov(y, 2, window=2, buffer=2, initial=INITIAL)
    found = rows_of(posterior, normal_position(posterior))
    from_start = enumerated_log_densities(log_emissions(y[:4]), TRANSITION, INITIAL)
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
        posterior.hessian(posterior.init)


def test_estimates_over_all_batches_of_one_window_average_to_the_gradient():
    posterior = hidden_markov(normal_series(), 2, window=2, buffer=3)
    position = normal_position(posterior)
    estimator = eqx.filter_jit(tallmc.gradient.Simple().prepare(posterior, None))
    weight = jnp.full(1, float(posterior.n_rows))
    estimates = [
        estimator(position, tallmc.rows.Batch(posterior.rows.take(jnp.array([row])), weight))
        for row in range(posterior.n_rows)
    ]
    np.testing.assert_allclose(
        np.mean(estimates, axis=0), posterior.gradient(position), rtol=1e-9, atol=1e-10
    )


# Mistakes that the enumeration must see.


class UniformStart(HiddenMarkovSeries):
    """The stationary start forgotten."""

    def start(self, factors, at_origin):
        return jnp.where(at_origin, self.initial, 0.5)


def window_errors(posterior, y):
    """By how much windows of 4 with buffers of 2 differ from enumerated log densities."""
    errors = []
    for row, start in enumerate(range(0, T, 4)):
        first, end = max(0, start - 2), min(start + 4, T)
        law = stationary(TRANSITION) if first else INITIAL
        paths = enumerated_log_densities(log_emissions(y[first:end]), TRANSITION, law)
        before = paths[start - first - 1] if start > first else 0.0
        found = rows_of(posterior, normal_position(posterior))[row]
        errors.append(abs(found - (paths[-1] - before)))
    return np.array(errors)


def buffer_counted(piece, likelihood, right=series.roles_of):
    used, _ = right(piece, likelihood)
    return used, used


def mask_ignored(piece, likelihood, right=series.roles_of):
    used, in_window = right(piece, likelihood)
    return jnp.ones_like(used), in_window


@pytest.mark.smoke
@pytest.mark.parametrize("mutant", [None, "buffer counted", "mask ignored", "uniform start"])
def test_enumeration_kills_double_counting_a_forgotten_mask_and_a_forgotten_start(
    mutant, monkeypatch
):
    y = normal_series(missing=False)
    y[2:8] = 0.3  # tells little about the state, so that the start of a piece matters
    posterior = hidden_markov(y, 2, window=4, buffer=2, initial=INITIAL)
    if mutant == "uniform start":
        right = likelihood_of(posterior.model).series
        wrong = UniformStart(right.emission, right.initial)
        place = lambda p: p.model.log_likelihood.function.series
        posterior = eqx.tree_at(place, posterior, wrong)
    elif mutant is not None:
        roles = buffer_counted if mutant == "buffer counted" else mask_ignored
        monkeypatch.setattr(series, "roles_of", roles)
    errors = window_errors(posterior, y)
    if mutant is None:
        assert errors.max() < 1e-10
    else:
        assert 1e-6 < errors.max() < np.inf


def test_hidden_states_are_those_of_all_paths():
    y = normal_series()
    posterior = hidden_markov(y, 2, window=3, buffer=2)
    position = np.asarray(normal_position(posterior))
    emissions, law = np.exp(log_emissions(y)), stationary(TRANSITION)
    expected = np.zeros((T, 2))
    for path in itertools.product(range(2), repeat=T):
        moves = [TRANSITION[pair] for pair in itertools.pairwise(path)]
        weight = law[path[0]] * np.prod(moves) * np.prod(emissions[np.arange(T), path])
        expected[np.arange(T), path] += weight
    expected /= expected.sum(axis=1, keepdims=True)
    found = tallmc.contrib.series.hidden_states(posterior, position[None], 2, 7)
    np.testing.assert_allclose(found, expected[2:7], rtol=1e-9, atol=1e-13)


def test_hidden_states_of_a_state_space_are_the_regression_on_all_observations():
    y = autoregression(T)
    posterior = state_space(y, window=3, buffer=2)
    position = position_of(
        posterior, transition=[0.8], state_scales=[1.0], noise_scales=[0.6], mean=[0.3]
    )
    times = np.arange(T)
    of_states = 0.8 ** abs(times[:, None] - times) / (1 - 0.8**2)
    expected = of_states @ np.linalg.solve(of_states + 0.36 * np.eye(T), y - 0.3)
    found = tallmc.contrib.series.hidden_states(posterior, np.asarray(position)[None])
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-9)


# How fast a window forgets.


def closed_loop(a, state_variance, noise_variance):
    """a(1 − K) of the stationary Kalman filter of an AR(1) plus noise."""
    predicted = 1.0
    for _ in range(1000):
        gain = predicted / (predicted + noise_variance)
        predicted = a**2 * (1 - gain) * predicted + state_variance
    return a * (1 - gain)


def decay(posterior, position, y, messages, buffers=(10, 20)):
    """The factor per observation by which the error of the gradient falls."""
    after = int(messages == "both")
    errors = buffer_errors(
        recut(posterior.model, window=16, before=1, after=after),
        y[:, None],
        np.asarray(position)[None],
        np.eye(posterior.dim),
        window=16,
        buffers=list(buffers),
        reference=80,
    )[0]
    return (errors[1] / errors[0]) ** (1 / (buffers[1] - buffers[0]))


@pytest.mark.parametrize("messages", ["past", "both"])
def test_states_that_observations_hardly_tell_are_forgotten_at_the_second_eigenvalue(messages):
    """Within 15%: the derivative of λ^B has a factor B, which is 1.07 per observation here."""
    y, _ = hidden_markov_series(800, means=[0.0, 0.2], scales=[1.0, 1.0])
    posterior = hidden_markov(y, 2, window=16, buffer=1)
    position = position_of(posterior, transition=TRANSITION, means=[0.0, 0.2], scales=[1.0, 1.0])
    expected = np.linalg.eigvals(TRANSITION).min()
    assert decay(posterior, position, y, messages) == pytest.approx(expected, rel=0.15)


def test_a_state_space_is_forgotten_at_the_rate_of_the_closed_loop():
    y = autoregression(800, a=0.95, state_scale=0.5)
    posterior = state_space(y, window=16, buffer=1)
    position = position_of(
        posterior, transition=[0.95], state_scales=[0.5], noise_scales=[1.0], mean=[0.0]
    )
    expected = closed_loop(0.95, 0.25, 1.0)
    assert 0.5 < expected < 0.7
    assert decay(posterior, position, y, "past") == pytest.approx(expected, rel=0.15)


# The choice of the buffer.


@pytest.fixture(scope="module")
def measured():
    y = autoregression(4096, a=0.9, state_scale=0.5)
    return y, state_space(y)


def test_measured_buffer_is_reported_and_is_long_enough_at_draws(measured):
    y, posterior = measured
    buffer = likelihood_of(posterior.model).before
    assert posterior.description["buffer"] == f"{buffer}, messages from the past"
    assert 4 < buffer < 64
    assert "posterior standard deviations" in list(posterior.description.values())[-1]
    pilot = series_pilot(recut(posterior.model, window=512, before=0, after=0), y[:, None])
    around = pilot.position + np.random.default_rng(0).standard_normal((50, 4)) @ pilot.factor.T
    found = tallmc.contrib.series.buffer_error(posterior, around, positions=4)
    assert found.largest < 0.01
    assert "good" in repr(found)


def test_short_buffers_are_reported_as_too_short(measured):
    y, long = measured
    posterior = state_space(y, window=64, buffer=1)
    positions = np.asarray(long.init) + 0.01 * np.random.default_rng(0).normal(size=(20, 4))
    found = tallmc.contrib.series.buffer_error(posterior, positions, positions=2)
    assert found.largest > 0.01
    assert "longer buffer" in repr(found)


def test_rare_regimes_make_preferential_windows_less_noisy():
    """Weights at one position, the variance of the gradient one posterior sd from it.

    Far from the anchor the weights do not help: the ratio is 1.02 at 0.05 in each coordinate.
    """
    rare = np.array([[0.998, 0.002], [0.05, 0.95]])
    y, _ = hidden_markov_series(12_800, rare, [0.0, 3.0], [1.0, 1.0])
    posterior = hidden_markov(y, 2, window=64, buffer=20)
    truth = {"transition": rare, "means": [0.0, 3.0], "scales": [1.0, 1.0]}
    position = position_of(posterior, **truth)
    anchor = tallmc.anchor.Anchor(position, 0.0, position, None, None, None, None, 0)
    weights = np.asarray(tallmc.subsample.gradient_weights(posterior, anchor))
    row_gradients = eqx.filter_jit(posterior.model.row_gradients)
    here = np.asarray(row_gradients(position, posterior.data))
    sds = 1 / np.sqrt((here**2).sum(axis=0))  # of the inverse information of the windows
    moved = np.asarray(position) + sds * np.random.default_rng(0).standard_normal(len(sds))
    gradients = np.asarray(row_gradients(jnp.asarray(moved), posterior.data))
    squares, total = (gradients**2).sum(axis=1), (gradients.sum(axis=0) ** 2).sum()
    probability = weights / weights.sum()
    uniform = len(squares) * squares.sum() - total
    preferential = (squares / probability).sum() - total
    assert preferential / uniform < 0.9


BAD = {
    "matrix for a hidden Markov model": (lambda: hidden_markov(np.ones((5, 2)), 2), "one column"),
    "one state": (lambda: hidden_markov(normal_series(), 1), "n_states"),
    "constant": (lambda: hidden_markov(np.ones(9), 2), "vary"),
    "infinite": (lambda: hidden_markov(np.array([1.0, np.inf]), 2), "NaN where"),
    "all missing": (lambda: hidden_markov(np.full(2, np.nan), 2), "only NaN"),
    "text": (lambda: hidden_markov(np.array(["a", "b"]), 2), "be real numbers"),
    "emission": (lambda: hidden_markov(normal_series(), 2, "gamma"), "poisson"),
    "counts": (lambda: hidden_markov(np.array([0.5, 1.0]), 2, "poisson"), "integers from 0"),
    "window": (lambda: hidden_markov(normal_series(), 2, window=99), "the length of the series"),
    "buffer": (lambda: hidden_markov(normal_series(), 2, buffer=0), "buffer"),
    "messages": (lambda: hidden_markov(normal_series(), 2, messages="future"), "past"),
    "initial": (
        lambda: hidden_markov(normal_series(), 2, initial=np.array([0.5, 0.6])),
        "sum to 1",
    ),
    "prior": (lambda: hidden_markov(normal_series(), 2, transition_prior=-1.0), "positive"),
    "transition": (lambda: state_space(normal_series(), "seasonal"), "level"),
    "loadings": (lambda: state_space(normal_series(), loadings=np.ones((2, 1))), "one line per"),
    "dependent": (lambda: state_space(normal_series(), loadings=np.ones((1, 2))), "independent"),
    "no series": (
        lambda: tallmc.contrib.series.buffer_error(
            tallmc.models.linear_regression(
                np.ones((1, 1)), np.ones(1), prior_variance=1.0, noise_variance=1.0
            ),
            np.zeros((1, 1)),
        ),
        "one of a series",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    make, message = BAD[case]
    with pytest.raises(tallmc.InvalidInput, match=message):
        make()


def test_a_memory_that_is_too_long_is_told(monkeypatch):
    """A series that is forgotten at 0.98 per observation, where only buffers up to 16 are tried."""
    monkeypatch.setattr(buffer_length, "_REFERENCES", (32,))
    y = autoregression(4096, a=0.999, state_scale=0.02)
    with pytest.warns(UserWarning, match="remembers more than 16 observations"):
        state_space(y)
