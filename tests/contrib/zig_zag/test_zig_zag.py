"""The zig-zag process: its rates, its stationary law and the averages along its paths."""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import design, exact_posterior, linear, logistic_by_autodiff, slow_after
from tallmc._engine.kernel import NewChain
from tallmc.contrib.zig_zag import (
    PathIntegrals,
    PriorSlopes,
    RowRates,
    ZigZagRates,
    first_arrivals,
    path_moments,
    turning_points,
)
from tallmc.models.priors import (
    JoinedPrior,
    LaplacePrior,
    LogGammaPrior,
    NormalPrior,
    PriorOfEntries,
    StudentTPrior,
    TemperedPrior,
)
from test_mutants import cast

LIMIT = 4.6
ORDERS = [1, 2]


@functools.cache
def skewed(dim: int, n_rows: int = 30):
    """Few failures among few rows of unequal length: far from Gaussian."""
    x = np.abs(design(n_rows, dim, seed=3))
    y = np.random.default_rng(4).random(n_rows) < 0.9
    return tallmc.models.logistic_regression(x, y, prior_variance=4.0)


def weighted_probit(n_rows: int = 6, dim: int = 3):
    rng = np.random.default_rng(1)
    return tallmc.models.probit_regression(
        design(n_rows, dim),
        rng.integers(0, 2, n_rows),
        prior_variance=2.0,
        weights=rng.uniform(0.5, 3.0, n_rows),
        offset=rng.normal(size=n_rows),
    )


def mixed_prior(dim: int):
    """A narrow Laplace prior of the first parameter, a Cauchy prior of the others."""
    return JoinedPrior(
        (
            LaplacePrior(jnp.asarray(0.2), jnp.asarray(0.3)),
            StudentTPrior(jnp.asarray(0.3), jnp.asarray(1.0), jnp.asarray(-0.2)),
        ),
        (1, dim - 1),
    )


@functools.cache
def with_mixed_prior(n_rows: int = 30):
    """Skewed, with a kink and heavy tails in the prior."""
    return eqx.tree_at(lambda of: of.model.prior, skewed(2, n_rows), mixed_prior(2))


POSTERIORS = {
    "logistic": lambda: skewed(2, 6),
    "weighted probit": weighted_probit,
    "mixed prior": lambda: with_mixed_prior(6),
}


@functools.cache
def kernel_of(name: str, order: int):
    return tallmc.contrib.zig_zag.zig_zag(1.0, order=order).prepare(POSTERIORS[name]()).kernel


@eqx.filter_jit
def all_rows(rates, u, rows) -> RowRates:
    """The part of every row at u."""
    return rates.of_rows(jnp.broadcast_to(u, (rows.n_rows, len(u))), rows.columns)


@eqx.filter_jit
def brute_force(rates, u, velocity, rows):
    """λ_j(u, v) with a sum over all rows."""
    of_rows = all_rows(rates, u, rows)
    known = velocity * rates.known_gradient(u)
    terms = velocity * of_rows.columns * of_rows.slopes[:, None]
    return jnp.maximum(known, 0) + jnp.sum(jnp.maximum(terms, 0), axis=0)


def imbalance(bound, scale: float) -> float:
    """The largest |λ_j(u, v) − λ_j(u, F_j v) − v_j ∂_j U(u)| over some positions and all v."""
    rates, posterior = bound.kernel.rates, bound.posterior
    dim, rng = posterior.dim, np.random.default_rng(0)
    worst = 0.0
    for _ in range(3):
        u = jnp.asarray(scale * rng.normal(size=dim))
        position = rates.remainders.anchor + rates.metric.push(u)
        gradient = np.asarray(rates.metric.pull(posterior.gradient(position)))
        for velocity in itertools.product([-1.0, 1.0], repeat=dim):
            forth = brute_force(rates, u, jnp.asarray(velocity), posterior.rows)
            for j in range(dim):
                reversed_j = np.where(np.arange(dim) == j, -1, 1) * velocity
                back = brute_force(rates, u, jnp.asarray(reversed_j), posterior.rows)
                worst = max(worst, abs(forth[j] - back[j] - velocity[j] * gradient[j]))
    return worst


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", POSTERIORS)
def test_rates_are_balanced_locally(name, order):
    # Predictors that move less have remainders to full precision (`quadrature.py`).
    assert imbalance(kernel_of(name, order), 0.02) < 1e-12
    assert imbalance(kernel_of(name, order), 1.0) < 1e-6


@pytest.mark.smoke
def test_the_balance_kills_a_wrong_sign_and_a_forgotten_prior():
    bound = kernel_of("logistic", 1)
    wrong = cast(bound.kernel.rates, WrongSign)
    changed = dataclasses.replace(bound, kernel=dataclasses.replace(bound.kernel, rates=wrong))
    assert imbalance(changed, 1.0) > 1e-2
    assert imbalance(prior_forgotten(bound), 1.0) > 1e-2


@pytest.mark.parametrize("order", ORDERS)
def test_candidates_and_coordinates_thin_to_the_rates(order):
    """p(j | i) times the probability to switch is the rate over the rate of candidates."""
    rates, rows = kernel_of("logistic", order).kernel.rates, kernel_of("logistic", order).rows
    of_rows = all_rows(rates, jnp.asarray([0.7, -0.4]), rows)
    sizes = np.abs(of_rows.columns)
    share = sizes / sizes.sum(axis=1, keepdims=True)
    velocity = jnp.asarray([1.0, -1.0])
    for j in range(2):
        switching = of_rows.switching(velocity, jnp.full(rows.n_rows, j))
        rate = np.maximum(velocity[j] * of_rows.columns[:, j] * of_rows.slopes, 0)
        np.testing.assert_allclose(share[:, j] * switching, rate, rtol=1e-12, atol=1e-15)
    assert coordinate_error(kernel_of("logistic", order)) < 1e-3


@eqx.filter_jit
def coordinates_of(rates, u, uniforms, rows):
    of_rows = all_rows(rates, u, rows)
    drawn = jax.vmap(lambda at: of_rows.coordinates(jnp.full(rows.n_rows, at)))(uniforms)
    return of_rows.columns, drawn


def coordinate_error(bound) -> float:
    """The error of the frequency of the first coordinate, over all rows, on a grid of uniforms."""
    uniforms = (np.arange(1000) + 0.5) / 1000
    at = jnp.asarray([0.7, -0.4])
    columns, drawn = coordinates_of(bound.kernel.rates, at, uniforms, bound.rows)
    sizes = np.abs(columns)
    share = sizes[:, 0] / sizes.sum(axis=1)
    return float(np.abs((np.asarray(drawn) == 0).mean(0) - share).max())


@pytest.mark.smoke
def test_frequencies_of_coordinates_kill_coordinates_with_equal_probabilities():
    bound = kernel_of("logistic", 1)
    assert coordinate_error(bound) < 1e-3
    assert coordinate_error(recast(UniformCoordinateRates)(bound)) > 1e-2


@eqx.filter_jit
def largest_and_bound(rates, u, distance, rows):
    return all_rows(rates, u, rows).largest, rates.bound(distance)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", POSTERIORS)
def test_no_rate_exceeds_its_bound(name, order):
    """Along directions that maximise a row's predictor, near and far."""
    bound = kernel_of(name, order)
    rates, rows = bound.kernel.rates, bound.rows
    share = rates.stream.probabilities()
    columns = np.asarray(rates.metric.pull(rows.columns.x))
    closest = 0.0
    for direction in columns / np.linalg.norm(columns, axis=1, keepdims=True):
        for distance in [*np.linspace(-6, 6, 41), -200.0, 200.0]:
            at = jnp.asarray(distance * direction), jnp.asarray(abs(distance))
            found = largest_and_bound(rates, *at, rows)
            closest = max(closest, np.max(found[0] / np.maximum(share * found[1], 1e-300)))
    assert 0.3 < closest <= 1


@pytest.mark.parametrize(
    "prior",
    [
        mixed_prior(3),
        TemperedPrior(mixed_prior(3), 0.3),
        PriorOfEntries((mixed_prior(2), NormalPrior(jnp.asarray(0.5))), ((2, 0), (1,))),
    ],
)
def test_slopes_of_a_prior_have_their_extremes_on_every_interval(prior):
    slopes = PriorSlopes(prior, turning_points(prior, 3))
    ends = np.random.default_rng(0).normal(size=(40, 2, 3)) * [[[1.0], [2.0]]]
    found = jax.jit(jax.vmap(slopes.extremes))(ends[:, 0], ends[:, 1])
    shares = np.linspace(0, 1, 4001)[:, None, None]
    grid = ends[:, 0] + shares * (ends[:, 1] - ends[:, 0])
    on_grid = np.asarray(jax.jit(jax.vmap(jax.vmap(slopes.at)))(grid))
    assert (found[0] <= on_grid.min(axis=0) + 1e-12).all()
    assert (found[1] >= on_grid.max(axis=0) - 1e-12).all()
    # Tight: a grid misses a turning point by its spacing at most, and the slope by its square.
    np.testing.assert_allclose(found[0], on_grid.min(axis=0), atol=1e-3)
    np.testing.assert_allclose(found[1], on_grid.max(axis=0), atol=1e-3)


@eqx.filter_jit
def known_rates_and_bounds(rates, u, velocity, horizon, times):
    start, growth = rates.known(u, velocity, horizon)
    along = rates.directions(velocity)
    of_time = lambda time: along @ rates.known_gradient(u + velocity * time)
    return jax.vmap(of_time)(times), start + growth * times[:, None]


def known_excess(rates) -> float:
    """By how much the known rates exceed their bounds within the horizon, at most."""
    rng, worst = np.random.default_rng(0), -np.inf
    times = jnp.linspace(0, 0.3, 201)
    for _ in range(20):
        u = jnp.asarray(2 * rng.normal(size=len(rates.linear)))
        velocity = rates.first_velocity(jax.random.key(rng.integers(1000)), u)
        found, bounds = known_rates_and_bounds(rates, u, velocity, times[-1], times)
        worst = max(worst, float(jnp.max(found - bounds)))
    return worst


def test_known_rates_do_not_exceed_their_bounds():
    assert known_excess(kernel_of("mixed prior", 2).kernel.rates) < 1e-12
    assert abs(known_excess(kernel_of("logistic", 2).kernel.rates)) < 1e-12  # equal


def test_arrivals_solve_their_integral():
    """All signs of α and β, against the integral of the rate."""
    rng = np.random.default_rng(0)
    start, growth = rng.normal(size=400), rng.normal(size=400)
    growth[:40] = 0
    exponential = rng.exponential(size=400)
    times = np.asarray(first_arrivals(*map(jnp.asarray, (start, growth, exponential))))

    def integral(time):
        """∫₀^time (α + βt)₊ dt."""
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.where(growth == 0, np.inf, -start / growth)
        of_line = lambda low, high: (high - low) * (start + growth * (low + high) / 2)
        inside = np.clip(root, 0, time)
        return np.maximum(of_line(0.0, inside), 0) + np.maximum(of_line(inside, time), 0)

    arrives = np.isfinite(times)
    assert 100 < arrives.sum() < 350
    np.testing.assert_allclose(
        integral(np.where(arrives, times, 0.0))[arrives], exponential[arrives], rtol=1e-12
    )
    assert (integral(np.full(400, 1e6))[~arrives] < exponential[~arrives]).all()


def test_path_integrals_are_those_of_the_pieces():
    rng = np.random.default_rng(0)
    integrals, nodes = PathIntegrals.zero(jnp.zeros(3)), np.polynomial.legendre.leggauss(4)
    position, expected, total = rng.normal(size=3), np.zeros((2, 3)), 0.0
    for time in rng.exponential(size=5):
        velocity = rng.normal(size=3)
        integrals = integrals.extended(*map(jnp.asarray, (position, velocity, time)))
        at = position + velocity * time * (nodes[0][:, None] + 1) / 2
        expected += time / 2 * np.stack([nodes[1] @ at, nodes[1] @ at**2])
        position, total = position + velocity * time, total + time
    np.testing.assert_allclose(integrals.mean(jnp.asarray(total)), expected[0] / total, rtol=1e-12)
    variance = expected[1] / total - (expected[0] / total) ** 2
    np.testing.assert_allclose(integrals.variance(jnp.asarray(total)), variance, rtol=1e-12)


class Truth:
    """Moments of a posterior in one or two dimensions, by quadrature."""

    def __init__(self, posterior):
        anchor = tallmc.anchor.find_anchor(posterior)
        axis = np.linspace(-9, 14, 4001 if posterior.dim == 1 else 401)
        u = np.stack(np.meshgrid(*posterior.dim * [axis]), axis=-1).reshape(-1, posterior.dim)
        grid = np.asarray(anchor.position) + u @ np.asarray(anchor.factor).T
        potential = np.asarray(jax.lax.map(posterior.potential, jnp.asarray(grid), batch_size=512))
        weight = np.exp(potential.min() - potential)
        weight /= weight.sum()
        self.mean = weight @ grid
        self.sd = np.sqrt(weight @ (grid - self.mean) ** 2)
        self.moments = weight @ self.of(grid)

    def of(self, positions) -> np.ndarray:
        """Standardised moments: the means, squares and cubes, and the product of two parameters."""
        z = (np.asarray(positions, float) - self.mean) / self.sd
        product = np.prod(z, axis=-1, keepdims=True)
        return np.concatenate([z, z**2, z**3, product], axis=-1)


@functools.cache
def truth_of(dim: int) -> Truth:
    return Truth(skewed(dim))


def z_of(per_chain: np.ndarray, truth) -> float:
    """The largest |z|, with errors from the spread between chains."""
    error = per_chain.std(axis=0, ddof=1) / np.sqrt(len(per_chain))
    return float(np.abs((per_chain.mean(axis=0) - truth) / error).max())


CHAINS = {"chains": 512, "n_draws": 60, "burn_in": 20, "progress": False}


def law_z(draws, truth: Truth) -> dict[str, float]:
    """|z| of the moments of the draws, and of the averages along the paths."""
    means = np.asarray(draws.sample_stats["path_mean"]) - truth.mean
    squares = draws.sample_stats["path_variance"] + means**2
    return {
        "draws": z_of(truth.of(draws.positions).mean(axis=1), truth.moments),
        "path means": z_of(means.mean(axis=1), 0.0),
        "path squares": z_of(squares.mean(axis=1), truth.sd**2),
    }


@pytest.mark.parametrize(("dim", "order"), slow_after(2, [(1, 2), (2, 2), (2, 1), (1, 1)]))
def test_the_stationary_law_is_the_posterior(dim, order):
    draws = tallmc.sample(skewed(dim), tallmc.contrib.zig_zag.zig_zag(1.3, order=order), **CHAINS)
    assert abs(truth_of(dim).moments[2 * dim]) > 0.2  # skewed, or a Gaussian would do
    z = law_z(draws, truth_of(dim))
    assert max(z.values()) < LIMIT, z
    assert draws.report.trusted, draws.report
    assert draws.n_row_evals_sampling > 1000


@functools.cache
def truth_with_mixed_prior() -> Truth:
    return Truth(with_mixed_prior())


@pytest.mark.parametrize("order", slow_after(1, [2, 1]))
def test_the_stationary_law_has_a_prior_with_a_kink_and_heavy_tails(order):
    method, truth = tallmc.contrib.zig_zag.zig_zag(1.3, order=order), truth_with_mixed_prior()
    assert np.abs((truth.mean - truth_of(2).mean) / truth.sd).max() > 0.5  # the prior matters
    z = law_z(tallmc.sample(with_mixed_prior(), method, **CHAINS), truth)
    assert max(z.values()) < LIMIT, z


@pytest.mark.parametrize("chunk", slow_after(1, [1, 64]))
def test_the_number_of_candidates_drawn_at_once_does_not_matter(chunk):
    bound = tallmc.contrib.zig_zag.zig_zag(1.3).prepare(skewed(2)).kernel
    kernel = dataclasses.replace(bound.kernel, chunk=chunk)
    assert path_z(dataclasses.replace(bound, kernel=kernel)) < LIMIT


def test_path_moments_are_those_of_the_posterior():
    draws = tallmc.sample(
        skewed(2), tallmc.contrib.zig_zag.zig_zag(3.0), chains=64, n_draws=500, progress=False
    )
    found, truth = path_moments(draws), truth_of(2)
    assert np.abs((found.mean - truth.mean) / found.mean_error).max() < LIMIT
    squares = (
        draws.sample_stats["path_variance"] + (draws.sample_stats["path_mean"] - truth.mean) ** 2
    )
    error = squares.mean(axis=1).std(axis=0, ddof=1) / 8 / (2 * truth.sd)
    assert np.abs((found.sd - truth.sd) / error).max() < LIMIT


def prior_forgotten(bound):
    """The prior's Hessian left out of B; its gradient at the anchor is still known."""
    return eqx.tree_at(lambda of: of.kernel.rates.matrix, bound, replace_fn=jnp.zeros_like)


class WrongSign(ZigZagRates):
    """Rows switch velocities downhill instead of uphill."""

    def of_rows(self, u, rows):
        found = super().of_rows(u, rows)
        return RowRates(-found.slopes, found.columns)


class CoordinatesUniform(RowRates):
    """Coordinates with equal probabilities, but thinned as if they were not."""

    def coordinates(self, uniform):
        return (uniform * self.columns.shape[1]).astype(int)


class UniformCoordinateRates(ZigZagRates):
    def of_rows(self, u, rows):
        found = super().of_rows(u, rows)
        return CoordinatesUniform(found.slopes, found.columns)


def recast(kind):
    return lambda bound: dataclasses.replace(
        bound, kernel=dataclasses.replace(bound.kernel, rates=cast(bound.kernel.rates, kind))
    )


MUTANTS = {
    "prior forgotten": prior_forgotten,
    "coordinates uniform": recast(UniformCoordinateRates),
}


@eqx.filter_jit
def path_of(bound, key, position, carried, steps: int):
    """The positions and statistics of one chain."""
    kernel, rows = bound.kernel, bound.rows
    init_key, draw_key = jax.random.split(key)
    gathered = kernel.gather(kernel.draw(draw_key, steps), rows)

    def step(state, at):
        moved = kernel.step(state, *at, rows)
        return moved.state, (moved.state.position, moved.stats)

    first = kernel.init(NewChain(init_key, position, carried, gathered), rows)
    return jax.lax.scan(step, first, (gathered, jnp.arange(steps)))


def path_z(bound, chains=512, steps=80, burn_in=20) -> float:
    start = jnp.broadcast_to(bound.kernel.rest, (chains, bound.posterior.dim))
    carried = bound.kernel.start_memory(start, bound.rows)
    keys = jax.random.split(jax.random.key(0), chains)
    run = jax.jit(jax.vmap(lambda key, at, of: path_of(bound, key, at, of, steps)[1][0]))
    positions = np.asarray(run(keys, start, carried))[:, burn_in:]
    assert np.isfinite(positions).all()
    truth = truth_of(2)
    return z_of(truth.of(positions).mean(axis=1), truth.moments)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_law_kills(name):
    """The rates kill the same mutants above, without chains."""
    assert (
        path_z(
            MUTANTS[name](tallmc.contrib.zig_zag.zig_zag(1.3, order=1).prepare(skewed(2)).kernel)
        )
        > LIMIT
    )


def test_rates_above_their_bounds_end_the_claim():
    bound = tallmc.contrib.zig_zag.zig_zag(1.3).prepare(skewed(2)).kernel
    start = bound.kernel.rest[None]
    carried = bound.kernel.start_memory(start, bound.rows)

    def claim(total):
        changed = eqx.tree_at(lambda of: of.kernel.rates.total, bound, total)
        one = jax.tree.map(lambda leaf: leaf[0], carried)
        chain, _ = path_of(changed, jax.random.key(0), start[0], one, 100)
        return bound.kernel.broken_claim(jax.tree.map(lambda leaf: leaf[None], chain))

    assert claim(bound.kernel.rates.total) is None
    assert "were above their bounds" in claim(0.05 * bound.kernel.rates.total)


def test_a_gaussian_posterior_needs_no_rows():
    posterior = linear()
    draws = tallmc.sample(posterior, tallmc.contrib.zig_zag.zig_zag(1.3), **CHAINS)
    mean, covariance = exact_posterior(posterior)
    centred = draws.positions - mean
    assert z_of(centred.mean(axis=1), 0.0) < LIMIT
    assert z_of((centred**2).mean(axis=1), np.diag(covariance)) < LIMIT
    assert draws.n_row_evals_sampling == 0


def test_single_precision_has_the_law_too():
    posterior = skewed(2)
    data = posterior.data
    single = tallmc.models.logistic_regression(
        np.asarray(data.x, np.float32), np.asarray(data.y, np.float32), prior_variance=4.0
    )
    assert single.dtype == np.float32
    z = law_z(tallmc.sample(single, tallmc.contrib.zig_zag.zig_zag(1.3), **CHAINS), truth_of(2))
    assert max(z.values()) < LIMIT, z


def test_bad_input_is_answered():
    x, rng = design(20, 2), np.random.default_rng(0)
    with pytest.raises(tallmc.InvalidInput, match="step_size must be a finite number and > 0"):
        tallmc.contrib.zig_zag.zig_zag(0.0)
    with pytest.raises(tallmc.InvalidInput, match="order must be an int in"):
        tallmc.contrib.zig_zag.zig_zag(1.0, order=3)
    counts = tallmc.models.poisson_regression(x, rng.poisson(1.0, 20), prior_variance=1.0)
    with pytest.raises(tallmc.InvalidInput, match=r"derivatives of order 3.*Poisson family"):
        tallmc.contrib.zig_zag.zig_zag(1.0).prepare(counts)
    with pytest.raises(tallmc.InvalidInput, match="be a generalised linear model"):
        tallmc.contrib.zig_zag.zig_zag(1.0).prepare(logistic_by_autodiff())
    normal = skewed(2)
    other = LogGammaPrior(jnp.asarray(1.0), jnp.asarray(1.0))
    other = eqx.tree_at(lambda of: of.model.prior, normal, other)
    with pytest.raises(tallmc.InvalidInput, match="Student-t prior; got 'LogGammaPrior'"):
        tallmc.contrib.zig_zag.zig_zag(1.0).prepare(other)
    others = tallmc.sample(normal, tallmc.methods.mala(0.1), chains=2, n_draws=4, progress=False)
    with pytest.raises(tallmc.InvalidInput, match="be those of a process with paths"):
        path_moments(others)
