"""Hard rows, the series of the others, the check on all rows and delayed acceptance."""

import dataclasses
import functools
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import tallmc
from kept_programs import run_once
from problems import slow_after
from row_stores import stored_logistic
from tallmc import models
from tallmc._anchor.anchor import find_anchor
from tallmc._core.arrays import DenseMap
from tallmc._engine.kernel import Gathered, NewChain
from tallmc._rows.law import Batch
from tallmc._rows.probabilities import drawn_in_proportion
from tallmc.methods import surrogate as surrogates
from tallmc.methods.abstract import Account, ErrorBudget
from tallmc.methods.automatic.hard_rows import enough_hard_rows
from tallmc.methods.automatic.modes import find_modes
from tallmc.methods.surrogate import (
    CLEAR,
    Expansion,
    ModeSurrogates,
    RowSizes,
    _implied_bias,
    check_on_all_rows,
    log_weights_of,
    make_surrogate,
    tilted,
)
from tallmc.methods.trajectories import Point, SurrogateHMC, SurrogateKernel, checked_after_run

N_ROWS, DIM = 256, 3


def columns(n_rows=N_ROWS, dim=DIM, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, dim))
    x[:, 0] = 1
    return x, rng


def logistic():
    x, rng = columns()
    y = (rng.random(N_ROWS) < 1 / (1 + np.exp(-2 * x[:, 1]))).astype(float)
    return models.logistic_regression(x, y, prior_variance=4.0)


def poisson():
    x, rng = columns()
    return models.poisson_regression(x, rng.poisson(np.exp(x[:, 1])), prior_variance=4.0)


def softmax():
    x, rng = columns()
    return models.softmax_regression(x, rng.integers(0, 3, N_ROWS), prior_variance=4.0)


def by_autodiff():
    x, rng = columns()
    y = x @ np.array([0.5, 1.0, -1.0]) + rng.standard_t(4, N_ROWS)

    def log_likelihood(params, row):
        move = (row["y"] - row["x"] @ params["b"]) / jnp.exp(params["s"])
        return -2.5 * jnp.log1p(move**2 / 4) - params["s"]

    return tallmc.Posterior(
        log_likelihood=log_likelihood,
        log_prior=lambda params: -jnp.sum(ravel_pytree(params)[0] ** 2) / 8,
        data={"x": x, "y": y},
        init={"b": np.zeros(DIM), "s": np.zeros(())},
    )


@functools.cache
def expanded(build):
    """A posterior in float64 with its series at the mode."""
    with jax.enable_x64(True):
        posterior = build()
        expansion = Expansion.at_anchor(posterior, find_anchor(posterior))
        return posterior, expansion, RowSizes.of(posterior, expansion)


@functools.cache
def with_surrogate(build, n_hard):
    posterior, expansion, sizes = expanded(build)
    with jax.enable_x64(True):
        return posterior, make_surrogate(posterior, expansion, sizes, n_hard)


# The other two differ in their series, which `test_families.py` has.
@pytest.fixture(
    params=slow_after(2, [logistic, by_autodiff, poisson, softmax]),
    ids=lambda build: build.__name__,
)
def problem(request):
    """A posterior with its surrogate of 64 hard rows, and positions around the mode."""
    with jax.enable_x64(True):
        posterior, surrogate = with_surrogate(request.param, 64)
        u = 1.5 * np.random.default_rng(3).normal(size=(8, posterior.dim))
        yield posterior, surrogate, jnp.asarray(u)


def jacobian(function, at):
    """Derivatives, one direction after the other: `in_columns` cannot map over directions."""
    return jax.lax.map(lambda along: jax.jvp(function, (at,), (along,))[1], jnp.eye(len(at)))


@run_once
def potentials(surrogate, u):
    return jax.vmap(surrogate.potential_and_gradient)(u)[0]


@run_once
def change_of_potential(posterior, surrogate, u):
    whole = posterior.model.potential_and_gradient
    centre = whole(surrogate.centre, posterior.rows).rounded()[0]
    at = jax.vmap(surrogate.position)(u)
    return jax.vmap(lambda at: whole(at, posterior.rows).rounded()[0])(at) - centre


@pytest.mark.parametrize("accurate", [False, True])
def test_the_surrogate_and_what_it_leaves_out_are_the_log_density(problem, accurate):
    posterior, surrogate, u = problem
    tilt = jnp.linspace(-0.3, 0.5, posterior.dim)
    surrogate = dataclasses.replace(surrogate, accurate=accurate, tilt=tilt)
    potential = np.asarray(potentials(surrogate, u))
    left_out = np.asarray(surrogate.log_weights(u, posterior.rows))
    whole = change_of_potential(posterior, surrogate, u)
    np.testing.assert_allclose(potential - left_out, whole, atol=1e-9)
    assert np.abs(left_out).max() > 1e-4  # the surrogate is none without leaving anything out


def many_equal_rows(family, dtype):
    """A million rows: 500 of them with a weight, so that all rounding errors are alike."""
    x, rng = columns(500)
    mean = np.exp(0.3 * x[:, 1])
    y = {
        "gamma": lambda: rng.gamma(2.0, mean / 2),
        "negative_binomial": lambda: rng.poisson(rng.gamma(1.5, mean / 1.5)),
        "own": lambda: rng.poisson(rng.gamma(1.5, mean / 1.5)),
    }[family]()
    rows = {"x": x, "y": y, "w": np.full(500, 2000.0)}
    rows = {name: column.astype(dtype) for name, column in rows.items()}
    if family != "own":
        build = getattr(models, f"{family}_regression")
        return build(rows["x"], rows["y"], 4.0, weights=rows["w"])

    def log_likelihood(params, row):
        shape, log_mean = jnp.exp(params["s"]), row["x"] @ params["b"]
        log_total, lgamma = jnp.logaddexp(log_mean, params["s"]), jax.scipy.special.gammaln
        value = lgamma(row["y"] + shape) - lgamma(shape) + shape * (params["s"] - log_total)
        return row["w"] * (value + row["y"] * (log_mean - log_total))

    init = {"b": np.zeros(DIM, dtype), "s": np.zeros((), dtype)}
    return tallmc.Posterior(
        log_likelihood, lambda params: -jnp.sum(params["b"] ** 2) / 8, rows, init
    )


@pytest.mark.parametrize("family", slow_after(1, ["gamma", "negative_binomial", "own"]))
def test_rounding_errors_of_a_million_rows_are_not_taken_for_those_of_the_series(family):
    """Terms in a shared parameter round alike in all rows: log densities were off by 0.5 to 1."""
    with jax.enable_x64(True):
        anchor = find_anchor(many_equal_rows(family, np.float64))
        centre, factor = (np.asarray(of) for of in (anchor.position, anchor.factor))
    posterior = many_equal_rows(family, np.float32)
    expansion = Expansion.at(posterior, centre, factor)
    sizes = RowSizes.of(posterior, expansion)
    assert posterior.dtype == np.float32 and enough_hard_rows(sizes) == 0
    surrogate = make_surrogate(posterior, expansion, sizes, 0)
    assert surrogate.accurate
    u = np.random.default_rng(0).normal(size=(32, posterior.dim))
    weights, _ = log_weights_of(surrogate, posterior.rows, surrogate.positions(u))
    assert weights.std() < 0.02


@run_once
def missing_gradients(posterior, surrogate, u):
    """∇[S − Ŝ]."""
    whole, pull = posterior.model.potential_and_gradient, surrogate.metric.pull

    def missing(u):
        _, gradient = whole(surrogate.position(u), posterior.rows).rounded()
        return pull(gradient) - surrogate.potential_and_gradient(u)[1]

    return jax.vmap(missing)(u)


@pytest.mark.parametrize("n_hard", slow_after(1, [64, 0]))
def test_the_tilt_is_the_mean_gradient_of_what_is_left_out(monkeypatch, n_hard):
    monkeypatch.setattr(surrogates, "_MOST_PARAMETERS", 0)
    monkeypatch.setattr(surrogates, "_PAIRS", 1024)
    posterior, expansion, sizes = expanded(poisson)
    with jax.enable_x64(True):
        plain = make_surrogate(posterior, expansion, sizes, n_hard)
        u = jnp.asarray(np.random.default_rng(3).normal(size=(4096, DIM)))
        without = np.asarray(missing_gradients(posterior, plain, u))
        found = np.asarray(missing_gradients(posterior, tilted(plain, posterior), u))
    error = found.std(axis=0) * np.sqrt(1 / 4096 + 1 / 1024)
    assert np.abs(found.mean(axis=0) / error).max() <= 4.6
    assert np.abs(without.mean(axis=0) / error).max() > 20


def two_wells(n_rows):
    """x_i ~ N(h(t), 3) with h(t) = t² + t³/3, which has the mean of x at two t, of different slope.

    From few rows the modes overlap.
    """
    x = 0.5 + np.sqrt(3) * np.random.default_rng(0).normal(size=n_rows)
    return tallmc.Posterior(
        log_likelihood=lambda params, x: -((x - params["t"] ** 2 - params["t"] ** 3 / 3) ** 2) / 6,
        log_prior=lambda params: -(params["t"] ** 2) / 8,
        data=x - x.mean() + 0.5,
        init={"t": 0.7},
    )


@pytest.mark.parametrize(("n_rows", "n_hard", "k"), [(30, 30, 2), (1000, 0, 3)])
def test_weighted_draws_of_several_modes_have_the_moments_of_the_posterior(n_rows, n_hard, k):
    """By quadrature over u. 30 rows have modes that overlap, with exact surrogates of all there."""
    with jax.enable_x64(True):
        posterior = two_wells(n_rows)
        modes, _ = find_modes(posterior, find_anchor(posterior), seed=0)
        made = []
        for centre, covariance in zip(modes.positions, modes.covariances, strict=True):
            expansion = Expansion.at(posterior, centre, np.linalg.cholesky(covariance))
            sizes = RowSizes.of(posterior, expansion)
            made.append(make_surrogate(posterior, expansion, sizes, n_hard))
        surrogate = ModeSurrogates.of(made, modes.weights)
        assert len(made) == k
        u = jnp.linspace(-11, 11, 4001)[:, None]  # where a mode counts
        density, chances, t, mean = of_modes(surrogate, u)
        near, _ = log_weights_of(surrogate, posterior.rows, np.asarray(t).reshape(-1, 1))
        grid = jnp.linspace(-6, 5, 20_001)[:, None]
        exact = np.exp(log_densities(posterior, grid))
    weights, t = (density[:, None] * chances).ravel() * np.exp(near), np.asarray(t).ravel()
    for moment in (np.array, np.square, np.tanh):
        truth = np.average(moment(grid[:, 0]), weights=exact)
        assert np.average(moment(t), weights=weights) == pytest.approx(truth, rel=1e-4)
    np.testing.assert_allclose(mean, np.sum(chances * t.reshape(chances.shape), axis=1), atol=0.05)


@run_once
def of_modes(surrogate, u):
    """The density of u, chances of the modes and θ there, and the mean of θ given u by numbers."""
    values, _, positions = jax.vmap(surrogate._at)(u)
    potential = jax.vmap(surrogate.potential_and_gradient)(u)[0]
    numbers = (jnp.arange(100) + 0.5) / 100
    placed = jax.vmap(lambda u: jax.vmap(lambda number: surrogate.placed(u, number))(numbers))(u)
    density = jnp.exp(potential.min() - potential)
    return density, jax.nn.softmax(-values), positions[..., 0], placed.mean(axis=(1, 2))


@run_once
def log_densities(posterior, positions):
    potential = posterior.model.potential_and_gradient
    potentials = jax.vmap(lambda at: potential(at, posterior.rows).rounded()[0])(positions)
    return potentials.min() - potentials


@pytest.mark.parametrize(("dim", "stretch"), [(3, 1.5), (144, 1.25)])
def test_draws_are_stretched_to_where_chains_may_come(dim, stretch):
    """A wrong linear term makes log weights linear, so that the largest tells the stretch."""
    x, rng = columns(dim=dim)
    with jax.enable_x64(True):
        y = rng.integers(0, 2, N_ROWS).astype(float)
        posterior = models.logistic_regression(x, y, prior_variance=4.0)
        expansion = Expansion.at_anchor(posterior, find_anchor(posterior))
        sizes = RowSizes.of(posterior, expansion)
        exact = make_surrogate(posterior, expansion, sizes, n_hard=N_ROWS)
        wrong = dataclasses.replace(exact, linear=exact.linear + 0.1)
        u = rng.normal(size=(64, dim))
        draws = np.asarray(jax.vmap(exact.position)(jnp.asarray(u)))[None]
        check = check_on_all_rows(wrong, posterior.rows, draws, 64, stretched=64)
    weights = 0.1 * np.sum(u - u.mean(axis=0), axis=1)
    assert check.far == pytest.approx(stretch * weights.max(), abs=1e-9)


@pytest.mark.parametrize(("mean_bias", "n_draws"), [(1.0, 256), (1e-9, 2048)])
def test_a_bias_that_few_draws_leave_unknown_is_measured_with_more(mean_bias, n_draws):
    posterior, surrogate = with_surrogate(logistic, 64)
    with jax.enable_x64(True):
        u = np.random.default_rng(5).normal(size=(4096, posterior.dim))
        draws = np.asarray(jax.vmap(surrogate.position)(jnp.asarray(u)))[None]
        expected = check_on_all_rows(surrogate, posterior.rows, draws, n_draws)
        budget = ErrorBudget(mean_bias=mean_bias, sd_bias=1.0)
        account, n_row_evals = checked_after_run(
            Account(None, budget),
            SimpleNamespace(surrogate=surrogate),
            SimpleNamespace(rows=posterior.rows, positions=lambda: draws),
        )
    assert f"checked on all rows at {n_draws} draws" in account.reasons[-1]
    assert n_row_evals == (1 if n_draws == 256 else 2) * N_ROWS
    np.testing.assert_array_equal(account.bias.mean, expected.bias.mean)
    np.testing.assert_array_equal(account.bias.sd_error, expected.bias.sd_error)


def test_a_prior_that_counts_twice_is_no_log_density(problem):
    posterior, surrogate, u = problem

    class Twice(type(surrogate.model)):
        def prior_potential(self, position):
            return 2 * super().prior_potential(position)

    twice = object.__new__(Twice)
    for field in dataclasses.fields(surrogate.model):
        object.__setattr__(twice, field.name, getattr(surrogate.model, field.name))
    mutant = eqx.tree_at(lambda s: s.model, surrogate, twice)
    potential = np.asarray(potentials(mutant, u))
    left_out = np.asarray(mutant.log_weights(u, posterior.rows))
    error = potential - left_out - change_of_potential(posterior, surrogate, u)
    assert np.abs(error).max() > 0.01


def test_the_gradient_is_that_of_the_potential(problem):
    _, surrogate, u = problem
    wide = jnp.concatenate([u, 6 * u])  # where the cubic is damped

    @run_once
    def both(surrogate, u):
        value = lambda u: surrogate.potential_and_gradient(u)[0]
        expected = jax.lax.map(lambda u: jacobian(value, u), u)
        return expected, jax.vmap(surrogate.potential_and_gradient)(u)[1]

    expected, found = both(surrogate, wide)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_hard_rows_do_not_double_the_batch_of_the_third_derivatives(monkeypatch):
    sizes_of_batches, compiled = [], surrogates._hessian_and_cubic

    def recorded(model, centre, metric, hard, of_cubic):
        sizes_of_batches.append((np.count_nonzero(hard.weights != 1), of_cubic.n_rows))
        return compiled(model, centre, metric, hard, of_cubic)

    monkeypatch.setattr(surrogates, "_hessian_and_cubic", recorded)
    monkeypatch.setattr(surrogates, "_MOST_CUBIC_ROWS", 256)
    posterior, expansion, sizes = expanded(logistic)
    with jax.enable_x64(True):
        make_surrogate(posterior, expansion, sizes, 64)
    [(uncertain, n_rows)] = sizes_of_batches
    assert uncertain > 0
    assert n_rows == 256


def test_third_derivatives_are_those_of_the_rows(problem):
    posterior, surrogate, _ = problem
    model, metric = posterior.model, surrogate.metric
    rows = posterior.rows.take(jnp.arange(16))
    batch = Batch(rows, jnp.linspace(0.5, 2, 16))

    @run_once
    def both(model, metric, centre, batch):
        def total(u):
            at = centre + metric.push(u)
            return jnp.dot(batch.weights, model.row_potentials(at, batch.rows))

        whole = jax.jacfwd(jax.jacfwd(jax.jacfwd(total)))(jnp.zeros_like(centre))
        return whole.reshape(len(centre), -1), model.third_derivatives(centre, metric, batch)

    np.testing.assert_allclose(*both(model, metric, surrogate.centre, batch), atol=1e-10)


def test_sizes_are_what_the_series_leaves_out_at_five_sds(problem):
    posterior, surrogate, _ = problem
    row = jax.tree.map(lambda column: column[7], posterior.rows.columns)

    @run_once
    def both(model, metric, centre, row):
        pulled = metric.pull(jax.grad(model.row_potential)(centre, row))
        own = 5 * metric.push(pulled / jnp.linalg.norm(pulled))
        found = []
        for move in (own, -own):

            def along(t, move=move):
                return model.row_potential(centre + t * move, row)

            first = jax.grad(along)
            terms = [along(0.0), first(0.0), jax.grad(first)(0.0) / 2]
            terms.append(jax.grad(jax.grad(first))(0.0) / 6)
            found.append(jnp.stack([abs(along(1.0) - sum(terms)), abs(terms[3])]))
        largest = jnp.max(jnp.stack(found), axis=0)
        block = jax.tree.map(lambda column: column[None], row)
        none = jnp.zeros((1, len(centre)))
        sizes = jnp.stack(model.series_sizes(centre, metric, none, block))[:, 0]
        return jnp.append(largest, abs(model.row_potential(centre, row))), sizes

    expected, found = both(posterior.model, surrogate.metric, surrogate.centre, row)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def spread(build, n_hard, mutate=lambda surrogate: surrogate):
    """The sd of log weights at wide draws."""
    posterior, surrogate = with_surrogate(build, n_hard)
    with jax.enable_x64(True):
        u = jnp.asarray(2 * np.random.default_rng(3).normal(size=(64, DIM)))
        draws = np.asarray(jax.vmap(surrogate.position)(u))[None]
        return check_on_all_rows(mutate(surrogate), posterior.rows, draws, 64).sd


def test_log_weights_show_a_hard_row_that_was_forgotten():
    def forget(surrogate):
        return eqx.tree_at(
            lambda s: s.hard.weights, surrogate, surrogate.hard.weights.at[17].set(0)
        )

    assert spread(logistic, N_ROWS) < 1e-12 < 1e-6 < spread(logistic, N_ROWS, forget)


def test_log_weights_show_a_cubic_that_was_halved():
    def halve(surrogate):
        return eqx.tree_at(lambda s: s.cubic, surrogate, surrogate.cubic / 2)

    assert spread(logistic, 0, halve) > 2 * spread(logistic, 0)


def test_log_weights_show_rows_whose_chance_was_forgotten():
    def unweighted(surrogate):
        weights = jnp.minimum(surrogate.hard.weights, 1)
        return eqx.tree_at(lambda s: s.hard.weights, surrogate, weights)

    assert spread(logistic, 64, unweighted) > 2 * spread(logistic, 64)


def test_rows_are_drawn_as_often_as_they_should_be():
    sizes = np.array([0.0, 5.0, 1.0, 0.5, 0.2, 0.8, 0.0, 0.5])
    counts, weights = np.zeros(8), np.zeros(8)
    starts = (np.arange(2000) + 0.5) / 2000
    for start in starts:
        numbers, of_numbers = drawn_in_proportion(sizes, 3, start=start)
        assert len(set(numbers)) == len(numbers)
        counts[numbers] += 1 / len(starts)
        weights[numbers] += of_numbers / len(starts)
    np.testing.assert_allclose(counts, [0, 1, *(2 * sizes[2:6] / 3), 0, 1 / 3], atol=1e-3)
    np.testing.assert_allclose(weights, (sizes > 0).astype(float), atol=5e-3)


def test_weights_imply_the_shift_of_moments_that_quadrature_finds():
    # Draws of N(0, 1), and the target N(0, 1) times exp(0.2 x − 0.05 x²).
    grid = np.linspace(-8, 8, 4001)

    def log_weight(x):
        return 0.2 * x - 0.05 * x**2

    density = np.exp(-(grid**2) / 2 + log_weight(grid))
    density /= density.sum()
    mean = density @ grid
    sd = np.sqrt(density @ (grid - mean) ** 2)
    draws = np.random.default_rng(0).normal(size=(200_000, 1))
    bias = _implied_bias(draws, log_weight(draws[:, 0]), len(draws))
    assert abs(bias.mean[0] - (0 - mean)) < 4 * bias.mean_error[0] + 1e-3
    # To first order in the change of the variance around the draws' own mean.
    second = density @ grid**2
    assert abs(bias.sd[0] - (1 - second) / 2) < 4 * bias.sd_error[0] + 1e-3
    assert sd < 1


def test_repeated_draws_do_not_make_the_bias_look_better_known():
    draws = np.random.default_rng(0).normal(size=(16, 2))
    positions, weights = np.repeat(draws, 4, axis=0), np.repeat(draws[:, 0] / 10, 4)
    once = _implied_bias(draws, draws[:, 0] / 10, 16)
    for error, repeated in zip(once, _implied_bias(positions, weights, 16), strict=True):
        np.testing.assert_allclose(repeated, error)


def test_a_model_in_single_precision_stays_so_under_double_precision():
    with jax.enable_x64(True):
        posterior = tallmc.Posterior(
            log_likelihood=lambda mean, x: -((x - mean) ** 2) / 2 - 0.01 * jnp.exp(mean),
            log_prior=lambda mean: -(mean**2) / 2,
            data=np.linspace(-1, 1, N_ROWS, dtype=np.float32),
            init=np.zeros((), np.float32),
        )
        assert posterior.dtype == np.float32
        expansion = Expansion.at_anchor(posterior, find_anchor(posterior))
        surrogate = make_surrogate(posterior, expansion, RowSizes.of(posterior, expansion), 64)
        leaves = jax.tree.leaves(eqx.filter(surrogate, eqx.is_array))
        assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32)}
        assert surrogate.potential_and_gradient(jnp.zeros(1, np.float32))[1].dtype == np.float32


# Delayed acceptance on a posterior of one parameter, whose law is known by quadrature.


def one_parameter():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 1)) + 1
    y = (rng.random(40) < 0.85).astype(float)
    return models.logistic_regression(x, y, prior_variance=25.0)


@pytest.fixture(scope="module")
def exact_law():
    posterior, _, _ = expanded(one_parameter)
    with jax.enable_x64(True):
        grid = np.linspace(-3, 8, 4001)
        of = run_once(lambda p, at: jax.vmap(lambda x: p.potential(x[None]))(at))
        potential = np.asarray(of(posterior, jnp.asarray(grid)))
        density = np.exp(-(potential - potential.min()))
        density /= density.sum()
        cumulative = np.cumsum(density)
        n = 20_000
        starts = np.interp((np.arange(n) + 0.5) / n, cumulative, grid)
        mean = density @ grid
        moments = [mean, density @ (grid - mean) ** 2, density @ (grid - mean) ** 3]
        return np.random.default_rng(0).permutation(starts), moments


def after_steps(delayed, starts, mutate=lambda kernel: kernel):
    """Positions after three steps, with a surrogate that is far off: half of its cubic."""
    posterior, surrogate = with_surrogate(one_parameter, 0)
    with jax.enable_x64(True):
        surrogate = eqx.tree_at(lambda s: s.cubic, surrogate, surrogate.cubic / 2)
        method = SurrogateHMC(hard_rows=0, step_size=0.8, length=2, delayed=delayed)
        kernel = mutate(method.kernel(posterior, surrogate))
        start = jnp.asarray(starts)[:, None]
        keys = jax.random.split(jax.random.key(5), len(starts))
        rows, nothing = posterior.rows, Gathered((), ())

        @run_once
        def first(kernel, keys, start, memory):
            init = lambda key, at, memory: kernel.init(NewChain(key, at, memory, nothing), None)
            return jax.vmap(init)(keys, start, memory), jax.vmap(lambda k: kernel.draw(k, 3))(keys)

        @run_once
        def advance(kernel, state, drawn, step):
            def chain(state, drawn):
                supply = jax.tree.map(lambda leaf: leaf[step], drawn)
                return kernel.step(state, kernel.gather(supply, None), step, None)[:2]

            return jax.vmap(chain)(state, drawn)

        state, drawn = first(kernel, keys, start, kernel.start_memory(start, rows))
        for step in range(3):
            if kernel.due(step):
                state = kernel.renew(state, rows)
            state, stats = advance(kernel, state, drawn, jnp.int32(step))
        return np.asarray(state.position)[:, 0], stats


def z_scores(positions, moments):
    mean, *central = moments
    values = [positions - mean, *((positions - mean) ** power for power in (2, 3))]
    expected = [0.0, *central]
    return [
        (value.mean() - target) / (value.std() / np.sqrt(len(value)))
        for value, target in zip(values, expected, strict=True)
    ]


def test_delayed_acceptance_leaves_the_posterior_invariant(exact_law):
    starts, moments = exact_law
    positions, stats = after_steps(True, starts)
    assert np.mean(np.abs(positions - starts) > 1e-6) > 0.5
    assert 0.2 < float(np.mean(stats["delayed_acceptance_rate"])) < 0.97
    assert np.abs(z_scores(positions, moments)).max() < 4


class WithoutAcceptStep(SurrogateKernel):
    def _trajectory(self, motion, momentum, turn, log_uniform):
        return super()._trajectory(motion, momentum, 2 * turn, jnp.full_like(turn, -jnp.inf))


def without_accept_step(kernel):
    mutant = object.__new__(WithoutAcceptStep)
    for field in dataclasses.fields(kernel):
        object.__setattr__(mutant, field.name, getattr(kernel, field.name))
    return mutant


@pytest.mark.parametrize("mutant", ["not delayed", "trajectories without accept step"])
def test_invariance_kills_a_chain_that_is_not_exact(exact_law, mutant):
    starts, moments = exact_law
    if mutant == "not delayed":
        positions, _ = after_steps(False, starts)
    else:
        positions, _ = after_steps(True, starts, without_accept_step)
    assert np.abs(z_scores(positions, moments)).max() > 6


def test_trajectories_are_reversible():
    posterior, surrogate = with_surrogate(logistic, 64)
    with jax.enable_x64(True):
        metric = DenseMap(jnp.asarray(np.tril(np.ones((DIM, DIM)))) / 2)
        kernel = SurrogateHMC(hard_rows=64, step_size=0.4, length=3).kernel(
            posterior, surrogate, metric, jnp.array([0.1, -0.2, 0.3])
        )
        turn, v, momentum = 0.4, jnp.array([0.5, -1.0, 0.2]), jnp.array([1.0, 0.3, -0.7])

        @jax.jit
        def end(v, momentum):
            gradient = kernel._evaluated(v)[1]
            for _ in range(3):
                momentum = momentum - turn / 2 * (gradient - v)
                v, momentum = (
                    np.cos(turn) * v + np.sin(turn) * momentum,
                    np.cos(turn) * momentum - np.sin(turn) * v,
                )
                gradient = kernel._evaluated(v)[1]
                momentum = momentum - turn / 2 * (gradient - v)
            return v, momentum

        there, back = end(v, momentum)
        again, momentum_again = end(there, -back)
        np.testing.assert_allclose(again, v, atol=1e-10)
        np.testing.assert_allclose(momentum_again, -momentum, atol=1e-10)
        pair = jnp.concatenate([v, momentum])
        of_pair = lambda pair: jnp.concatenate(end(pair[:DIM], pair[DIM:]))
        volume = np.linalg.det(run_once(lambda pair: jacobian(of_pair, pair))(pair))
        np.testing.assert_allclose(volume, 1, atol=1e-10)

        # The compiled trajectory ends where this one does.
        @run_once
        def moved(kernel, v, momentum):
            here = Point(v, *kernel._evaluated(v), jnp.zeros(()))
            return kernel._trajectory(here, momentum, jnp.asarray(turn), jnp.asarray(-jnp.inf))[0]

        np.testing.assert_allclose(moved(kernel, v, momentum).whitened, there, atol=1e-10)


# The default with a surrogate.


def tall(n_rows=20_000, dim=5):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_rows, dim)).astype(np.float32)
    truth = rng.normal(size=dim)
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)
    return models.logistic_regression(x, y, prior_variance=10.0)


def test_a_run_of_the_default_resumes_bit_for_bit(tmp_path):
    posterior = tall()
    whole = tallmc.sample(posterior, n_draws=30, seed=3, progress=False)
    part = tallmc.sample(posterior, n_draws=12, seed=3, store=tmp_path / "run", progress=False)
    longer = tallmc.resume(tmp_path / "run", posterior, n_draws=30, progress=False)
    assert np.array_equal(part.positions, whole.positions[:, :12])
    assert np.array_equal(longer.positions, whole.positions)
    assert longer.report.verdict == whole.report.verdict


def test_rows_that_cost_much_are_checked_at_few_draws_unless_these_say_too_little(monkeypatch):
    posterior, surrogate = with_surrogate(logistic, N_ROWS)
    monkeypatch.setattr(type(posterior.model), "row_cost", 4)
    with jax.enable_x64(True):
        u = jnp.asarray(np.random.default_rng(3).normal(size=(256, DIM)))
        draws = np.asarray(jax.vmap(surrogate.position)(u))[None]
        clear = check_on_all_rows(surrogate, posterior.rows, draws)
        flat = eqx.tree_at(lambda of: of.linear, surrogate, surrogate.linear + 0.1)
        unclear = check_on_all_rows(flat, posterior.rows, draws)
        with_far = check_on_all_rows(surrogate, posterior.rows, draws, 64, stretched=64)
        bounds = unclear.sd / 2, 2 * unclear.sd
        large, small = (check_on_all_rows(flat, posterior.rows, draws, 64, 64, of) for of in bounds)
    assert (clear.n_draws, unclear.n_draws, with_far.n_draws) == (32, 256, 16)
    assert (large.n_draws, small.n_draws) == (16, 64)
    assert clear.sd < 0.01 < unclear.sd


def test_many_rows_of_a_store_are_checked_at_few_draws_unless_these_say_too_little(
    tmp_path, monkeypatch
):
    """In memory, fewer draws would save nothing."""
    stored, resident = stored_logistic(tmp_path / "rows")
    monkeypatch.setattr(surrogates, "_EVALUATIONS", 63 * stored.n_rows)
    expansion = Expansion.at_anchor(resident, find_anchor(resident))
    sizes = RowSizes.of(resident, expansion)
    surrogate = make_surrogate(resident, expansion, sizes, stored.n_rows)
    steep = eqx.tree_at(lambda of: of.linear, surrogate, surrogate.linear + 0.1)
    u = np.random.default_rng(3).normal(size=(256, 2)).astype(np.float32)
    draws = np.asarray(jax.vmap(surrogate.position)(u))[None]
    clear, unclear = (check_on_all_rows(of, stored.rows, draws) for of in (surrogate, steep))
    with_far = check_on_all_rows(surrogate, stored.rows, draws, 64, stretched=64)
    in_memory = check_on_all_rows(steep, resident.rows, draws)
    counts = [check.n_draws for check in (clear, unclear, with_far, in_memory)]
    assert counts == [32, 64, 16, 64]
    assert clear.sd <= CLEAR < unclear.sd
    # Both have read all rows at the same draws; sums in float32 are off by 1e-5.
    np.testing.assert_allclose(unclear.sd, in_memory.sd, atol=1e-5)
