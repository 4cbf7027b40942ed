"""Exponential weights for every integrator that describes its move (li-2021, section 4.2).

The weights are compared with the densities of the moves. The densities are computed from the steps
of the dynamics themselves, for every batch of a small data set.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import DYNAMICS, logistic, slow_after
from stationary import run_chains
from tallmc.dynamics import BAOAB, SGHMC, GeometricLangevin, Hamiltonian
from tallmc.geometry import Dense, Identity
from tallmc.subsample import ExponentiallyWeighted, Uniform
from tallmc.subsample.selection import Carried, Estimate
from test_exponential import estimates_by_batch, example, step_without_noise

STEP, FRICTION, SIZE = 0.4, 1.3, 2
POSITION, MOMENTUM = jnp.array([0.7, -1.3]), jnp.array([0.8, -0.5])
INTEGRATORS = {
    "underdamped": SGHMC(FRICTION),
    "splitting": BAOAB(FRICTION),
    "geometric-langevin": GeometricLangevin(FRICTION),
    "trajectories": Hamiltonian(3, FRICTION),
}
GEOMETRIES = {"identity": Identity(), "dense": Dense([[0.3, 0.1], [0.1, 0.2]])}
ENDS = {"at_rest": MOMENTUM, "to_zero": jnp.zeros(2)}
MORE_MOVES = [("dense", "at_rest"), ("identity", "to_zero"), ("identity", "at_rest")]


def test_every_dynamics_with_momentum_and_a_transition_is_tested_here():
    with_transition = {name for name, choice in DYNAMICS.items() if choice.has_transition}
    assert with_transition == {"langevin", *INTEGRATORS}
    assert not Hamiltonian(3, 0.0).has_transition


def bound_with(dynamics, geometry=None, guess="at_rest"):
    method = tallmc.Method(
        dynamics=dynamics,
        subsample=ExponentiallyWeighted(1, guess),
        batch_size=SIZE,
        step_size=STEP,
        geometry=geometry or Identity(),
    )
    return method.prepare(logistic(n_rows=4)).kernel


def state_of(dynamics, position=POSITION):
    """The state with this position and momentum; trajectories are inside of a trajectory."""
    state = dynamics.init(jax.random.key(0), position, lambda *_: None)
    state = dataclasses.replace(state, momentum=MOMENTUM)
    return dataclasses.replace(state, inner=jnp.int32(1)) if hasattr(state, "inner") else state


def moved(dynamics, gradient, noise):
    """The state after a step with this gradient, and the transition that the step described."""
    asked = []

    def evaluate(at, transition):
        asked.append(transition)
        return Estimate(jnp.asarray(gradient), jnp.int32(0), Carried())

    drawn = dynamics.noise(jax.random.key(0), 1, POSITION)[0]
    noise = jnp.broadcast_to(jnp.asarray(noise), drawn.shape)
    return dynamics.step(state_of(dynamics), evaluate, jnp.asarray(STEP), noise).state, asked[0]


def gradients_by_batch(bound):
    """The probability of each batch under the base subsample, its estimate, the exact gradient."""
    _, q, G = estimates_by_batch(bound, SIZE)
    return q, G, np.asarray(bound.posterior.gradient(POSITION))


def density_ratios(dynamics, G, gradient, end):
    """Density at `end` of the move with the exact gradient over that with each G_S.

    ρ' is Gaussian; its mean is that of a step without noise, and its sd is found from a step with
    unit noise.
    """
    mean_of = lambda g: np.asarray(moved(dynamics, g, 0.0)[0].momentum)
    sd = np.asarray(moved(dynamics, gradient, 1.0)[0].momentum) - mean_of(gradient)
    log_density = lambda g: -np.sum(((np.asarray(end) - mean_of(g)) / sd) ** 2) / 2
    return np.exp(log_density(gradient) - np.array([log_density(g) for g in G]))


def exponential_weights(dynamics, G, gradient, guess):
    """exp(‖x + aG_S‖²/2 − ‖x + ag‖²/2) of eq. 4, from the transition of the dynamics."""
    transition = moved(dynamics, gradient, 0.0)[1]
    x = transition.at_rest if guess == "at_rest" else transition.to_zero()
    squares = lambda g: np.sum((x + transition.scale * transition.geometry.pull(g)) ** 2, axis=-1)
    return np.exp((squares(jnp.asarray(G)) - squares(jnp.asarray(gradient))) / 2)


def weights_error(dynamics, bound, guess="at_rest"):
    _, G, gradient = gradients_by_batch(bound)
    direct = density_ratios(dynamics, G, gradient, ENDS[guess])
    return np.max(np.abs(exponential_weights(dynamics, G, gradient, guess) / direct - 1))


@pytest.mark.parametrize(
    ("geometry", "guess"),
    slow_after(1, [("dense", "to_zero"), *MORE_MOVES]),
)
@pytest.mark.parametrize("name", INTEGRATORS)
def test_weights_are_the_density_ratio_of_the_moves_of_every_batch(name, geometry, guess):
    bound = bound_with(INTEGRATORS[name], GEOMETRIES[geometry])
    assert weights_error(bound.kernel.dynamics, bound, guess) < 1e-9


@pytest.mark.parametrize("name", INTEGRATORS)
def test_weighted_batches_have_the_density_of_the_exact_gradient_at_the_guessed_end(name):
    """Σ_S p_S N(ρ; m_S, s²) = N(ρ; m, s²) / Σ_S q_S w_S: what eq. 4 is derived from."""
    bound = bound_with(INTEGRATORS[name])
    dynamics = bound.kernel.dynamics
    q, G, gradient = gradients_by_batch(bound)
    w = exponential_weights(dynamics, G, gradient, "at_rest")
    against_exact = 1 / density_ratios(dynamics, G, gradient, MOMENTUM)
    p = q * w / np.sum(q * w)
    np.testing.assert_allclose(p @ against_exact, 1 / np.sum(q * w), rtol=1e-9)
    assert abs(q @ against_exact * np.sum(q * w) - 1) > 1e-3  # uniform draws do not have it


@pytest.mark.parametrize("name", slow_after(2, INTEGRATORS))
def test_where_a_move_ends_depends_on_the_gradient_only_through_the_momentum(name):
    """Except in `BAOAB`, whose joint density ratio therefore does not exist."""
    bound = bound_with(INTEGRATORS[name])
    _, G, _ = gradients_by_batch(bound)
    dynamics = bound.kernel.dynamics

    def position_at_rest(g):
        """The end of the move with gradient g whose noise leaves the momentum as it was."""
        mean = np.asarray(moved(dynamics, g, 0.0)[0].momentum)
        sd = np.asarray(moved(dynamics, g, 1.0)[0].momentum) - mean
        return np.asarray(moved(dynamics, g, (MOMENTUM - mean) / sd)[0].position)

    spread = np.ptp([position_at_rest(g) for g in G], axis=0).max()
    assert (spread > 1e-2) if name == "splitting" else (spread < 1e-12)


@pytest.mark.parametrize("name", INTEGRATORS)
def test_the_choice_between_two_batches_turns_where_the_densities_say(name):
    """Through the whole kernel: the uniform number just below and above the ratio of eq. 6."""
    bound = bound_with(INTEGRATORS[name])
    dynamics = bound.kernel.dynamics
    start = state_of(dynamics)
    if name == "trajectories":  # its gradient is taken after half a drift
        start = dataclasses.replace(start, position=POSITION - STEP / 4 * MOMENTUM)
    _, G, gradient = gradients_by_batch(bound)
    log_weight = np.log(density_ratios(dynamics, G, gradient, MOMENTUM))
    batches = list(itertools.product(range(4), repeat=SIZE))
    i, j = int(np.argmax(log_weight)), int(np.argmin(log_weight))
    for offset, chosen in ((-1e-6, j), (1e-6, i)):
        threshold = [log_weight[j] - log_weight[i] + offset]
        quiet = jnp.zeros((2, 2)) if name == "trajectories" else jnp.zeros(2)
        after = step_without_noise(bound, start, [batches[i], batches[j]], threshold, noise=quiet)
        expected = moved(dynamics, G[chosen], 0.0)[0].momentum
        np.testing.assert_allclose(after.motion.momentum, expected, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", [BAOAB(10.0), GeometricLangevin(10.0)])
def test_exponential_weights_reduce_the_excess_variance_of_second_order_integrators(dynamics):
    """On the Gaussian example of the paper at h = 0.02, against uniform draws of the same step."""
    posterior, settings = example(), {"chains": 256, "steps": 1000, "thin": 3, "burn_in": 600}
    mean = np.asarray(posterior.data).mean(0)
    variances = []
    for subsample in (Uniform(), ExponentiallyWeighted(1)):
        parts = {"dynamics": dynamics, "subsample": subsample, "batch_size": 1, "step_size": 0.04}
        draws = run_chains(tallmc.Method(**parts).prepare(posterior).kernel, start=mean, **settings)
        variances.append(np.mean((draws - mean) ** 2, axis=(1, 2)) * 50)
    uniform, weighted = variances
    error = np.sqrt((uniform.var() + weighted.var()) / len(uniform))
    assert (uniform.mean() - weighted.mean()) / error > 4.6
