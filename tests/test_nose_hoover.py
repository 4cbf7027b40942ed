"""The thermostat: long runs against its law with gradient noise, found without Monte Carlo."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from galerkin import gauss, stationary_law
from kept_programs import run_once
from problems import exact_posterior, linear
from stationary import cast, exact_law, largest_z, run_chains
from steps import noise_z
from tallmc._rows.law import take_rows
from tallmc.dynamics import NoseHoover
from tallmc.dynamics.nose_hoover import ThermostatState
from tallmc.geometry import Dense
from tallmc.gradient import Batch, ControlVariate, Simple
from tallmc.subsample import Preferential, Uniform
from tallmc.subsample.selection import Carried, Estimate
from test_steps import nose_hoover_error

STEP, FRICTION = 0.1, 1.0
COMPOSITIONS = {
    "simple-uniform": (Simple(), Uniform()),
    "simple-preferential": (Simple(), Preferential("gradient")),
    "control-variate-uniform": (ControlVariate(), Uniform()),
    "control-variate-preferential": (ControlVariate(), Preferential("curvature")),
}


def one_dimensional():
    """Six rows that differ, but not so much that the law with one row per step has heavy tails."""
    x = np.array([0.7, 1.4, 1.0, -0.9, -1.2, 1.1])
    noise = np.array([0.5, -0.4, 0.3, 0.6, -0.2, -0.6])
    return tallmc.models.linear_regression(
        x[:, None], 0.8 * x + noise, prior_variance=4.0, noise_variance=0.5
    )


def prepared(name, step=STEP, momentum_first=False):
    gradient, subsample = COMPOSITIONS[name]
    method = tallmc.Method(
        dynamics=NoseHoover(FRICTION, momentum_first),
        gradient=gradient,
        subsample=subsample,
        batch_size=1,
        step_size=step,
        geometry=Dense(),
    )
    return method.prepare(one_dimensional()).kernel


def law_by_the_papers_formulas(bound, step, degree=10):
    """The law of (u, ρ, η − A), u the whitened position, from Table 1.

    The events of a step are all rows that it may draw.
    """
    posterior, kernel, h = bound.posterior, bound.kernel, step / 2
    momentum_first = kernel.dynamics.momentum_first
    selection = kernel.selection
    mean, covariance = exact_posterior(posterior)
    sd = np.sqrt(covariance[0, 0])

    @run_once
    def gradients(row, u):
        drawn = selection.completed(selection.stream.at(row[None]))
        batch = Batch(take_rows(posterior.data, drawn.indices), drawn.weights)
        at = lambda v: kernel.gradient(jnp.asarray(mean) + sd * v[None], batch)[0]
        return sd * jax.vmap(at)(u)

    # The gradient is affine in the position.
    rows = range(posterior.n_rows)
    ends = [np.asarray(gradients(jnp.int32(row), jnp.array([0.0, 1.0]))) for row in rows]

    def step_of(states, event):
        row, xi = event
        u, momentum, excess = states.T
        friction = FRICTION + excess
        force = ends[row][0] + (ends[row][1] - ends[row][0]) * u
        kicked = momentum - h * (force + friction * momentum) + np.sqrt(2 * FRICTION * h) * xi
        moving = kicked if momentum_first else momentum
        return np.stack([u + h * moving, kicked, excess + h * (moving**2 - 1)], axis=1)

    p = selection.stream.probabilities()
    events = [
        (p[row] * weight, (row, xi)) for row in range(posterior.n_rows) for weight, xi in gauss(6)
    ]
    return stationary_law(step_of, events, [1.0, 1.0, 1.0], degree), mean, sd


def moments_z(bound, law, mean, sd, seed=0):
    """|z| of the mean and second moment of the whitened position, over many chains."""
    settings = {"chains": 1024, "steps": 300, "thin": 10, "burn_in": 1000}
    u = (run_chains(bound, start=mean, seed=seed, **settings)[..., 0] - mean[0]) / sd
    return max(
        largest_z(u.mean(1)[:, None], np.array([law.mean(0)])),
        largest_z((u**2).mean(1)[:, None], np.array([law.second_moment(0)])),
    )


@pytest.mark.slow
@pytest.mark.parametrize("momentum_first", [False, True])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_long_runs_have_the_law_of_the_papers_formulas(name, momentum_first):
    bound = prepared(name, momentum_first=momentum_first)
    law, mean, sd = law_by_the_papers_formulas(bound, STEP)
    assert moments_z(bound, law, mean, sd) < 4.6


@pytest.mark.slow
def test_momenta_are_as_hot_as_they_should_be_whatever_the_noise():
    """E ‖ρ‖² = d at any step size and any gradient noise: the thermostat is stationary."""
    method = tallmc.methods.sgnht(0.02, batch_size=2, friction=2.0)
    settings = {"chains": 256, "n_draws": 200, "thin": 10, "burn_in": 1000, "seed": 0}
    stats = tallmc.sample(linear(), method, **settings).sample_stats
    temperature, thermostat = (stats[name].mean(1) for name in ("temperature", "thermostat"))
    assert largest_z(temperature[:, None], np.array([1.0])) < 4.6
    above = (thermostat.mean() - 2.0) / (thermostat.std() / np.sqrt(len(thermostat)))
    assert above > 4.6  # the thermostat rises above A to absorb the noise


def test_thermostat_absorbs_noise_that_underdamped_dynamics_does_not():
    """Whitened variances of both.

    That of the thermostat comes from its law, the other from the Lyapunov solution.
    """
    posterior, step = one_dimensional(), 0.02
    law, _, sd = law_by_the_papers_formulas(prepared("simple-uniform", step), step, degree=8)
    assert law.second_moment(1) == pytest.approx(1, abs=1e-9)  # equipartition, by the thermostat
    underdamped = tallmc.dynamics.SGHMC(FRICTION)
    method = tallmc.Method(dynamics=underdamped, batch_size=1, step_size=step, geometry=Dense())
    widened = exact_law(method.prepare(posterior).kernel, step).covariance[0, 0] / sd**2
    assert widened > 1.02
    assert abs(law.second_moment(0) - 1) < 0.5 * (widened - 1)


class NormForItsSquare(NoseHoover):
    """‖ρ‖ in place of ‖ρ‖²."""

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        norm = jnp.linalg.norm(state.momentum) / state.momentum.shape[0]
        thermostat = state.thermostat + step_size / 2 * (norm - 1)
        return moved._replace(state=dataclasses.replace(moved.state, thermostat=thermostat))


class MinusOneForgotten(NoseHoover):
    """Without Γ the thermostat never falls."""

    def step(self, state, evaluate, step_size, noise):
        moved = super().step(state, evaluate, step_size, noise)
        thermostat = moved.state.thermostat + step_size / 2
        return moved._replace(state=dataclasses.replace(moved.state, thermostat=thermostat))


class HalfTheNoise(NoseHoover):
    def noise(self, key, steps, like):
        return super().noise(key, steps, like) / jnp.sqrt(2)


def with_dynamics(bound, kind):
    mutated = dataclasses.replace(bound.kernel, dynamics=cast(bound.kernel.dynamics, kind))
    return dataclasses.replace(bound, kernel=mutated)


@pytest.mark.parametrize("kind", [NormForItsSquare, MinusOneForgotten])
def test_the_formulas_of_the_paper_kill(kind):
    """The unmutated control is in test_steps.py."""
    assert 1e-2 < nose_hoover_error(lambda bound: with_dynamics(bound, kind)) < np.inf


def test_moments_of_the_noise_kill_half_the_noise():
    """The unmutated control is in test_steps.py."""
    assert noise_z(HalfTheNoise(FRICTION)) > 4.6


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NormForItsSquare, MinusOneForgotten, HalfTheNoise])
def test_law_kills(kind):
    bound = prepared("control-variate-uniform")
    law, mean, sd = law_by_the_papers_formulas(bound, STEP)
    z = moments_z(with_dynamics(bound, kind), law, mean, sd)
    assert np.isfinite(z) and z > 4.6, z


def test_the_order_of_the_package_is_stable_where_euler_steps_are_not():
    """On a Gaussian of curvature λ = 100 with h = 0.1: h²λ = 1 < 4, but hλ > η."""

    def after_steps(momentum_first):
        dynamics = NoseHoover(1.0, momentum_first)
        gradient = lambda at, to: Estimate(100 * at, jnp.int32(1), Carried())
        state = ThermostatState(jnp.ones(1), jnp.zeros(1), jnp.asarray(1.0))
        step = run_once(lambda s: dynamics.step(s, gradient, jnp.asarray(0.2), jnp.zeros(1)).state)
        for _ in range(60):
            # The thermostat is held, so that the recursion is linear.
            state = dataclasses.replace(step(state), thermostat=jnp.asarray(1.0))
        return float(jnp.abs(state.position[0]))

    assert after_steps(True) < 0.2
    assert after_steps(False) > 1e6


def test_one_step_by_hand():
    dynamics = NoseHoover(2.0)
    state = ThermostatState(jnp.array([1.0, 2.0]), jnp.array([3.0, -1.0]), jnp.asarray(1.5))
    gradient = lambda at, to: Estimate(jnp.array([10.0, 20.0]), jnp.int32(1), Carried())
    new = dynamics.step(state, gradient, jnp.asarray(0.2), jnp.array([0.5, 1.0])).state
    np.testing.assert_allclose(new.position, [1.3, 1.9])
    kicked = [
        3 - 0.1 * (10 + 4.5) + np.sqrt(0.4) * 0.5,
        -1 - 0.1 * (20 - 1.5) + np.sqrt(0.4),
    ]
    np.testing.assert_allclose(new.momentum, kicked)
    np.testing.assert_allclose(new.thermostat, 1.5 + 0.1 * (10 / 2 - 1))
