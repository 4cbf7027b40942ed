"""Dynamics with an accept step leave the posterior invariant at any step size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tallmc
from kept_programs import run_once
from problems import exact_posterior, linear, logistic, slow_after
from tallmc._engine.kernel import NewChain
from tallmc.dynamics import HMC, MALA, ModeJumpingHMC, RandomWalk
from tallmc.geometry import Dense, Diagonal, Identity
from tallmc.gradient import Full
from tallmc.subsample import AllRows


@run_once
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
        first = kernel.init(NewChain(init_key, position, carried, first_step), rows)
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


@run_once
def accept_steps(bound, positions, noise):
    """The states of chains at these positions, and after a step with this noise."""
    kernel, rows = bound.kernel, bound.rows
    step_size = kernel.schedule(jnp.int32(0))

    def of_chain(position, noise):
        evaluate = lambda at, transition: kernel.estimate(at, None, rows)
        state = kernel.dynamics.init(jax.random.key(0), position, evaluate)
        return state, kernel.dynamics.step(state, evaluate, step_size, noise).state

    return jax.vmap(of_chain)(positions, noise)


def metropolis_error(bound, drifts: bool) -> float:
    """The largest error of an accept step against π(y) q(y → x) / (π(x) q(x → y)).

    The posterior is that of a linear regression; q(x → ·) is N(x − (ε/2)CCᵀ∇f(x), εCCᵀ), for random
    walks without the drift. With log u just below the logarithm of the ratio the whole state must
    become that of the proposal, and with log u just above it must stay. The step then is in
    detailed balance with the posterior. Half of the chains are of each kind.
    """
    mean, covariance = exact_posterior(bound.posterior)
    H, d, chains = np.linalg.inv(covariance), len(mean), 40
    C = np.asarray(bound.kernel.dynamics.geometry.push(jnp.eye(d))).T
    step = float(bound.kernel.schedule.step_size)
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(mean, 2 * covariance, size=chains)
    normal = rng.normal(size=(chains, d))
    potential = lambda at: np.einsum("ci,ij,cj->c", at - mean, H, at - mean) / 2
    gradient = lambda at: (at - mean) @ H
    centre = lambda at: at - drifts * step / 2 * gradient(at) @ C @ C.T
    y = centre(x) + np.sqrt(step) * normal @ C.T
    log_q = lambda start, end: (
        -(np.sum(np.linalg.solve(C, (end - centre(start)).T) ** 2, axis=0) / (2 * step))
    )
    log_ratio = potential(x) - potential(y) + log_q(y, x) - log_q(x, y)
    accepted = np.arange(chains) % 2 == 0
    log_uniform = log_ratio + np.where(accepted, -1e-6, 1e-6)
    before, after = accept_steps(bound, jnp.asarray(x), (normal, log_uniform))
    of_old, of_new = (np.asarray(of.potential.rounded()) for of in (before, after))
    end = np.where(accepted[:, None], y, x)
    pairs = [(after.position, end), (of_new - of_old, potential(end) - potential(x))]
    if drifts:
        pairs += [(before.gradient, gradient(x)), (after.gradient, gradient(end))]
    return max(float(np.abs(found - expected).max()) for found, expected in pairs)


@pytest.mark.parametrize(
    ("dynamics", "geometry"),
    [
        (MALA(), Dense()),
        (MALA(), Identity()),
        (RandomWalk(), Diagonal()),
        (RandomWalk(), Identity()),
    ],
    ids=["mala-dense", "mala", "random-walk-diagonal", "random-walk"],
)
def test_accept_steps_are_in_detailed_balance(dynamics, geometry):
    parts = {"gradient": Full(), "subsample": AllRows(), "step_size": 0.7}
    bound = tallmc.Method(dynamics=dynamics, geometry=geometry, **parts).prepare(linear()).kernel
    assert metropolis_error(bound, drifts=isinstance(dynamics, MALA)) < 1e-9


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
        1,
        [
            (HMC(length=3), Dense()),
            (OFF_THE_MARK, Dense()),
            (MALA(), Dense()),
            (RandomWalk(), Diagonal()),
            (MALA(), Identity()),
            (RandomWalk(), Identity()),
        ],
    ),
    ids=["hmc", "mode-jumps", "mala-dense", "random-walk-diagonal", "mala", "random-walk"],
)
def test_accept_steps_leave_the_posterior_invariant(dynamics, geometry):
    step = 0.5 if isinstance(geometry, Identity) else 1.5
    method = tallmc.Method(
        dynamics=dynamics, gradient=Full(), subsample=AllRows(), step_size=step, geometry=geometry
    )
    assert invariance_z(method.prepare(linear()).kernel, chains=20_000) < 4.6


@pytest.mark.parametrize("name", slow_after(1, ["mala", "random_walk"]))
def test_accept_steps_move_and_report_it(name):
    draws = tallmc.sample(linear(), tallmc.methods.METHODS[name].make(0.3), chains=4, n_draws=200)
    rate = draws.sample_stats["acceptance_rate"]
    assert np.isfinite(rate).all() and 0.2 < rate.mean() < 0.99
    assert (np.ptp(draws.positions, axis=1) > 0).all()


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_potential_too_coarse_for_an_accept_step_is_reported():
    x = np.ones((20_000, 1), np.float32)
    y = 1e4 * np.random.default_rng(0).normal(size=20_000)
    posterior = tallmc.models.linear_regression(x, y, prior_variance=1e6, noise_variance=1.0)
    with pytest.warns(tallmc.SamplingWarning, match="too coarse for an accept step"):
        tallmc.sample(posterior, tallmc.methods.mala(1e-5), n_draws=20, start=np.array([y.mean()]))
