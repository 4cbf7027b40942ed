"""pSGLD: the law of its discrete chain by quadrature, and the effect of Γ."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import linear
from stationary import cast, exact_law, largest_z, law_z, run_chains
from tallmc.dynamics.preconditioned_langevin import MeanSquareState
from tallmc.gradient import ControlVariate, Simple
from tallmc.subsample import Preferential, Uniform
from test_order import anharmonic, slope, true_second_moment

STEP = 0.05
GRID = np.linspace(-5, 5, 801)


def prepared(gamma, step=STEP, decay=0.0):
    method = tallmc.Method(
        dynamics=tallmc.dynamics.PreconditionedLangevin(decay=decay, regulariser=0.5, gamma=gamma),
        gradient=tallmc.gradient.Full(),
        subsample=tallmc.subsample.AllRows(),
        step_size=step,
    )
    return method.prepare(anharmonic()).kernel


def move_by_the_papers_formulas(at, gamma: bool, step: float):
    """Mean and variance of θ' = θ + (ε/2)(Γ − Gf') + √(εG)η with G = 1/(λ + |f'|)."""
    slope, curvature = at + 0.2 * at**3, 1 + 0.6 * at**2
    G = 1 / (0.5 + np.abs(slope))
    Gamma = -(G**2) * np.sign(slope) * curvature if gamma else 0.0
    return at + step / 2 * (Gamma - G * slope), step * G


def second_moment_by_quadrature(gamma: bool, step: float) -> float:
    """E θ² of the stationary law of these moves."""
    mean, variance = move_by_the_papers_formulas(GRID, gamma, step)
    squares = (GRID[None, :] - mean[:, None]) ** 2
    transition = np.exp(-squares / (2 * variance[:, None]))
    transition /= transition.sum(axis=1, keepdims=True)
    equations = transition.T - np.eye(len(GRID))
    equations[0] = 1.0
    law = np.linalg.solve(equations, np.eye(len(GRID))[0])
    return float(law @ GRID**2)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [True, False])
def test_long_runs_have_the_law_of_the_papers_formulas(gamma):
    options = {"chains": 1024, "steps": 400, "thin": 10, "burn_in": 1000}
    u = run_chains(prepared(gamma), start=np.zeros(1), **options)[..., 0]
    truth = second_moment_by_quadrature(gamma, STEP)
    other = second_moment_by_quadrature(not gamma, STEP)
    assert largest_z((u**2).mean(1)[:, None], np.array([truth])) < 4.6
    assert largest_z((u**2).mean(1)[:, None], np.array([other])) > 10


def test_only_with_gamma_does_a_smaller_step_lead_to_the_posterior():
    truth = true_second_moment()
    with_gamma = [second_moment_by_quadrature(True, step) - truth for step in (0.04, 0.02)]
    without = second_moment_by_quadrature(False, 0.02) - truth
    assert abs(with_gamma[1]) < 0.6 * abs(with_gamma[0])
    assert abs(without) > 10 * abs(with_gamma[1])


@run_once
def moved(bound, positions, noise):
    """Positions after one step without memory from each of these positions."""
    kernel, rows = bound.kernel, bound.rows

    def of_one(position, noise):
        evaluate = lambda at, transition: kernel.estimate(at, None, rows)
        state = MeanSquareState(position, jnp.full(1, 0.3))
        return kernel.dynamics.step(state, evaluate, jnp.asarray(STEP), noise).state.position[0]

    return jax.vmap(of_one)(positions, noise)


@pytest.mark.parametrize("gamma", [True, False])
def test_the_quadrature_has_the_moves_of_the_code(gamma):
    """Mean and variance of the move from many points, on the posterior that is not Gaussian."""
    at = np.linspace(-3, 3, 13)
    mean, variance = move_by_the_papers_formulas(at, gamma, STEP)
    for eta, sign in ((0.0, 1.0), (1.3, -1.0)):
        noise = np.full((13, 1), eta), np.full((13, 1), sign)
        found = moved(prepared(gamma), at[:, None], noise)
        np.testing.assert_allclose(found, mean + np.sqrt(variance) * eta, rtol=1e-12, atol=1e-12)


def test_signs_are_fair_and_fresh():
    dynamics = prepared(True).kernel.dynamics
    draw = run_once(lambda key: dynamics.noise(key, 40_000, jnp.zeros(3)))
    noise, signs = draw(jax.random.key(0))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert np.abs(np.asarray(signs).mean(0)).max() < 4.6 / np.sqrt(40_000)
    assert np.abs((np.asarray(signs) * np.asarray(noise)).mean(0)).max() < 4.6 / np.sqrt(40_000)


class FromThisMeanSquare(tallmc.dynamics.PreconditionedLangevin):
    """V is given, not found from a noisy gradient.

    With decay 1 it stays constant, and the dynamics are affine.
    """

    def init(self, key, position, evaluate):
        return MeanSquareState(position, jnp.array([0.04, 0.25]))


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [Simple(), ControlVariate()], ids=["simple", "cv"])
@pytest.mark.parametrize("subsample", ["uniform", "curvature"])
def test_stationary_law_with_a_preconditioner_that_stays(gradient, subsample):
    """The Lyapunov solution of Langevin dynamics with scale √G = (λ + √V)^(−1/2)."""
    step = 0.05
    choice = Uniform() if subsample == "uniform" else Preferential(subsample)
    parts = {"gradient": gradient, "subsample": choice, "batch_size": 4, "step_size": step}
    scale = np.sqrt(1 / (0.5 + np.array([0.2, 0.5])))
    whitened = tallmc.Method(**parts, geometry=tallmc.geometry.Diagonal(scale))
    law = exact_law(whitened.prepare(linear()).kernel, step)
    dynamics = tallmc.dynamics.PreconditionedLangevin(decay=1.0, regulariser=0.5)
    bound = tallmc.Method(**parts, dynamics=dynamics).prepare(linear()).kernel
    given = cast(bound.kernel.dynamics, FromThisMeanSquare)
    kernel = dataclasses.replace(bound.kernel, dynamics=given)
    z = law_z(dataclasses.replace(bound, kernel=kernel), law)
    assert max(z.values()) < 4.6, z


def test_order_of_the_bias_with_gamma():
    steps = 0.16 / 2.0 ** np.arange(5)
    biases = [second_moment_by_quadrature(True, step) - true_second_moment() for step in steps]
    assert abs(slope(steps, biases) - 1) < 0.15, biases
