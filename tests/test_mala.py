"""Dynamics with an accept step leave the posterior invariant at any step size."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tallmc
from problems import exact_posterior, linear, logistic, slow_after
from tallmc.dynamics import HMC, MALA, ModeJumpingHMC, RandomWalk
from tallmc.geometry import Dense, Diagonal, Identity
from tallmc.gradient import Full
from tallmc.subsample import AllRows


@eqx.filter_jit
def positions_after(bound, keys, start, steps: int):
    """The positions of all chains after so many steps.

    `advance` would draw the randomness of a whole block of steps for every chain.
    """
    kernel, rows = bound.kernel, bound.rows

    def of_chain(key, position, carried):
        init_key, draw_key = jax.random.split(key)
        gathered = kernel.gather(kernel.draw(draw_key, steps), rows)
        step = lambda state, at: (kernel.step(state, *at, rows).state, None)
        first_step = jax.tree.map(lambda leaf: leaf[0], gathered)
        first = kernel.init(init_key, position, carried, first_step, rows)
        return lax.scan(step, first, (gathered, jnp.arange(steps)))[0].position

    return jax.vmap(of_chain)(keys, start, kernel.start_memory(start, rows))


def invariance_z(bound, chains: int = 40_000, steps: int = 6) -> float:
    """Largest |z| of the first two moments after a few steps from exact draws of the posterior.

    The posterior is that of a linear regression. NaN if a position is not finite.
    """
    mean, covariance = exact_posterior(bound.posterior)
    start = np.random.default_rng(0).multivariate_normal(mean, covariance, size=chains)
    keys = jax.random.split(jax.random.key(1), chains)
    centred = np.asarray(positions_after(bound, keys, jnp.asarray(start), steps)) - mean
    products = np.einsum("ci,cj->cij", centred, centred)
    z = [
        (sample.mean(0) - truth) / (sample.std(0) / np.sqrt(chains))
        for sample, truth in [(centred, np.zeros_like(mean)), (products, covariance)]
    ]
    return max(np.abs(values).max() for values in z)


# Neither component of the mixture is the posterior.
OFF_THE_MARK = ModeJumpingHMC(
    2,
    modes=[[0.8, 2.1], [1.3, 1.6]],
    covariances=[[[0.3, 0.1], [0.1, 0.2]], [[0.1, 0.0], [0.0, 0.4]]],
    weights=[0.3, 0.7],
)


@pytest.mark.parametrize(
    ("dynamics", "geometry"),
    slow_after(
        3,
        [
            (MALA(), Dense()),
            (HMC(length=3), Dense()),
            (OFF_THE_MARK, Dense()),
            (RandomWalk(), Diagonal()),
            (MALA(), Identity()),
            (RandomWalk(), Identity()),
        ],
    ),
    ids=["mala-dense", "hmc", "mode-jumps", "random-walk-diagonal", "mala", "random-walk"],
)
def test_accept_steps_leave_the_posterior_invariant(dynamics, geometry):
    step = 0.5 if isinstance(geometry, Identity) else 1.5
    method = tallmc.Method(
        dynamics=dynamics, gradient=Full(), subsample=AllRows(), step_size=step, geometry=geometry
    )
    assert invariance_z(method.prepare(linear()).kernel) < 4.6


@pytest.mark.parametrize("name", ["mala", "random_walk"])
def test_accept_steps_move_and_report_it(name):
    draws = tallmc.sample(linear(), tallmc.methods.METHODS[name].make(0.3), chains=4, n_draws=200)
    rate = draws.sample_stats["acceptance_rate"]
    assert np.isfinite(rate).all() and 0.2 < rate.mean() < 0.99
    assert (np.ptp(draws.positions, axis=1) > 0).all()


def test_mala_agrees_with_quadrature_on_a_logistic_regression():
    posterior = logistic(n_rows=8, dim=1)
    grid = np.linspace(-8, 8, 4001)
    log_density = -np.asarray(jax.vmap(posterior.potential)(jnp.asarray(grid)[:, None]))
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    moments = weight @ grid, weight @ grid**2
    draws = tallmc.sample(
        posterior, tallmc.methods.mala(4.0), chains=64, n_draws=4000, burn_in=200, seed=2
    )
    assert 0.3 < draws.sample_stats["acceptance_rate"].mean() < 0.95
    x = draws.positions[..., 0]
    for values, truth in zip((x, x**2), moments, strict=True):
        per_chain = values.mean(1)
        assert abs(per_chain.mean() - truth) / (per_chain.std() / 8) < 4.6


def test_a_proposal_without_density_is_refused():
    """Far from the mode a huge step overshoots to where Poisson rates overflow.

    The chain stays where it is and does not fail.
    """
    x = np.ones((3, 1))
    posterior = tallmc.models.poisson_regression(x, [1, 2, 3], prior_variance=1e6)
    with pytest.warns(tallmc.SamplingWarning, match="never moved"):
        draws = tallmc.sample(posterior, tallmc.methods.mala(1e5), chains=4, n_draws=50, seed=0)
    assert draws.ok.all()
    assert np.isfinite(draws.positions).all()
    assert draws.sample_stats["acceptance_rate"].min() == 0


@pytest.mark.slow
def test_mala_is_exact_in_single_precision_with_large_counts():
    """20,000 counts near 3000.

    The error of a potential summed plainly in float32 would be larger than the posterior's width.
    """
    rng = np.random.default_rng(0)
    x = np.c_[np.ones(20_000), rng.normal(size=20_000)].astype(np.float32)
    y = rng.poisson(np.exp(x @ [8.0, 0.01]))
    posterior = tallmc.models.poisson_regression(x, y, prior_variance=10.0)
    double = tallmc.models.poisson_regression(x.astype(float), y, prior_variance=10.0)
    exact = tallmc.anchor.find_anchor(double)
    sd = np.sqrt(np.diag(exact.covariance))
    method, start = tallmc.methods.mala(1.2 * sd.min() ** 2), np.asarray(exact.position)
    draws = tallmc.sample(posterior, method, chains=16, n_draws=500, start=start, seed=0)
    assert draws.positions.dtype == np.float32
    assert draws.sample_stats["acceptance_rate"].mean() > 0.5
    table = draws.summary()
    assert (np.abs(table["mean"] - exact.position) / table["mcse_mean"]).max() < 4.6
    assert (np.abs(table["sd"] / sd - 1) / (table["mcse_sd"] / sd)).max() < 4.6


def test_a_potential_too_coarse_for_an_accept_step_is_reported():
    x = np.ones((20_000, 1), np.float32)
    y = 1e4 * np.random.default_rng(0).normal(size=20_000)
    posterior = tallmc.models.linear_regression(x, y, prior_variance=1e6, noise_variance=1.0)
    with pytest.warns(tallmc.SamplingWarning, match="too coarse for an accept step"):
        tallmc.sample(posterior, tallmc.methods.mala(1e-5), n_draws=20, start=np.array([y.mean()]))
