"""One step of every dynamics is that of its paper, to rounding.

The affine ones are compared by their matrices (`steps.py`), the others with transcriptions of the
formulas in NumPy. Long runs against the laws that follow are in `test_stationary_law.py`.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from laws import LAWS
from problems import linear
from steps import (
    error_against_the_papers,
    noise_z,
    random_point,
    stepped,
    with_given_gradient,
)
from tallmc.contrib.recipe import Recipe
from tallmc.dynamics import (
    SGHMC,
    Hamiltonian,
    Microcanonical,
    NoseHoover,
    PreconditionedLangevin,
    RiemannianHamiltonian,
    RiemannianLangevin,
)
from tallmc.geometry import Dense, Diagonal, Identity

AFFINE = {name: law for name, law in LAWS.items() if law.recursion is not None}
GEOMETRIES = [Identity(), Dense([[0.3, 0.1], [0.1, 0.2]])]
STEP = 0.3


def prepared(dynamics, step=STEP, geometry=None):
    method = tallmc.Method(
        dynamics=dynamics, batch_size=2, step_size=step, geometry=geometry or Identity()
    )
    return method.prepare(linear()).kernel


@pytest.mark.parametrize("name", AFFINE)
def test_a_step_has_the_matrices_of_the_paper(name):
    choice, step = AFFINE[name].biased
    for geometry in GEOMETRIES if choice.takes_geometry else [Identity()]:
        assert error_against_the_papers(prepared(choice, step, geometry), step) < 1e-12


def test_a_step_in_diagonal_coordinates_has_the_matrices_of_the_paper():
    bound = prepared(SGHMC(6.0), STEP, Diagonal([0.5, 0.2]))
    assert error_against_the_papers(bound, STEP) < 1e-12


def test_trajectories_of_one_step_have_the_matrices_of_the_paper():
    assert error_against_the_papers(prepared(Hamiltonian(1, 0.0)), STEP) < 1e-12


NOISES = {type(law.choice).noise: law.choice for law in LAWS.values() if not law.choice.exact_only}


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.__qualname__)
def test_noise_is_standard_and_fresh_in_every_step(noise):
    assert noise_z(NOISES[noise]) < 4.6


# The steps that are not affine.

C = np.array([[0.9, 0.0], [0.4, 0.6]])
SLOPE = np.array([[3.0, 0.5], [0.5, 1.0]])


def step_of(bound, **fixed):
    """A random point of departure, and the state after a step whose gradient is g + Kθ."""
    kernel, around = with_given_gradient(bound, SLOPE), random_point(bound, **fixed)
    after, point = jax.tree.map(lambda leaf: leaf[0], stepped(kernel, bound.rows, around))
    return around, after, point


def agree(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def largest_difference(pairs) -> float:
    return max(float(np.abs(found - expected).max()) for found, expected in pairs)


def nose_hoover_error(mutation=lambda bound: bound, momentum_first=False) -> float:
    """Table 1 of nemeth-2021, with ‖ρ‖²/d and Γ = −1; or the order of the package sgmcmc."""
    A, h = 1.7, STEP / 2
    bound = mutation(prepared(NoseHoover(A, momentum_first), STEP, Dense(C @ C.T)))
    around, after, point = step_of(bound)
    position, rho, eta = around.motion.position, around.motion.momentum, around.motion.thermostat
    g = around.gradient + SLOPE @ position
    momentum = rho - h * (C.T @ g + eta * rho) + np.sqrt(STEP * A) * around.noise
    moving = momentum if momentum_first else rho
    pairs = [(point, position), (after.position, position + h * C @ moving)]
    pairs += [(after.momentum, momentum), (after.thermostat, eta + h * (moving @ moving / 2 - 1))]
    return largest_difference(pairs)


@pytest.mark.parametrize("momentum_first", [False, True])
def test_nose_hoover_takes_the_step_of_its_paper(momentum_first):
    assert nose_hoover_error(momentum_first=momentum_first) < 1e-12


@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_preconditioned_langevin_takes_the_step_of_its_paper(gamma, decay):
    """The mean over all signs has the exact Γ, here from ∂g_j/∂θ_j = K_jj."""
    regulariser, N, V = 0.5, 12, np.array([0.3, 0.8])
    dynamics = PreconditionedLangevin(decay=decay, regulariser=regulariser, gamma=gamma)
    bound = prepared(dynamics)
    kernel, around = with_given_gradient(bound, 10 * SLOPE), random_point(bound, mean_square=V)
    eta, signs = around.noise[0], itertools.product([1.0, -1.0], repeat=2)
    points = [dataclasses.replace(around, noise=(eta, np.array(of))) for of in signs]
    after, _ = stepped(kernel, bound.rows, *points)
    position = around.motion.position
    g = around.gradient + 10 * SLOPE @ position
    new_V = decay * V + (1 - decay) * (g / N) ** 2
    G = 1 / (regulariser + np.sqrt(new_V))
    of_V = 2 * (1 - decay) * g / N * 10 * np.diag(SLOPE) / N
    Gamma = -(G**2) * of_V / (2 * np.sqrt(new_V)) if gamma else 0.0
    agree(after.mean_square, np.tile(new_V, (4, 1)))
    expected = position + STEP / 2 * (Gamma - G * g) + np.sqrt(STEP * G) * eta
    agree(after.position.mean(axis=0), expected)
    assert not gamma or decay == 1.0 or np.abs(Gamma).max() > 0.1


def microcanonical_error(mutation=lambda bound: bound) -> float:
    """A B O B A, with one gradient after the first A."""
    friction, h, d = 1.5, STEP / 2, 2
    rho = np.sqrt(d) * np.array([0.6, -0.8])
    bound = mutation(prepared(Microcanonical(friction), STEP, Dense(C @ C.T)))
    around, after, point = step_of(bound, momentum=rho)
    halfway = around.motion.position + h / 2 * C @ rho
    g = C.T @ (around.gradient + SLOPE @ halfway)

    def B(rho):
        size = np.linalg.norm(g)
        e, delta = -g / size, h / 2 * np.sqrt(d) * size / (d - 1)
        a = e @ rho / np.sqrt(d)
        turned = rho / np.sqrt(d) + e * (np.sinh(delta) + a * (np.cosh(delta) - 1))
        return np.sqrt(d) * turned / (np.cosh(delta) + a * np.sinh(delta))

    c = np.exp(-friction * h)
    omega = c * B(rho) + np.sqrt(1 - c**2) * around.noise
    momentum = B(np.sqrt(d) * omega / np.linalg.norm(omega))
    pairs = [(point, halfway), (after.momentum, momentum)]
    return largest_difference([*pairs, (after.position, halfway + h / 2 * C @ momentum)])


def test_microcanonical_takes_the_step_of_its_paper():
    assert microcanonical_error() < 1e-12


def bent_metric(params):
    """A dense metric that changes with every parameter."""
    a, b = params["beta"]
    return jnp.array([[2 + a**2, 0.5 * jnp.sin(b)], [0.5 * jnp.sin(b), 1 + b**2]])


def root_of(theta):
    """R of the metric above: RRᵀ = G⁻¹, upper triangular."""
    a, b = theta
    G = np.array([[2 + a**2, 0.5 * np.sin(b)], [0.5 * np.sin(b), 1 + b**2]])
    return np.linalg.inv(np.linalg.cholesky(G)).T


def derivatives(function, at):
    """∂F/∂x_j on the last axis, by Richardson extrapolation of central differences."""

    def central(h):
        units = h * np.eye(len(at))
        return np.stack([(function(at + u) - function(at - u)) / (2 * h) for u in units], axis=-1)

    return (4 * central(1e-3) - central(2e-3)) / 3


def nearly(found, expected):
    """Up to the error of numerical derivatives."""
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


def test_riemannian_langevin_takes_the_step_of_its_paper():
    around, after, _ = step_of(prepared(RiemannianLangevin(bent_metric)))
    theta = around.motion.position
    R, g = root_of(theta), around.gradient + SLOPE @ theta
    Gamma = np.einsum("ijj->i", derivatives(lambda at: root_of(at) @ root_of(at).T, theta))
    drift = Gamma - R @ R.T @ g
    nearly(after.position, theta + STEP / 2 * drift + np.sqrt(STEP) * R @ around.noise)
    assert np.abs(Gamma).max() > 0.1


def test_riemannian_hamiltonian_takes_the_step_of_its_paper():
    gamma, h = 1.7, STEP / 2
    around, after, _ = step_of(prepared(RiemannianHamiltonian(bent_metric, gamma)))
    theta, rho = around.motion.position, around.motion.momentum
    R, g = root_of(theta), around.gradient + SLOPE @ theta
    Gamma = np.einsum("jij->i", derivatives(root_of, theta))
    drift = Gamma - R.T @ g - gamma * R @ R.T @ rho
    nearly(after.position, theta + h * R @ rho)
    nearly(after.momentum, rho + h * drift + np.sqrt(STEP * gamma) * R @ around.noise)
    assert np.abs(Gamma).max() > 0.1


def diffusion(zeta, of=np):
    return of.diag(of.array([1 + zeta[1] ** 2, 0.0, 2 + of.cos(zeta[0])]))


def curl(zeta, of=np):
    first, second = zeta[2], of.sin(zeta[0])
    return of.array([[0.0, first, 1.0], [-first, 0.0, second], [-1.0, -second, 0.0]])


def test_a_recipe_takes_the_step_of_its_paper():
    """Eq. 11 of nemeth-2021 with the sign of Γ of eq. 10."""
    recipe = Recipe(
        lambda zeta: diffusion(zeta, jnp),
        lambda zeta: curl(zeta, jnp),
        energy=lambda zeta: zeta[2] ** 2 / 2 + 0.1 * zeta[2] * zeta[0],
        auxiliary=1,
    )
    around, after, _ = step_of(prepared(recipe))
    theta, r = around.motion.position, around.motion.auxiliary[0]
    zeta = np.array([*theta, r])
    slope = np.array([*(around.gradient + SLOPE @ theta), 0.0])
    slope += np.array([0.1 * r, 0.0, r + 0.1 * theta[0]])
    D, force = diffusion(zeta), diffusion(zeta) + curl(zeta)
    Gamma = np.einsum("ijj->i", derivatives(lambda at: diffusion(at) + curl(at), zeta))
    moved = zeta + STEP / 2 * (Gamma - force @ slope) + np.sqrt(STEP * np.diag(D)) * around.noise
    nearly(np.array([*after.position, *after.auxiliary]), moved)
