"""Estimators with a memory: their stationary law, the rows they count, and what they keep.

The exact stationary law on a linear regression comes from random affine recursions.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import (
    DYNAMICS,
    exact_posterior,
    linear,
    logistic,
    logistic_by_autodiff,
    residual_matrix,
    slow_after,
    start_of,
)
from stationary import Law, cast, largest_z, law_z, run_chains
from tallmc._core.arrays import named_leaves
from tallmc._engine.run import Run, chain_keys
from tallmc._engine.supply import block_steps
from tallmc.gradient import SAGA, SVRG, Batch
from tallmc.subsample import Bandit, Preferential, Uniform

STEP = 0.1


def affine_maps(bound, size):
    """(probability, A, b) of the noiseless map (θ, table) → (θ, table), for every batch.

    This is SAGA on a linear regression.
    """
    posterior, kernel = bound.posterior, bound.kernel
    N, d = posterior.n_rows, posterior.dim
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    model = posterior.model
    noise, prior = float(model.likelihood.noise_variance), float(model.prior.variance)
    p = kernel.selection.stream.probabilities()
    assert isinstance(kernel.gradient, SAGA)
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


def saga_law(bound, size) -> Law:
    """Stationary mean and covariance of θ' = A_S s + b_S + noise, averaged over every batch S."""
    d = bound.posterior.dim
    probability, A, b = (np.array(part) for part in zip(*affine_maps(bound, size), strict=True))
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


@pytest.mark.parametrize(
    "subsample",
    slow_after(1, [Uniform(), Preferential("curvature")]),
    ids=["uniform", "preferential"],
)
def test_saga_has_its_exact_stationary_law(subsample):
    """With two draws per step, a row may be drawn twice."""
    posterior = linear(n_rows=7)
    method = tallmc.Method(gradient=SAGA(), subsample=subsample, batch_size=2, step_size=STEP)
    bound = method.prepare(posterior).kernel
    law = saga_law(bound, 2)
    np.testing.assert_allclose(law.mean, exact_posterior(posterior)[0], rtol=1e-10)
    z = law_z(bound, law, chains=512, steps=400)
    assert max(z.values()) < 4.6, z


class DuplicatesCountedTwice(SAGA):
    def learn(self, carried, batch, residuals):
        learned = super().learn(carried, batch, residuals)
        change = self.model.combine(residuals, batch.rows, jnp.ones_like(batch.weights))
        return type(carried)(learned.compact, carried.row_sum.plus(change))


class TableNeverChanges(SAGA):
    def learn(self, carried, batch, residuals):
        return carried


class SumForgotten(SAGA):
    def learn(self, carried, batch, residuals):
        return type(carried)(super().learn(carried, batch, residuals).compact, carried.row_sum)


SAGA_MUTANTS = [DuplicatesCountedTwice, TableNeverChanges, SumForgotten]


def table_error(kind=SAGA) -> float:
    """The error of table and sum after two batches, in which rows are drawn twice.

    The table must hold x_iᵀθ − y_i over the noise variance at the last θ at which row i was read,
    and the sum must be that of the table.
    """
    posterior = linear(n_rows=7)
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    noise = float(posterior.model.likelihood.noise_variance)  # type: ignore[attr-defined]
    gradient = cast(SAGA().prepare(posterior, None), kind)
    batches = jnp.array([[3, 0, 3], [5, 0, 0]])
    positions = np.array([[0.4, -0.2], [1.1, 0.3], [-0.6, 0.8]])

    @run_once
    def learned(carried):
        for indices, at in zip(batches, positions[1:], strict=True):
            rows = posterior.rows.take(indices)
            residuals = gradient.residuals(jnp.asarray(at), rows, indices, carried)
            carried = gradient.learn(carried, Batch(rows, jnp.ones(3), indices), residuals)
        return carried.compact, carried.row_sum.rounded()

    read_at = positions[[2, 0, 0, 1, 0, 2, 0]]
    table = (np.sum(x * read_at, axis=1) - y) / noise
    found = learned(start_of(gradient, posterior.rows, positions[0]))
    return max(np.abs(found[0] - table).max(), np.abs(found[1] - x.T @ table).max())


def test_the_table_of_saga_is_that_of_the_last_gradients():
    assert table_error() < 1e-12


@pytest.mark.parametrize("kind", SAGA_MUTANTS)
def test_the_table_kills(kind):
    assert 1e-2 < table_error(kind) < np.inf


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAGA_MUTANTS)
def test_law_kills(kind):
    bound = tallmc.methods.saga_ld(STEP, batch_size=2).prepare(linear(n_rows=7)).kernel
    mutant = eqx.tree_at(lambda b: b.kernel.gradient, bound, cast(bound.kernel.gradient, kind))
    z = law_z(mutant, saga_law(bound, 2), chains=512)
    assert not max(z.values()) < 4.6


def svrg_law(bound, size, every) -> Law:
    """The law of θ at the ends of periods of `every` steps.

    The centre of a period is θ at its start.
    """
    posterior = bound.posterior
    mean, covariance = exact_posterior(posterior)
    x, d, H = np.asarray(posterior.data.x), posterior.dim, np.linalg.inv(covariance)
    p = bound.kernel.selection.stream.probabilities()
    noise = float(posterior.model.likelihood.noise_variance)
    B = np.einsum("ij,ik->ijk", x, x) / noise
    M = np.block([[np.eye(d) - STEP / 2 * H, np.zeros((d, d))], [np.zeros((d, d)), np.eye(d)]])
    apart = np.block([np.eye(d), -np.eye(d)])

    def period(S):
        S = np.block([[S, S], [S, S]])
        for _ in range(every):
            distance = apart @ S @ apart.T
            second = np.einsum("ijk,kl,iml->jm", B / p[:, None, None], distance, B)
            gradient = (second - B.sum(0) @ distance @ B.sum(0)) / size
            S = M @ S @ M.T
            S[:d, :d] += STEP * np.eye(d) + STEP**2 / 4 * gradient
        return S[:d, :d]

    constant = period(np.zeros((d, d)))
    basis = np.eye(d * d).reshape(-1, d, d)
    operator = np.stack([(period(unit) - constant).ravel() for unit in basis], axis=1)
    S = np.linalg.solve(np.eye(d * d) - operator, constant.ravel()).reshape(d, d)
    return Law(mean, S, np.linalg.matrix_power(M[:d, :d], every) @ S)


def test_svrg_with_preferential_rows_is_unbiased_and_less_noisy():
    """All batches of one row, with centre and position drawn from the posterior."""
    posterior = linear(n_rows=30, dim=3)
    mean, covariance = exact_posterior(posterior)
    pairs = np.random.default_rng(0).multivariate_normal(mean, covariance, (20, 2))
    noise = {"svrg_ld": 0.0, "svrg_ld_ps": 0.0}
    for name in noise:
        make = tallmc.methods.METHODS[name].make
        bound = make(STEP, batch_size=1, every=5).prepare(posterior).kernel
        gradient, p = bound.kernel.gradient, bound.kernel.selection.stream.probabilities()
        for centre, position in pairs:
            carried = start_of(gradient, posterior.rows, centre)
            residuals = residual_matrix(gradient, posterior.rows, position, carried)
            known = np.asarray(gradient.known(jnp.asarray(position), carried))
            estimates = known + residuals / p[:, None]
            exact = np.linalg.solve(covariance, position - mean)
            np.testing.assert_allclose(p @ estimates, exact, rtol=1e-8, atol=1e-8)
            noise[name] += p @ ((estimates - exact) ** 2).sum(axis=1)
    assert noise["svrg_ld_ps"] < 0.5 * noise["svrg_ld"]


def svrg_z(bound, law, every):
    """Largest |z| of long runs against the law.

    The start is away from the mode, so that a centre that is never renewed is a bad one.
    """
    settings = {"chains": 1024, "steps": 400, "burn_in": 40 * every, "thin": every}
    centred = run_chains(bound, start=law.mean + 1.5, **settings) - law.mean
    second = np.einsum("cti,ctj->cij", centred, centred) / centred.shape[1]
    lag1 = np.einsum("cti,ctj->cij", centred[:, 1:], centred[:, :-1]) / (centred.shape[1] - 1)
    return max(
        largest_z(centred.mean(1), np.zeros(2)),
        largest_z(second, law.covariance),
        largest_z(lag1, law.lag1),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "subsample", [Uniform(), Preferential("frobenius")], ids=["uniform", "preferential"]
)
def test_svrg_has_its_exact_stationary_law(subsample):
    method = tallmc.Method(gradient=SVRG(5), subsample=subsample, batch_size=2, step_size=STEP)
    bound = method.prepare(linear()).kernel
    assert svrg_z(bound, svrg_law(bound, 2, 5), 5) < 4.6


class CentreNeverMoves(SVRG):
    def renew(self, carried, positions, row_sums):
        return carried


class CentreMovesWithoutItsSum(SVRG):
    def renew(self, carried, positions, row_sums):
        renewed = super().renew(carried, positions, row_sums)
        return type(carried)(renewed.position, carried.row_sum)


SVRG_MUTANTS = [CentreNeverMoves, CentreMovesWithoutItsSum]


def with_gradient(bound, kind):
    return eqx.tree_at(lambda b: b.kernel.gradient, bound, cast(bound.kernel.gradient, kind))


def centre_error(kind=SVRG) -> float:
    """The error of the centre and its sum after a renewal, in two chains."""
    posterior = linear()
    bound = tallmc.methods.svrg_ld(STEP, batch_size=2, every=5).prepare(posterior).kernel
    kernel = with_gradient(bound, kind).kernel
    starts, ends = np.array([[[0.5, 2.5], [-1.0, 0.0]], [[3.0, 1.0], [0.2, -0.7]]])
    memory = kernel.start_memory(jnp.asarray(starts), posterior.rows)
    renewed = kernel.renewed_memory(memory, jnp.asarray(ends), posterior.rows).gradient
    x, y = np.asarray(posterior.data.x), np.asarray(posterior.data.y)
    noise = float(posterior.model.likelihood.noise_variance)  # type: ignore[attr-defined]
    sums = (ends @ x.T - y) @ x / noise
    pairs = [(renewed.position, ends), (renewed.row_sum, sums)]
    return max(np.abs(np.asarray(found) - right).max() for found, right in pairs)


def test_a_renewal_moves_the_centre_of_svrg_and_its_sum():
    assert centre_error() < 1e-11


@pytest.mark.parametrize("kind", SVRG_MUTANTS)
def test_a_renewal_kills(kind):
    assert 1e-2 < centre_error(kind) < np.inf


@pytest.mark.slow
@pytest.mark.parametrize("kind", SVRG_MUTANTS)
def test_svrg_law_kills(kind):
    bound = tallmc.methods.svrg_ld(STEP, batch_size=2, every=5).prepare(linear()).kernel
    assert not svrg_z(with_gradient(bound, kind), svrg_law(bound, 2, 5), 5) < 4.6


def centre_of(stepped):
    """What SVRG keeps, to be recorded with every step."""
    centre = stepped.state.carried.gradient
    return {"centre": centre.position, "centre_row_sum": centre.row_sum}


def svrg_run(every, draws, record=None):
    """A run of three chains from different starts, one draw per step; not a step of it is done."""
    bound = tallmc.methods.svrg_ld(STEP, batch_size=2, every=every).prepare(linear()).kernel
    start = jnp.asarray([[0.5, 2.5], [-1.0, 0.0], [3.0, 1.0]])
    return Run(bound, chain_keys(0, 3), start, 0, 1, draws, record=record)


def test_the_centre_of_svrg_is_the_position_at_the_last_step_that_was_due():
    """At every step, in three blocks of randomness whose length is no multiple of `every`."""
    every, model, rows = 7, linear().model, linear().rows
    run = svrg_run(every, 1200, record=centre_of)
    block = block_steps(run.kernel, run.rows)
    assert block % every and 2 * block < 1200
    run.run_to(1200)
    before_step = np.concatenate([np.asarray(run.start)[:, None], run.positions()], axis=1)[:, :-1]
    last_due = np.arange(1200) // every * every
    stats = run.sample_stats()
    np.testing.assert_array_equal(stats["centre"], before_step[:, last_due])
    for chain, step in itertools.product(range(3), (0, 6, 7, 500, block, 1199)):
        centre = jnp.asarray(stats["centre"][chain, step])
        total = model.potential_and_gradient(centre, rows).rounded()[1]
        exact = np.asarray(total - model.prior_gradient(centre))
        np.testing.assert_allclose(stats["centre_row_sum"][chain, step], exact, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("every", slow_after(1, [7, 300, 1]))
def test_an_svrg_run_does_not_depend_on_where_its_calls_are_cut(every):
    """Cuts before, at and after a renewal and a block's end; some resume from a snapshot."""
    whole = svrg_run(every, 600, record=centre_of)
    whole.run_to(600)
    block = block_steps(whole.kernel, whole.rows)
    cuts = [1, 6, 7, 8, 299, 300, 301, block - 1, block, block + 1, 600]
    assert cuts == sorted(cuts)
    cut = svrg_run(every, 600, record=centre_of)
    for draws in cuts:
        cut.run_to(draws)
    np.testing.assert_array_equal(cut.positions(), whole.positions())
    for name, values in whole.sample_stats().items():
        np.testing.assert_array_equal(cut.sample_stats()[name], values)

    resumed, parts = svrg_run(every, 600), []
    for draws in cuts:
        snapshot = resumed.snapshot()
        resumed = svrg_run(every, 600)
        resumed.restore(snapshot)
        resumed.run_to(draws)
        parts.append(resumed.positions())
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole.positions())
    assert resumed.rows_touched() == whole.rows_touched()
    last, expected = named_leaves(resumed.state), named_leaves(whole.state)
    assert last.keys() == expected.keys()
    for name, leaf in expected.items():
        np.testing.assert_array_equal(last[name], leaf)


@pytest.mark.slow
def test_passes_of_svrg_and_the_table_of_saga_are_counted():
    posterior = linear(n_rows=12)
    settings = {"chains": 3, "n_draws": 20, "thin": 2, "burn_in": 5}  # 45 steps
    svrg = tallmc.sample(
        posterior, tallmc.methods.svrg_ld(0.01, batch_size=2, every=10), **settings
    )
    assert svrg.n_row_evals_sampling == 3 * (45 * 2 + 5 * 12)
    assert svrg.sample_stats["n_row_evals"][0, -1] == 45 * 2 + 5 * 12
    assert svrg.sample_stats["n_row_evals"][0, 0] == 7 * 2 + 12
    saga = tallmc.sample(posterior, tallmc.methods.saga_ld(0.01, batch_size=2), **settings)
    assert saga.n_row_evals_sampling == 3 * (45 * 2 + 12)


@pytest.mark.parametrize("model", [logistic, logistic_by_autodiff])
def test_the_table_of_a_glm_is_one_number_per_row(model):
    posterior = model(n_rows=9)
    gradient = SAGA().prepare(posterior, None)
    carried = start_of(gradient, posterior.rows, jnp.array([0.3, -0.2]))
    assert carried.compact.shape == ((9,) if model is logistic else (9, 2))


@pytest.mark.slow
def test_sum_of_the_table_stays_what_the_table_says_in_single_precision():
    """Over many steps, rounding errors would add up without compensation."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32) * 30
    y = 1e4 + x @ np.float32([1, 2, 3])
    posterior = tallmc.models.linear_regression(
        x, y, prior_variance=np.float32(10), noise_variance=1.0
    )
    kernel = tallmc.methods.saga_ld(1e-6, batch_size=8).prepare(posterior).kernel.kernel
    gradient, position = kernel.gradient, jnp.zeros(3, jnp.float32)

    @run_once
    def many(carried, drawn):
        def one(carried, drawn):
            rows = jax.tree.map(lambda column: column[drawn.indices], posterior.data)
            at = position + jnp.sin(jnp.sum(drawn.indices)).astype(jnp.float32)
            batch = Batch(rows, drawn.weights, drawn.indices)
            residuals = gradient.residuals(at, rows, drawn.indices, carried)
            return gradient.learn(carried, batch, residuals), None

        return jax.lax.scan(one, carried, drawn)[0]

    start = start_of(gradient, posterior.rows, position)
    carried = many(start, kernel.selection.draw(jax.random.key(0), 50_000))
    exact = np.asarray(carried.compact, np.float64) @ np.asarray(x, np.float64)
    assert carried.compact.dtype == jnp.float32
    atol = 2e-6 * np.abs(carried.compact).max() * np.abs(x).sum(0).max()
    np.testing.assert_allclose(carried.row_sum.rounded(), exact, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gradient", "dynamics"),
    slow_after(1, [(SVRG(7), "nose-hoover"), (SAGA(), "rmsprop"), (SAGA(), "recipe")]),
    ids=["svrg-nose-hoover", "saga-rmsprop", "saga-recipe"],
)
def test_memories_go_with_other_dynamics(gradient, dynamics):
    method = tallmc.Method(
        dynamics=DYNAMICS[dynamics],
        gradient=gradient,
        subsample=Bandit(),
        batch_size=3,
        step_size=0.02,
    )
    draws = tallmc.sample(linear(), method, chains=2, n_draws=40, burn_in=3)
    assert draws.ok.all()
    assert np.isfinite(draws.positions).all()


def test_blocks_of_a_model_with_many_parameters_have_many_steps():
    """A step holds its rows and its noise, not a gradient for each of its rows."""
    posterior = tallmc.Posterior(
        lambda theta, x: -((x - theta[:10]) ** 2).sum() / 2,
        lambda theta: -(theta**2).sum() / 2,
        data=jnp.zeros((1000, 10)),
        init=jnp.zeros(50_000),
    )
    kernel = tallmc.methods.sgld(1e-3, batch_size=100).prepare(posterior).kernel.kernel
    assert block_steps(kernel, posterior.rows) == 32  # 32 × 50,000 < 2²¹
