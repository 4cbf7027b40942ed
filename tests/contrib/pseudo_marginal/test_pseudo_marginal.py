"""Block pseudo-marginal Metropolis–Hastings: the law of its draws, and how far it is off.

With four rows, the perturbed posterior is known by enumeration of all draws of rows.
"""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multinomial

import tallmc
from problems import by_autodiff, logistic, logistic_log_likelihood
from stationary import largest_z, run_chains
from tallmc._engine.kernel import NewChain
from tallmc._store.setup import decode_method, encode_method
from tallmc.contrib.pseudo_marginal import CorrelatedKernel, CorrelatedState, ExpansionRemainders
from tallmc.methods.subsampled.remainders import ModelRemainders
from test_firefly import LIMIT
from test_mutants import cast

GRID = np.linspace(-6.46, 6.46, 1001)
"""Positions u of one parameter within the radius."""
CASES = {
    # An anchor far from the mode makes the remainders large, and the bias visible.
    "bounds": ([5.3, -4.4, 3.1, 3.6], [1, 1, 0, 1], -0.8),
    "equal": ([3.0, 2.7, 5.9, -4.1], [1, 1, 0, 1], -1.0),
}
"""Covariates, outcomes and anchors. The model of "equal" has no bounds."""


@functools.cache
def prepared(case: str, size: int, blocks: int = 1):
    x, y, at = CASES[case]
    glm = tallmc.models.logistic_regression(np.array(x)[:, None], np.array(y), prior_variance=1.0)
    posterior = by_autodiff(glm, logistic_log_likelihood) if case == "equal" else glm
    anchor = tallmc.anchor.find_anchor(posterior, at={"beta": np.array([at])})
    return (
        tallmc.contrib.pseudo_marginal.pseudo_marginal_mh(0.5, size, blocks)
        .prepare(posterior, anchor)
        .kernel
    )


def changes(bound, grid=GRID) -> tuple[np.ndarray, np.ndarray]:
    """R_i of a logistic regression at every u, by its definition, and p."""
    surrogate = bound.kernel.surrogate
    rows = bound.rows.columns
    x, y = np.asarray(rows.x, float), np.asarray(rows.y, float)
    anchor = float(surrogate.anchor[0])
    z0, t = x[:, 0] * anchor, np.outer(grid * float(surrogate.metric.push(jnp.ones(1))[0]), x[:, 0])
    chance = 1 / (1 + np.exp(-z0))
    expansion = np.logaddexp(0, z0) + chance * t + chance * (1 - chance) * t**2 / 2 - y * (z0 + t)
    return np.logaddexp(0, z0 + t) - y * (z0 + t) - expansion, bound.kernel.stream.probabilities()


def log_perturbation(bound, size: int, grid=GRID) -> np.ndarray:
    """Log E exp(−½σ̂² + ℓ̂ − ℓ) at every u, over all numbers of times that rows can be drawn."""
    remainders, p = changes(bound, grid)
    others = np.array(list(itertools.product(range(size + 1), repeat=len(p) - 1)))
    others = others[others.sum(axis=1) <= size]
    counts = np.column_stack([others, size - others.sum(axis=1)])
    log_chance = multinomial.logpmf(counts, size, p)
    z = remainders / p
    mean = z @ counts.T / size
    variance = np.maximum(z**2 @ counts.T - size * mean**2, 0) / (size * (size - 1))
    return logsumexp(log_chance - mean - variance / 2, axis=1) + remainders.sum(axis=1)


def log_posterior(bound, grid) -> np.ndarray:
    """Log π relative to its value at the anchor, at every u."""
    surrogate = bound.kernel.surrogate
    positions = surrogate.anchor + jax.vmap(surrogate.metric.push)(jnp.asarray(grid)[:, None])
    potential = jax.vmap(bound.posterior.potential)
    return np.asarray(potential(surrogate.anchor[None]) - potential(positions))


def normalised(log_density: np.ndarray) -> np.ndarray:
    weight = np.exp(log_density - log_density.max())
    return weight / weight.sum()


def perturbed(bound, size: int) -> np.ndarray:
    """The weights of the perturbed posterior on the grid."""
    return normalised(log_posterior(bound, GRID) + log_perturbation(bound, size))


def powers(positions: np.ndarray) -> np.ndarray:
    return np.concatenate([positions, positions**2, positions**3], axis=-1)


def moments(bound, weight: np.ndarray) -> np.ndarray:
    surrogate = bound.kernel.surrogate
    move = float(surrogate.metric.push(jnp.ones(1))[0])
    return weight @ powers(float(surrogate.anchor[0]) + move * GRID[:, None])


def estimated_density(kernel, rows, at: np.ndarray) -> np.ndarray:
    """Log E exp(−½‖u‖² − e(u) − Ŝ) over all draws of rows, from states of the kernel."""
    p = kernel.stream.probabilities()
    draws = np.array(list(itertools.product(range(len(p)), repeat=kernel.size)))
    of_rows = jnp.asarray(draws), jnp.asarray(1 / p[draws])
    state = jax.jit(jax.vmap(kernel.state_at, (None, 0, 0, None)))
    found = [state(jnp.array([u]), *of_rows, rows).potential for u in at]
    return logsumexp(-np.array(found), b=np.prod(p[draws], axis=1), axis=1) - at**2 / 2


def enumeration_error(bound, kernel) -> float:
    """The error of this density, relative to the posterior and the perturbation."""
    at = GRID[[200, 450, 520, 700]]
    exact = log_posterior(bound, at) + log_perturbation(bound, kernel.size, at)
    return np.abs(estimated_density(kernel, bound.rows, at) - exact).max()


class CorrectionLeftOut(CorrelatedKernel):
    """exp of an unbiased estimate of the log-likelihood."""

    def corrected(self, z):
        estimate, variance = super().corrected(z)
        return estimate - variance / 2, variance


class StaleProbabilities(CorrelatedKernel):
    """New rows with 1/p of the rows that they replace."""

    def _redrawn(self, state, key):
        return super()._redrawn(state, key)[0], state.weights


@pytest.mark.parametrize(("case", "size"), [("bounds", 3), ("equal", 2)])
def test_mean_of_estimated_densities_is_the_perturbed_posterior(case, size):
    bound = prepared(case, size)
    mutant = cast(bound.kernel, CorrectionLeftOut)
    assert enumeration_error(bound, bound.kernel) < 1e-9
    assert enumeration_error(bound, mutant) > 1e-2


@pytest.mark.parametrize("case", CASES)
def test_perturbation_has_the_order_and_the_constant_that_are_stated(case):
    """m² times the perturbation tends to κ₃/3, with an error of order 1/m."""
    bound, at = prepared(case, 2), np.array([-0.8, 0.7, 1.1])
    remainders, p = changes(bound, at)
    z = remainders / p
    cumulant = (z - (z @ p)[:, None]) ** 3 @ p
    by_size = {m: m**2 * log_perturbation(bound, m, at) for m in (12, 24, 48)}
    errors = [np.abs(by_size[m] / (cumulant / 3) - 1).max() for m in by_size]
    extrapolated = 2 * by_size[48] - by_size[24]
    assert all(0.45 < after / before < 0.55 for before, after in itertools.pairwise(errors))
    assert np.abs(extrapolated / (cumulant / 3) - 1).max() < 1 / 24**2


@pytest.mark.parametrize("case", CASES)
def test_distance_from_the_posterior_falls_with_the_square_of_the_size(case):
    bound = prepared(case, 2)
    posterior = normalised(log_posterior(bound, GRID))
    distances = [np.abs(perturbed(bound, size) - posterior).sum() / 2 for size in (10, 20, 40)]
    ratios = [before / after for before, after in itertools.pairwise(distances)]
    # 4 + c/m: the next order halves when the size doubles.
    assert 0 < ratios[1] - 4 < 0.6 * (ratios[0] - 4) < 1


def moments_of_chains(bound) -> np.ndarray:
    """The first three moments of every chain."""
    start = bound.kernel.surrogate.anchor
    found = run_chains(bound, chains=512, steps=2000, burn_in=500, start=start)
    return powers(np.asarray(found, float)).mean(axis=1)


@pytest.mark.parametrize(("case", "size", "blocks"), [("bounds", 2, 2), ("equal", 3, 2)])
def test_draws_are_those_of_the_perturbed_posterior(case, size, blocks):
    bound = prepared(case, size, blocks)
    found, exact = moments_of_chains(bound), normalised(log_posterior(bound, GRID))
    assert largest_z(found, moments(bound, perturbed(bound, size))) < LIMIT
    assert largest_z(found, moments(bound, exact)) > LIMIT


@pytest.mark.smoke
def test_the_mean_over_all_draws_kills_a_correction_that_is_left_out():
    bound = prepared("bounds", 2, 2)
    assert enumeration_error(bound, bound.kernel) < 1e-9
    assert 1e-2 < enumeration_error(bound, cast(bound.kernel, CorrectionLeftOut)) < np.inf


def stale_weights(kernel) -> int:
    """How many of the weights after a redrawn block are not 1/p of their rows, in many redraws."""
    p = kernel.stream.probabilities()
    indices, zero = jnp.asarray(np.zeros(kernel.size, np.int32)), jnp.asarray(np.zeros(1))
    weights = jnp.asarray(np.full(kernel.size, 1 / p[0]))
    state = CorrelatedState(zero, zero, indices, weights, zero[0], zero[0])
    redrawn = jax.jit(jax.vmap(lambda key: kernel._redrawn(state, key)))
    found, redrawn_weights = map(np.asarray, redrawn(jax.random.split(jax.random.key(0), 50)))
    assert len(np.unique(found)) > 1
    return int(np.sum(np.abs(redrawn_weights * p[found] - 1) > 1e-12))


@pytest.mark.smoke
def test_weights_kill_stale_probabilities():
    kernel = prepared("bounds", 2, 2).kernel
    assert stale_weights(kernel) == 0 < stale_weights(cast(kernel, StaleProbabilities))


@pytest.mark.parametrize("mutant", [CorrectionLeftOut, StaleProbabilities])
def test_moments_kill(mutant):
    bound = prepared("bounds", 2, 2)
    wrong = dataclasses.replace(bound, kernel=cast(bound.kernel, mutant))
    z = largest_z(moments_of_chains(wrong), moments(bound, perturbed(bound, 2)))
    assert LIMIT < z < np.inf


@pytest.mark.slow
def test_no_bias_is_seen_with_fifty_rows():
    """The posterior is skewed: a Gaussian would be seen."""
    rng = np.random.default_rng(0)
    x, y = rng.lognormal(0, 0.4, size=(50, 1)), np.arange(50) % 8 == 0
    posterior = tallmc.models.logistic_regression(x, y, prior_variance=4.0)
    bound = tallmc.contrib.pseudo_marginal.pseudo_marginal_mh(0.5, 20, 5).prepare(posterior).kernel
    found = moments_of_chains(bound)
    assert largest_z(found, moments(bound, normalised(log_posterior(bound, GRID)))) < LIMIT
    assert largest_z(found, moments(bound, normalised(-(GRID**2) / 2))) > LIMIT


@pytest.mark.parametrize(("size", "blocks", "correlation"), [(20, 5, 0.8), (10, 3, 0.6), (4, 1, 0)])
def test_successive_estimates_are_correlated_as_stated(size, blocks, correlation):
    """Blocks of 4 rows, of which the last overlaps with another if 4 is no divisor of the size."""
    bound = (
        tallmc.contrib.pseudo_marginal.pseudo_marginal_mh(0.5, size, blocks)
        .prepare(logistic(50, 1))
        .kernel
    )
    kernel, u = bound.kernel, jnp.array([1.3])

    @jax.jit
    @jax.vmap
    def estimates(key):
        first, second = jax.random.split(key)
        state = kernel.init(NewChain(first, kernel.rest, jnp.int32(0), None), bound.rows).motion
        pair = (state.indices, state.weights), kernel._redrawn(state, second)
        states = [kernel.state_at(u, *drawn, bound.rows) for drawn in pair]
        return jnp.stack([state.potential - state.variance / 2 for state in states])

    found = np.asarray(estimates(jax.random.split(jax.random.key(0), 20_000)))
    found = found - found.mean()
    products = found[:, 0] * found[:, 1] / found.var()
    assert abs(products.mean() - correlation) < LIMIT * products.std() / np.sqrt(len(products))


def test_proposals_beyond_the_radius_are_rejected():
    bound = prepared("bounds", 8)
    near = dataclasses.replace(bound, kernel=eqx.tree_at(lambda k: k.radius, bound.kernel, 1.0))
    found = run_chains(near, chains=64, steps=200, burn_in=0, start=bound.kernel.rest)
    whitened = (found - np.asarray(bound.kernel.rest)) / float(
        bound.kernel.surrogate.metric.push(jnp.ones(1))[0]
    )
    assert np.abs(whitened).max() <= 1 + 1e-12 and whitened.std() > 0.1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_remainders_by_differentiation_are_those_of_the_family(dtype):
    """Also near the anchor in single precision, where differences have no digit left."""
    posterior = logistic(40, 2)
    anchor, metric = (
        tallmc.anchor.find_anchor(posterior),
        prepared("bounds", 2).kernel.surrogate.metric,
    )
    exact = ModelRemainders.at(posterior.model, 2, anchor, metric)
    cast_to = lambda tree: jax.tree.map(
        lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, tree
    )
    user = by_autodiff(posterior, logistic_log_likelihood)
    found = cast_to(ExpansionRemainders(user.model, 2, anchor.position))
    eps = float(jnp.finfo(dtype).eps)
    for scale in (1e-3, 0.1, 1.0):
        moves = scale * jnp.array([[1.0, -0.5], [0.3, 0.8]])
        values = np.asarray(exact.values(moves, posterior.rows.columns))
        by_user = found.values(cast_to(moves), cast_to(user.rows.columns))
        allowed = 64 * eps * np.abs(values).max()
        if scale == 1:  # differences, and the accuracy of the integrals of the family
            potentials = posterior.model.row_potentials(anchor.position + moves[0], user.data)
            allowed = 64 * eps * np.max(potentials) + 1e-7 * np.abs(values).max()
        assert np.abs(np.asarray(by_user, float) - values).max() < allowed


@pytest.mark.parametrize("check", [False, True])
def test_draws_are_never_checked(check):
    method = tallmc.contrib.pseudo_marginal.pseudo_marginal_mh(1.0, 20, 5)
    assert not method.exact and "estimated likelihood" in method.unseen_by_pairs
    draws = tallmc.sample(
        logistic(200), method, chains=4, n_draws=500, measure_bias=check, progress=False
    )
    assert draws.report.verdict == "not checked", draws.report
    assert "estimated likelihood was not measured" in draws.report.unknown
    assert (np.asarray(draws.sample_stats["batch_size"]) == 20).all()
    assert (np.asarray(draws.sample_stats["potential_variance"]) >= 0).all()


def test_proposals_beyond_the_radius_are_a_doubt():
    method = tallmc.contrib.pseudo_marginal.pseudo_marginal_mh(50.0, 20, 5, proposal="random-walk")
    with pytest.warns(tallmc.SamplingWarning, match="standard deviations from the anchor"):
        draws = tallmc.sample(logistic(200), method, chains=2, n_draws=50, progress=False)
    assert draws.report.verdict == "doubtful"


def test_a_method_is_stored_and_read_back():
    method = tallmc.contrib.pseudo_marginal.pseudo_marginal_mh(0.3, 50, 10, proposal="langevin")
    assert decode_method(*encode_method(method)) == method


def test_bad_input_is_answered():
    for wrong in (
        {"batch_size": 1},
        {"blocks": 0},
        {"batch_size": 5, "blocks": 6},
        {"proposal": "hmc"},
    ):
        with pytest.raises(tallmc.InvalidInput, match=list(wrong)[-1]):
            tallmc.contrib.pseudo_marginal.pseudo_marginal_mh(0.5, **wrong)
    with pytest.raises(tallmc.InvalidInput, match="step_size"):
        tallmc.contrib.pseudo_marginal.pseudo_marginal_mh(1.5)
