"""pSGLD: the law of its discrete chain by quadrature, and the effect of Γ."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear
from stationary import cast, exact_law, largest_z, law_z, run_chains
from tallmc.gradient import ControlVariate, Simple
from tallmc.subsample import Preferential, Uniform
from test_order import anharmonic, slope, true_second_moment

STEP = 0.05
GRID = np.linspace(-6, 6, 1501)


def prepared(gamma, step=STEP, decay=0.0):
    method = tallmc.Method(
        dynamics=tallmc.dynamics.PreconditionedLangevin(decay=decay, regulariser=0.5, gamma=gamma),
        gradient=tallmc.gradient.Full(),
        subsample=tallmc.subsample.AllRows(),
        step_size=step,
    )
    return method.prepare(anharmonic()).kernel


def second_moment_by_quadrature(gamma: bool, step: float) -> float:
    """E θ² of θ' = θ + (ε/2)(Γ − Gf') + √(εG)η with G = 1/(λ + |f'|), from the paper's formulas."""
    slope, curvature = GRID + 0.2 * GRID**3, 1 + 0.6 * GRID**2
    G = 1 / (0.5 + np.abs(slope))
    Gamma = -(G**2) * np.sign(slope) * curvature if gamma else 0.0
    mean, variance = GRID + step / 2 * (Gamma - G * slope), step * G
    squares = (GRID[None, :] - mean[:, None]) ** 2
    transition = np.exp(-squares / (2 * variance[:, None]))
    transition /= transition.sum(axis=1, keepdims=True)
    equations = transition.T - np.eye(len(GRID))
    equations[0] = 1.0
    law = np.linalg.solve(equations, np.eye(len(GRID))[0])
    return float(law @ GRID**2)


@pytest.mark.parametrize("gamma", [True, False])
def test_long_runs_have_the_law_of_the_papers_formulas(gamma):
    options = {"chains": 1024, "steps": 400, "thin": 10, "burn_in": 1000}
    u = run_chains(prepared(gamma), start=np.zeros(1), **options)[..., 0]
    truth = second_moment_by_quadrature(gamma, STEP)
    other = second_moment_by_quadrature(not gamma, STEP)
    assert largest_z((u**2).mean(1)[:, None], np.array([truth])) < 4.6
    assert largest_z((u**2).mean(1)[:, None], np.array([other])) > 10


@pytest.mark.slow
def test_only_with_gamma_does_a_smaller_step_lead_to_the_posterior():
    truth = true_second_moment()
    with_gamma = [second_moment_by_quadrature(True, step) - truth for step in (0.04, 0.02)]
    without = second_moment_by_quadrature(False, 0.02) - truth
    assert abs(with_gamma[1]) < 0.6 * abs(with_gamma[0])
    assert abs(without) > 10 * abs(with_gamma[1])


def position_after(bound, state, noise):
    """The position after one step from this state with this noise."""
    kernel, rows = bound.kernel, bound.rows
    evaluate = lambda at, transition: kernel.estimate(at, None, rows)
    return kernel.dynamics.step(state, evaluate, jnp.asarray(STEP), noise).state.position[0]


def test_gamma_is_the_derivative_of_the_preconditioner():
    """The drift with Γ less the drift without is a numerical derivative of G, with memory too."""
    for decay in (0.0, 0.7):
        position, mean_square = jnp.array([0.8]), jnp.array([0.3])
        state = tallmc.dynamics.preconditioned_langevin.MeanSquareState(position, mean_square)
        noise = jnp.zeros(1), jnp.array([-1.0])
        moved = [
            position_after(prepared(gamma, decay=decay), state, noise) for gamma in (True, False)
        ]

        def scale(at, decay=decay):
            gradient = at + 0.2 * at**3
            return 1 / (0.5 + np.sqrt(decay * 0.3 + (1 - decay) * gradient**2))

        derivative = (scale(0.8 + 1e-5) - scale(0.8 - 1e-5)) / 2e-5
        np.testing.assert_allclose(float(moved[0] - moved[1]), STEP / 2 * derivative, rtol=1e-6)


def test_signs_are_fair_and_fresh():
    noise, signs = prepared(True).kernel.dynamics.noise(jax.random.key(0), 40_000, jnp.zeros(3))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert np.abs(np.asarray(signs).mean(0)).max() < 4.6 / np.sqrt(40_000)
    assert np.abs((np.asarray(signs) * np.asarray(noise)).mean(0)).max() < 4.6 / np.sqrt(40_000)


class FromThisMeanSquare(tallmc.dynamics.PreconditionedLangevin):
    """V is given, not found from a noisy gradient.

    With decay 1 it stays constant, and the dynamics are affine.
    """

    def init(self, key, position, evaluate):
        return tallmc.dynamics.preconditioned_langevin.MeanSquareState(
            position, jnp.array([0.04, 0.25])
        )


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


@pytest.mark.slow
def test_order_of_the_bias_with_gamma():
    steps = 0.16 / 2.0 ** np.arange(5)
    biases = [second_moment_by_quadrature(True, step) - true_second_moment() for step in steps]
    assert abs(slope(steps, biases) - 1) < 0.15, biases
