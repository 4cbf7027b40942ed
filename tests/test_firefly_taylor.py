"""The Taylor bound of Firefly Monte Carlo: below the likelihood, and exact draws with it."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from experiments.li2021.fig6 import uniform_gaussian_bound
from kept_programs import run_once
from problems import slow_after
from tallmc.methods.firefly import WORD, BrightRows, FlyMC, Taylor, gaussian_bound, pack
from test_firefly import LIMIT, moments_of, quadrature, run_z

ROWS = np.array([-0.9, 0.2, 0.4, 1.1, 6.0])
BOUNDS = {
    "per row": gaussian_bound(),
    "uniform": uniform_gaussian_bound(ROWS.min(), ROWS.max()),
}


def log_likelihood(params, x):
    mean, log_sd = params
    return -log_sd - (x - mean) ** 2 * jnp.exp(-2 * log_sd) / 2


def log_prior(params):
    return -(params[0] ** 2 + params[1] ** 2) / 2


def gaussian_posterior(rows=ROWS, dtype=float):
    """An unknown mean and log sd. The prior keeps the tails of five rows in reach."""
    return tallmc.Posterior(
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        data=np.asarray(rows, dtype),
        init=(np.zeros((), dtype), np.zeros((), dtype)),
    )


@functools.cache
def prepared(name: str, **settings):
    posterior = gaussian_posterior()
    return FlyMC(step_size=0.3, bound=BOUNDS[name], **settings).prepare(posterior).kernel


def taylor_expansion(centre, position, x):
    """The expansion of the log-likelihood of one row, by automatic differentiation."""
    of_vector = lambda at: log_likelihood((at[0], at[1]), x)
    move = position - centre
    slope, curvature = jax.grad(of_vector)(centre), jax.hessian(of_vector)(centre)
    return of_vector(centre) + slope @ move + move @ curvature @ move / 2


@pytest.mark.parametrize("name", slow_after(1, BOUNDS))
def test_the_bound_is_below_the_likelihood_at_all_positions(name):
    """From 10⁻³ to 10 away from the anchor, and for rows of up to 40 standard deviations."""
    rng = np.random.default_rng(0)
    rows = jnp.asarray(np.r_[ROWS, -2.0, 90.0])
    bound = uniform_gaussian_bound(-2.0, 90.0) if name == "uniform" else BOUNDS[name]
    kernel = FlyMC(step_size=0.3, bound=bound).prepare(gaussian_posterior(rows)).kernel.kernel
    moves = rng.normal(size=(4000, 2)) * 10.0 ** rng.uniform(-3, 1, size=(4000, 1))
    positions = np.asarray(kernel.bound.anchor) + moves
    remainders = run_once(jax.vmap(lambda at: kernel.bound.expansion.remainders(at, rows)))
    found = jax.tree.map(np.asarray, remainders(jnp.asarray(positions)))
    gaps, rounding = found.bounds - found.values, found.rounding
    assert (gaps >= -rounding).all()
    near = np.abs(moves).max(axis=1) < 1
    assert rounding[near].max() < 1e-9


@pytest.mark.parametrize("name", slow_after(1, BOUNDS))
def test_the_gap_is_that_of_the_expansion(name):
    bound, rows, choice = prepared(name).kernel.bound, jnp.asarray(ROWS), BOUNDS[name]

    @run_once
    @jax.vmap
    def gaps_of(move):
        centre, position = bound.anchor, bound.anchor + move
        growth = choice.growth(tuple(centre), tuple(position))

        def of_row(x):
            allowance = choice.constants(tuple(centre), x) @ growth
            log_bound = taylor_expansion(centre, position, x) - allowance
            return log_likelihood(tuple(position), x) - log_bound

        return bound.gaps(position, rows), jax.vmap(of_row)(rows)

    found, expected = gaps_of(jnp.asarray([[0.3, -0.2], [-0.5, 0.7]]))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def spread_of_sums_over_brightness(bound, kernel) -> float:
    """How far log Σ_z p(θ, z) − log p(θ | rows) is from a constant over four positions."""
    every = list(itertools.product([False, True], repeat=len(ROWS)))
    brightnesses = jnp.asarray(np.pad(every, ((0, 0), (0, WORD - len(ROWS)))))
    positions = jnp.asarray([[0.7, -0.3], [0.0, 0.0], [-1.0, 1.5], [2.0, 2.0]])
    return float(np.ptp(_log_sums(bound, kernel, brightnesses, positions)))


@run_once
def _log_sums(bound, kernel, brightnesses, positions):
    def log_sum(position):
        def potential(bits):
            bright = BrightRows.of(pack(bits))
            return kernel.evaluate(position, bright, bound.rows).potential.rounded()

        known = bound.posterior.potential(position)
        return jax.nn.logsumexp(-jax.lax.map(potential, brightnesses)) + known

    return jax.lax.map(log_sum, positions)


@pytest.mark.parametrize("name", BOUNDS)
def test_the_joint_density_sums_to_the_posterior_over_all_brightnesses(name):
    bound = prepared(name)
    assert spread_of_sums_over_brightness(bound, bound.kernel) < 1e-10


MUTANTS = {
    "remainders-forgotten": lambda kernel: kernel.bound.total,
    "curvature-forgotten": lambda kernel: kernel.bound.hessian,
    "gradient-of-the-rows-forgotten": lambda kernel: kernel.bound.gradient,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_sum_over_all_brightnesses_kills(name):
    bound = prepared("per row")
    wrong = eqx.tree_at(MUTANTS[name], bound.kernel, replace_fn=jnp.zeros_like)
    assert spread_of_sums_over_brightness(bound, wrong) > 1e-3


@pytest.mark.parametrize("name", slow_after(1, BOUNDS))
def test_gradients_are_the_derivatives_of_the_potential(name):
    bound, rows = prepared(name).kernel.bound, jnp.asarray(ROWS)
    used = jnp.asarray([True, False, True, False, True])
    position = jnp.array([0.4, 0.9])

    def parts(at):
        return tuple(
            known + bright
            for known, bright in zip(bound.known(at), bound.bright_sum(at, rows, used), strict=True)
        )

    found, derivative = run_once(lambda at: (parts(at)[1], jax.grad(lambda at: parts(at)[0])(at)))(
        position
    )
    np.testing.assert_allclose(found, derivative, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "proposal", "fraction"),
    [
        ("per row", "random-walk", 0.4),
        ("per row", "langevin", 0.4),
        ("uniform", "random-walk", 1.0),
    ],
)
def test_moments_agree_with_quadrature(name, proposal, fraction):
    posterior = gaussian_posterior()
    grid, weight = quadrature(posterior, np.array([0.5, 0.5]), np.eye(2), 6, 241)
    method = FlyMC(step_size=0.5, fraction=fraction, proposal=proposal, bound=BOUNDS[name])
    draws = tallmc.sample(posterior, method, chains=24, n_draws=2000, burn_in=200, seed=2)
    assert 0.1 < draws.sample_stats["bright_rows"].mean() < 4.9
    assert run_z(draws, weight @ moments_of(grid)) < LIMIT


def test_a_bound_above_a_likelihood_is_refused():
    too_small = Taylor(lambda anchor, x: jnp.ones(1), lambda anchor, params: jnp.zeros(1))
    with pytest.raises(tallmc.InvalidInput, match=r"be below every likelihood.*row"):
        FlyMC(step_size=0.1, bound=too_small).prepare(gaussian_posterior())


def test_single_precision_is_refused():
    with jax.enable_x64(False):
        posterior = gaussian_posterior(dtype=np.float32)
        with pytest.raises(tallmc.InvalidInput, match="double precision for a Taylor bound"):
            FlyMC(step_size=0.1, bound=gaussian_bound()).prepare(posterior)


def test_vectors_of_different_lengths_are_refused():
    bound = Taylor(lambda anchor, x: jnp.ones(2), lambda anchor, params: jnp.ones(3))
    with pytest.raises(tallmc.InvalidInput, match=r"same length.*shapes \(2,\) and \(3,\)"):
        FlyMC(step_size=0.1, bound=bound).prepare(gaussian_posterior())


def test_what_is_no_bound_is_refused():
    with pytest.raises(tallmc.InvalidInput, match="growth must be a function"):
        Taylor(lambda anchor, x: jnp.ones(1), 1.0)
    with pytest.raises(tallmc.InvalidInput, match="bound must be Tangent"):
        FlyMC(step_size=0.1, bound="taylor")


def test_only_a_bound_that_is_proved_makes_the_draws_exact():
    unproved = Taylor(lambda anchor, x: np.ones(1), lambda anchor, params: np.ones(1))
    assert not tallmc.methods.firefly.FlyMC(step_size=0.1, bound=unproved).exact
    assert tallmc.methods.firefly.FlyMC(step_size=0.1, bound=gaussian_bound()).exact
    assert tallmc.methods.firefly.FlyMC(step_size=0.1).exact
