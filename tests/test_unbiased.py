"""The estimator's mean and covariance by enumeration of every draw, for every Subsample × Gradient."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import (
    DYNAMICS,
    GRADIENTS,
    SIZES,
    SUBSAMPLES,
    logistic,
    logistic_by_autodiff,
    memory_of,
    residual_matrix,
    slow_after,
)
from tallmc._rows import take_rows
from tallmc.dynamics import DynamicsChoice
from tallmc.gradient import Batch, GradientChoice
from tallmc.subsample import SizeChoice, SubsampleChoice
from tallmc.subsample.bandit import BanditSelection
from tallmc.subsample.full import AllRowsSelection
from tallmc.subsample.optimal import OptimalSelection
from tallmc.subsample.replacement import WithReplacement
from tallmc.subsample.selection import Memory
from tallmc.subsample.stratified import StratifiedSelection
from tallmc.subsample.uniform import WithoutReplacement

SIZE = 3
POSTERIORS = {"glm": logistic, "autodiff": logistic_by_autodiff}
# Exponential weights are biased by design; test_exponential.py has their law.
# Rules for weights differ in their numbers only: one of them is shown with every gradient, the others with control variates.
OTHER_RULES = ("gradient-weights", "frobenius-weights", "lipschitz-weights", "residual-weights", "own-weights")
PAIRS = [
    (s, g)
    for s in SUBSAMPLES
    for g in GRADIENTS
    if (s == "all-rows") == (g == "full") and s != "exponential" and (s not in OTHER_RULES or g == "control-variate")
]


def test_every_part_is_registered_here():
    for kind, examples in [
        (SubsampleChoice, SUBSAMPLES),
        (GradientChoice, GRADIENTS),
        (SizeChoice, SIZES),
        (DynamicsChoice, DYNAMICS),
    ]:
        assert set(kind.__subclasses__()) == {type(example) for example in examples.values()}


def prepared(posterior, subsample, gradient):
    size = None if subsample == "all-rows" else SIZE
    method = tallmc.Method(subsample=SUBSAMPLES[subsample], gradient=GRADIENTS[gradient], size=size, step_size=0.1)
    return method.prepare(posterior, tallmc.laplace(posterior)).kernel


def learned_by(kernel, position, memory, steps=20):
    """What a bandit knows after some steps at this position."""
    words = kernel.selection.supply(jax.random.key(7), steps)
    see = eqx.filter_jit(lambda learned, word: kernel.estimate(position, word, Memory(memory, learned)).memory.selection)
    learned = kernel.selection.start(words[0])
    for word in words:
        learned = see(learned, word)
    return learned


def law_of(kernel, position, memory):
    """p of every draw with replacement, and the picks that go with it."""
    selection = kernel.selection
    if isinstance(selection, OptimalSelection):
        units = selection.units(kernel.gradient, position, memory)
        return np.asarray(units, float) / 2**32, lambda indices: selection.picks_at(units, indices, position.dtype)
    if isinstance(selection, BanditSelection):
        learned = learned_by(kernel, position, memory)
        return selection.probabilities(learned), lambda indices: selection.picks_at(learned, indices)
    return selection.law.probabilities(), selection.picks_at


def all_batches(kernel, position, memory):
    """Every batch that a step can see, with its probability."""
    selection, posterior = kernel.selection, kernel.gradient.posterior
    rows = range(posterior.n_rows)
    if isinstance(selection, WithoutReplacement):
        sets = list(itertools.combinations(rows, SIZE))
        for indices in sets:
            yield selection.picks_at(jnp.array(indices)), 1 / len(sets)
        return
    if isinstance(selection, StratifiedSelection):
        places = list(itertools.product(*(range(count) for count in selection.count)))
        for place in places:
            yield selection.picks_at(jnp.array(place)), 1 / len(places)
        return
    probability, picks_at = law_of(kernel, position, memory)
    draws = selection.draws if isinstance(selection, WithReplacement) else SIZE
    for indices in itertools.product(np.flatnonzero(probability), repeat=draws):
        yield picks_at(jnp.array(indices)), np.prod(probability[list(indices)])


def moments_by_enumeration(kernel, position, memory=None):
    posterior = kernel.gradient.posterior
    batch_of = lambda picks: Batch(take_rows(posterior.data, picks.indices), picks.weights, picks.indices)
    estimate = eqx.filter_jit(lambda k, picks: k.gradient(position, batch_of(picks), memory))
    batches = list(all_batches(kernel, position, memory))
    probability = np.array([p for _, p in batches])
    values = np.stack([estimate(kernel, picks) for picks, _ in batches])
    mean = probability @ values
    return probability.sum(), mean, (values - mean).T * probability @ (values - mean)


# A model by automatic differentiation differs in its compact gradients only, which subsamples of one kind use alike.
ON_BOTH = ("uniform", "all-rows")
CASES = [("glm", *pair) for pair in PAIRS] + [("autodiff", *pair) for pair in PAIRS if pair[0] in ON_BOTH]


@pytest.mark.parametrize(("model", "subsample", "gradient"), CASES)
def test_estimator_is_unbiased_with_the_stated_covariance_by_enumeration(model, subsample, gradient):
    posterior = POSTERIORS[model]()
    kernel = prepared(posterior, subsample, gradient)
    position = jnp.array([0.7, -1.3])
    exact = np.asarray(posterior.gradient(position))
    if isinstance(kernel.selection, AllRowsSelection):
        by_row = kernel.gradient.known(position) + residual_matrix(kernel.gradient, position).sum(0)
        np.testing.assert_allclose(kernel.estimate(position, None).gradient, by_row, rtol=1e-12, atol=1e-12)
        return
    memory = memory_of(kernel.gradient)
    total, mean, covariance = moments_by_enumeration(kernel, position, memory)
    assert total == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(mean, exact, atol=1e-12 * np.abs(exact).max())

    r, N = residual_matrix(kernel.gradient, position, memory), posterior.n_rows
    np.testing.assert_allclose(r.sum(0) + kernel.gradient.known(position, memory), exact, atol=1e-12 * np.abs(exact).max())
    if isinstance(kernel.selection, WithoutReplacement):
        expected = N**2 / SIZE * (1 - SIZE / N) * np.cov(r.T)
    elif isinstance(kernel.selection, StratifiedSelection):
        first, second = r[[1, 3]], r[[0, 2, 4]]  # one draw and two
        expected = 2**2 * np.cov(first.T, ddof=0) + 3**2 / 2 * np.cov(second.T, ddof=0)
    else:
        p, _ = law_of(kernel, position, memory)
        drawn, draws = r[p > 0], SIZE - np.count_nonzero(p == 0)
        expected = ((drawn.T / p[p > 0]) @ drawn - np.outer(drawn.sum(0), drawn.sum(0))) / draws
    np.testing.assert_allclose(covariance, expected, atol=1e-12 * np.abs(expected).max())


def z_of_moments(estimates, exact, covariance) -> float:
    """Largest |z| of the mean and covariance of many estimates."""
    centred = np.asarray(estimates) - np.asarray(exact)
    products = np.einsum("ki,kj->kij", centred, centred)
    z = [
        (sample.mean(0) - truth) / (sample.std(0) / np.sqrt(len(sample)))
        for sample, truth in [(centred, np.zeros_like(exact)), (products, covariance)]
    ]
    return max(np.abs(values).max() for values in z)


WITH_REPLACEMENT = [
    name
    for name in SUBSAMPLES
    if name not in ("all-rows", "bandit", "exponential", "optimal", "stratified", "take-all", "without-replacement")
]


@pytest.mark.parametrize("subsample", slow_after(2, WITH_REPLACEMENT))
def test_adaptive_estimator_has_the_mean_and_covariance_of_its_size(subsample):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    method = tallmc.Method(
        subsample=SUBSAMPLES[subsample],
        gradient=GRADIENTS["control-variate"],
        size=tallmc.subsample.Adaptive(noise_threshold=0.5, max_size=5),
        step_size=0.1,
    )
    kernel = method.prepare(posterior).kernel
    n = int(kernel.selection.size_at(position))
    assert n > 1
    keys = kernel.selection.supply(jax.random.key(0), 200_000)
    estimates = jax.jit(jax.vmap(lambda key: kernel.estimate(position, key).gradient))(keys)
    r, p = residual_matrix(kernel.gradient, position), kernel.selection.law.probabilities()
    covariance = ((r.T / p) @ r - np.outer(r.sum(0), r.sum(0))) / n
    assert z_of_moments(estimates, posterior.gradient(position), covariance) < 4.6


@pytest.mark.parametrize("wanted", [64, 65, 150])
def test_adaptive_estimator_is_right_beyond_one_chunk(wanted):
    posterior, position = logistic(n_rows=200), jnp.array([0.7, -1.3])
    anchor = tallmc.laplace(posterior)
    bound = tallmc.asgld_cv(0.1, noise_threshold=1.0).prepare(posterior, anchor).kernel.selection.rows_per_squared_distance
    threshold = float(bound * jnp.sum((position - anchor.position) ** 2)) / (wanted - 0.5)
    kernel = tallmc.asgld_cv(0.1, noise_threshold=threshold).prepare(posterior, anchor).kernel
    assert int(kernel.selection.size_at(position)) == wanted
    keys = kernel.selection.supply(jax.random.key(0), 20_000)
    estimates = jax.jit(jax.vmap(lambda key: kernel.estimate(position, key).gradient))(keys)
    r, p = residual_matrix(kernel.gradient, position), kernel.selection.law.probabilities()
    covariance = ((r.T / p) @ r - np.outer(r.sum(0), r.sum(0))) / wanted
    assert z_of_moments(estimates, posterior.gradient(position), covariance) < 4.6


@pytest.mark.parametrize("gradient", ["simple", "control-variate"])
def test_optimal_weights_are_drawn_from_the_law_they_report(gradient):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    kernel = prepared(posterior, "optimal", gradient)
    supply = kernel.selection.supply(jax.random.key(0), 100_000)
    estimates = jax.jit(jax.vmap(lambda words: kernel.estimate(position, words).gradient))(supply)
    r = residual_matrix(kernel.gradient, position)
    p = np.asarray(kernel.selection.units(kernel.gradient, position), float) / 2**32
    covariance = ((r.T / p) @ r - np.outer(r.sum(0), r.sum(0))) / SIZE
    assert z_of_moments(estimates, posterior.gradient(position), covariance) < 4.6


@pytest.mark.parametrize("gradient", ["simple", "control-variate"])
def test_a_bandit_draws_from_the_law_it_reports(gradient):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    kernel = prepared(posterior, "bandit", gradient)
    learned = learned_by(kernel, position, None)
    p = kernel.selection.probabilities(learned)
    assert p.max() > 1.5 * p.min()
    supply = kernel.selection.supply(jax.random.key(0), 100_000)
    estimates = jax.jit(jax.vmap(lambda words: kernel.estimate(position, words, Memory(None, learned)).gradient))(supply)
    r = residual_matrix(kernel.gradient, position)
    covariance = ((r.T / p) @ r - np.outer(r.sum(0), r.sum(0))) / SIZE
    assert z_of_moments(estimates, posterior.gradient(position), covariance) < 4.6
