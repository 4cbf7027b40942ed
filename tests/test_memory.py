"""Estimators with a memory: their exact stationary law as random affine recursions, the rows they count, what they keep."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import DYNAMICS, exact_posterior, linear, logistic, logistic_by_autodiff, slow_after
from stationary import Law, largest_z, law_z, run_chains
from tallmc.gradient import SAGA, SVRG, Batch, SagaGradient, SvrgGradient
from tallmc.subsample import Bandit, Preferential, Uniform

STEP = 0.1


def affine_maps(kernel, size):
    """(probability, A, b) of the map (θ, table) → (θ, table) without noise, for every batch: SAGA on a linear regression."""
    posterior, gradient = kernel.posterior, kernel.gradient
    N, d = posterior.n_rows, posterior.dim
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    noise, prior = float(posterior.family.noise_variance), float(posterior.prior_variance)
    p = kernel.selection.law.probabilities()
    assert isinstance(gradient, SagaGradient)
    for batch in itertools.product(range(N), repeat=size):
        A, b = np.eye(d + N), np.zeros(d + N)
        # ∇f̂ = θ/prior + Σ_i t_i x_i + Σ_{i∈S} w_i (c_i(θ) − t_i) x_i,  c_i(θ) = (x_iᵀθ − y_i)/noise
        drift_A = np.concatenate([np.eye(d) / prior, x.T], axis=1)
        drift_b = np.zeros(d)
        for i in batch:
            weight = 1 / (size * p[i])
            drift_A[:, :d] += weight * np.outer(x[i], x[i]) / noise
            drift_b -= weight * x[i] * y[i] / noise
            drift_A[:, d + i] -= weight * x[i]
        A[:d] -= STEP / 2 * drift_A
        b[:d] -= STEP / 2 * drift_b
        for i in set(batch):
            A[d + i] = 0
            A[d + i, :d] = x[i] / noise
            b[d + i] = -y[i] / noise
        yield np.prod(p[list(batch)]), A, b


def saga_law(kernel, size) -> Law:
    """Stationary mean and covariance of θ' = A_S s + b_S + noise, averaged over every batch S."""
    d = kernel.posterior.dim
    probability, A, b = (np.array(part) for part in zip(*affine_maps(kernel, size), strict=True))
    k = A.shape[1]
    mean_A, mean_b = np.tensordot(probability, A, 1), probability @ b
    mean = np.linalg.solve(np.eye(k) - mean_A, mean_b)
    shift = np.einsum("sij,j->si", A, mean) + b - mean
    injected = np.zeros((k, k))
    injected[:d, :d] = STEP * np.eye(d)
    constant = injected + np.einsum("s,si,sj->ij", probability, shift, shift)
    operator = np.einsum("s,sij,skl->ikjl", probability, A, A).reshape(k * k, k * k)
    S = np.linalg.solve(np.eye(k * k) - operator, constant.ravel()).reshape(k, k)
    return Law(mean[:d], S[:d, :d], (mean_A @ S)[:d, :d])


@pytest.mark.parametrize("subsample", [Uniform(), Preferential("curvature")], ids=["uniform", "preferential"])
def test_saga_has_its_exact_stationary_law(subsample):
    """Two draws a step, so that a row may be drawn twice."""
    posterior = linear(n_rows=7)
    kernel = tallmc.Method(gradient=SAGA(), subsample=subsample, size=2, step_size=STEP).prepare(posterior).kernel
    law = saga_law(kernel, 2)
    np.testing.assert_allclose(law.mean, exact_posterior(posterior)[0], rtol=1e-10)
    z = law_z(kernel, law)
    assert max(z.values()) < 4.6, z


class DuplicatesCountedTwice(SagaGradient):
    def learn(self, memory, batch, residuals):
        learned = super().learn(memory, batch, residuals)
        change = self.posterior.combine(residuals, batch.rows, jnp.ones_like(batch.weights))
        return type(memory)(learned.compact, memory.row_sum.plus(change))


class TableNeverChanges(SagaGradient):
    def learn(self, memory, batch, residuals):
        return memory


class SumForgotten(SagaGradient):
    def learn(self, memory, batch, residuals):
        return type(memory)(super().learn(memory, batch, residuals).compact, memory.row_sum)


@pytest.mark.parametrize("kind", [DuplicatesCountedTwice, TableNeverChanges, SumForgotten])
def test_law_kills(kind):
    kernel = tallmc.saga_ld(STEP, size=2).prepare(linear(n_rows=7)).kernel
    mutant = eqx.tree_at(lambda k: k.gradient, kernel, kind(kernel.posterior))
    z = law_z(mutant, saga_law(kernel, 2), chains=512)
    assert not max(z.values()) < 4.6


def svrg_law(kernel, size, every) -> Law:
    """At the ends of periods: the law of θ after `every` steps around a centre that is θ at their start."""
    posterior = kernel.posterior
    mean, covariance = exact_posterior(posterior)
    x, d, H = np.asarray(posterior.data.x), posterior.dim, np.linalg.inv(covariance)
    p, noise = kernel.selection.law.probabilities(), float(posterior.family.noise_variance)
    B = np.einsum("ij,ik->ijk", x, x) / noise
    M = np.block([[np.eye(d) - STEP / 2 * H, np.zeros((d, d))], [np.zeros((d, d)), np.eye(d)]])
    apart = np.block([np.eye(d), -np.eye(d)])

    def period(S):
        S = np.block([[S, S], [S, S]])
        for _ in range(every):
            distance = apart @ S @ apart.T
            gradient = (np.einsum("ijk,kl,iml->jm", B / p[:, None, None], distance, B) - B.sum(0) @ distance @ B.sum(0)) / size
            S = M @ S @ M.T
            S[:d, :d] += STEP * np.eye(d) + STEP**2 / 4 * gradient
        return S[:d, :d]

    constant = period(np.zeros((d, d)))
    operator = np.stack([(period(unit) - constant).ravel() for unit in np.eye(d * d).reshape(-1, d, d)], axis=1)
    S = np.linalg.solve(np.eye(d * d) - operator, constant.ravel()).reshape(d, d)
    return Law(mean, S, np.linalg.matrix_power(M[:d, :d], every) @ S)


def svrg_z(kernel, law, every):
    """From a start away from the mode, so that a centre left behind is a bad one."""
    centred = run_chains(kernel, chains=1024, steps=400, burn_in=40 * every, start=law.mean + 1.5, thin=every) - law.mean
    return max(
        largest_z(centred.mean(1), np.zeros(2)),
        largest_z(np.einsum("cti,ctj->cij", centred, centred) / centred.shape[1], law.covariance),
        largest_z(np.einsum("cti,ctj->cij", centred[:, 1:], centred[:, :-1]) / (centred.shape[1] - 1), law.lag1),
    )


@pytest.mark.parametrize("subsample", [Uniform(), Preferential("frobenius")], ids=["uniform", "preferential"])
def test_svrg_has_its_exact_stationary_law(subsample):
    kernel = tallmc.Method(gradient=SVRG(5), subsample=subsample, size=2, step_size=STEP).prepare(linear()).kernel
    assert svrg_z(kernel, svrg_law(kernel, 2, 5), 5) < 4.6


class CentreNeverMoves(SvrgGradient):
    def refresh(self, memory, position, step):
        return memory


class CentreMovesWithoutItsSum(SvrgGradient):
    def refresh(self, memory, position, step):
        renewed = super().refresh(memory, position, step)
        return type(memory)(renewed.position, memory.row_sum)


@pytest.mark.parametrize("kind", [CentreNeverMoves, CentreMovesWithoutItsSum])
def test_svrg_law_kills(kind):
    kernel = tallmc.svrg_ld(STEP, size=2, every=5).prepare(linear()).kernel
    mutant = eqx.tree_at(lambda k: k.gradient, kernel, kind(posterior=kernel.posterior, every=5))
    assert not svrg_z(mutant, svrg_law(kernel, 2, 5), 5) < 4.6


def test_passes_of_svrg_and_the_table_of_saga_are_counted():
    posterior = linear(n_rows=12)
    settings = {"chains": 3, "draws": 20, "thin": 2, "burn_in": 5}  # 45 steps
    svrg = tallmc.sample(posterior, tallmc.svrg_ld(0.01, size=2, every=10), **settings)
    assert svrg.n_row_evals_sampling == 3 * (45 * 2 + 5 * 12)
    assert svrg.sample_stats["n_row_evals"][0, -1] == 45 * 2 + 5 * 12
    assert svrg.sample_stats["n_row_evals"][0, 0] == 7 * 2 + 12
    saga = tallmc.sample(posterior, tallmc.saga_ld(0.01, size=2), **settings)
    assert saga.n_row_evals_sampling == 3 * (45 * 2 + 12)


@pytest.mark.parametrize("model", [logistic, logistic_by_autodiff])
def test_the_table_of_a_glm_is_one_number_a_row(model):
    posterior = model(n_rows=9)
    memory = SAGA().prepare(posterior, None).start(jnp.array([0.3, -0.2]))
    assert memory.compact.shape == ((9,) if model is logistic else (9, 2))


def test_sum_of_the_table_stays_what_the_table_says_in_single_precision():
    """After many steps, with rounding errors that would add up."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32) * 30
    posterior = tallmc.models.linear_regression(x, 1e4 + x @ np.float32([1, 2, 3]), prior_variance=np.float32(10))
    kernel = tallmc.saga_ld(1e-6, size=8).prepare(posterior).kernel
    gradient, position = kernel.gradient, jnp.zeros(3, jnp.float32)

    @jax.jit
    def many(memory, picks):
        def one(memory, picks):
            rows = jax.tree.map(lambda column: column[picks.indices], posterior.data)
            at = position + jnp.sin(jnp.sum(picks.indices)).astype(jnp.float32)
            batch = Batch(rows, picks.weights, picks.indices)
            return gradient.learn(memory, batch, gradient.residuals(at, rows, picks.indices, memory)), None

        return jax.lax.scan(one, memory, picks)[0]

    memory = many(gradient.start(position), kernel.selection.supply(jax.random.key(0), 50_000))
    exact = np.asarray(memory.compact, np.float64) @ np.asarray(x, np.float64)
    assert memory.compact.dtype == jnp.float32
    np.testing.assert_allclose(memory.row_sum.rounded(), exact, atol=2e-6 * np.abs(memory.compact).max() * np.abs(x).sum(0).max())


@pytest.mark.parametrize(
    ("gradient", "dynamics"),
    slow_after(1, [(SVRG(7), "nose-hoover"), (SAGA(), "rmsprop"), (SAGA(), "recipe")]),
    ids=["svrg-nose-hoover", "saga-rmsprop", "saga-recipe"],
)
def test_memories_go_with_other_dynamics(gradient, dynamics):
    method = tallmc.Method(dynamics=DYNAMICS[dynamics], gradient=gradient, subsample=Bandit(), size=3, step_size=0.02)
    draws = tallmc.sample(linear(), method, chains=2, draws=40, burn_in=3)
    assert draws.ok.all()
    assert np.isfinite(draws.positions).all()
