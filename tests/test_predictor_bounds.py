"""Bounds on third derivatives of likelihoods with several predictors hold, and draws are exact."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
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
"""How far the median bound is above the largest derivative that ascent finds in small boxes."""
N_ROWS, N_STARTS, N_STEPS = 40, 8, 60


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


@eqx.filter_jit
def largest_ratios(likelihood, z, maps, boxes, y):
    """The largest |D³f|/bound per row, by ascent from random places in the box and directions."""

    def of_row(z, along, box, y, key):
        bound = likelihood.largest_cubic(z, box, along @ along.T, y)

        def ratio(free):
            place, direction = free
            v = along @ (direction / jnp.linalg.norm(direction))
            potential = lambda t: likelihood.potential(z + box * jnp.sin(place) + t * v, y)
            third = jax.grad(jax.grad(jax.grad(potential)))
            return jnp.abs(third(0.0)) / bound

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


@pytest.mark.parametrize("reach", [pytest.param(0.05, marks=pytest.mark.slow), 1.0])
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
    likelihood = LIKELIHOODS[name]
    z, maps, boxes, y = random_rows(likelihood, 1.0)
    gram, far = maps @ jnp.swapaxes(maps, 1, 2), jnp.full_like(boxes, jnp.inf)
    everywhere = jax.vmap(likelihood.largest_cubic)(z, far, gram, y)
    assert (np.isfinite(everywhere) == likelihood.bounded(3)).all()


def test_softmax_is_bounded_for_all_predictors():
    likelihood = Softmax(4)
    z, maps, boxes, y = random_rows(likelihood, 1.0)
    far = jnp.full_like(boxes, jnp.inf)
    of = jax.vmap(likelihood.largest_cubic)
    gram = maps @ jnp.swapaxes(maps, 1, 2)
    everywhere, near = of(z, far, gram, y), of(z, boxes, gram, y)
    assert np.isfinite(everywhere).all() and (everywhere >= near).all()
    ratios = largest_ratios(likelihood, z, maps, jnp.full_like(z, 30.0), y)
    assert 0.5 < np.max(ratios) <= 1 + 1e-9


def third_derivative(function, low=-14.0, high=14.0):
    at = jnp.linspace(low, high, 20_001)
    return np.abs(jax.vmap(jax.grad(jax.grad(jax.grad(function))))(at)).max()


def test_the_constants_of_normalisations_are_above_their_third_derivatives():
    centred = lambda at: StudentT().potential(jnp.stack([0.0, 0.0, at]), jnp.zeros(()))
    assert 0.99 < third_derivative(centred) / 0.0592 < 1
    shape = lambda at: stirling_remainder(jnp.exp(at)) - at / 2
    assert 0.99 < third_derivative(shape) / 0.047 < 1


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


@functools.cache
def anchored(name):
    return tallmc.anchor.find_anchor(POSTERIORS[name]())


def remainders_of(name) -> ModelRemainders:
    posterior, anchor = POSTERIORS[name](), anchored(name)
    return ModelRemainders.at(posterior.model, 2, anchor, Dense().prepare(posterior, anchor))


@pytest.mark.parametrize("name", POSTERIORS)
def test_no_row_changes_by_more_than_its_bound(name):
    remainders, data = remainders_of(name), POSTERIORS[name]().data
    some = slice(None, None, 1 + len(data.y) // 300)
    rows = jax.tree.map(lambda column: jnp.asarray(np.asarray(column)[some]), data)
    rng = np.random.default_rng(0)
    radius, dim = float(remainders.radius), remainders.model.dim
    unit = rng.normal(size=(2, 400, dim))
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    here, apart = jnp.asarray(unit * radius * rng.uniform(0.02, 1, size=(2, 400, 1)))
    there = jnp.where(rng.uniform(size=(400, 1)) < 0.5, apart, here + 0.1 * (apart - here))
    values = jax.jit(lambda u: remainders.values(remainders.metric.push(u), rows))
    bounds = jax.vmap(remainders.growth)(here, there)
    ratios = np.abs(values(there) - values(here)) / (remainders.constants(rows) * bounds[:, None])
    assert np.isfinite(bounds).all() and ratios.max() <= 1
    # Some row comes near the bound. A box of eight standard deviations in three parameters is wide.
    assert ratios.max() > (0.01 if name == "student-t" else 0.1)


@pytest.mark.parametrize("name", POSTERIORS)
def test_remainders_are_those_of_the_potentials(name):
    posterior, remainders = POSTERIORS[name](), remainders_of(name)
    rows, at, model = posterior.data, remainders.anchor, posterior.model
    potentials = lambda position: model.row_potentials(position, rows)
    for size in (0.1, 2.0):
        move = remainders.metric.push(jnp.full(model.dim, size))
        along = lambda t, move=move: potentials(at + t * move)
        slope = jax.jacfwd(along)
        expansion = along(0.0) + slope(0.0) + jax.jacfwd(slope)(0.0) / 2
        np.testing.assert_allclose(
            remainders.values(move[None], rows)[0], along(1.0) - expansion, atol=1e-9
        )


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


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("softmax", 61),
        ("unknown-scale", 61),
        pytest.param("gamma", 61, marks=pytest.mark.slow),
        pytest.param("student-t", 21, marks=pytest.mark.slow),
    ],
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
