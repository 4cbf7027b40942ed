"""Small series with hidden states, and log densities of them that use no recursion."""

import itertools

import numpy as np
import scipy.stats as stats

TRANSITION = np.array([[0.9, 0.1], [0.3, 0.7]])
MEANS, SCALES = np.array([-1.0, 1.5]), np.array([1.0, 0.5])


def stationary(transition):
    values, vectors = np.linalg.eig(transition.T)
    found = np.real(vectors[:, np.argmax(np.real(values))])
    return found / found.sum()


def hidden_markov_series(n_times, transition=TRANSITION, means=MEANS, scales=SCALES, seed=0):
    """Y and the states of a hidden Markov model with normal emissions."""
    rng = np.random.default_rng(seed)
    transition, states = np.asarray(transition), np.zeros(n_times, int)
    uniform, cumulative = rng.random(n_times), transition.cumsum(axis=1)
    for time in range(1, n_times):
        states[time] = (uniform[time] > cumulative[states[time - 1]]).sum()
    noise = rng.standard_normal(n_times)
    return np.asarray(means)[states] + np.asarray(scales)[states] * noise, states


def autoregression(n_times, a=0.8, state_scale=1.0, noise_scale=1.0, seed=0):
    """An AR(1) series plus noise."""
    rng = np.random.default_rng(seed)
    innovations = state_scale * rng.standard_normal(n_times)
    x = np.empty(n_times)
    x[0] = innovations[0] / np.sqrt(1 - a**2)
    for time in range(1, n_times):
        x[time] = a * x[time - 1] + innovations[time]
    return x + noise_scale * rng.standard_normal(n_times)


def enumerated_log_densities(log_emissions, transition, initial):
    """Log p(y_{1:t}) for every t, by the sum over all paths of states.

    `log_emissions` is (T, K), zero where an observation is missing.
    """
    n_times, k = log_emissions.shape
    found = []
    for t in range(1, n_times + 1):
        total = 0.0
        for path in itertools.product(range(k), repeat=t):
            weight = initial[path[0]]
            for before, after in itertools.pairwise(path):
                weight *= transition[before, after]
            total += weight * np.exp(sum(log_emissions[i, state] for i, state in enumerate(path)))
        found.append(np.log(total))
    return np.array(found)


def dense_gaussian_log_density(y, a, state_scales, noise_scales, mean, start_variance, loadings):
    """Log p(y) of a state-space model from the covariance of all observations; NaN is missing."""
    n_times, d = len(y), len(a)
    # x_t = Σ_s A^{t−s} q_s, with q_0 the start.
    powers = np.zeros((n_times * d, n_times * d))
    for t in range(n_times):
        for s in range(t + 1):
            block = np.linalg.matrix_power(a, t - s)
            powers[t * d : (t + 1) * d, s * d : (s + 1) * d] = block
    sources = np.kron(np.eye(n_times), np.diag(state_scales**2))
    sources[:d, :d] = start_variance
    seen = np.kron(np.eye(n_times), loadings)
    covariance = seen @ powers @ sources @ powers.T @ seen.T
    covariance += np.kron(np.eye(n_times), np.diag(noise_scales**2))
    known = ~np.isnan(y.ravel())
    return stats.multivariate_normal.logpdf(
        y.ravel()[known], np.tile(mean, n_times)[known], covariance[np.ix_(known, known)]
    )
