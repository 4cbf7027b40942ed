"""The order of the stationary bias in the step size, for each integrator.

Gradients are exact, and the stationary laws are computed without Monte Carlo.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import tallmc
from galerkin import gauss, stationary_law
from kept_programs import run_once
from laws import LAWS
from problems import exact_posterior, linear
from stationary import exact_law
from tallmc.dynamics import Hamiltonian, NoseHoover
from tallmc.gradient import Full
from tallmc.subsample import AllRows

QUARTIC = 0.2
HALVINGS = 4


def quartic_log_likelihood(theta, row):
    return -QUARTIC * row * theta**4 / 4


def standard_normal_log_prior(theta):
    return -(theta**2) / 2


def anharmonic() -> tallmc.Posterior:
    """f(θ) = θ²/2 + 0.05 θ⁴."""
    return tallmc.Posterior(
        quartic_log_likelihood, standard_normal_log_prior, data=np.ones(1), init=0.0
    )


def true_second_moment() -> float:
    grid = np.linspace(-9, 9, 4001)
    density = np.exp(-(grid**2) / 2 - QUARTIC * grid**4 / 4)
    return float(density @ grid**2 / density.sum())


def all_rows(dynamics, step):
    return tallmc.Method(dynamics=dynamics, gradient=Full(), subsample=AllRows(), step_size=step)


def evaluate_with(bound):
    """What a dynamics calls for its exact gradient."""
    return lambda at, transition: bound.kernel.estimate(at, None, bound.rows)


@run_once
def moved(bound, like, states, step, noise):
    """One step from each of these flat states; `like` is a state with their structure."""
    _, unravel = ravel_pytree(like)

    def of_one(state, noise):
        dynamics, evaluate = bound.kernel.dynamics, evaluate_with(bound)
        return ravel_pytree(dynamics.step(unravel(state), evaluate, step, noise).state)[0]

    return jax.vmap(of_one)(states, noise)


def law_of(dynamics, step: float, degree: int):
    """The law of the library's own step on the anharmonic target.

    All state variables are centred at their stationary means.
    """
    bound = all_rows(dynamics, step).prepare(anharmonic()).kernel
    prepared = bound.kernel.dynamics
    like = prepared.init(jax.random.key(0), jnp.zeros(1), evaluate_with(bound))
    size = len(ravel_pytree(like)[0])
    centre = np.zeros(size)
    if isinstance(dynamics, NoseHoover):
        centre[2] = dynamics.friction
    noise_length = prepared.noise(jax.random.key(0), 1, jnp.zeros(1)).shape[1]

    def step_of(states, event):
        noise = np.zeros((len(states), noise_length))
        noise[:, -1] = event  # the dynamics below have noise in their last coordinate only
        return np.asarray(moved(bound, like, states + centre, jnp.asarray(step), noise)) - centre

    scales = [np.sqrt(true_second_moment())] + [1.0] * (size - 1)
    return stationary_law(step_of, gauss(12), scales, degree)


CASES = {
    **{name: (*law.quartic, law.order) for name, law in LAWS.items() if law.quartic is not None},
    "nose-hoover-momentum-first": (NoseHoover(1.5, momentum_first=True), 0.2, 10, 1),
}


def slope(steps, biases) -> float:
    return float(np.polyfit(np.log(steps), np.log(np.abs(biases)), 1)[0])


FAST_CASES = ("langevin", "leimkuhler-matthews")
"""The other cases take half a minute each."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST_CASES else pytest.mark.slow) for name in CASES],
)
def test_order_of_the_stationary_bias(name):
    dynamics, largest, degree, order = CASES[name]
    steps = largest / 2.0 ** np.arange(HALVINGS + 1)
    laws = [law_of(dynamics, step, degree) for step in steps]
    biases = [law.second_moment(0) - true_second_moment() for law in laws]
    coarser = law_of(dynamics, steps[-1], degree - 2).second_moment(0) - true_second_moment()
    assert abs(coarser / biases[-1] - 1) < 0.02, "the law is not resolved"
    assert abs(slope(steps, biases) - order) < 0.15, biases


GAUSSIAN_CASES = {
    **{name: (*law.gaussian, law.order) for name, law in LAWS.items() if law.gaussian},
    "trajectories-of-one-step": (Hamiltonian(length=1, friction=0.0), 0.4, 2),
}


@pytest.mark.parametrize("name", GAUSSIAN_CASES)
def test_order_of_the_bias_on_a_gaussian_by_the_lyapunov_solution(name):
    dynamics, largest, order = GAUSSIAN_CASES[name]
    steps = largest / 2.0 ** np.arange(HALVINGS + 1)
    truth = exact_posterior(linear())[1]
    laws = [exact_law(all_rows(dynamics, step).prepare(linear()).kernel, step) for step in steps]
    biases = [np.linalg.norm(law.covariance - truth) for law in laws]
    assert abs(slope(steps, biases) - order) < 0.15, biases
