"""SGFS: Algorithm 1 step by step, its law with a known Fisher information, and its exact case."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_recipe import never_evaluated

import tallmc
from kept_programs import run_once
from problems import exact_posterior, linear, logistic
from stationary import Recursion, cast, exact_law, largest_z, law_z, run_chains
from steps import random_point, stepped, with_given_gradient
from tallmc.dynamics import FisherScoring, Langevin
from tallmc.dynamics.fisher_scoring import FisherState
from tallmc.geometry import Dense, Identity
from tallmc.gradient import ControlVariate
from tallmc.subsample import Preferential, TargetNoise, Uniform

COVARIANCE = np.array([[0.3, 0.1], [0.1, 0.2]])
SHAPES = ("dense", "diagonal")
GEOMETRIES = {"identity": Identity(), "dense": Dense(COVARIANCE)}


def kernel_of(posterior, shape="dense", step=0.3, size=3, geometry=None, window=None):
    method = tallmc.Method(
        dynamics=FisherScoring(shape, window),
        batch_size=size,
        step_size=step,
        geometry=geometry or Identity(),
    )
    return method.prepare(posterior).kernel


# With "diagonal" in dense coordinates the diagonal is that of CᵀNÎC, which the paper does not have.
@pytest.mark.parametrize(
    ("shape", "geometry"), [("dense", "identity"), ("dense", "dense"), ("diagonal", "identity")]
)
def test_steps_are_those_of_algorithm_1(shape, geometry):
    """A transcription with the paper's B, N, n and γ, on the rows and the noise of the chain."""
    posterior, step, n = logistic(n_rows=40), 0.3, 5
    bound = kernel_of(posterior, shape, step, n, GEOMETRIES[geometry])
    kernel, rows, N = bound.kernel, bound.rows, 40
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    B = np.eye(2) if geometry == "identity" else np.linalg.inv(COVARIANCE)
    C = np.asarray(kernel.dynamics.geometry.push(jnp.eye(2))).T
    drawn = jax.tree.map(np.asarray, run_once(lambda key: kernel.draw(key, 30))(jax.random.key(0)))
    state = kernel.dynamics.init(jax.random.key(1), jnp.array([0.4, -0.7]), never_evaluated)

    @run_once
    def next_state(state, of_step):
        batch = kernel.gather(of_step, rows).selection
        evaluate = lambda at, to: kernel.estimate(at, batch, rows)
        return kernel.dynamics.step(state, evaluate, jnp.asarray(step), of_step.noise).state

    theta, information, gamma = np.array([0.4, -0.7]), np.zeros((2, 2)), (n + N) / n
    for t in range(30):
        of_step = jax.tree.map(lambda leaf, t=t: leaf[t], drawn)
        state = next_state(state, of_step)
        i = np.asarray(of_step.selection.indices)
        scores = (y[i] - 1 / (1 + np.exp(-x[i] @ theta)))[:, None] * x[i]  # ∇ log p(x_i | θ)
        information = information + (np.cov(scores.T) - information) / (t + 1)
        used = np.diag(np.diag(information)) if shape == "diagonal" else information
        # C⁻ᵀ is a root of B, so that C⁻ᵀη ~ N(0, B).
        eta = 2 / np.sqrt(step) * np.linalg.solve(C.T, np.asarray(of_step.noise))
        drift = -theta / 2.0 + N * scores.mean(0) + eta
        theta = theta + 2 * np.linalg.solve(gamma * N * used + 4 * B / step, drift)
        np.testing.assert_allclose(state.position, theta, rtol=1e-9)
    assert np.abs(theta - [0.4, -0.7]).max() > 0.01


def test_within_batch_covariance_is_the_fisher_information_on_average_by_enumeration():
    """The mean of the first estimate over every batch is N Cov(∇f_i), with divisor N."""
    posterior, position = logistic(), jnp.array([0.4, -0.7])
    bound = kernel_of(posterior, size=2)
    kernel, rows = bound.kernel, bound.rows
    start = kernel.dynamics.init(jax.random.key(0), position, never_evaluated)

    @run_once
    @jax.vmap
    def fisher(indices):
        drawn = kernel.selection.completed(kernel.selection.stream.at(indices))
        batch = kernel.selection.gather(drawn, rows)
        evaluate = lambda at, to: kernel.estimate(at, batch, rows)
        return kernel.dynamics.step(start, evaluate, jnp.asarray(0.1), jnp.zeros(2)).state.fisher

    pairs = np.array(list(itertools.product(range(5), repeat=2)))
    mean = np.mean(fisher(jnp.asarray(pairs)), axis=0)
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    scores = (y - 1 / (1 + np.exp(-x @ np.asarray(position))))[:, None] * x
    np.testing.assert_allclose(mean, 5 * np.cov(scores.T, ddof=0), rtol=1e-11)


class KnownFisher(FisherScoring):
    """The Fisher information is given: batches no longer change the average."""

    fisher: jax.Array | None = None

    def init(self, key, position, evaluate):
        return FisherState(position, self.fisher, jnp.int32(2**31 - 2))


def with_known_fisher(bound, fisher, kind=KnownFisher):
    """The kernel with CᵀNÎC fixed at `fisher`."""
    known = cast(bound.kernel.dynamics, kind, fisher=jnp.asarray(fisher))
    return dataclasses.replace(bound, kernel=dataclasses.replace(bound.kernel, dynamics=known))


def fisher_scoring_recursion(bound, fisher, step, size):
    """Algorithm 1 with a fixed Fisher information."""
    C = np.asarray(bound.kernel.dynamics.geometry.push(jnp.eye(2))).T
    full = np.diag(fisher) if np.ndim(fisher) == 1 else np.asarray(fisher)
    gamma = (size + bound.rows.n_rows) / size
    P = 2 * np.linalg.inv(gamma * full + 4 / step * np.eye(2))
    return Recursion(np.eye(2), -C @ P @ C.T, 2 / np.sqrt(step) * C @ P)


def fisher_scoring_law(bound, fisher, step, size):
    """The Lyapunov solution of Algorithm 1 with a fixed Fisher information."""
    return exact_law(bound, step, fisher_scoring_recursion(bound, fisher, step, size))


def fisher_step_error(bound, fisher, step, size) -> float:
    """The largest difference between steps with a known Fisher information and Algorithm 1.

    The spread of a batch still changes the Fisher information, by one part in 2³¹.
    """
    _, B, N, *_ = fisher_scoring_recursion(bound, fisher, step, size)
    known = {"fisher": fisher, "count": np.int32(2**31 - 2)}
    points = [random_point(bound, seed, **known) for seed in range(8)]
    after, _ = stepped(with_given_gradient(bound, n_rows=size), bound.rows, *points)
    moves = np.array([B @ at.gradient + N @ at.noise for at in points])
    start = np.array([at.motion.position for at in points])
    return float(np.abs(after.position - start - moves).max())


FISHER = {"dense": np.array([[0.6, 0.2], [0.2, 0.4]]), "diagonal": np.array([0.6, 0.4])}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_step_with_a_known_fisher_information_is_affine_with_the_papers_matrices(shape, geometry):
    step = 0.2
    bound = kernel_of(linear(), shape, step, 4, GEOMETRIES[geometry])
    fisher = FISHER[shape] * (5.0 if geometry == "identity" else 1.0)
    known = with_known_fisher(bound, fisher)
    assert fisher_step_error(known, fisher, step, 4) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("step", [0.2, 1.0])
def test_stationary_law_with_a_known_fisher_information(shape, geometry, step):
    bound = kernel_of(linear(), shape, step, 4, GEOMETRIES[geometry])
    fisher = FISHER[shape] * (5.0 if geometry == "identity" else 1.0)
    z = law_z(with_known_fisher(bound, fisher), fisher_scoring_law(bound, fisher, step, 4))
    assert max(z.values()) < 4.6, z


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_is_of_order_one_in_the_step_size(shape):
    truth, steps = exact_posterior(linear())[1], 0.02 / 2.0 ** np.arange(5)
    bound, fisher = kernel_of(linear(), shape, size=4), 5 * FISHER[shape]
    laws = [fisher_scoring_law(bound, fisher, step, 4) for step in steps]
    biases = [np.linalg.norm(law.covariance - truth) for law in laws]
    slope = np.polyfit(np.log(steps), np.log(biases), 1)[0]
    assert abs(slope - 1) < 0.15, biases


ROWS = 200


def location() -> tallmc.Posterior:
    """Rows of N(θ, I) whose sample covariance is I: the Fisher information is the Hessian."""
    data = np.random.default_rng(0).normal(size=(ROWS, 2))
    data -= data.mean(0)
    data @= np.linalg.inv(np.linalg.cholesky(data.T @ data / ROWS)).T
    return tallmc.Posterior(
        lambda theta, row: -jnp.sum((row - theta) ** 2) / 2,
        lambda theta: 0.0 * jnp.sum(theta),
        data=data,
        init=np.zeros(2),
    )


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("step", [0.02, 1e6])
def test_no_bias_where_the_fisher_information_is_the_hessian_by_the_lyapunov_equation(
    step, geometry
):
    """With NÎ = H and gradient noise (N/n)H, S = H⁻¹ is stationary at any step size."""
    size, H = 20, np.array([[40.0, 10.0], [10.0, 30.0]])
    bound = kernel_of(linear(n_rows=ROWS), "dense", step, size, GEOMETRIES[geometry])
    C = np.asarray(bound.kernel.dynamics.geometry.push(jnp.eye(2))).T
    A, B, N, *_ = fisher_scoring_recursion(bound, C.T @ H @ C, step, size)
    M, S = A + B @ H, np.linalg.inv(H)
    after = M @ S @ M.T + N @ N.T + B @ (ROWS / size * H) @ B.T
    np.testing.assert_allclose(after, S, rtol=1e-12, atol=1e-15)


def covariance_z(bound, chains=512, draws=100, thin=10, burn_in=1000):
    """Largest |z| of the covariance of long runs against that of the posterior, I/N."""
    options = {"chains": chains, "steps": draws, "burn_in": burn_in, "thin": thin}
    u = run_chains(bound, start=np.zeros(2), **options)
    return largest_z(np.einsum("cti,ctj->cij", u, u) / draws, np.eye(2) / ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "step"), [("dense", 0.02), ("dense", 1e6), ("diagonal", 0.02), ("diagonal", 1e6)]
)
def test_no_bias_at_any_step_size_where_the_fisher_information_is_the_hessian(shape, step):
    """The Fisher information is estimated on the run. Langevin steps are visibly biased here."""
    window = None if step < 1 else 100
    assert covariance_z(kernel_of(location(), shape, step, 20, window=window)) < 4.6


@pytest.mark.slow
def test_a_memory_forgets_a_start_far_away():
    """With the paper's average, gradients of the burn-in slow the chain and narrow its law."""
    options = {"chains": 256, "steps": 50, "burn_in": 1000, "thin": 10}

    def largest_sd(window):
        bound = kernel_of(linear(n_rows=200), "dense", 0.05, 20, window=window)
        mean, covariance = exact_posterior(linear(n_rows=200))
        u = run_chains(bound, start=np.zeros(2), **options) - mean
        return np.sqrt(np.einsum("cti->i", u**2) / u[..., 0].size / np.diag(covariance)).max()

    assert largest_sd(None) < 0.6 and 0.9 < largest_sd(100) < 1.2


@pytest.mark.slow
def test_langevin_has_a_bias_there():
    method = tallmc.Method(dynamics=Langevin(), batch_size=20, step_size=0.002)
    assert covariance_z(method.prepare(location()).kernel) > 10


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"gradient": ControlVariate(), "batch_size": 4}, r"gradient must be Simple\(\)"),
        (
            {"subsample": Preferential("gradient"), "batch_size": 4},
            r"subsample must be Uniform\(\)",
        ),
        ({"subsample": Uniform(replace=False), "batch_size": 4}, r"subsample must be Uniform\(\)"),
        ({"batch_size": 1}, "size must be an int of at least 2"),
        ({"batch_size": TargetNoise(4, noise=1.0)}, "size must be an int of at least 2"),
    ],
)
def test_compositions_whose_spread_is_not_the_fisher_information_are_refused(parts, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        tallmc.Method(dynamics=FisherScoring(), step_size=0.1, **parts)


def test_memory_must_be_positive():
    with pytest.raises(tallmc.InvalidInput, match="window must be an int in"):
        FisherScoring(window=0)


def test_shape_must_be_known():
    with pytest.raises(tallmc.InvalidInput, match='shape must be "dense" or "diagonal"'):
        FisherScoring("full")
