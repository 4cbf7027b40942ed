# mypy: disable-error-code="arg-type"
"""Families agree with SciPy and with automatic differentiation, and are stable in their tails."""

import functools
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import tallmc
from kept_programs import run_once
from problems import slow_after, slow_among
from regressions import (
    DIM,
    N_ROWS,
    NAMES,
    REGRESSIONS,
    TRIALS,
    Classes,
    LogLikelihood,
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
from tallmc.models.families.bernoulli import Bernoulli, BernoulliProbit, Binomial
from tallmc.models.families.gamma import Gamma
from tallmc.models.families.negative_binomial import NegativeBinomial
from tallmc.models.families.ordinal import CumulativeLogit, cut_points
from tallmc.models.families.poisson import Poisson
from tallmc.models.families.student_t import StudentT
from tallmc.models.families.tweedie import Tweedie
from tallmc.models.generalised_linear import GeneralisedLinear
from tallmc.models.likelihood import remainder_derivative, stirling_remainder
from tallmc.rows import Batch

LIMIT = 4.6


def test_every_regression_is_registered_here():
    known = {type(posterior_of(name).model.likelihood) for name in REGRESSIONS}
    of_records = {
        type(family.likelihood(link, 3, noise))
        for family in FAMILIES.values()
        for link in family.links
        for noise in ((None, jnp.asarray(1.0)) if family.name == "gaussian" else (None,))
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


def row_terms(posterior, position):
    """The potentials of all rows, and their constants."""
    model, rows = posterior.model, posterior.data
    if model.likelihood.has_trials:
        constants = model.likelihood.constant(rows.y, rows.weight)
    else:
        constants = model.likelihood.constant(rows.y)
        constants = constants if rows.weight is None else rows.weight * constants
    return model.row_potentials(position, rows), constants


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_potential_plus_constant_is_minus_the_log_density_of_scipy(name, dtype):
    posterior = posterior_of(name) if dtype == np.float64 else built(name, dtype)
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
    if dtype == np.float64:
        found = closed_values(name)
        terms = found["row potentials"], found["constants"]
    else:
        terms = run_once(row_terms)(posterior, jnp.asarray(position, dtype))
    assert posterior.dtype == dtype
    assert all(part.dtype == dtype for part in terms)
    tolerance = 2e-12 if dtype == np.float64 else 2e-5
    found = sum(np.asarray(part, float) for part in terms)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# Against automatic differentiation.
#
# One compiled program per regression computes all values of the model, and another one the
# potentials, gradients and Hessians of all rows from the log density. The tests compare them in
# NumPy.


class Inputs(NamedTuple):
    """The arguments of all functions that are compared."""

    position: np.ndarray
    factor: np.ndarray
    batch_weights: np.ndarray
    spread: np.ndarray
    metric: np.ndarray


@functools.cache
def posterior_of(name):
    """This regression with weights and offsets."""
    return built(name)


@functools.cache
def inputs_of(name) -> Inputs:
    posterior, rng = posterior_of(name), np.random.default_rng(4)
    position, dim = position_of(name, posterior), posterior.dim
    return Inputs(
        position,
        rng.normal(size=(dim, dim)),
        rng.uniform(0.5, 2, N_ROWS),
        *rng.normal(size=(2, dim, dim)) / 8,
    )


@run_once
def _closed_values(posterior, inputs):
    position = inputs.position
    potentials, constants = row_terms(posterior, position)
    return {
        "row potentials": potentials,
        "constants": constants,
        "gradient": posterior.gradient(position),
        "Hessian": posterior.hessian(position),
        "rise": jnp.diff(jax.vmap(posterior.potential)(jnp.stack([position, 1.1 * position])))[0],
    }


@run_once
def _series_values(posterior, inputs):
    model, rows, position = posterior.model, posterior.data, inputs.position
    centre, batch = 0.7 * position, Batch(rows, inputs.batch_weights)
    found = {
        "curvature norms": model.curvature_norms(position, inputs.factor, rows),
    }
    if not isinstance(model, GeneralisedLinear):
        compact = model.remainders(2, position, centre, rows)
        found["along"] = model.along(compact, inputs.factor, rows)
    for order in (0, 1, 2):
        compact = model.remainders(order, position, centre, rows)
        found[f"remainders {order}"] = model.expand(compact, rows)
        found[f"norms {order}"] = model.norms(compact, rows)
        found[f"sum {order}"] = model.sum_remainders(order, position, centre, batch)
    if isinstance(model, GeneralisedLinear):
        maps = DenseMap(inputs.spread), jnp.asarray(0.5), DenseMap(inputs.metric)
        found["gaussian mean squares"] = model.gaussian_mean_square_remainders(
            1, position, *maps, rows
        )
    return found


@functools.cache
def values_of(program, name) -> dict[str, np.ndarray]:
    inputs = jax.tree.map(jnp.asarray, inputs_of(name))
    found = program(posterior_of(name), inputs)
    return {key: np.asarray(value) for key, value in found.items()}


closed_values = functools.partial(values_of, _closed_values)
"""What the model computes at a position."""
series_values = functools.partial(values_of, _series_values)
"""What it computes of the Taylor series of its rows."""

CLOSED_FORMS = ["logistic", "probit", "binomial", "known noise", "poisson"]
SERIES = slow_among({*REGRESSIONS} - {*CLOSED_FORMS, "softmax", "linear", "ordinal"}, REGRESSIONS)
"""All others have the series of `LinearPredictor`, which differentiates any potential. The three of
the fast suite have several predictors, a shared parameter, and several of these."""


@functools.cache
def density_values(name):
    """Potentials, gradients and Hessians of prior and rows by the density, at some positions.

    The positions are those of `closed_values`: θ, 0.7 θ and 1.1 θ.
    """
    posterior, inputs = posterior_of(name), inputs_of(name)
    general = by_densities(name, posterior)

    def of_row(position, row):
        return -LogLikelihood(REGRESSIONS[name].log_density)(general.layout.unravel(position), row)

    def of_prior(position):
        return posterior.model.prior_potential(position)

    def derivatives(function):
        return lambda *at: (function(*at), jax.grad(function)(*at), jax.hessian(function)(*at))

    def all_of(position, rows):
        of_rows = jax.vmap(derivatives(of_row), in_axes=(None, 0))(position, rows)
        return derivatives(of_prior)(position), of_rows

    theta = inputs.position
    positions = jnp.asarray(np.stack([theta, 0.7 * theta, 1.1 * theta]))
    found = run_once(jax.vmap(all_of, in_axes=(0, None)))(positions, posterior.data)
    return jax.tree.map(np.asarray, found)


AT, CENTRE, FURTHER = 0, 1, 2
"""Places of the positions in `density_values`."""


@pytest.mark.parametrize("name", NAMES)
def test_potential_gradient_and_hessian_are_those_of_the_densities(name):
    found, (prior, rows) = closed_values(name), density_values(name)
    potentials, gradients, hessians = (
        of_prior + np.sum(of_rows, axis=1) for of_prior, of_rows in zip(prior, rows, strict=True)
    )
    np.testing.assert_allclose(found["gradient"], gradients[AT], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["Hessian"], hessians[AT], rtol=1e-8, atol=1e-8)
    rise = potentials[FURTHER] - potentials[AT]
    np.testing.assert_allclose(found["rise"], rise, rtol=1e-9, atol=1e-9)


def density_remainders(name, order, at, centre):
    """Gradients of rows minus the first terms of their Taylor series, from the density."""
    _, (_, gradients, hessians) = density_values(name)
    inputs = inputs_of(name)
    theta = inputs.position
    places = np.stack([theta, 0.7 * theta, 1.1 * theta])
    remainders = gradients[at]
    if order > 0:
        remainders = remainders - gradients[centre]
    if order > 1:
        remainders = remainders - hessians[centre] @ (places[at] - places[centre])
    return remainders


@pytest.mark.parametrize("name", SERIES)
def test_remainders_are_those_of_the_densities(name):
    found = series_values(name)
    for order in (0, 1, 2):
        dense = density_remainders(name, order, AT, CENTRE)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-9)
        close(found[f"remainders {order}"], dense)
        close(found[f"norms {order}"], np.linalg.norm(dense, axis=1))
        close(found[f"sum {order}"], inputs_of(name).batch_weights @ dense)


@pytest.mark.parametrize("name", SERIES)
def test_curvature_norms_are_those_of_the_densities(name):
    found, inputs = series_values(name), inputs_of(name)
    _, (_, _, hessians) = density_values(name)
    norms = np.linalg.norm(hessians[AT] @ inputs.factor, axis=(1, 2))
    np.testing.assert_allclose(found["curvature norms"], norms, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", [name for name in SERIES if name not in CLOSED_FORMS])
def test_remainders_along_directions_are_those_of_the_densities(name):
    along = inputs_of(name).factor @ density_remainders(name, 2, AT, CENTRE).T
    found = series_values(name)["along"]
    np.testing.assert_allclose(found, along, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_gaussian_mean_squares_are_integrals_over_the_predictor(name):
    posterior, inputs = posterior_of(name), inputs_of(name)
    model, rows = posterior.model, posterior.data
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    x, z = np.asarray(rows.x), predictors(name, posterior, inputs.position)
    sd = 0.5 * np.linalg.norm(x @ inputs.spread, axis=1)
    places = jnp.asarray(np.concatenate([z[None], z + nodes[:, None] * sd]))
    at_z, *elsewhere = np.asarray(
        run_once(jax.vmap(model.likelihood.slope, in_axes=(0, None)))(places, rows.y)
    )
    squares = [
        weight * (slope - at_z) ** 2 for slope, weight in zip(elsewhere, weights, strict=True)
    ]
    lengths = np.sum((x @ inputs.metric) ** 2, axis=1)
    expected = np.sum(squares, axis=0) / weights.sum() * lengths
    np.testing.assert_allclose(
        series_values(name)["gaussian mean squares"],
        np.asarray(rows.weight) ** 2 * expected,
        rtol=1e-6,
        atol=1e-14,
    )


# Weights and offsets are part of the densities above, for all regressions. Below, they are rows and
# columns.


@pytest.mark.parametrize(
    "name", slow_after(1, (name for name in REGRESSIONS if REGRESSIONS[name].has_weights))
)
def test_a_row_of_weight_three_counts_three_times(name):
    regression, rng = REGRESSIONS[name], np.random.default_rng(1)
    y, weights = regression.simulate(rng, X), rng.integers(1, 4, N_ROWS)
    weighted = regression.build(X, y, weights=weights)
    repeated = regression.build(np.repeat(X, weights, axis=0), np.repeat(y, weights, axis=0))
    position = jnp.asarray(position_of(name, weighted))

    @run_once
    def of_rows(posterior):
        """Sums over the rows; the prior may depend on the sd of y."""
        model, rows = posterior.model, posterior.data
        batch = Batch(rows, jnp.ones(len(rows.y)))
        return (
            jnp.sum(model.row_potentials(position, rows)),
            model.sum_remainders(0, position, position, batch),
            model.block_hessian(position, rows, batch.weights),
        )

    for found, expected in zip(of_rows(weighted), of_rows(repeated), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name", slow_after(1, (name for name in REGRESSIONS if REGRESSIONS[name].has_offset))
)
def test_an_offset_is_a_column_whose_coefficient_is_one(name):
    regression, rng = REGRESSIONS[name], np.random.default_rng(1)
    y, offset = regression.simulate(rng, X), rng.normal(size=N_ROWS)
    given = regression.build(X, y, offset=offset)
    as_column = regression.build(np.column_stack([X, offset]), y)
    position = position_of(name, given)
    longer = jnp.asarray(np.insert(position, DIM, 1.0))
    kept = np.delete(np.arange(as_column.dim), DIM)

    @run_once
    def of_rows(posterior, position):
        model, rows = posterior.model, posterior.data
        gradients = model.expand(model.row_gradients(position, rows), rows)
        return model.row_potentials(position, rows), gradients

    potentials, narrow = of_rows(given, jnp.asarray(position))
    same, wide = of_rows(as_column, longer)
    np.testing.assert_allclose(potentials, same, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(narrow, np.asarray(wide)[:, kept], rtol=1e-10, atol=1e-10)


@run_once
def simulated(family, key, z, each, *trials):
    """Responses of rows with the predictors z[each], and the means of z."""
    return family.simulate(key, z[each], *trials), family.mean(z)


@pytest.mark.parametrize("name", NAMES)
def test_simulated_responses_have_the_moments_of_scipy(name):
    n, n_different = 10_000, 5
    regression, posterior = REGRESSIONS[name], posterior_of(name)
    family = posterior.model.likelihood
    some = np.random.default_rng(0).normal(size=(n_different, posterior.data.x.shape[1]))
    z = some[:, :2] if name == "softmax" else some[:, 0]
    trials = np.array([1, 2, 5, 9, 30])
    law = regression.law(z, regression.shared, trials)
    each = np.repeat(np.arange(n_different), n)
    key = new_key(3)
    if family.elementwise:
        of_rows = jnp.asarray(trials[each], float) if family.has_trials else None
        y, mean = simulated(family, key, jnp.asarray(z), jnp.asarray(each), of_rows)
        if name == "binomial":
            y, mean = y * trials[each], mean * trials
    else:
        shared = np.concatenate([np.zeros(0), *map(np.ravel, regression.shared.values())])
        full = np.column_stack([z, np.broadcast_to(shared, (n_different, len(shared)))])
        y, mean = simulated(family, key, jnp.asarray(full), jnp.asarray(each))
    y, mean = np.asarray(y), np.asarray(mean)
    np.testing.assert_allclose(mean, law.mean(), rtol=1e-9, atol=1e-12)
    of_group = y.reshape(n_different, n)
    if name in ("student t", "quantile"):
        assert scipy.stats.kstest(of_group[0], lambda y: law.cdf(y[:, None])[:, 0]).pvalue > 1e-5
    if name == "quantile":  # whose mean is the quantile
        return
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


@pytest.mark.parametrize("name", ["logistic", "probit", "binomial", "known noise", "softmax"])
def test_lipschitz_constants_bound_the_change_of_every_gradient(name):
    posterior, rng = posterior_of(name), np.random.default_rng(0)
    model, rows, largest = posterior.model, posterior.data, np.asarray(posterior.lipschitz())
    scales = rng.choice([0.01, 1.0, 10.0], size=(200, 1, 1))
    pairs = jnp.asarray(rng.normal(size=(200, 2, posterior.dim)) * scales)

    @run_once
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
        posterior_of(name).lipschitz()


@pytest.mark.parametrize("arguments", [{"weights": np.ones(N_ROWS)}, {"offset": np.ones(N_ROWS)}])
def test_firefly_refuses_weights_and_offsets(arguments):
    posterior = models.logistic_regression(X, np.arange(N_ROWS) % 2, 1.0, **arguments)
    with pytest.raises(tallmc.InvalidInput, match="have no weights or offsets for FlyMC"):
        tallmc.sample(posterior, tallmc.methods.flymc(step_size=0.1), n_draws=1)


# Tails and single precision

Z = np.array([-1000.0, -100.0, -40.0, -12.0, -4.1, -4.0, -3.9, -1.0, 0.0, 1.0, 4.0, 12.0, 40.0])


BINARY = {"bernoulli": Bernoulli(), "probit": BernoulliProbit(), "binomial": Binomial()}


@functools.cache
def tails(name, dtype):
    """Predictors, and the potentials, slopes and curvatures of both responses at them.

    The first predictors are Z.
    """
    z = jnp.asarray(np.concatenate([Z, -Z, np.linspace(-50, 50, 2001)]), dtype)
    family = BINARY[name]

    @run_once
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def of(z, y):
        response = jnp.full_like(z, y)
        return tuple(of(z, response) for of in (family.potential, family.slope, family.curvature))

    return np.asarray(z, float), [
        np.asarray(part) for part in of(z, jnp.asarray([0.0, 1.0], dtype))
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("y", [0, 1])
def test_probit_keeps_its_digits_in_both_tails(y, dtype):
    """SciPy's scaled complementary error function is accurate in the far tail."""
    z, parts = tails("probit", dtype)
    potentials, slope, curvature = (part[y, : len(Z)] for part in parts)
    signed = (2 * y - 1) * z[: len(Z)]
    ratio = np.sqrt(2 / np.pi) / scipy.special.erfcx(-signed / np.sqrt(2))
    # φ/Φ − x = 1/x − 2/x³ + 10/x⁵ − 74/x⁷ + … for x = −z
    inverse = -1 / np.minimum(signed, -50)
    series = inverse - 2 * inverse**3 + 10 * inverse**5 - 74 * inverse**7
    excess = np.where(signed < -50, series, ratio + signed)
    eps = np.finfo(dtype).eps
    tiny = np.finfo(dtype).tiny
    assert slope.dtype == curvature.dtype == dtype
    # Rounding of z²/2 in the exponent: a relative error of eps z²/2.
    eps *= 1 if dtype == np.float32 else 10  # other versions of JAX lose a digit of log Φ
    tolerance = 20 * eps * (1 + np.where(signed > 0, signed**2, 16))
    assert (np.abs(slope + (2 * y - 1) * ratio) <= tolerance * ratio + tiny).all()
    expected = ratio * excess
    assert (np.abs(curvature - expected) <= 8 * tolerance * expected + tiny).all()
    np.testing.assert_allclose(
        potentials.astype(float), -scipy.special.log_ndtr(signed), rtol=100 * eps, atol=20 * eps
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BINARY)
def test_binary_families_are_finite_and_convex_everywhere(name, dtype):
    _, parts = tails(name, dtype)
    most = float(BINARY[name].largest_curvature()) * (1 + 20 * np.finfo(dtype).eps)
    for y in (0, 1):
        potential, slope, curvature = (part[y].astype(float) for part in parts)
        assert np.isfinite(potential).all() and (potential >= 0).all()
        assert np.isfinite(slope).all() and (slope * (1 - 2 * y) >= 0).all()
        assert (curvature >= 0).all() and (curvature <= most).all()


@pytest.mark.parametrize("longest", [0.2499, 0.69, 50])
@pytest.mark.parametrize("likelihood", [Bernoulli(), Binomial()])
def test_changes_of_logistic_families_round_as_the_change_not_as_the_potential(likelihood, longest):
    """Moves have a series where all of them are short."""
    sizes = np.geomspace(1e-6, longest, 40)
    z, y, t = np.meshgrid(np.linspace(-40, 40, 81), [0, 1], [*sizes, *-sizes], indexing="ij")
    z, y, t = (of.ravel().astype(np.float32) for of in (z, y, t))
    found, difference = run_once(
        lambda z, y, t: (
            likelihood.change(z, y)(t),
            likelihood.potential(z + t, y) - likelihood.potential(z, y),
        )
    )(z, y, t)
    # In float64: log(1 + p(e^t − 1)) for small t, which cancels for large ones.
    z, t = (((1 - 2 * y) * of).astype(np.float64) for of in (z, t))
    small = np.log1p(scipy.special.expit(z) * np.expm1(np.clip(t, -1, 1)))
    large = np.logaddexp(0, z + t) - np.logaddexp(0, z)
    exact = np.where(np.abs(t) < 1, small, large)
    slope = scipy.special.expit(z)
    tolerance = 3 * np.finfo(np.float32).eps * np.maximum(np.abs(exact), slope * np.abs(t))
    assert (np.abs(np.asarray(found) - exact) <= tolerance).all()
    assert (np.abs(np.asarray(difference) - exact) > tolerance).any(), "the test sees a difference"


@pytest.mark.parametrize("size", [1e-3, 0.05, 0.5])
@pytest.mark.parametrize("dispersion", [0.01, 1.0, 20.0])
def test_errors_of_changes_of_equal_counts_do_not_add_up(dispersion, size):
    """A million rows with one count in three add up one error: that of potentials is 10⁻⁶ each."""
    rng = np.random.default_rng(0)
    y = np.repeat([0.0, 1, 2, 5, 40, 3000], 200)
    z = np.stack([rng.normal(0.5, 1, y.size), np.full(y.size, np.log(dispersion))], axis=1)
    t = size * np.stack([rng.normal(size=y.size), np.ones(y.size)], axis=1)
    z, t = z.astype(np.float32), t.astype(np.float32)
    found = run_once(lambda z, y, t: NegativeBinomial().change(z, y)(t))(z, y.astype(np.float32), t)

    def potential(z):
        mean, r = np.exp(z[:, 0].astype(float)), np.exp(-z[:, 1].astype(float))
        return -scipy.stats.nbinom.logpmf(y, r, r / (r + mean))

    exact = potential(z.astype(float) + t) - potential(z)
    eps = np.finfo(np.float32).eps
    # Of each number, and of the logs of Γ in float64.
    scale = (1 + y + np.exp(z[:, 0])) * np.abs(t).max(axis=1)
    if size < 0.1:
        assert (np.abs(found - exact) < 16 * eps * scale + 1e-10 * (1 + y)).all()
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


def test_changes_of_counts_round_as_the_change_not_as_the_potential():
    sizes = np.logspace(-6, 0.7, 40)
    counts = [0, 1, 2, 5, 40, 3000, 1_000_000]
    z, y, t = np.meshgrid(np.linspace(-10, 14, 49), counts, [*sizes, *-sizes], indexing="ij")
    z, y, t = (of.ravel().astype(np.float32) for of in (z, y, t))
    found, difference = run_once(
        lambda z, y, t: (
            Poisson().change(z, y)(t),
            Poisson().potential(z + t, y) - Poisson().potential(z, y),
        )
    )(z, y, t)
    z, y, t = (of.astype(np.float64) for of in (z, y, t))
    exact = np.exp(z) * np.expm1(t) - y * t
    tolerance = 4 * np.finfo(np.float32).eps * (y * np.abs(t) + np.exp(z) * np.abs(np.expm1(t)))
    assert (np.abs(np.asarray(found) - exact) <= tolerance).all()
    assert (np.abs(np.asarray(difference) - exact) > 4 * tolerance).any()


@pytest.mark.parametrize("likelihood", [Bernoulli(), Binomial()])
def test_a_change_is_finite_where_its_exponential_overflows(likelihood):
    z = np.array([0.0, -60.0, 60.0, -150.0, -150.0, 0.0, 0.0])
    t = np.array([200.0, 300.0, -300.0, 120.0, 400.0, 1e6, -1e6])
    found = likelihood.change(jnp.asarray(z), jnp.zeros(7))(jnp.asarray(t))
    exact = np.logaddexp(0, z + t) - np.logaddexp(0, z)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-9)


def test_the_remainder_of_stirling_is_that_of_log_gamma():
    """The sum δ + Stirling is log Γ. Derivatives are those of polygamma functions."""
    x = np.array([1e-4, 0.02, 0.5, 1.0, 3.0, 7.999, 8.0, 30.0, 1e3, 1e5])
    slope = jax.grad(stirling_remainder)
    bend = jax.grad(slope)
    functions = (stirling_remainder, slope, bend, jax.grad(bend))
    found = run_once(jax.vmap(lambda at: tuple(of(at) for of in functions)))(jnp.asarray(x))
    value, first, second, third = (np.asarray(part) for part in found)
    stirling = (x - 0.5) * np.log(x) - x + 0.5 * np.log(2 * np.pi)
    size = 1 + np.abs(x * np.log(x))
    digamma, trigamma = scipy.special.digamma(x), scipy.special.polygamma(1, x)
    assert (np.abs(value + stirling - scipy.special.gammaln(x)) < 4e-15 * size).all()
    assert (np.abs(x * (first + np.log(x) - 0.5 / x - digamma)) < 4e-15 * size).all()
    assert (np.abs(x**2 * (second + 1 / x + 0.5 / x**2 - trigamma)) < 1e-14 * size).all()
    tetragamma = scipy.special.polygamma(2, x)
    assert (np.abs(x**3 * (third - 1 / x**2 - 1 / x**3 - tetragamma)) < 3e-14 * size).all()


def test_derivatives_of_the_remainder_of_stirling_are_programs_as_small_as_its_own():
    """Those of automatic differentiation have 2, 5 and 13 times as many operations."""

    def operations(order):
        derivative = functools.partial(remainder_derivative, 0)
        for _ in range(order):
            derivative = jax.grad(derivative)
        text = jax.jit(derivative).lower(jnp.ones(())).as_text()
        return text.count(" = stablehlo.")

    counts = [operations(order) for order in range(4)]
    assert max(counts) < 2 * counts[0]


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
    gradient = run_once(jax.grad(likelihood.potential))
    at, response = np.array([z, *shared]), np.asarray(y)
    single = gradient(jnp.asarray(at, np.float32), jnp.asarray(response, np.float32))
    double, moved = (
        np.asarray(gradient(jnp.asarray(of, float), jnp.asarray(of_y, float)))
        for of, of_y in ((at, response), (at.astype(np.float32), response.astype(np.float32)))
    )
    assert single.dtype == np.float32
    # One unit of rounding of the misfit y − μ, and of single terms of order one.
    size = max(1.0, abs(double[0]))
    np.testing.assert_allclose(single, moved, rtol=2e-4, atol=4e-6 * size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ordinal_is_finite_for_extreme_predictors_and_gaps(dtype):
    likelihood = CumulativeLogit(4)
    extremes = np.meshgrid([-1000.0, -60.0, 0.0, 60.0, 1000.0], [-100.0, -30.0, 0.0, 5.0], range(4))
    predictor, log_gap, y = (np.ravel(each) for each in extremes)
    z = np.stack([predictor, np.full(len(y), -0.5), log_gap, log_gap], axis=1)
    z, y = jnp.asarray(z, dtype), jnp.asarray(y, dtype)
    potential = likelihood.potential

    @run_once
    def all_of(z, y):
        value, gradient = jax.vmap(jax.value_and_grad(potential))(z, y)
        return likelihood.mean(z), value, gradient, jax.vmap(jax.hessian(potential))(z, y)

    chances, value, gradient, curvature = (np.asarray(part) for part in all_of(z, y))
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-6)
    assert (chances >= 0).all()
    assert np.isfinite(value).all() and (np.asarray(value) >= 0).all()
    assert np.isfinite(gradient).all() and np.isfinite(curvature).all()


def test_cut_points_are_in_order():
    free = np.random.default_rng(0).normal(size=(50, 6)) * 3
    cuts = np.asarray(run_once(jax.vmap(cut_points))(jnp.asarray(free)))
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


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_after(2, BAD_SCALES))
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


def test_second_derivatives_of_tweedie_are_exact_in_single_precision():
    """The sum of the series is far larger than the potential, and its parts cancel."""
    rng = np.random.default_rng(0)
    z, along = rng.normal(size=(100, 3)) * [1.5, 1.5, 1.2], rng.normal(size=3)
    y = np.exp(z[:, 0] + rng.normal(size=100))

    def second(z, y, along):
        def potential(s):
            return Tweedie().potential(z + s * along, y)

        return jax.jacfwd(jax.jacfwd(potential))(jnp.zeros((), z.dtype))

    found = []
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype == np.float64):
            values = (jnp.asarray(of, dtype) for of in (z, y, along))
            found.append(np.asarray(run_once(jax.vmap(second, (0, 0, None)))(*values), float))
    single, double = found
    assert (np.abs(single - double) / (1 + np.abs(double))).max() < 1e-4


# Row stores


def stored(folder, weights):
    """Columns x0, x1, the offset x2 and the weight x3, and a count."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2)), weights]).astype(np.float32)
    y = rng.poisson(2.0, 300)
    return x, y, tallmc.rows.open(write_store(folder, x, y, shard_rows=64))


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", slow_after(1, [models.poisson_regression, models.negative_binomial_regression])
)
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
    "beta": (
        lambda: FAMILIES["beta"].regression(COLUMNS, [0.5, 1.0, 0.2], 1.0),
        "y must lie between 0 and 1, without the ends, in every row; got 1 in row 1",
    ),
    "tweedie": (
        lambda: FAMILIES["tweedie"].regression(COLUMNS, [0.5, -1.0, 0.0], 1.0),
        "y must be zero or positive in every row; got -1 in row 1",
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
