# mypy: disable-error-code="arg-type"
"""Families agree with SciPy and with automatic differentiation, and are stable in their tails."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import tallmc
from problems import slow_after
from regressions import (
    DIM,
    N_ROWS,
    REGRESSIONS,
    TRIALS,
    Classes,
    X,
    built,
    by_densities,
    position_of,
)
from row_stores import write_store
from tallmc import models
from tallmc._core.arrays import DenseMap
from tallmc._core.random import new_key
from tallmc.models.design import observations
from tallmc.models.families import FAMILIES
from tallmc.models.families.bernoulli import Bernoulli, BernoulliProbit
from tallmc.models.families.binomial import Binomial
from tallmc.models.families.gamma import Gamma
from tallmc.models.families.negative_binomial import NegativeBinomial
from tallmc.models.families.ordinal import CumulativeLogit, cut_points
from tallmc.models.families.student_t import StudentT
from tallmc.models.generalised_linear import GeneralisedLinear
from tallmc.models.likelihood import stirling_remainder
from tallmc.reference import nuts
from tallmc.rows import Batch

LIMIT = 4.6


def test_every_regression_is_registered_here():
    known = {type(built(name).model.likelihood) for name in REGRESSIONS}
    of_records = {
        type(family.likelihood(link, 3, noise))
        for family in FAMILIES.values()
        for link in family.links
        for noise in (None, jnp.asarray(1.0))
    }
    assert of_records == known


def test_the_page_of_families_is_that_of_the_records():
    page = (Path(__file__).parents[1] / "docs" / "tables.md").read_text()
    for family in FAMILIES.values():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{family.name}` |"))
        assert all(link in row for link in family.links)


def predictors(name, posterior, position):
    """Z without shared parameters, by NumPy."""
    n_shared = sum(np.size(value) for value in REGRESSIONS[name].shared.values())
    beta = np.asarray(position, float)[: len(position) - n_shared].reshape(DIM, -1)
    z = np.asarray(posterior.data.x, float) @ beta
    if posterior.data.offset is not None:
        z[:, 0] += np.asarray(posterior.data.offset, float)
    return z if z.shape[1] > 1 else z[:, 0]


def row_constants(posterior):
    model, rows = posterior.model, posterior.data
    if model.likelihood.has_trials:
        return np.asarray(model.likelihood.constant(rows.y, rows.weight), float)
    weights = 1 if rows.weight is None else np.asarray(rows.weight, float)
    return weights * np.asarray(model.likelihood.constant(rows.y), float)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", REGRESSIONS)
def test_potential_plus_constant_is_minus_the_log_density_of_scipy(name, dtype):
    posterior = built(name, dtype)
    position = position_of(name, posterior)
    law = REGRESSIONS[name].law(
        predictors(name, posterior, position), REGRESSIONS[name].shared, TRIALS
    )
    y = np.asarray(posterior.data.y, float)
    if name == "binomial":
        expected = -law.logpmf(np.round(y * TRIALS))
    else:
        weights = np.asarray(posterior.data.weight, float)
        expected = -weights * getattr(law, "logpmf", getattr(law, "logpdf", None))(y)
    at = jnp.asarray(position, dtype)
    found = np.asarray(posterior.model.row_potentials(at, posterior.data), float)
    assert posterior.dtype == dtype
    tolerance = 2e-12 if dtype == np.float64 else 2e-5
    np.testing.assert_allclose(
        found + row_constants(posterior), expected, rtol=tolerance, atol=tolerance
    )


@pytest.fixture(params=REGRESSIONS, scope="module")
def pair(request):
    """A regression with weights and offsets, the same as log densities, and a position."""
    posterior = built(request.param)
    position = jnp.asarray(position_of(request.param, posterior))
    return posterior, by_densities(request.param, posterior), position


def test_potential_gradient_and_hessian_are_those_of_the_densities(pair):
    closed, general, position = pair
    np.testing.assert_allclose(
        closed.gradient(position), general.gradient(position), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        closed.hessian(position), general.hessian(position), rtol=1e-8, atol=1e-8
    )
    moved = closed.potential(1.1 * position) - closed.potential(position)
    by_density = general.potential(1.1 * position) - general.potential(position)
    np.testing.assert_allclose(moved, by_density, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_remainders_are_those_of_the_densities(pair, order):
    closed, general, position = pair
    centre, rows = 0.7 * position, closed.data
    compact = closed.model.remainders(order, position, centre, rows)
    dense = general.model.remainders(order, position, centre, rows)
    np.testing.assert_allclose(closed.model.expand(compact, rows), dense, rtol=1e-7, atol=1e-9)
    norms = closed.model.norms(compact, rows), general.model.norms(dense, rows)
    np.testing.assert_allclose(*norms, rtol=1e-7, atol=1e-9)
    weights = jnp.asarray(np.random.default_rng(3).uniform(0.5, 2, N_ROWS))
    sums = [
        p.model.sum_remainders(order, position, centre, Batch(rows, weights))
        for p in (closed, general)
    ]
    np.testing.assert_allclose(*sums, rtol=1e-7, atol=1e-9)


def test_linear_row_gradients_and_curvature_norms_are_those_of_the_densities(pair):
    closed, general, position = pair
    rng, rows = np.random.default_rng(4), closed.data
    move = jnp.asarray(rng.normal(size=closed.dim))
    linear = closed.model.linear_row_gradients(position, move, rows)
    np.testing.assert_allclose(
        closed.model.expand(linear, rows),
        general.model.linear_row_gradients(position, move, rows),
        rtol=1e-7,
        atol=1e-9,
    )
    factor = jnp.asarray(rng.normal(size=(closed.dim, closed.dim)))
    norms = [p.model.curvature_norms(position, factor, p.data) for p in (closed, general)]
    np.testing.assert_allclose(*norms, rtol=1e-8, atol=1e-10)


def test_mean_square_remainders_are_those_of_the_densities(pair):
    """Closed forms are exact. The other models use the same probes as densities."""
    closed, general, position = pair
    rng, rows, order = np.random.default_rng(5), closed.data, 2
    factor = rng.normal(size=(closed.dim, closed.dim))
    positions = position + jnp.asarray(rng.normal(size=(5, closed.dim))) / 10
    arguments = order, position, positions, DenseMap(jnp.asarray(factor))
    found = closed.model.mean_square_remainders(*arguments, rows)
    if isinstance(closed.model, GeneralisedLinear):
        dense = [general.model.remainders(order, at, position, rows) for at in positions]
        expected = np.mean([np.sum((np.asarray(r) @ factor) ** 2, axis=1) for r in dense], axis=0)
    else:
        expected = general.model.mean_square_remainders(*arguments, rows)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-16)


CLOSED_FORMS = ["logistic", "probit", "binomial", "known noise", "poisson"]


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_gaussian_mean_squares_are_integrals_over_the_predictor(name):
    posterior = built(name)
    rng, rows, dim = np.random.default_rng(5), posterior.data, posterior.dim
    centre = jnp.asarray(position_of(name, posterior))
    spread, metric = rng.normal(size=(2, dim, dim)) / 4
    found = posterior.model.gaussian_mean_square_remainders(
        1,
        centre,
        DenseMap(jnp.asarray(spread)),
        jnp.asarray(0.5),
        DenseMap(jnp.asarray(metric)),
        rows,
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    x, z = np.asarray(rows.x), np.asarray(posterior.model.predictors(centre, rows))
    sd = 0.5 * np.linalg.norm(x @ spread, axis=1)
    slope = lambda at: np.asarray(posterior.model.likelihood.slope(jnp.asarray(at), rows.y))
    squares = [
        weight * (slope(z + node * sd) - slope(z)) ** 2
        for node, weight in zip(nodes, weights, strict=True)
    ]
    expected = np.sum(squares, axis=0) / weights.sum() * np.sum((x @ metric) ** 2, axis=1)
    np.testing.assert_allclose(
        found, np.asarray(rows.weight) ** 2 * expected, rtol=1e-6, atol=1e-14
    )


@pytest.mark.parametrize("name", [name for name in REGRESSIONS if REGRESSIONS[name].has_weights])
def test_a_row_of_weight_three_counts_three_times(name):
    regression, rng = REGRESSIONS[name], np.random.default_rng(1)
    y, weights = regression.simulate(rng, X), rng.integers(1, 4, N_ROWS)
    weighted = regression.build(X, y, weights=weights)
    repeated = regression.build(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    position = jnp.asarray(position_of(name, weighted))

    @jax.jit
    def of_rows(posterior):
        """Sums over the rows; the prior may depend on the sd of y."""
        model, rows = posterior.model, posterior.data
        batch = Batch(rows, jnp.ones_like(rows.y))
        return (
            jnp.sum(model.row_potentials(position, rows)),
            model.sum_remainders(0, position, position, batch),
            model.block_hessian(position, rows, batch.weights),
        )

    for found, expected in zip(of_rows(weighted), of_rows(repeated), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in REGRESSIONS if REGRESSIONS[name].has_offset])
def test_an_offset_is_a_column_whose_coefficient_is_one(name):
    regression, rng = REGRESSIONS[name], np.random.default_rng(1)
    y, offset = regression.simulate(rng, X), rng.normal(size=N_ROWS)
    given = regression.build(X, y, offset=offset)
    as_column = regression.build(np.column_stack([X, offset]), y)
    position = position_of(name, given)
    longer = jnp.asarray(np.insert(position, DIM, 1.0))
    kept = np.delete(np.arange(as_column.dim), DIM)
    model, rows = given.model, given.data
    np.testing.assert_allclose(
        model.row_potentials(jnp.asarray(position), rows),
        as_column.model.row_potentials(longer, as_column.data),
        rtol=1e-12,
        atol=1e-12,
    )
    wide = as_column.model.expand(
        as_column.model.row_gradients(longer, as_column.data), as_column.data
    )
    narrow = model.expand(model.row_gradients(jnp.asarray(position), rows), rows)
    np.testing.assert_allclose(narrow, np.asarray(wide)[:, kept], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_simulated_responses_have_the_moments_of_scipy(name):
    n, n_different = 40_000, 5
    regression, posterior = REGRESSIONS[name], built(name)
    family = posterior.model.likelihood
    some = np.random.default_rng(0).normal(size=(n_different, posterior.data.x.shape[1]))
    z = some[:, :2] if name == "softmax" else some[:, 0]
    trials = np.array([1, 2, 5, 9, 30])
    law = regression.law(z, regression.shared, trials)
    each = np.repeat(np.arange(n_different), n)
    key = new_key(3)
    if family.elementwise:
        of_rows = jnp.asarray(trials[each], float) if family.has_trials else None
        y = np.asarray(family.simulate(key, jnp.asarray(z[each]), of_rows))
        mean = np.asarray(family.mean(jnp.asarray(z)))
        if name == "binomial":
            y, mean = y * trials[each], mean * trials
    else:
        shared = np.concatenate([np.zeros(0), *map(np.ravel, regression.shared.values())])
        full = np.column_stack([z, np.broadcast_to(shared, (n_different, len(shared)))])
        y = np.asarray(family.simulate(key, jnp.asarray(full[each])))
        mean = np.asarray(family.mean(jnp.asarray(full)))
    np.testing.assert_allclose(mean, law.mean(), rtol=1e-9, atol=1e-12)
    of_group = y.reshape(n_different, n)
    if isinstance(law, Classes):
        shares = np.stack([(of_group == k).mean(axis=1) for k in range(mean.shape[1])], axis=1)
        error = np.sqrt(mean * (1 - mean) / n)
        assert np.abs((shares - mean) / error).max() < LIMIT
        return
    variance, fourth = law.var(), np.mean((of_group - mean[:, None]) ** 4, axis=1)
    assert np.abs((of_group.mean(axis=1) - mean) / np.sqrt(variance / n)).max() < LIMIT
    if name != "student t":  # whose fourth moment is large or infinite
        errors = np.sqrt(np.maximum(fourth - variance**2, 1e-12) / n)
        found = np.mean((of_group - mean[:, None]) ** 2, axis=1)
        assert (np.abs(found - variance) <= LIMIT * errors + 1e-9).all()
    else:
        assert scipy.stats.kstest(of_group[0], lambda y: law.cdf(y[:, None])[:, 0]).pvalue > 1e-5


@pytest.mark.parametrize("name", ["logistic", "probit", "binomial", "known noise", "softmax"])
def test_lipschitz_constants_bound_the_change_of_every_gradient(name):
    posterior, rng = built(name), np.random.default_rng(0)
    model, rows, largest = posterior.model, posterior.data, np.asarray(posterior.lipschitz())
    scales = rng.choice([0.01, 1.0, 10.0], size=(200, 1, 1))
    pairs = jnp.asarray(rng.normal(size=(200, 2, posterior.dim)) * scales)

    @jax.jit
    @jax.vmap
    def ratios(pair):
        change = model.row_gradients(pair[0], rows) - model.row_gradients(pair[1], rows)
        return model.norms(change, rows) / jnp.linalg.norm(pair[0] - pair[1])

    ratio = np.asarray(ratios(pairs)).max(axis=0)
    assert (ratio <= largest * (1 + 1e-9)).all()
    assert (ratio / largest).max() > 0.6


UNBOUNDED = ["poisson", "linear", "negative binomial", "ordinal", "student t", "gamma"]


@pytest.mark.parametrize("name", UNBOUNDED)
def test_other_families_have_no_lipschitz_constants(name):
    with pytest.raises(tallmc.InvalidInput, match="have Lipschitz gradients for this method"):
        built(name).lipschitz()


@pytest.mark.parametrize("arguments", [{"weights": np.ones(N_ROWS)}, {"offset": np.ones(N_ROWS)}])
def test_firefly_refuses_weights_and_offsets(arguments):
    posterior = models.logistic_regression(X, np.arange(N_ROWS) % 2, 1.0, **arguments)
    with pytest.raises(tallmc.InvalidInput, match="have no weights or offsets for FlyMC"):
        tallmc.sample(posterior, tallmc.methods.flymc(step_size=0.1), n_draws=1)


# Tails and single precision

Z = np.array([-1000.0, -100.0, -40.0, -12.0, -4.1, -4.0, -3.9, -1.0, 0.0, 1.0, 4.0, 12.0, 40.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_probit_keeps_its_digits_in_both_tails(y, dtype):
    """SciPy's scaled complementary error function is accurate in the far tail."""
    z, family = jnp.asarray(Z, dtype), BernoulliProbit()
    signed = (2 * y - 1) * np.asarray(z, float)
    ratio = np.sqrt(2 / np.pi) / scipy.special.erfcx(-signed / np.sqrt(2))
    # φ/Φ − x = 1/x − 2/x³ + 10/x⁵ − 74/x⁷ + … for x = −z
    inverse = -1 / np.minimum(signed, -50)
    series = inverse - 2 * inverse**3 + 10 * inverse**5 - 74 * inverse**7
    excess = np.where(signed < -50, series, ratio + signed)
    response = jnp.full_like(z, y)
    eps = np.finfo(dtype).eps
    tiny = np.finfo(dtype).tiny
    slope, curvature = family.slope(z, response), family.curvature(z, response)
    assert slope.dtype == curvature.dtype == dtype
    # Rounding of z²/2 in the exponent: a relative error of eps z²/2.
    eps *= 1 if dtype == np.float32 else 10  # other versions of JAX lose a digit of log Φ
    tolerance = 20 * eps * (1 + np.where(signed > 0, signed**2, 16))
    assert (np.abs(np.asarray(slope) + (2 * y - 1) * ratio) <= tolerance * ratio + tiny).all()
    expected = ratio * excess
    assert (np.abs(np.asarray(curvature) - expected) <= 8 * tolerance * expected + tiny).all()
    potentials = np.asarray(family.potential(z, response), float)
    np.testing.assert_allclose(
        potentials, -scipy.special.log_ndtr(signed), rtol=100 * eps, atol=20 * eps
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", [Bernoulli(), BernoulliProbit(), Binomial()])
def test_binary_families_are_finite_and_convex_everywhere(family, dtype):
    z = jnp.asarray(np.concatenate([Z, -Z, np.linspace(-50, 50, 2001)]), dtype)
    for y in (0.0, 1.0):
        response = jnp.full_like(z, y)
        potential, slope, curvature = (
            np.asarray(function(z, response), float)
            for function in (family.potential, family.slope, family.curvature)
        )
        assert np.isfinite(potential).all() and (potential >= 0).all()
        assert np.isfinite(slope).all() and (slope * (1 - 2 * y) >= 0).all()
        most = float(family.largest_curvature()) * (1 + 20 * np.finfo(dtype).eps)
        assert (curvature >= 0).all() and (curvature <= most).all()


@pytest.mark.parametrize("x", [1e-4, 0.02, 0.5, 1.0, 3.0, 7.999, 8.0, 30.0, 1e3, 1e5])
def test_the_remainder_of_stirling_is_that_of_log_gamma(x):
    """The sum δ + Stirling is log Γ. Derivatives are those of digamma and trigamma."""
    at = jnp.asarray(x)
    stirling = (x - 0.5) * np.log(x) - x + 0.5 * np.log(2 * np.pi)
    size = 1 + abs(x * np.log(x))
    first, second = jax.grad(stirling_remainder)(at), jax.grad(jax.grad(stirling_remainder))(at)
    assert abs(stirling_remainder(at) + stirling - scipy.special.gammaln(x)) < 4e-15 * size
    assert abs(x * (first + np.log(x) - 0.5 / x - scipy.special.digamma(x))) < 4e-15 * size
    trigamma = scipy.special.polygamma(1, x)
    assert abs(x**2 * (second + 1 / x + 0.5 / x**2 - trigamma)) < 1e-14 * size


SHARED_FAMILIES = {
    # likelihood, y, log of the mean or location, further parameters
    "gamma": (Gamma(), 2.002, np.log(2.0), [np.log(1e4)]),
    "nearly Poisson": (NegativeBinomial(), 13.0, np.log(10.0), [np.log(1e-5)]),
    "large counts": (NegativeBinomial(), 1.2e6, np.log(1e6), [0.0]),
    "nearly Gaussian": (StudentT(), 1.3, 0.5, [-0.3, np.log(1e3)]),
}


@pytest.mark.parametrize("name", SHARED_FAMILIES)
def test_single_precision_keeps_gradients_of_rows(name):
    """Logs of Γ that nearly cancel have errors up to 1e5 times as large in float32."""
    likelihood, y, z, shared = SHARED_FAMILIES[name]
    single, double = (
        np.asarray(
            jax.grad(likelihood.potential)(jnp.asarray([z, *shared], dtype), jnp.asarray(y, dtype)),
            float,
        )
        for dtype in (np.float32, np.float64)
    )
    rounded = np.float32(z)
    moved = np.asarray(
        jax.grad(likelihood.potential)(
            jnp.asarray([float(rounded), *np.float32(shared)], float),
            jnp.asarray(np.float32(y), float),
        )
    )
    # One unit of rounding of the misfit y − μ, and of single terms of order one.
    size = max(1.0, abs(double[0]))
    np.testing.assert_allclose(single, moved, rtol=2e-4, atol=4e-6 * size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ordinal_is_finite_for_extreme_predictors_and_gaps(dtype):
    likelihood = CumulativeLogit(4)
    extremes = np.meshgrid([-1000.0, -60.0, 0.0, 60.0, 1000.0], [-100.0, -30.0, 0.0, 5.0], range(4))
    predictor, log_gap, y = (jnp.asarray(np.ravel(each), dtype) for each in extremes)
    z = jnp.stack([predictor, jnp.full_like(y, -0.5), log_gap, log_gap], axis=1)
    chances = np.asarray(likelihood.mean(z))
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-6)
    assert (chances >= 0).all()
    potential = likelihood.potential
    value, gradient = jax.jit(jax.vmap(jax.value_and_grad(potential)))(z, y)
    curvature = jax.jit(jax.vmap(jax.hessian(potential)))(z, y)
    assert np.isfinite(value).all() and (np.asarray(value) >= 0).all()
    assert np.isfinite(gradient).all() and np.isfinite(curvature).all()


def test_cut_points_are_in_order():
    free = np.random.default_rng(0).normal(size=(50, 6)) * 3
    cuts = np.asarray(jax.vmap(cut_points)(jnp.asarray(free)))
    assert (np.diff(cuts, axis=1) > 0).all()
    np.testing.assert_allclose(cuts[:, 0], free[:, 0])
    np.testing.assert_allclose(np.log(np.diff(cuts, axis=1)), free[:, 1:], rtol=1e-6)


# Starts and draws

BAD_SCALES = {
    "gamma 1e6": ("gamma", 1e6),
    "gamma 1e-6": ("gamma", 1e-6),
    "student t 1e6": ("student t", 1e6),
    "student t 1e-6": ("student t", 1e-6),
    "outliers": ("student t", 1.0),
}


@pytest.mark.parametrize("case", BAD_SCALES)
def test_searches_reach_the_mode_whatever_the_scale_of_the_responses(case):
    name, scale = BAD_SCALES[case]
    rng, n = np.random.default_rng(0), 2000
    x = np.column_stack([np.ones(n), rng.normal(size=n)]).astype(np.float32)
    fitted, noise = 0.4 + 0.8 * x[:, 1], rng.gamma(3.0, 1 / 3.0, n)
    if name == "gamma":
        posterior = models.gamma_regression(x, scale * np.exp(fitted) * noise, 1e4)
    else:
        noise = rng.standard_cauchy(n) if case == "outliers" else rng.standard_t(4, n)
        posterior = models.student_t_regression(x, scale * (100 + fitted + noise), 1e6 * scale**2)
    anchor = tallmc.anchor.find_anchor(posterior)
    assert anchor.converged
    slope = np.asarray(anchor.position)[1] / (1.0 if name == "gamma" else scale)
    sd = np.sqrt(np.asarray(anchor.covariance)[1, 1]) / (1.0 if name == "gamma" else scale)
    assert abs(slope - 0.8) < LIMIT * sd < 0.5


def test_the_start_of_a_linear_regression_subtracts_offsets_and_counts_weights():
    rng = np.random.default_rng(0)
    x, offset = rng.normal(size=(500, 2)), 1e3 * rng.normal(size=500)
    y, weights = x @ [1.0, 2.0] + rng.normal(size=500), rng.integers(1, 4, 500)
    shifted = models.linear_regression(x, y + offset, 1e8, weights=weights, offset=offset)
    again = np.repeat(np.arange(500), weights)
    repeated = models.linear_regression(x[again], y[again], 1e8)
    np.testing.assert_allclose(shifted.init, repeated.init, rtol=1e-4)


def draws_of(name):
    rng, n = np.random.default_rng(1), 4000
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    z = x @ [0.4, 0.8, -0.5]
    if name == "probit":
        return models.probit_regression(x, rng.normal(size=n) < z, 10.0)
    if name == "gamma":
        return models.gamma_regression(x, rng.gamma(3.0, np.exp(z) / 3.0), 10.0)
    if name == "binomial":
        trials = rng.integers(1, 20, n)
        return models.binomial_regression(
            x, rng.binomial(trials, 1 / (1 + np.exp(-z))), trials, 10.0
        )
    if name == "exposure":
        exposure = rng.lognormal(size=n)
        y = rng.poisson(exposure * np.exp(z))
        return models.poisson_regression(x, y, 10.0, offset=np.log(exposure))
    if name == "negative binomial":
        y = rng.poisson(rng.gamma(2.0, np.exp(z) / 2.0))
        return models.negative_binomial_regression(x, y, 10.0)
    if name == "ordinal":
        y = np.searchsorted([-1.5, 0.2, 1.0], z + rng.logistic(size=n))
        return models.ordinal_regression(x[:, 1:], y, 10.0)
    if name == "student t":
        return models.student_t_regression(x, z + 0.5 * rng.standard_t(4, n), 10.0)
    y = rng.random(n) < 1 / (1 + np.exp(-z))
    return models.logistic_regression(x, y, 10.0, weights=rng.integers(1, 5, n))


SAMPLED = [
    "gamma",
    "probit",
    "weighted",
    "binomial",
    "exposure",
    "negative binomial",
    "ordinal",
    "student t",
]


@pytest.mark.parametrize("name", slow_after(1, SAMPLED))
def test_the_default_samples_as_full_data_nuts_does(name):
    posterior = draws_of(name)
    draws = tallmc.sample(posterior, ess=1000, seed=0)
    exact = nuts(posterior, n_draws=500, warmup=200, anchor=tallmc.anchor.find_anchor(posterior))
    assert draws.ok.all()
    one, other = (np.asarray(d.positions, float) for d in (draws, exact))
    sd = other.std(axis=(0, 1))
    error = (one.mean(axis=(0, 1)) - other.mean(axis=(0, 1))) / sd
    variances = [d.mean(axis=1).var(axis=0, ddof=1) / len(d) / sd**2 for d in (one, other)]
    assert (np.abs(error) < np.maximum(LIMIT * np.sqrt(np.sum(variances, axis=0)), 0.1)).all()
    # 1,000 effective draws each: the log of an sd has a standard error of 1/√2000.
    ratio = one.std(axis=(0, 1)) / sd
    assert np.abs(np.log(ratio)).max() < LIMIT * np.sqrt(2 / 2000)


# Row stores


def stored(folder, weights):
    """Columns x0, x1, the offset x2 and the weight x3, and a count."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2)), weights]).astype(np.float32)
    y = rng.poisson(2.0, 300)
    return x, y, tallmc.rows.open(write_store(folder, x, y, shard_rows=64))


@pytest.mark.parametrize("build", [models.poisson_regression, models.negative_binomial_regression])
def test_weights_and_offsets_of_a_row_store_are_those_of_arrays(build, tmp_path):
    x, y, rows = stored(tmp_path / "rows", np.random.default_rng(1).integers(1, 4, 300))
    from_store = build(rows, prior_variance=2.0, weights="x3", offset="x2")
    in_memory = build(x[:, :2], y, 2.0, weights=x[:, 3], offset=x[:, 2])
    position = jnp.asarray([0.3, -0.2, 0.1][: in_memory.dim], jnp.float32)
    np.testing.assert_allclose(from_store.init, in_memory.init, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        from_store.gradient(position), in_memory.gradient(position), rtol=1e-5
    )


def test_columns_of_a_row_store_that_cannot_be_weights_are_refused(tmp_path):
    _, _, rows = stored(tmp_path / "rows", np.arange(300) % 3)
    poisson = models.poisson_regression
    with pytest.raises(tallmc.InvalidInput, match=r"weights must be positive; got '0'\. Drop rows"):
        poisson(rows, prior_variance=2.0, weights="x3")
    with pytest.raises(tallmc.InvalidInput, match=r"offset must name a column .* got .*nowhere"):
        poisson(rows, prior_variance=2.0, offset="nowhere")
    with pytest.raises(tallmc.InvalidInput, match="weights must name a column of the row store"):
        poisson(rows, prior_variance=2.0, weights=np.ones(300))
    with pytest.raises(tallmc.InvalidInput, match="weights and offset must be named together"):
        poisson(observations(rows, "y"), prior_variance=2.0, offset="x2")


# Refusals

Y = np.array([1.0, 2.0, 4.0])
COLUMNS = np.eye(3)
REFUSED = {
    "probit": (
        lambda: models.probit_regression(COLUMNS, Y, 1.0),
        "y must be 0 or 1 in every row; got 2 in row 1",
    ),
    "successes": (
        lambda: models.binomial_regression(COLUMNS, [1, 3, 0], [2, 2, 2], 1.0),
        "y must be a count from 0 to the number of trials in every row; got 3 of 2 in row 1",
    ),
    "no trials": (
        lambda: models.binomial_regression(COLUMNS, [1, 0, 0], [2, 0, 2], 1.0),
        "y must be a count .* got 0 of 0 in row 1",
    ),
    "half a success": (
        lambda: models.binomial_regression(COLUMNS, [1, 0.5, 0], [2, 2, 2], 1.0),
        "got 0.5 of 2 in row 1",
    ),
    "missing successes": (
        lambda: models.binomial_regression(COLUMNS, [1, np.nan, 0], [2, 2, 2], 1.0),
        "got nan of 2 in row 1",
    ),
    "trials shape": (
        lambda: models.binomial_regression(COLUMNS, [1, 0, 0], [2, 2], 1.0),
        r"trials must have the shape of y \(3,\); got \(2,\)",
    ),
    "negative binomial": (
        lambda: models.negative_binomial_regression(COLUMNS, [1, -1, 0], 1.0),
        "y must be a count .* got -1 in row 1",
    ),
    "gamma": (
        lambda: models.gamma_regression(COLUMNS, [1.0, 0.0, 2.0], 1.0),
        "y must be positive in every row; got 0 in row 1",
    ),
    "equal": (lambda: models.student_t_regression(COLUMNS, np.ones(3), 1.0), "y must vary"),
    "ordinal": (
        lambda: models.ordinal_regression(COLUMNS, [0, 1, 3], 1.0, classes=3),
        r"y must be a class \(0 to 2\) in every row; got 3 in row 2",
    ),
    "one class": (
        lambda: models.ordinal_regression(COLUMNS, np.zeros(3), 1.0),
        "classes must be an int .*2",
    ),
    "weights": (
        lambda: models.gamma_regression(COLUMNS, Y, 1.0, weights=[1.0, 0.0, 1.0]),
        "weights must be positive and finite; got 0 in row 1. Drop rows of weight 0",
    ),
    "weights shape": (
        lambda: models.gamma_regression(COLUMNS, Y, 1.0, weights=[1.0]),
        r"weights must have one value per row \(3\); got shape \(1,\)",
    ),
    "offset": (
        lambda: models.poisson_regression(COLUMNS, Y, 1.0, offset=[0.0, -np.inf, 0.0]),
        "offset must be finite; got -inf in row 1",
    ),
    "named weights": (
        lambda: models.poisson_regression(COLUMNS, Y, 1.0, weights="w"),
        "weights must be numbers, one per row, if X is an array; got .*w",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_responses_weights_and_offsets_are_refused(case):
    call, message = REFUSED[case]
    with pytest.raises(tallmc.InvalidInput, match=message):
        call()
