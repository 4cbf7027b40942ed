"""Mean and covariance of every Subsample × Gradient, by enumeration of every draw."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import (
    DYNAMICS,
    FEATURES,
    GRADIENTS,
    SIZES,
    SUBSAMPLES,
    logistic,
    logistic_by_autodiff,
    memory_of,
    residual_matrix,
    slow_after,
    weighted_logistic,
)
from tallmc.contrib.diverse_batches import DeterminantalSelection
from tallmc.dynamics import AbstractDynamics
from tallmc.gradient import AbstractGradient
from tallmc.subsample import SizeChoice, SubsampleChoice
from tallmc.subsample.bandit import BanditSelection
from tallmc.subsample.optimal import OptimalSelection
from tallmc.subsample.selection import Carried, WithReplacement
from tallmc.subsample.stratified import StratifiedSelection
from tallmc.subsample.uniform import AllRowsSelection, WithoutReplacement

SIZE = 3
POSTERIORS = {
    "glm": logistic,
    "autodiff": logistic_by_autodiff,
    "weighted": weighted_logistic,
}
# Exponential weights are biased by design; test_exponential.py has their law. The weights of
# Poisson disks are estimated; test_diverse.py measures their bias.
# Rules for weights differ in their numbers only: one of them is tested with every gradient, the
# others with control variates.
OTHER_RULES = (
    "gradient-weights",
    "frobenius-weights",
    "lipschitz-weights",
    "residual-weights",
    "own-weights",
)
PAIRS = [
    (s, g)
    for s in SUBSAMPLES
    for g in GRADIENTS
    if (s == "all-rows") == (g == "full")
    and s not in ("exponential", "poisson-disk")
    and (s not in OTHER_RULES or g == "control-variate")
]


def final_subclasses(kind):
    """The library's own subclasses that can be made; tests define further ones."""
    for subclass in kind.__subclasses__():
        if subclass.__module__.startswith("tallmc.") and not inspect.isabstract(subclass):
            yield subclass
        yield from final_subclasses(subclass)


def test_every_part_is_registered_here():
    for kind, examples in [
        (SubsampleChoice, SUBSAMPLES),
        (AbstractGradient, GRADIENTS),
        (SizeChoice, SIZES),
        (AbstractDynamics, DYNAMICS),
    ]:
        assert set(final_subclasses(kind)) == {type(example) for example in examples.values()}


@functools.cache
def anchored(model):
    posterior = POSTERIORS[model]()
    return posterior, tallmc.anchor.find_anchor(posterior)


def prepared(posterior, subsample, gradient, anchor=None):
    size = None if subsample == "all-rows" else SIZE
    method = tallmc.Method(
        subsample=SUBSAMPLES[subsample],
        gradient=GRADIENTS[gradient],
        batch_size=size,
        step_size=0.1,
    )
    return method.prepare(posterior, anchor or tallmc.anchor.find_anchor(posterior)).kernel


@run_once
def estimates(bound, position, drawn, carried=Carried()):  # noqa: B008  (it is frozen)
    """The gradient estimate of every entry of `drawn`, what the selection draws for one step."""
    kernel, rows = bound.kernel, bound.rows

    def estimate(drawn):
        gathered = kernel.selection.gather(drawn, rows)
        return kernel.estimate(position, gathered, rows, carried).gradient

    return jax.vmap(estimate)(drawn)


@run_once
def learned_after(bound, position, words, carried):
    """The bandit's memory after one step at this position."""
    return bound.kernel.estimate(position, words, bound.rows, carried).carried.selection


def learned_by(bound, position, carried, steps=20):
    """The bandit's memory after some steps at this position."""
    selection = bound.kernel.selection
    words = selection.draw(jax.random.key(7), steps)
    learned = selection.start(words[0])
    for word in words:
        learned = learned_after(bound, position, word, Carried(carried, learned))
    return learned


def law_of(bound, position, carried):
    """P of every draw with replacement, and the function from rows of batches to row draws."""
    kernel, selection = bound.kernel, bound.kernel.selection
    if isinstance(selection, OptimalSelection):
        units = selection.units(kernel.gradient, position, bound.rows, carried)
        p = np.asarray(units, float) / 2**32
        return p, jax.vmap(lambda rows: selection.draws_at(units, rows, position.dtype))
    if isinstance(selection, BanditSelection):
        learned = learned_by(bound, position, carried)
        p = selection.probabilities(learned)
        return p, jax.vmap(lambda rows: selection.draws_at(learned, rows))
    stream = selection.stream
    return stream.probabilities(), lambda indices: selection.completed(stream.at(indices))


def determinantal_law(size, floor, features=FEATURES):
    """The probability of every set of rows, from the determinants themselves."""
    sets = list(itertools.combinations(range(len(features)), size))
    minors = np.array([np.linalg.det((features @ features.T)[np.ix_(s, s)]) for s in sets])
    return dict(zip(sets, (1 - floor) * minors / minors.sum() + floor / len(sets), strict=True))


def all_batches(bound, position, carried):
    """The row draws of every batch that a step can see, and their probabilities."""
    selection, places = bound.kernel.selection, range(bound.rows.n_rows)
    if isinstance(selection, WithoutReplacement):
        sets = list(itertools.combinations(places, SIZE))
        return selection.draws_at(jnp.array(sets)), np.full(len(sets), 1 / len(sets))
    if isinstance(selection, DeterminantalSelection):
        law = determinantal_law(SIZE, 0.1)
        return selection.draws_at(jnp.array(list(law))), np.array(list(law.values()))
    if isinstance(selection, StratifiedSelection):
        sets = list(itertools.product(*(range(count) for count in selection.count)))
        return selection.draws_at(jnp.array(sets)), np.full(len(sets), 1 / len(sets))
    probability, draws_at = law_of(bound, position, carried)
    draws = selection.draws if isinstance(selection, WithReplacement) else SIZE
    drawn = np.array(list(itertools.product(np.flatnonzero(probability), repeat=draws)))
    return draws_at(jnp.array(drawn)), np.prod(probability[drawn], axis=1)


@run_once
def estimates_from(gradient, rows, position, drawn, carried):
    """The gradient estimate of every batch in `drawn`."""

    def estimate(drawn):
        return gradient(position, rows.complete(rows.gather(drawn)), carried)

    return jax.vmap(estimate)(drawn)


def moments_by_enumeration(bound, position, carried=None):
    """Total probability, mean and covariance of the estimate over every batch."""
    drawn, probability = all_batches(bound, position, carried)
    gradient = bound.kernel.gradient
    values = np.asarray(estimates_from(gradient, bound.rows, position, drawn, carried))
    mean = probability @ values
    return probability.sum(), mean, (values - mean).T * probability @ (values - mean)


# A model by automatic differentiation differs in its compact gradients only, and all subsamples
# use these in the same way.
ON_BOTH = ("uniform", "all-rows")
CASES = [("glm", *pair) for pair in PAIRS]
CASES += [("autodiff", *pair) for pair in PAIRS if pair[0] in ON_BOTH]
CASES += [("weighted", *pair) for pair in PAIRS if pair[0] in ("uniform", "curvature-weights")]
CASES.append(("weighted", "residual-weights", "control-variate"))


# With other models than the first, the cases that differ from these in one part only are slow.
FAST_ON_OTHER_MODELS = [
    ("autodiff", "uniform", "saga"),
    ("autodiff", "all-rows", "full"),
    ("weighted", "curvature-weights", "control-variate"),
    ("weighted", "residual-weights", "control-variate"),
]
CASES.sort(key=lambda case: case[0] != "glm" and case not in FAST_ON_OTHER_MODELS)
SLOW_CASES = sum(case[0] != "glm" and case not in FAST_ON_OTHER_MODELS for case in CASES)


@pytest.mark.parametrize(
    ("model", "subsample", "gradient"), slow_after(len(CASES) - SLOW_CASES, CASES)
)
def test_estimator_is_unbiased_with_the_stated_covariance_by_enumeration(
    model, subsample, gradient
):
    posterior, anchor = anchored(model)
    bound = prepared(posterior, subsample, gradient, anchor)
    kernel, rows = bound.kernel, bound.rows
    position = jnp.array([0.7, -1.3])
    exact = np.asarray(posterior.gradient(position))
    if isinstance(kernel.selection, AllRowsSelection):
        residuals = residual_matrix(kernel.gradient, rows, position)
        by_row = kernel.gradient.known(position) + residuals.sum(0)
        estimate = kernel.estimate(position, None, rows).gradient
        np.testing.assert_allclose(estimate, by_row, rtol=1e-12, atol=1e-12)
        return
    carried = memory_of(kernel.gradient, rows)
    total, mean, covariance = moments_by_enumeration(bound, position, carried)
    assert total == pytest.approx(1, abs=1e-12)
    rounding = 1e-12 * np.abs(exact).max()
    np.testing.assert_allclose(mean, exact, atol=rounding)

    r, N = residual_matrix(kernel.gradient, rows, position, carried), rows.n_rows
    by_row = kernel.gradient.known(position, carried) + r.sum(0)
    np.testing.assert_allclose(by_row, exact, atol=rounding)
    if isinstance(kernel.selection, WithoutReplacement):
        expected = N**2 / SIZE * (1 - SIZE / N) * np.cov(r.T)
    elif isinstance(kernel.selection, DeterminantalSelection):
        law = determinantal_law(SIZE, 0.1)
        inside = np.array([[i in rows for i in range(N)] for rows in law], float)
        pairs = inside.T * np.array(list(law.values())) @ inside  # π_ij, and π_i for i = j
        single = np.diag(pairs)
        expected = r.T @ (pairs / np.outer(single, single) - 1) @ r
    elif isinstance(kernel.selection, StratifiedSelection):
        first, second = r[[1, 3]], r[[0, 2, 4]]  # one draw and two
        expected = 2**2 * np.cov(first.T, ddof=0) + 3**2 / 2 * np.cov(second.T, ddof=0)
    else:
        p, _ = law_of(bound, position, carried)
        draws = SIZE - np.count_nonzero(p == 0)
        expected = covariance_of_draws(r[p > 0], p[p > 0], draws)
    np.testing.assert_allclose(covariance, expected, atol=1e-12 * np.abs(expected).max())


def covariance_of_draws(r, p, draws) -> np.ndarray:
    """(1/n)(Σ r_i r_iᵀ/p_i − (Σ r_i)(Σ r_i)ᵀ), the covariance of n draws with replacement."""
    return ((r.T / p) @ r - np.outer(r.sum(0), r.sum(0))) / draws


def z_of_moments(estimates, exact, covariance) -> float:
    """Largest |z| of the mean and covariance of many estimates."""
    centred = np.asarray(estimates) - np.asarray(exact)
    products = np.einsum("ki,kj->kij", centred, centred)
    z = [
        (sample.mean(0) - truth) / (sample.std(0) / np.sqrt(len(sample)))
        for sample, truth in [(centred, np.zeros_like(exact)), (products, covariance)]
    ]
    return max(np.abs(values).max() for values in z)


OTHER_DRAWS = (
    "all-rows",
    "bandit",
    "determinantal",
    "exponential",
    "optimal",
    "poisson-disk",
    "stratified",
    "take-all",
    "without-replacement",
)
WITH_REPLACEMENT = [name for name in SUBSAMPLES if name not in OTHER_DRAWS]


@pytest.mark.parametrize("subsample", slow_after(1, WITH_REPLACEMENT))
def test_adaptive_estimator_has_the_mean_and_covariance_of_its_size(subsample):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    method = tallmc.Method(
        subsample=SUBSAMPLES[subsample],
        gradient=GRADIENTS["control-variate"],
        batch_size=tallmc.subsample.BoundedNoise(noise_threshold=0.5, max_size=5),
        step_size=0.1,
    )
    bound = method.prepare(posterior).kernel
    n = int(bound.kernel.selection.size_at(position))
    assert n > 1
    assert z_of_adaptive(bound, position, n, steps=50_000) < 4.6


@pytest.mark.parametrize("wanted", slow_after(1, [65, 64, 150]))
def test_adaptive_estimator_is_right_beyond_one_chunk(wanted):
    posterior, position = logistic(n_rows=200), jnp.array([0.7, -1.3])
    anchor = tallmc.anchor.find_anchor(posterior)

    def with_threshold(threshold):
        return (
            tallmc.methods.asgld_cv(0.1, noise_threshold=threshold)
            .prepare(posterior, anchor)
            .kernel
        )

    per_distance = with_threshold(1.0).kernel.selection.rows_per_squared_distance
    squared_distance = jnp.sum((position - anchor.position) ** 2)
    bound = with_threshold(float(per_distance * squared_distance) / (wanted - 0.5))
    assert int(bound.kernel.selection.size_at(position)) == wanted
    assert z_of_adaptive(bound, position, wanted, steps=20_000) < 4.6


def z_of_adaptive(bound, position, size, steps) -> float:
    """Largest |z| of the mean and covariance of an adaptive estimator against those of its size."""
    selection = bound.kernel.selection
    found = estimates(bound, position, selection.draw(jax.random.key(0), steps))
    r = residual_matrix(bound.kernel.gradient, bound.rows, position)
    covariance = covariance_of_draws(r, selection.stream.probabilities(), size)
    return z_of_moments(found, bound.posterior.gradient(position), covariance)


@pytest.mark.parametrize("gradient", slow_after(1, ["control-variate", "simple"]))
def test_optimal_weights_are_drawn_from_the_law_they_report(gradient):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    bound = prepared(posterior, "optimal", gradient)
    kernel, rows = bound.kernel, bound.rows
    found = estimates(bound, position, kernel.selection.draw(jax.random.key(0), 100_000))
    r = residual_matrix(kernel.gradient, rows, position)
    p = np.asarray(kernel.selection.units(kernel.gradient, position, rows), float) / 2**32
    covariance = covariance_of_draws(r, p, SIZE)
    assert z_of_moments(found, posterior.gradient(position), covariance) < 4.6


@pytest.mark.parametrize("gradient", slow_after(1, ["control-variate", "simple"]))
def test_a_bandit_draws_from_the_law_it_reports(gradient):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    bound = prepared(posterior, "bandit", gradient)
    selection = bound.kernel.selection
    learned = learned_by(bound, position, None)
    p = selection.probabilities(learned)
    assert p.max() > 1.5 * p.min()
    words = selection.draw(jax.random.key(0), 100_000)
    found = estimates(bound, position, words, Carried(None, learned))
    r = residual_matrix(bound.kernel.gradient, bound.rows, position)
    covariance = covariance_of_draws(r, p, SIZE)
    assert z_of_moments(found, posterior.gradient(position), covariance) < 4.6
