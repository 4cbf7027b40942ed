"""Bounds on derivatives and on changes of Taylor remainders hold, and are suprema.

The changes of remainders between two positions are what exact accept steps draw rows for
(`methods/subsampled`). A bound that is too small biases them; one that is too large costs rows.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import tallmc
from kept_programs import run_once
from problems import slow_after
from tallmc.geometry import Dense
from tallmc.methods.subsampled.remainders import ModelRemainders, growth
from tallmc.models.families.bernoulli import Bernoulli, BernoulliProbit, Binomial
from tallmc.models.families.gaussian import Gaussian
from tallmc.models.families.poisson import Poisson

FAMILIES = {
    "bernoulli": Bernoulli(),
    "probit": BernoulliProbit(),
    "binomial": Binomial(),
    "poisson": Poisson(),
    "gaussian": Gaussian(jnp.asarray(1.7)),
}
RESPONSES = {
    "bernoulli": [0.0, 1.0],
    "probit": [0.0, 1.0],
    "binomial": [0.0, 0.3, 1.0],
    "poisson": [0.0, 2.0, 40.0],
    "gaussian": [-1.3, 4.0],
}
ORDERS = (1, 2, 3, 4)
DIM, N_ROWS = 3, 40


def intervals(count=60, seed=0):
    """Short and long intervals of z, with zero, one or more turning points inside."""
    rng = np.random.default_rng(seed)
    centre, half = rng.uniform(-7, 7, count), 10.0 ** rng.uniform(-2, 0.9, count)
    return centre - half, centre + half


POINTS = 4001


@run_once
def _suprema_and_grid(family, orders, low, high, y):
    """For each order the supremum on each interval, and the largest |derivative| on a grid."""
    z = jnp.linspace(low, high, POINTS).ravel()
    responses = jnp.full(low.shape, y)

    def largest(order):
        values = jnp.abs(family.derivative(order, z, jnp.full_like(z, y)))
        return jnp.max(values.reshape(POINTS, -1), axis=0)

    found = [
        (family.largest_derivative(order, low, high, responses), largest(order)) for order in orders
    ]
    return tuple(jnp.stack(part) for part in zip(*found, strict=True))


def supremum_ratios(family, order, y):
    """The supremum over the largest value of a grid, for each interval; 1 if it is right."""
    ends = (jnp.asarray(end) for end in intervals())
    suprema, largest = _suprema_and_grid(family, (order,), *ends, jnp.asarray(y))
    return np.asarray(suprema / largest)[0]


@functools.cache
def suprema_and_grid(name, y):
    """Of all orders, one row each, in one program per family."""
    ends = (jnp.asarray(end) for end in intervals())
    found = _suprema_and_grid(FAMILIES[name], ORDERS, *ends, jnp.asarray(y))
    return tuple(np.asarray(part) for part in found)


CASES = [(name, y) for name in FAMILIES for y in RESPONSES[name]]


@pytest.mark.parametrize(("name", "y"), CASES)
def test_the_largest_derivative_is_the_supremum_of_a_grid(name, y):
    suprema, largest = suprema_and_grid(name, y)
    if name == "gaussian":
        # There are no derivatives beyond the second.
        assert not suprema[2:].any() and not largest[2:].any()
        suprema, largest = suprema[:2], largest[:2]
    ratios = suprema / largest
    assert ratios.min() > 1 - 1e-12
    # A grid of 4001 points misses an extreme of a smooth function by far less than this.
    assert ratios.max() < 1 + 1e-4


@run_once
def all_derivatives(family, z, y):
    """Derivatives of orders 0 to 4 at z[0], …, z[4] for the responses y."""
    responses = jnp.broadcast_to(y, z.shape[1:]).ravel()
    values = [family.derivative(order, at.ravel(), responses) for order, at in enumerate(z)]
    return jnp.stack(values).reshape(z.shape)


PARTS, SHRINK = 12, (math.sqrt(5) - 1) / 2


@pytest.mark.parametrize("name", FAMILIES)
def test_maximisation_finds_no_larger_derivative(name):
    """By golden sections of 12 parts of each interval, which do not know the turning points."""
    responses = np.array(RESPONSES[name])
    suprema = np.stack([suprema_and_grid(name, y)[0][:, ::10] for y in responses], axis=1)
    edges = np.linspace(*(end[::10] for end in intervals()), PARTS + 1)
    shape = (5, PARTS, len(responses), edges.shape[1])
    low, high = (np.broadcast_to(ends[:, None], shape).copy() for ends in (edges[:-1], edges[1:]))

    def value(z):
        y = jnp.asarray(responses[:, None])
        return np.abs(np.asarray(all_derivatives(FAMILIES[name], jnp.asarray(z), y)))

    found = np.maximum(value(low), value(high))
    for _ in range(32):
        left, right = high - SHRINK * (high - low), low + SHRINK * (high - low)
        at_left, at_right = value(left), value(right)
        found = np.maximum(found, np.maximum(at_left, at_right))
        is_left = at_left > at_right
        low, high = np.where(is_left, low, left), np.where(is_left, right, high)
    found = found[1:].max(axis=1)
    assert (found <= suprema * (1 + 1e-12)).all()
    assert (suprema <= 1.01 * found).all()


def closed_form(name, order, z, y):
    """The derivatives as functions of the mean."""
    if name == "gaussian":
        return [(z - y) / 1.7, np.full_like(z, 1 / 1.7), 0 * z, 0 * z][order - 1]
    if name == "poisson":
        return np.exp(z) - (y if order == 1 else 0)
    if name == "probit":
        sign = 2 * y - 1
        x = sign * z
        m = np.exp(scipy.stats.norm.logpdf(x) - scipy.stats.norm.logcdf(x))
        m1 = -m * (m + x)
        m2 = -(m1 * (m + x) + m * (m1 + 1))
        second, third = -m1, m1 * (x + 2 * m) + m
        fourth = m2 * (x + 2 * m) + m1 * (1 + 2 * m1) + m1
        return [-sign * m, second, sign * third, fourth][order - 1]
    p = 1 / (1 + np.exp(-z))
    v = p * (1 - p)
    return [p - y, v, v * (1 - 2 * p), v * (1 - 6 * v)][order - 1]


@pytest.mark.parametrize("name", FAMILIES)
def test_derivatives_are_closed_forms_and_finite_differences(name):
    z, step = np.linspace(-7, 4, 301), 1e-4
    responses = np.array(RESPONSES[name])
    places = np.broadcast_to([z, z - step, z + step], (5, len(responses), 3, len(z)))
    values = all_derivatives(
        FAMILIES[name], jnp.asarray(places), jnp.asarray(responses[:, None, None])
    )
    for order, (place, y) in itertools.product(ORDERS, enumerate(responses)):
        found, _, _ = np.asarray(values)[order, place]
        _, before, after = np.asarray(values)[order - 1, place]
        scale = 1 + np.abs(found).max()
        np.testing.assert_allclose(found, closed_form(name, order, z, y), atol=1e-10 * scale)
        # The error of the difference is step²/6 times a derivative two orders higher.
        np.testing.assert_allclose(found, (after - before) / (2 * step), atol=2e-8 * scale)


# Remainders of regressions.


@functools.cache
def regression(name, dtype=np.float64, extra=False):
    """A regression of this family, with weights and offsets if `extra`."""
    rng = np.random.default_rng(7)
    x = (rng.normal(size=(N_ROWS, DIM)) * rng.lognormal(0, 0.5, size=(N_ROWS, 1))).astype(dtype)
    settings = {"offset": rng.normal(size=N_ROWS).astype(dtype)} if extra else {}
    if extra and name != "binomial":
        settings["weights"] = rng.uniform(0.5, 3.0, N_ROWS).astype(dtype)
    binary, counts = rng.integers(0, 2, N_ROWS), rng.integers(0, 6, N_ROWS)
    models = tallmc.models
    match name:
        case "bernoulli":
            return models.logistic_regression(x, binary, 4.0, **settings)
        case "probit":
            return models.probit_regression(x, binary, 4.0, **settings)
        case "binomial":
            return models.binomial_regression(x, counts, np.full(N_ROWS, 6), 4.0, **settings)
        case "poisson":
            return models.poisson_regression(x, counts, 0.5, **settings)
        case _:
            return models.linear_regression(x, rng.normal(size=N_ROWS), 4.0, 1.7, **settings)


@functools.cache
def anchored(name, dtype, extra):
    return tallmc.anchor.find_anchor(regression(name, dtype, extra))


def remainders_of(name, order, dtype=np.float64, extra=False) -> ModelRemainders:
    posterior, anchor = regression(name, dtype, extra), anchored(name, dtype, extra)
    metric = Dense().prepare(posterior, anchor)
    return ModelRemainders.at(posterior.model, order, anchor, metric)


def positions(radius, count, seed=0):
    """Pairs of positions: near, at and beyond the radius, close to each other and far apart."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(2, count, DIM))
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    here = directions[0] * radius * 10.0 ** rng.uniform(-2, 0.4, size=(count, 1))
    apart = directions[1] * radius * 10.0 ** rng.uniform(-2, 0.4, size=(count, 1))
    there = np.where(rng.uniform(size=(count, 1)) < 0.5, here + 0.1 * apart, apart)
    return jnp.asarray(here), jnp.asarray(there)


@run_once
def _changes(all_remainders, here, there, rows):
    """For several remainders the largest |D_i|/(c_i M) of each pair, and the bounds M."""

    def of(remainders, here, there):
        both = remainders.metric.push(jnp.concatenate([here, there]))
        before, after = jnp.split(remainders.values(both, rows), 2)
        bounds = jax.vmap(remainders.growth)(here, there)
        # Differences of double precision lose 1e-15 of the potentials, which are below 10³ here.
        changes = jnp.maximum(jnp.abs(after - before) - 1e-12, 0)
        return jnp.max(changes / (remainders.constants(rows) * bounds[:, None]), axis=1), bounds

    return [of(*each) for each in zip(all_remainders, here, there, strict=True)]


def change_ratios(remainders: ModelRemainders, rows, pairs=1500):
    """The largest |D_i|/(c_i M) of each pair, beside whether a bound covers the pair."""
    here, there = positions(float(remainders.radius), pairs)
    ((ratios, bounds),) = _changes([remainders], [here], [there], rows)
    return np.asarray(ratios), np.asarray(bounds)


@pytest.mark.parametrize(
    ("name", "extra"),
    slow_after(
        2,
        [
            ("bernoulli", True),
            ("poisson", True),
            *((name, True) for name in FAMILIES if name not in ("bernoulli", "poisson")),
            ("bernoulli", False),
        ],
    ),
)
def test_no_row_changes_by_more_than_its_bound(name, extra):
    rows = regression(name, extra=extra).data
    orders = [remainders_of(name, order, extra=extra) for order in range(4)]
    if name == "gaussian":
        here, _ = positions(3.0, 20)
        for zero in run_once(lambda them, u: [of.values(u, rows) for of in them])(orders[2:], here):
            assert np.abs(zero).max() < 1e-12
        orders = orders[:2]
    pairs = [positions(float(remainders.radius), 1500) for remainders in orders]
    found = _changes(orders, *(list(part) for part in zip(*pairs, strict=True)), rows)
    for remainders, (ratios, bounds) in zip(orders, found, strict=True):
        assert np.max(ratios) <= 1
        is_covered = np.isfinite(bounds)
        assert is_covered.mean() > 0.5
        if remainders.bounded:
            assert is_covered.all()


@run_once
def all_values(all_remainders, moves, rows):
    return [remainders.values(moves, rows) for remainders in all_remainders]


@run_once
def _by_differences(family, z, t, y):
    """For each order, remainders by differences, their largest size, and that of their parts."""
    along, flat = jnp.broadcast_to(y, t.shape).ravel(), (z + t).ravel()
    low, high = (extreme(z, z + t).ravel() for extreme in (jnp.minimum, jnp.maximum))
    terms = [family.derivative(k, z, y) * t**k / math.factorial(k) for k in range(4)]
    now = family.potential(flat, along).reshape(t.shape)
    found = []
    for order in range(4):
        used = terms[: order + 1]
        largest = family.largest_derivative(order + 1, low, high, along).reshape(t.shape)
        size = largest * jnp.abs(t) ** (order + 1) / math.factorial(order + 1)
        parts = sum(jnp.abs(term) for term in used) + jnp.abs(now)
        found.append((now - sum(used), size, parts))
    return found


@pytest.mark.parametrize("name", slow_after(1, ["bernoulli", "poisson", "probit"]))
def test_remainders_in_single_precision_keep_their_digits(name):
    """Against differences in double precision, from |t| = 10⁻³ on."""
    sizes = np.array([1e-3, 1e-2, 0.1, 0.9, 1.2, 3.0])
    with jax.enable_x64(False):
        rows = regression(name, np.float32).data
        single = [remainders_of(name, order, np.float32) for order in range(4)]
        # Moves that change all predictors by at most a given size.
        moves = np.random.default_rng(3).normal(size=(len(sizes), DIM))
        largest = np.abs(moves @ np.asarray(rows.x).T).max(axis=1)
        moves = (moves * (sizes / largest)[:, None]).astype(np.float32)
        values = [np.asarray(of) for of in all_values(single, jnp.asarray(moves), rows)]
    x, y, at, moves = (
        np.asarray(part, np.float64) for part in (rows.x, rows.y, single[0].anchor, moves)
    )
    t = moves @ x.T
    exact_of = _by_differences(FAMILIES[name], *(jnp.asarray(part) for part in (x @ at, t, y)))
    eps, is_near = np.finfo(np.float32).eps, np.abs(t) < 1
    assert is_near.any() and not is_near.all()
    for order, (found, parts_of) in enumerate(zip(values, exact_of, strict=True)):
        exact, size, parts = (np.asarray(part) for part in parts_of)
        # The integral is accurate relative to R. Far moves have the rounding error of the
        # difference, and so has the difference in double precision.
        rounding = np.where(is_near, 1e-15, 8 * eps) * (1 + parts)
        is_right = np.abs(found - exact) <= 1e-4 * size + rounding
        # Remainders of order 3 of the smallest moves are below the rounding of double precision.
        assert found.dtype == np.float32
        assert is_right[1 if order == 3 else 0 :].all()


def test_probit_keeps_its_bounds_in_single_precision():
    """Remainders of short moves at predictors of −9 to 9, where r + z and its like cancel."""
    z, t = np.meshgrid(np.linspace(-9, 9, 181), [1e-3, -1e-3, 0.03, -0.03, 0.3, -0.3])
    with jax.enable_x64(False):
        model = tallmc.models.probit_regression(
            np.ones((z.size, 1)), np.ones(z.size), 1.0, offset=z.ravel()
        )
        found = _shares_of_bounds(model.model, jnp.asarray(t.ravel()), model.data)
    assert max(float(share) for share in found) <= 1 + 1e-5  # the margin that bounds have


@run_once
def _shares_of_bounds(model, t, rows):
    """The largest |R| relative to its bound, for every order from 1 to 3."""
    centre = jnp.zeros(1, t.dtype)
    z, shares = model.predictors(centre, rows), []
    for order in (1, 2, 3):
        ends = z - jnp.abs(t), z + jnp.abs(t)
        largest = model.likelihood.largest_derivative(order + 1, *ends, rows.y)
        bound = largest * jnp.abs(t) ** (order + 1) / math.factorial(order + 1)
        shares.append(jnp.max(jnp.abs(model._remainder(order, centre, rows)(t)) / bound))
    return shares


# The growth M.


def exact_supremum(order, here, there, angles=4001):
    """Sup |R(u') − R(u)|/(F‖w‖ᵏ⁺¹) over all functions and all directions w.

    With t = wᵀu and t' = wᵀu', the largest |R(t') − R(t)| of functions with |f⁽ᵏ⁺¹⁾| ≤ 1 is
    |s(t') − s(t)|/(k + 1)!, s(t) = sign(t)|t|ᵏ⁺¹. The best w is in the plane of u and u'.
    """
    length, other = np.linalg.norm(here), np.linalg.norm(there)
    between = np.arccos(np.clip(np.sum(here * there) / (length * other), -1, 1))
    angle = np.linspace(0, np.pi, angles)
    signed = lambda t: np.sign(t) * np.abs(t) ** (order + 1)
    changes = np.abs(signed(other * np.cos(angle - between)) - signed(length * np.cos(angle)))
    return changes.max() / math.factorial(order + 1)


NODES, WEIGHTS = np.polynomial.legendre.leggauss(200)


def norm_bound(order, here, there):
    """M with its integral computed numerically: only |wᵀu| ≤ ‖w‖‖u‖ is lost."""
    s = (NODES + 1) / 2
    norms = np.linalg.norm(here + s[:, None] * (there - here), axis=1)
    path = np.linalg.norm(there - here) * np.sum(WEIGHTS / 2 * norms**order) / math.factorial(order)
    ends = sum(np.linalg.norm(u) ** (order + 1) for u in (here, there))
    return min(path, ends / math.factorial(order + 1))


LOSS = {0: 1.0, 1: 2 / math.sqrt(3), 2: 1.0, 3: 4 / math.sqrt(15)}
"""√∫‖·‖² over ∫‖·‖, and √(∫‖·‖² ∫‖·‖⁴) over ∫‖·‖³: largest on a path that starts at the anchor."""


def growth_pairs(count=200, seed=0):
    here, there = (np.asarray(u) for u in positions(3.0, count, seed))
    collinear = here * np.random.default_rng(seed).uniform(-2, 2, size=(count, 1))
    return [*zip(here, there, strict=True), *zip(here, collinear, strict=True)]


def growth_ratios(order, of=growth):
    """M over the exact supremum, and over the bound that loses only the angle, for many pairs."""
    pairs = growth_pairs()
    here, there = (jnp.asarray(np.array(part)) for part in zip(*pairs, strict=True))
    found = np.asarray(run_once(jax.vmap(functools.partial(of, order)))(here, there))
    exact = np.array([exact_supremum(order, u, v) for u, v in pairs])
    norms = np.array([norm_bound(order, u, v) for u, v in pairs])
    return found / exact, found / norms


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_growth_is_above_the_supremum_by_no_more_than_the_angle_explains(order):
    over_exact, over_norms = growth_ratios(order)
    assert over_exact.min() > 1 - 1e-6
    assert over_norms.max() < LOSS[order] * (1 + 1e-6)
    # On a line through the anchor there is no angle.
    assert over_exact[len(over_exact) // 2 :].max() < LOSS[order] * (1 + 1e-6)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_growth_is_symmetric(order):
    here, there = (jnp.asarray(u) for u in positions(3.0, 300))
    of = run_once(jax.vmap(functools.partial(growth, order)))
    np.testing.assert_allclose(of(here, there), of(there, here), rtol=1e-9)
