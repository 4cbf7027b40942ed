"""Bounds on third derivatives of likelihoods with several predictors hold, and draws are exact."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import slow_among
from tallmc.geometry import Dense
from tallmc.methods.subsampled import SubsampledMH
from tallmc.methods.subsampled.remainders import ModelRemainders
from tallmc.models.families.gamma import Gamma
from tallmc.models.families.gaussian import GaussianScale
from tallmc.models.families.softmax import Softmax
from tallmc.models.families.student_t import StudentT
from tallmc.models.likelihood import stirling_remainder
from test_firefly import LIMIT, run_z

LIKELIHOODS = {
    "two-classes": Softmax(2),
    "five-classes": Softmax(5),
    "student-t": StudentT(),
    "gaussian": GaussianScale(),
    "gamma": Gamma(),
}
LOOSENESS = {
    "two-classes": 1.5,
    "five-classes": 3.0,
    "student-t": 5.0,
    "gaussian": 2.0,
    "gamma": 3.0,
}
"""How far the median bound is above the largest derivative that is found in small boxes."""
N_ROWS, N_PLACES, N_STARTS, N_STEPS = 40, 1000, 8, 60


def random_rows(likelihood, reach: float):
    """Predictors, maps J from three coordinates, boxes and responses."""
    rng = np.random.default_rng(5)
    width = likelihood.n_predictors + likelihood.n_shared
    z = rng.normal(size=(N_ROWS, width)) * 1.5
    maps = rng.normal(size=(N_ROWS, width, 3)) * rng.lognormal(0, 1, size=(N_ROWS, width, 1))
    sizes = np.linalg.norm(maps, axis=2)
    boxes = reach * rng.uniform(0.2, 1, size=(N_ROWS, 1)) * sizes / sizes.max(axis=1)[:, None]
    if isinstance(likelihood, Softmax):
        y = rng.integers(0, likelihood.n_classes, N_ROWS).astype(float)
    else:
        y = rng.lognormal(0, 1, N_ROWS) * (1 if isinstance(likelihood, Gamma) else 3)
    return tuple(jnp.asarray(part) for part in (z, maps, boxes, y))


def derivative(function):
    return lambda at: jax.jvp(function, (at,), (jnp.ones_like(at),))[1]


def third_derivative(function):
    return derivative(derivative(derivative(function)))


@run_once
def _search(likelihood, rows, places, directions):
    def of_row(z, along, box, y):
        gram = along @ along.T

        def third(place, direction):
            start, v = z + box * jnp.sin(place), along @ direction
            return jnp.abs(
                third_derivative(lambda t: likelihood.potential(start + t * v, y))(jnp.zeros(()))
            )

        found = jnp.max(jax.vmap(third)(places, directions))
        far = jnp.full_like(box, jnp.inf)
        bounds = (likelihood.largest_cubic(z, reach, gram, y) for reach in (box, far))
        return found, *bounds

    return jax.vmap(of_row)(*rows)


@functools.cache
def searched(name, reach):
    """The largest |D³f| of each row at random places of its box, and its bounds.

    The bounds are those for the box and for all predictors.
    """
    likelihood, rng = LIKELIHOODS[name], np.random.default_rng(6)
    rows = random_rows(likelihood, reach)
    places = rng.uniform(-1.6, 1.6, size=(N_PLACES, rows[0].shape[1]))
    directions = rng.normal(size=(N_PLACES, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    found = _search(likelihood, rows, jnp.asarray(places), jnp.asarray(directions))
    return tuple(np.asarray(part) for part in found)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_no_third_derivative_is_above_its_bound(name):
    for reach in (0.05, 1.0, 30.0):
        found, bounds, _ = searched(name, reach)
        assert (found <= bounds * (1 + 1e-9)).all()
        if reach < 0.1:
            assert np.median(found / bounds) > 1 / LOOSENESS[name]


@run_once
def largest_ratios(likelihood, z, maps, boxes, y):
    """The largest |D³f|/bound per row, by ascent from random places in the box and directions."""

    def of_row(z, along, box, y, key):
        bound = likelihood.largest_cubic(z, box, along @ along.T, y)

        def ratio(free):
            place, direction = free
            v = along @ (direction / jnp.linalg.norm(direction))
            potential = lambda t: likelihood.potential(z + box * jnp.sin(place) + t * v, y)
            return jnp.abs(third_derivative(potential)(jnp.zeros(()))) / bound

        def ascend(free):
            def step(free, size):
                slopes = jax.grad(ratio)(free)
                norm = jnp.sqrt(sum(jnp.sum(slope**2) for slope in slopes)) + 1e-30
                moved = jax.tree.map(lambda at, slope: at + size * slope / norm, free, slopes)
                return moved, ratio(free)

            _, found = jax.lax.scan(step, free, jnp.geomspace(0.5, 1e-3, N_STEPS))
            return jnp.max(found)

        places, directions = jax.random.split(key)
        starts = (
            jax.random.uniform(places, (N_STARTS, len(z)), minval=-1.6, maxval=1.6),
            jax.random.normal(directions, (N_STARTS, along.shape[1])),
        )
        return jnp.max(jax.vmap(ascend)(starts))

    keys = jax.random.split(jax.random.key(0), len(y))
    return jax.lax.map(lambda row: of_row(*row), (z, maps, boxes, y, keys))


@pytest.mark.slow
@pytest.mark.parametrize("reach", [0.05, 1.0])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_ascent_finds_no_third_derivative_above_its_bound(name, reach):
    likelihood = LIKELIHOODS[name]
    rows = random_rows(likelihood, reach)
    ratios = np.asarray(largest_ratios(likelihood, *rows))
    assert ratios.max() <= 1 + 1e-9
    if reach < 0.1:
        assert np.median(ratios) > 1 / LOOSENESS[name]


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_only_global_bounds_are_finite_for_all_predictors(name):
    _, near, everywhere = searched(name, 1.0)
    assert (np.isfinite(everywhere) == LIKELIHOODS[name].bounded(3)).all()
    assert (everywhere >= near).all()


def test_softmax_is_bounded_for_all_predictors():
    found, _, everywhere = searched("five-classes", 30.0)
    assert np.isfinite(everywhere).all()
    assert 0.5 < np.max(found / everywhere) <= 1 + 1e-9


def largest_third_derivative(function, low=-14.0, high=14.0):
    at = jnp.linspace(low, high, 20_001)
    return np.abs(run_once(jax.vmap(third_derivative(function)))(at)).max()


def test_the_constants_of_normalisations_are_above_their_third_derivatives():
    centred = lambda at: StudentT().potential(jnp.stack([0.0, 0.0, at]), jnp.zeros(()))
    assert 0.99 < largest_third_derivative(centred) / 0.0592 < 1
    shape = lambda at: stirling_remainder(jnp.exp(at)) - at / 2
    assert 0.99 < largest_third_derivative(shape) / 0.047 < 1


# Posteriors.


@functools.cache
def softmax_posterior():
    """Three classes and one column: two parameters."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, 1))
    chances = np.exp(x * np.array([0.0, 0.8, -0.5]))
    y = (rng.uniform(size=(300, 1)) > np.cumsum(chances / chances.sum(1)[:, None], 1)).sum(1)
    return tallmc.models.softmax_regression(x, y, prior_variance=2.0, classes=3)


@functools.cache
def student_t_posterior():
    """Location, log scale and log degrees of freedom."""
    rng = np.random.default_rng(3)
    y = 1.0 + 0.3 * rng.standard_t(3, size=1200)
    return tallmc.models.student_t_regression(np.ones((1200, 1)), y, prior_variance=4.0)


@functools.cache
def unknown_scale_posterior():
    """A mean and the log of a standard deviation."""
    y = np.random.default_rng(4).normal(2.0, 0.1, 200)
    return tallmc.models.linear_regression(np.ones((200, 1)), y, prior_variance=9.0)


@functools.cache
def gamma_posterior():
    y = np.random.default_rng(5).gamma(3.0, 2.0, 300)
    return tallmc.models.gamma_regression(np.ones((300, 1)), y, prior_variance=9.0)


POSTERIORS = {
    "softmax": softmax_posterior,
    "student-t": student_t_posterior,
    "unknown-scale": unknown_scale_posterior,
    "gamma": gamma_posterior,
}
COSTLY = ("student-t", "gamma")
"""Their third derivatives are checked in the fast suite."""


@functools.cache
def anchored(name):
    return tallmc.anchor.find_anchor(POSTERIORS[name]())


def remainders_of(name) -> ModelRemainders:
    posterior, anchor = POSTERIORS[name](), anchored(name)
    return ModelRemainders.at(posterior.model, 2, anchor, Dense().prepare(posterior, anchor))


@run_once
def _computed(remainders, rows, here, there, sizes):
    """Values and bounds of remainders, and the remainders of the potentials themselves."""
    model, push = remainders.model, remainders.metric.push
    moves = push(sizes[:, None] * jnp.ones(model.dim))

    def by_potentials(move):
        along = lambda t: model.row_potentials(remainders.anchor + t * move, rows)
        slope, zero = derivative(along), jnp.zeros(())
        return along(jnp.ones(())) - along(zero) - slope(zero) - derivative(slope)(zero) / 2

    values = remainders.values(jnp.concatenate([push(here), push(there), moves]), rows)
    return {
        "before": values[: len(here)],
        "after": values[len(here) : -len(moves)],
        "bounds": jax.vmap(remainders.growth)(here, there),
        "constants": remainders.constants(rows),
        "values": values[-len(moves) :],
        "by potentials": jax.vmap(by_potentials)(moves),
    }


@functools.cache
def computed(name):
    remainders, data = remainders_of(name), POSTERIORS[name]().data
    some = slice(None, None, max(1, len(data.y) // 300))
    rows = jax.tree.map(lambda column: jnp.asarray(np.asarray(column)[some]), data)
    rng = np.random.default_rng(0)
    radius, dim = float(remainders.radius), remainders.model.dim
    unit = rng.normal(size=(2, 400, dim))
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    here, apart = unit * radius * rng.uniform(0.02, 1, size=(2, 400, 1))
    there = np.where(rng.uniform(size=(400, 1)) < 0.5, apart, here + 0.1 * (apart - here))
    arguments = (jnp.asarray(part) for part in (here, there, np.array([0.1, 2.0])))
    return jax.tree.map(np.asarray, _computed(remainders, rows, *arguments))


@pytest.mark.parametrize("name", slow_among(COSTLY, POSTERIORS))
def test_no_row_changes_by_more_than_its_bound(name):
    found = computed(name)
    bounds = found["bounds"]
    changes = np.abs(found["after"] - found["before"])
    ratios = changes / (found["constants"] * bounds[:, None])
    assert np.isfinite(bounds).all() and ratios.max() <= 1
    # Some row comes near the bound. A box of eight standard deviations in three parameters is wide.
    assert ratios.max() > (0.01 if name == "student-t" else 0.1)


@pytest.mark.parametrize("name", slow_among(COSTLY, POSTERIORS))
def test_remainders_are_those_of_the_potentials(name):
    found = computed(name)
    np.testing.assert_allclose(found["values"], found["by potentials"], atol=1e-9)


def quadrature(posterior, anchor, half_width, points):
    """Positions on a grid of the anchor's coordinates, and their posterior weights."""
    axis = np.linspace(-half_width, half_width, points)
    u = np.stack(np.meshgrid(*[axis] * posterior.dim), axis=-1).reshape(-1, posterior.dim)
    grid = np.asarray(anchor.position) + u @ np.asarray(anchor.factor).T
    potential = np.asarray(jax.lax.map(posterior.potential, jnp.asarray(grid), batch_size=128))
    weight = np.exp(potential.min() - potential)
    return grid, weight / weight.sum()


def standardised_moments(anchor):
    """First and second moments of all parameters, in the anchor's coordinates."""
    centre, inverse = np.asarray(anchor.position), np.linalg.inv(np.asarray(anchor.factor))

    def moments(positions):
        u = (positions - centre) @ inverse.T
        first, second = np.triu_indices(u.shape[-1])
        return np.concatenate([u, u[..., first] * u[..., second]], axis=-1)

    return moments


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "points"), [("softmax", 61), ("unknown-scale", 61), ("gamma", 61), ("student-t", 21)]
)
def test_moments_agree_with_quadrature(name, points):
    posterior, anchor = POSTERIORS[name](), anchored(name)
    grid, weight = quadrature(posterior, anchor, 6, points)
    moments = standardised_moments(anchor)
    truth = weight @ moments(grid)
    draws = tallmc.sample(
        posterior,
        SubsampledMH(step_size=1.0),
        anchor=anchor,
        chains=24,
        n_draws=1000,
        burn_in=50,
        seed=3,
    )
    assert draws.account.exact, draws.account.doubts
    assert run_z(draws, truth, moments) < LIMIT


@pytest.mark.parametrize(
    ("build", "order", "message"),
    [
        (softmax_posterior, 1, "order must be 2"),
        (softmax_posterior, 3, "order must be 2"),
        (
            lambda: tallmc.models.ordinal_regression(
                np.array([[0.5], [-2.0], [1.5]]), np.array([1, 0, 2]), 10.0
            ),
            2,
            "have a bound on the third derivatives",
        ),
    ],
)
def test_posteriors_without_a_bound_are_refused(build, order, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        SubsampledMH(step_size=1.0, order=order).prepare(build())
