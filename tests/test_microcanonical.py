"""Microcanonical dynamics: its flow, its invariant law by quadrature, and the effect of noise.

One step of a chain that has the law N(0, H⁻¹) × (uniform on the circle) changes the mean of a
function φ of the state by the *defect*, which is computed by quadrature in two dimensions. A
diffusion of which this is not the stationary law has a defect of order ε² for some φ.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import tallmc
import tallmc.anchor
from kept_programs import run_once
from problems import exact_posterior, linear
from stationary import largest_z, run_chains
from tallmc._core.arrays import DenseMap, IdentityMap
from tallmc.dynamics import Microcanonical
from tallmc.dynamics.microcanonical import turned
from tallmc.dynamics.momentum import MomentumState
from tallmc.geometry import NoiseDiagonal
from tallmc.gradient import Full
from tallmc.subsample import AllRows
from tallmc.subsample.selection import Carried, Estimate

HESSIAN = np.array([[3.0, 0.5], [0.5, 1.0]])
FRICTION = 1.5
STEPS = 0.2 / 2.0 ** np.arange(4)
# Functions of (θ, ρ) whose stationary means are known to the quadrature.
TESTS = {
    "θ₁": lambda t, r: t[:, 0],
    "ρ₁": lambda t, r: r[:, 0],
    "θ₁²": lambda t, r: t[:, 0] ** 2,
    "θ₁θ₂": lambda t, r: t[:, 0] * t[:, 1],
    "θ₁ρ₁": lambda t, r: t[:, 0] * r[:, 0],
    "ρ₁² − ρ₂²": lambda t, r: r[:, 0] ** 2 - r[:, 1] ** 2,
    "ρ₁ρ₂": lambda t, r: r[:, 0] * r[:, 1],
    "θ₂²ρ₁²": lambda t, r: t[:, 1] ** 2 * r[:, 0] ** 2,
}


@pytest.mark.parametrize("d", [2, 5])
@pytest.mark.parametrize("time", [0.05, 2.0])
def test_gradients_turn_the_momentum_as_the_differential_equation_says(d, time):
    """dρ/dt = −(d/(d − 1)) (I − ρρᵀ/d) g."""
    rng = np.random.default_rng(d)
    momentum, gradient = rng.normal(size=(2, d))
    momentum *= np.sqrt(d) / np.linalg.norm(momentum)
    right = lambda t, r: -(d / (d - 1)) * (gradient - r * (r @ gradient) / d)
    solved = solve_ivp(right, (0, time), momentum, rtol=1e-11, atol=1e-12)
    found = turned(jnp.asarray(momentum), jnp.asarray(gradient), jnp.asarray(time))
    np.testing.assert_allclose(found, solved.y[:, -1], rtol=0, atol=1e-8)


def test_a_huge_gradient_turns_the_momentum_downhill_and_none_leaves_it():
    momentum = jnp.array([1.0, 1.0])
    for gradient, expected in (([0.0, 1e30], [0.0, -np.sqrt(2)]), ([0.0, 0.0], [1.0, 1.0])):
        found = turned(momentum, jnp.array(gradient), jnp.asarray(1.0))
        np.testing.assert_allclose(found, expected, atol=1e-12)


def nodes(number):
    """Points and weights of the standard normal law in two dimensions."""
    x, w = np.polynomial.hermite_e.hermegauss(number)
    points = np.array(list(itertools.product(x, repeat=2)))
    return points, np.outer(w, w).ravel() / w.sum() ** 2


def product(*laws):
    """All combinations of the points of independent laws, and their weights."""
    picked = np.meshgrid(*(np.arange(len(w)) for _, w in laws), indexing="ij")
    weights = np.prod([w[i.ravel()] for (_, w), i in zip(laws, picked, strict=True)], axis=0)
    return [points[i.ravel()] for (points, _), i in zip(laws, picked, strict=True)], weights


def defects(dynamics, step, noise=None, corrected=False):
    """The change of each test function in one step; `noise` is the covariance V of the gradient."""
    angles = 2 * np.pi * (np.arange(24) + 0.5) / 24
    circle = np.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], axis=1), np.full(24, 1 / 24)
    laws = [nodes(6), circle, nodes(5)] + ([] if noise is None else [nodes(3)])
    points, weights = product(*laws)
    root = np.linalg.inv(np.linalg.cholesky(HESSIAN)).T
    theta, rho, xi = points[0] @ root.T, points[1], points[2]
    nu = np.zeros_like(xi) if noise is None else points[3] @ np.linalg.cholesky(noise).T

    def moved(theta, rho, xi, nu):
        def evaluate(at, transition):
            known = dynamics_noise if corrected else None
            gradient = jnp.asarray(HESSIAN) @ at + nu
            return Estimate(gradient, jnp.int32(0), Carried(), noise=known)

        return dynamics.step(MomentumState(theta, rho), evaluate, jnp.asarray(step), xi).state

    dynamics_noise = None if noise is None else jnp.asarray(noise)
    after = run_once(jax.vmap(moved))(theta, rho, xi, nu)
    ends = np.asarray(after.position), np.asarray(after.momentum)
    return {name: weights @ (phi(*ends) - phi(theta, rho)) for name, phi in TESTS.items()}


def orders(dynamics, **settings):
    """How the defects fall with ε: log₂ of the ratio at the two smallest steps."""
    found = [defects(dynamics, step, **settings) for step in STEPS[-2:]]
    floor = 1e-13
    return {
        name: np.log2(max(abs(found[0][name]), floor) / max(abs(found[1][name]), floor))
        for name in TESTS
        if abs(found[0][name]) > floor
    }


def prepared(geometry=None):
    return Microcanonical(FRICTION, geometry=geometry or IdentityMap())


@pytest.mark.parametrize(
    "geometry", [IdentityMap(), DenseMap(jnp.array([[0.9, 0.0], [0.4, 0.6]]))], ids=["I", "C"]
)
def test_the_posterior_times_the_uniform_law_is_stationary(geometry):
    """Every defect is of order 3 or higher with exact gradients."""
    found = orders(prepared(geometry))
    assert found and min(found.values()) > 2.8, found


ISOTROPIC, ANISOTROPIC = 2.0 * np.eye(2), np.array([[4.0, 0.8], [0.8, 1.0]])


def test_isotropic_gradient_noise_leaves_it_stationary_and_anisotropic_noise_does_not():
    assert min(orders(prepared(), noise=ISOTROPIC).values()) > 2.8
    found = orders(prepared(), noise=ANISOTROPIC)
    assert abs(found["ρ₁² − ρ₂²"] - 2) < 0.2 and abs(found["ρ₁ρ₂"] - 2) < 0.2, found


@pytest.mark.slow
def test_coordinates_that_make_the_noise_isotropic_remove_its_leading_effect():
    root = np.linalg.cholesky(np.linalg.inv(ANISOTROPIC))
    found = orders(prepared(DenseMap(jnp.asarray(root))), noise=ANISOTROPIC)
    assert min(found.values()) > 2.8, found


@pytest.mark.slow
def test_correction_through_the_injected_noise_removes_the_leading_effect():
    found = orders(prepared(), noise=ANISOTROPIC, corrected=True)
    assert min(found.values()) > 2.8, found


@pytest.mark.slow
def test_long_runs_have_the_moments_of_the_posterior_up_to_the_square_of_the_step():
    """(4 m(ε/2) − m(ε))/3 has no bias of order ε²; what remains is far below the errors here."""
    posterior = linear()
    mean, covariance = exact_posterior(posterior)
    moments = []
    for step, thin in ((0.4, 2), (0.2, 4)):
        parts = {"dynamics": Microcanonical(3.0), "gradient": Full(), "subsample": AllRows()}
        bound = tallmc.Method(**parts, step_size=step).prepare(posterior).kernel
        settings = {"chains": 1024, "steps": 300, "thin": thin, "burn_in": 200 * thin}
        centred = run_chains(bound, start=mean, **settings) - mean
        second = np.einsum("cti,ctj->cij", centred, centred) / centred.shape[1]
        moments.append((centred.mean(1), second))
    coarse, fine = moments
    assert largest_z((4 * fine[0] - coarse[0]) / 3, np.zeros(2)) < 4.6
    assert largest_z((4 * fine[1] - coarse[1]) / 3, covariance) < 4.6
    assert largest_z(coarse[1], covariance) > 4.6  # the coarse steps alone are seen to be biased


def test_noise_coordinates_are_the_inverse_sds_of_the_row_gradients():
    posterior = linear()
    anchor = tallmc.anchor.find_anchor(posterior)
    found = NoiseDiagonal().prepare(posterior, anchor)
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    residual = x @ np.asarray(anchor.position) - y
    gradients = residual[:, None] * x / float(posterior.model.likelihood.noise_variance)
    expected = 1 / np.sqrt(len(x) * gradients.var(axis=0))
    np.testing.assert_allclose(found.scale, expected, rtol=1e-10)


def test_a_parameter_without_noise_keeps_the_scale_of_the_others():
    x = np.column_stack([np.arange(1.0, 6.0), np.zeros(5)])
    posterior = tallmc.models.linear_regression(
        x, np.arange(5.0) ** 2, prior_variance=1.0, noise_variance=1.0
    )
    scale = np.asarray(
        NoiseDiagonal().prepare(posterior, tallmc.anchor.find_anchor(posterior)).scale
    )
    np.testing.assert_allclose(scale[1], scale[0], rtol=1e-12)


def test_one_parameter_is_refused():
    posterior = linear(dim=1)
    with pytest.raises(tallmc.InvalidInput, match="dynamics must not be Microcanonical"):
        tallmc.methods.sgmclmc(0.1, batch_size=2, friction=1.0).prepare(posterior)


@pytest.mark.slow
def test_the_named_method_runs_on_rows():
    draws = tallmc.sample(
        linear(),
        tallmc.methods.sgmclmc(0.2, batch_size=4, friction=2.0),
        chains=2,
        n_draws=50,
        seed=0,
    )
    assert draws.ok.all()
