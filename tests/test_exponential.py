"""EWSG: its index chain by enumeration, and its gain on the Gaussian example of the paper.

The index chain is checked against eq. 4 of li-2021; the example is that of card C1.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import logistic, slow_after
from stationary import run_chains
from tallmc._core.arrays import IdentityMap
from tallmc._engine.kernel import ChainState, Drawn
from tallmc.dynamics import SGHMC, Langevin
from tallmc.dynamics.dynamics import PositionState
from tallmc.dynamics.momentum import MomentumState
from tallmc.geometry import Dense, Diagonal
from tallmc.gradient import SAGA, SVRG, ControlVariate, Simple
from tallmc.subsample import ExponentiallyWeighted, Preferential, Uniform
from tallmc.subsample.exponential import Proposals
from tallmc.subsample.selection import Carried, Estimate, Transition

STEP, FRICTION = 0.4, 1.3
MOMENTUM, POSITION = np.array([0.8, -0.5]), np.array([0.7, -1.3])
GUESSES = ("at_rest", "to_zero", "zero", "one")


def x_of_the_paper(guess, h, gamma, momentum):
    """The choices of figure 1b, with σ = √(2γ)."""
    sigma = np.sqrt(2 * gamma)
    return {
        "at_rest": np.sqrt(h) * gamma * momentum / sigma,
        "to_zero": (-1 + h * gamma) * momentum / (sigma * np.sqrt(h)),
        "zero": np.zeros_like(momentum),
        "one": np.ones_like(momentum),
    }[guess]


def bound_kernel_of(
    posterior, length, guess="at_rest", size=1, carry=False, gradient=None, base=None
):
    method = tallmc.Method(
        dynamics=SGHMC(FRICTION),
        gradient=gradient or Simple(),
        subsample=ExponentiallyWeighted(length, guess, carry, base or Uniform()),
        batch_size=size,
        step_size=STEP,
    )
    return method.prepare(posterior).kernel


def draws_at(base, batch):
    """These rows, as draws of the base subsample."""
    return base.completed(base.stream.at(jnp.asarray(batch)))


def step_without_noise(bound, motion, batches, log_uniform, carried=None, noise=(0.0, 0.0)):
    """The state after one step of the kernel in which the index chain proposes these batches."""
    arrays = (jnp.asarray(part) for part in (batches, log_uniform, noise))
    return _step(bound, ChainState(motion, carried or Carried()), *arrays)


@run_once
def _step(bound, state, batches, log_uniform, noise):
    kernel = bound.kernel
    each = [draws_at(kernel.selection.base, batch) for batch in batches]
    proposed = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    drawn = Drawn(Proposals(proposed, log_uniform), noise)
    return kernel.step(state, kernel.gather(drawn, bound.rows), jnp.int32(0), bound.rows).state


def momentum_after(bound, batches, log_uniform, carried=None):
    """The momentum after one step without noise in which these batches are proposed."""
    motion = MomentumState(jnp.asarray(POSITION), jnp.asarray(MOMENTUM))
    state = step_without_noise(bound, motion, batches, log_uniform, carried)
    return np.asarray(state.motion.momentum)


def estimates_by_batch(bound, size):
    """Every batch, its probability under the base subsample, and its estimate G_S."""
    posterior, kernel = bound.posterior, bound.kernel
    batches = list(itertools.product(range(posterior.n_rows), repeat=size))
    p = kernel.selection.base.stream.probabilities()
    values = np.asarray(_estimates(bound, jnp.asarray(batches), jnp.asarray(POSITION)))
    return batches, np.array([np.prod(p[list(batch)]) for batch in batches]), values


@run_once
def _estimates(bound, batches, position):
    @jax.vmap
    def of_batch(batch):
        drawn = draws_at(bound.kernel.selection.base, batch)
        taken = jax.tree.map(lambda column: column[batch], bound.posterior.data)
        rows = tallmc.gradient.Batch(taken, drawn.weights, drawn.indices)
        return bound.kernel.gradient(position, rows)

    return of_batch(batches)


@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize(
    ("size", "base"),
    [(1, None), (2, None), (1, Preferential(np.array([1.0, 2.0, 0.5, 4.0]), floor=0.1))],
)
def test_every_step_of_the_index_chain_is_the_papers(guess, size, base):
    """All pairs of batches, with uniforms just below and above the probability of eq. 6."""
    posterior = logistic(n_rows=4)
    bound = bound_kernel_of(posterior, 1, guess, size, base=base)
    batches, _, G = estimates_by_batch(bound, size)
    h = STEP / 2
    x, a = x_of_the_paper(guess, h, FRICTION, MOMENTUM), np.sqrt(h / (2 * FRICTION))
    weight = np.sum((x + a * G) ** 2, axis=1) / 2
    selection = bound.kernel.selection
    step = run_once(
        lambda gradients, log_uniform: selection.last_of_chain(gradients, log_uniform, transition)
    )
    transition = Transition(
        jnp.asarray(x_of_the_paper("at_rest", h, FRICTION, MOMENTUM)),
        lambda: jnp.asarray(x_of_the_paper("to_zero", h, FRICTION, MOMENTUM)),
        jnp.asarray(a),
        IdentityMap(),
    )
    for i, j in itertools.product(range(len(batches)), repeat=2):
        log_accept = min(0.0, weight[j] - weight[i])
        candidates = jnp.asarray(G[[i, j]])
        assert int(step(candidates, jnp.array([log_accept - 1e-9]))) == 1
        if log_accept < 0:
            assert int(step(candidates, jnp.array([log_accept + 1e-9]))) == 0


@pytest.mark.parametrize("guess", GUESSES)
def test_the_dynamics_ask_for_the_papers_x_and_scale(guess):
    """The choice between two batches, through the whole kernel, turns where eq. 6 says."""
    posterior = logistic(n_rows=4)
    bound = bound_kernel_of(posterior, 1, guess)
    _, _, G = estimates_by_batch(bound, 1)
    h = STEP / 2
    x, a = x_of_the_paper(guess, h, FRICTION, MOMENTUM), np.sqrt(h / (2 * FRICTION))
    weight = np.sum((x + a * G) ** 2, axis=1) / 2
    after = lambda i: MOMENTUM - h * (G[i] + FRICTION * MOMENTUM)
    i, j = int(np.argmax(weight)), int(np.argmin(weight))
    for offset, chosen in ((-1e-6, j), (1e-6, i)):
        moved = momentum_after(bound, [(i,), (j,)], [weight[j] - weight[i] + offset])
        np.testing.assert_allclose(moved, after(chosen), rtol=1e-12)


def chain_law(bound, length, size):
    """The law of the batch after `length` Metropolis steps from a fresh batch, and eq. 4."""
    _, q, G = estimates_by_batch(bound, size)
    h = STEP / 2
    x, a = x_of_the_paper("at_rest", h, FRICTION, MOMENTUM), np.sqrt(h / (2 * FRICTION))
    weight = np.sum((x + a * G) ** 2, axis=1) / 2
    accept = np.minimum(1, np.exp(weight[None, :] - weight[:, None]))
    transition = q[None, :] * accept
    transition += np.diag(1 - transition.sum(axis=1))
    limit = q * np.exp(weight - weight.max())
    return q @ np.linalg.matrix_power(transition, length), limit / limit.sum(), G


@pytest.mark.parametrize("length", slow_after(2, [0, 3, 1]))
def test_gradients_have_the_enumerated_law_of_the_index_chain(length):
    posterior, size = logistic(n_rows=4), 2
    bound = bound_kernel_of(posterior, length, size=size)
    kernel, rows = bound.kernel, bound.rows
    law, _, G = chain_law(bound, length, size)
    n = 50_000
    state = ChainState(MomentumState(jnp.asarray(POSITION), jnp.asarray(MOMENTUM)), Carried())

    def momentum(drawn):
        stepped = kernel.step(state, kernel.gather(drawn, rows), jnp.int32(0), rows)
        return stepped.state.motion.momentum

    @run_once
    def all_of(key):
        drawn = kernel.draw(key, n)
        return jax.vmap(momentum)(Drawn(drawn.selection, jnp.zeros_like(drawn.noise)))

    after = all_of(jax.random.key(0))
    seen = (MOMENTUM - np.asarray(after)) / (STEP / 2) - FRICTION * MOMENTUM
    mean = law @ G
    second = np.einsum("s,si,sj->ij", law, G, G)
    products = np.einsum("ni,nj->nij", seen, seen)
    assert np.max(np.abs(seen.mean(0) - mean) / (seen.std(0) / np.sqrt(n))) < 4.6
    assert np.max(np.abs(products.mean(0) - second) / (products.std(0) / np.sqrt(n))) < 4.6


def test_long_index_chains_reach_equation_4():
    bound = bound_kernel_of(logistic(n_rows=4), 1, size=2)
    laws = [chain_law(bound, length, 2)[:2] for length in (0, 1, 10, 200)]
    distance = [np.abs(law - limit).sum() for law, limit in laws]
    assert distance[0] > distance[1] > distance[2]
    assert distance[3] < 1e-9


def test_carried_index_starts_at_the_last_batch():
    posterior = logistic(n_rows=4)
    bound = bound_kernel_of(posterior, 1, carry=True)
    held = Carried(selection=draws_at(bound.kernel.selection.base, [2]))
    _, _, G = estimates_by_batch(bound, 1)
    after = lambda i: MOMENTUM - STEP / 2 * (G[i] + FRICTION * MOMENTUM)
    refused = momentum_after(bound, [(0,)], [50.0], held)
    np.testing.assert_allclose(refused, after(2), rtol=1e-12)
    taken = momentum_after(bound, [(0,)], [-50.0], held)
    np.testing.assert_allclose(taken, after(0), rtol=1e-12)


@pytest.mark.parametrize(
    ("gradient", "dynamics"),
    slow_after(
        1, [(SVRG(every=5), SGHMC(2.0)), (ControlVariate(), Langevin()), (SAGA(), Langevin())]
    ),
    ids=["svrg", "cv", "saga"],
)
def test_it_goes_with_other_gradients_and_dynamics(gradient, dynamics):
    method = tallmc.Method(
        dynamics=dynamics,
        gradient=gradient,
        subsample=ExponentiallyWeighted(2),
        batch_size=2,
        step_size=0.02,
        geometry=Dense(),
    )
    draws = tallmc.sample(logistic(n_rows=20), method, chains=2, n_draws=50)
    assert draws.ok.all()
    assert draws.sample_stats["batch_size"].max() == 6


# li-2021, section 5.1: 50 points in the plane, target N(c̄, I/50).


def example_log_likelihood(theta, c):
    return -jnp.sum((theta - c) ** 2) / 2


def flat_log_prior(theta):
    return jnp.zeros(())


def example(seed=0):
    centres = np.random.default_rng(seed).normal(size=(50, 2))
    return tallmc.Posterior(
        log_likelihood=example_log_likelihood,
        log_prior=flat_log_prior,
        data=centres,
        init=np.zeros(2),
    )


def divergence(method, rows_per_step, passes=30, chains=2000):
    """KL(target ‖ Gaussian fit of the last positions) after this many passes over the data."""
    posterior = example()
    steps = passes * 50 // rows_per_step
    bound = method.prepare(posterior).kernel
    settings = {"chains": chains, "steps": 1, "thin": steps, "burn_in": 0}
    ends = run_chains(bound, start=np.zeros(2), **settings)[:, 0]
    target_mean, target = np.asarray(posterior.data).mean(0), np.eye(2) / 50
    mean, fit = ends.mean(0), np.cov(ends.T)
    apart = mean - target_mean
    inverse = np.linalg.inv(fit)
    log_ratio = np.log(np.linalg.det(fit) / np.linalg.det(target))
    return 0.5 * (np.trace(inverse @ target) + apart @ inverse @ apart - 2 + log_ratio)


def of_the_example(h, subsample, correction=None):
    return tallmc.Method(
        dynamics=SGHMC(10.0),
        subsample=subsample,
        batch_size=1,
        step_size=2 * h,
        correction=correction,
    )


@pytest.mark.slow
def test_ewsg_beats_sghmc():
    sghmc = divergence(of_the_example(0.05, Uniform()), 1)
    ewsg = divergence(of_the_example(0.05, ExponentiallyWeighted(1)), 2)
    assert ewsg < 0.9 * sghmc


@pytest.mark.slow
def test_a_carried_index_is_worse_than_sghmc():
    """At h = 0.02, by the stationary variance."""
    posterior, settings = example(), {"chains": 256, "steps": 1000, "thin": 3, "burn_in": 600}
    mean = np.asarray(posterior.data).mean(0)
    variances = []
    for subsample in (Uniform(), ExponentiallyWeighted(1, carry=True)):
        bound = of_the_example(0.02, subsample).prepare(posterior).kernel
        draws = run_chains(bound, start=mean, **settings)
        variances.append(np.mean((draws - mean) ** 2, axis=(1, 2)))
    uniform, carried = variances
    error = np.sqrt((uniform.var() + carried.var()) / len(uniform))
    assert (carried.mean() - uniform.mean()) / error > 4.6


@pytest.mark.slow
def test_variance_reduction_beats_ewsg_where_noise_is_strong():
    """At h = 0.02.

    At the paper's h = 0.05 its formula gives the friction h·Γ = 3.6, for which Euler steps are
    unstable.
    """
    correction = tallmc.correction.NoiseCorrection(
        "diagonal", through="friction", calibrate_every=50
    )
    ewsg = divergence(of_the_example(0.02, ExponentiallyWeighted(1)), 2)
    reduced = divergence(of_the_example(0.02, ExponentiallyWeighted(1), correction), 3)
    assert reduced < 0.9 * ewsg


@pytest.mark.slow
def test_calibrated_friction_makes_uniform_draws_better_than_exponential_weights():
    correction = tallmc.correction.NoiseCorrection(
        "diagonal", through="friction", calibrate_every=50
    )
    ewsg = divergence(of_the_example(0.01, ExponentiallyWeighted(1)), 2)
    assert divergence(of_the_example(0.01, Uniform(), correction), 2) < 0.2 * ewsg


@pytest.mark.slow
def test_a_step_too_large_for_the_variance_reduction_ends_the_chain():
    correction = tallmc.correction.NoiseCorrection("dense", through="friction", calibrate_every=25)
    method = of_the_example(0.05, ExponentiallyWeighted(1), correction)
    with pytest.warns(
        tallmc.SamplingWarning, match="more gradient noise than its step can correct"
    ):
        draws = tallmc.sample(example(), method, chains=2, n_draws=20)
    assert set(draws.outcomes) == {tallmc.diagnose.Outcome.TOO_NOISY}


@pytest.mark.slow
def test_the_recommended_guess_beats_the_other_three():
    found = {
        guess: divergence(of_the_example(0.07, ExponentiallyWeighted(1, guess)), 2)
        for guess in GUESSES
    }
    others = [found[guess] for guess in GUESSES if guess != "at_rest"]
    assert found["at_rest"] < 0.9 * min(others), found


def test_overdamped_choice_turns_where_appendix_e_says():
    """A = √(h/2)·n∇V_I with h = ε/2: the estimate of the whole gradient, not that of one row."""
    posterior = logistic(n_rows=4)
    method = tallmc.Method(
        dynamics=Langevin(), subsample=ExponentiallyWeighted(1), batch_size=1, step_size=STEP
    )
    bound = method.prepare(posterior).kernel
    _, _, G = estimates_by_batch(bound, 1)
    h = STEP / 2
    weight = np.sum((np.sqrt(h / 2) * G) ** 2, axis=1) / 2
    i, j = int(np.argmax(weight)), int(np.argmin(weight))
    motion = PositionState(jnp.asarray(POSITION))
    for offset, chosen in ((-1e-6, j), (1e-6, i)):
        log_uniform = [weight[j] - weight[i] + offset]
        moved = step_without_noise(bound, motion, [(i,), (j,)], log_uniform).position
        np.testing.assert_allclose(moved, POSITION - h * G[chosen], rtol=1e-12)


@pytest.mark.parametrize(
    "geometry",
    [Dense([[0.3, 0.1], [0.1, 0.2]]), Diagonal([0.5, 0.2])],
    ids=["dense", "diagonal"],
)
@pytest.mark.parametrize("dynamics", [Langevin(), SGHMC(FRICTION)], ids=["over", "under"])
def test_the_move_to_zero_ends_at_zero_in_any_geometry(dynamics, geometry):
    """X is the noise of a move to zero when there is no gradient.

    The position of Langevin dynamics moves, and the momentum of underdamped dynamics.
    """
    method = tallmc.Method(dynamics=dynamics, batch_size=1, step_size=STEP, geometry=geometry)
    prepared = method.prepare(logistic(n_rows=4)).kernel.kernel.dynamics
    overdamped = isinstance(dynamics, Langevin)
    state = (
        PositionState(jnp.asarray(POSITION))
        if overdamped
        else MomentumState(jnp.asarray(POSITION), jnp.asarray(MOMENTUM))
    )
    asked = []

    def no_gradient(position, transition):
        asked.append(transition)
        return Estimate(jnp.zeros_like(position), jnp.int32(0), Carried())

    prepared.step(state, no_gradient, jnp.asarray(STEP), jnp.zeros(2))
    ended = prepared.step(state, no_gradient, jnp.asarray(STEP), asked[0].to_zero()).state
    np.testing.assert_allclose(ended.position if overdamped else ended.momentum, 0, atol=1e-12)
