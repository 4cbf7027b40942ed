"""The kernel Stein discrepancy is that of its definition. It vanishes for exact draws only."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import linear, logistic, logistic_by_autodiff, residual_matrix, slow_after
from tallmc.diagnose import draws_ksd, exact_gradients, ksd, ksd_path
from tallmc.diagnose.ksd import stochastic_gradients
from tallmc.gradient import Simple

FORMS = ("one_root", "sum_of_roots")


def potential(x):
    """The potential of a target that is not Gaussian and has dependent coordinates."""
    return jnp.sum(jnp.log(jnp.cosh(x))) + 0.3 * jnp.sum(x) ** 2 + 0.1 * x[0]


def draws_and_gradients(K=9, d=3, seed=0):
    x = np.random.default_rng(seed).normal(size=(K, d))
    return x, np.asarray(jax.vmap(jax.grad(potential))(x))


@run_once
def stein_kernel(x, scale, exponent, sign):
    """Eq. 21 of putcha-2023 for all pairs, by automatic differentiation.

    ∂/∂x_j ∂/∂y_j (π(x) k(x, y) π(y)) / (π(x) π(y))
    """
    density = lambda at: jnp.exp(-sign * potential(at))
    kernel = lambda x, y: (scale**2 + jnp.sum((x - y) ** 2)) ** exponent
    product = lambda x, y: density(x) * kernel(x, y) * density(y)
    mixed = jax.jacfwd(jax.grad(product, argnums=0), argnums=1)
    pair = lambda x, y: jnp.diag(mixed(x, y)) / (density(x) * density(y))
    return jax.vmap(jax.vmap(pair, (None, 0)), (0, None))(x, x)


def naive_ksd(kernel, form):
    by_coordinate = np.asarray(kernel).sum((0, 1))
    total = np.sqrt(by_coordinate.sum()) if form == "one_root" else np.sqrt(by_coordinate).sum()
    return total / len(kernel)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("scale", "exponent"), [(1.0, -0.5), (0.7, -0.8), (3.0, -0.1)])
def test_ksd_is_the_double_sum_of_its_definition(form, scale, exponent):
    x, gradients = draws_and_gradients()
    found = ksd(x, gradients, form=form, scale=scale, exponent=exponent)
    assert found == pytest.approx(naive_ksd(stein_kernel(x, scale, exponent, 1.0), form), rel=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_flipped_sign_is_the_discrepancy_from_the_reciprocal_density(form):
    x, gradients = draws_and_gradients()
    flipped = ksd(x, gradients, form=form, flipped_sign=True)
    assert flipped == pytest.approx(naive_ksd(stein_kernel(x, 1.0, -0.5, -1.0), form), rel=1e-10)
    assert abs(flipped - ksd(x, gradients, form=form)) > 0.1


@pytest.mark.parametrize("form", FORMS)
def test_path_is_the_ksd_of_every_prefix(form):
    x, gradients = draws_and_gradients()
    kernel, at = stein_kernel(x, 1.0, -0.5, 1.0), [9, 1, 4, 5]
    path = ksd_path(x, gradients, at, form=form)
    np.testing.assert_allclose(path, [naive_ksd(kernel[:k, :k], form) for k in at], rtol=1e-10)
    every = ksd_path(x, gradients, form=form)
    np.testing.assert_allclose(every[np.array(at) - 1], path, rtol=1e-12)
    assert every.shape == (9,)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("block", [1, 7, 50, 64])
def test_result_does_not_depend_on_the_block(monkeypatch, form, block):
    x, gradients = draws_and_gradients(K=50)
    whole = ksd_path(x, gradients, form=form)
    monkeypatch.setattr(sys.modules["tallmc.diagnose.ksd"], "_BLOCK", block)
    np.testing.assert_allclose(ksd_path(x, gradients, form=form), whole, rtol=1e-11)


def squared_ksds(K, repetitions, noise_sd=0.0, d=3):
    """Squared discrepancies of independent draws of a standard normal."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(repetitions, K, d))
    noise = lambda: noise_sd * rng.normal(size=(K, d))
    return np.array([ksd(draws, draws + noise()) ** 2 for draws in x])


@pytest.mark.parametrize(
    ("K", "noise_sd"), slow_after(2, [(50, 0.0), (50, 1.5), (200, 0.0), (200, 1.5)])
)
def test_exact_draws_have_the_expected_square_of_order_one_over_k(K, noise_sd):
    # The mean over pairs of different draws is zero. A draw with itself has E‖s‖² + d, where s
    # includes the noise.
    d, squares = 3, squared_ksds(K, 400, noise_sd)
    error = squares.std(ddof=1) / np.sqrt(len(squares))
    assert abs(squares.mean() - (2 + noise_sd**2) * d / K) < 4.6 * error


WRONG = {
    "too wide": lambda z: 1.2 * z,
    "too narrow": lambda z: 0.8 * z,
    "shifted": lambda z: z + np.array([0.3, 0.0, 0.0]),
}


@functools.cache
def exact_and_growth(form):
    """Draws of a standard normal, and the growth of K · ksd² with four times the draws."""
    z = np.random.default_rng(2).normal(size=(1600, 3))
    return z, growth(z, form)


def growth(draws, form):
    """K · ksd² of K = 1600 over that of K = 400.

    It is one if the discrepancy goes to zero as for independent draws, and four if it stays.
    """
    at = np.array([400, 1600])
    first, second = at * ksd_path(draws, draws, at, form=form) ** 2
    return second / first


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", WRONG)
def test_ksd_of_wrong_draws_stays_away_from_zero(form, name):
    z, of_exact = exact_and_growth(form)
    assert of_exact < 2 < growth(WRONG[name](z), form)


def test_with_the_sign_flipped_exact_draws_do_not_go_to_zero():
    z = np.random.default_rng(3).normal(size=(1600, 3))
    path = ksd_path(z, z, [400, 1600], flipped_sign=True)
    assert path[1] > 0.95 * path[0]
    assert path[1] > 10 * ksd(z, z)


def test_ksd_does_not_change_with_origin_order_or_axes():
    x, gradients = draws_and_gradients(K=40)
    value = ksd(x, gradients)
    assert ksd(x + 1e3, gradients) == pytest.approx(value, rel=1e-9)
    order = np.random.default_rng(0).permutation(40)
    assert ksd(x[order], gradients[order]) == pytest.approx(value, rel=1e-11)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    assert ksd(x @ rotation, gradients @ rotation) == pytest.approx(value, rel=1e-11)
    # In other units, of the kernel's scale too, all terms of the Stein kernel change by one factor.
    in_other_units = ksd(5 * x, gradients / 5, scale=5.0, exponent=-0.3)
    assert in_other_units == pytest.approx(5**-1.3 * ksd(x, gradients, exponent=-0.3))


def test_single_precision_is_taken_for_exact_numbers():
    x, gradients = (values.astype(np.float32) for values in draws_and_gradients(K=40))
    assert ksd(x, gradients) == ksd(x.astype(float), gradients.astype(float))


def test_ksd_refuses_what_makes_no_sense():
    x, gradients = draws_and_gradients()
    bad = x.copy()
    bad[4, 1] = np.nan
    for message, call in {
        "positions must be a matrix with one draw per row; got shape \\(9,\\)": lambda: ksd(
            x[:, 0], gradients
        ),
        "positions must be a matrix with one draw per row; got shape \\(0, 3\\)": lambda: ksd(
            x[:0], gradients[:0]
        ),
        "gradients must have the shape of positions, \\(9, 3\\)": lambda: ksd(x, gradients[:8]),
        "positions must be finite; got NaN or infinity in draw 4. Leave out": lambda: ksd(
            bad, gradients
        ),
        "gradients must be finite; got NaN or infinity in draw 4": lambda: ksd(x, bad),
        "form must be one of 'one_root', 'sum_of_roots'; got 'root'": lambda: ksd(
            x, gradients, form="root"
        ),
        "scale must be a finite number and > 0": lambda: ksd(x, gradients, scale=0.0),
        "exponent must be a finite number and > -1 and < 0": lambda: ksd(
            x, gradients, exponent=0.5
        ),
        "at must be an int in \\[1, number of draws = 9\\]; got 10": lambda: ksd_path(
            x, gradients, [3, 10]
        ),
        "at must hold the length of at least one prefix": lambda: ksd_path(x, gradients, []),
    }.items():
        with pytest.raises(tallmc.InvalidInput, match=message):
            call()


POSTERIORS = {"glm": logistic, "autodiff": logistic_by_autodiff}


@pytest.mark.parametrize("model", POSTERIORS)
@pytest.mark.parametrize("count", slow_after(1, [70, 1, 64]))
def test_exact_gradients_are_those_of_the_posterior(model, count):
    posterior = POSTERIORS[model](n_rows=30)
    positions = np.random.default_rng(0).normal(size=(count, 2))
    one_by_one = run_once(jax.vmap(jax.grad(posterior.potential)))(positions)
    found = exact_gradients(posterior, positions)
    np.testing.assert_allclose(found, one_by_one, rtol=1e-12, atol=1e-12)


def test_stochastic_gradients_are_independent_draws_of_the_estimator():
    posterior, size = logistic(n_rows=6), 3
    position = np.array([0.7, -1.3])
    kernel, rows = (
        tallmc.methods.sgld(step_size=0.1, batch_size=size).prepare(posterior).kernel.composition,
        posterior.rows,
    )
    positions = np.tile(position, (40_000, 1))
    estimates = stochastic_gradients(kernel.gradient, kernel.selection, rows, positions)
    r, N = residual_matrix(kernel.gradient, rows, jnp.asarray(position)), 6
    covariance = (N * r.T @ r - np.outer(r.sum(0), r.sum(0))) / size
    centred = estimates - np.asarray(posterior.gradient(jnp.asarray(position)))
    products = np.einsum("ki,kj->kij", centred, centred)
    neighbours = centred[1:] * centred[:-1]
    zero = np.zeros(2)
    for sample, truth in [(centred, zero), (products, covariance), (neighbours, zero)]:
        z = (sample.mean(0) - truth) / (sample.std(0) / np.sqrt(len(sample)))
        assert np.abs(z).max() < 4.6


@pytest.fixture(scope="module")
def run():
    posterior = linear(n_rows=40)
    method = tallmc.methods.sgld(step_size=1e-3, batch_size=10)
    return posterior, tallmc.sample(posterior, method, chains=3, n_draws=50)


@pytest.mark.slow
def test_ksd_of_a_run_is_that_of_its_thinned_draws(run):
    posterior, draws = run
    units = np.array([0.1, 0.2])
    found = draws_ksd(draws, posterior, most=30, units=units, form="sum_of_roots")
    kept = draws.positions[:, 4::5].reshape(-1, 2)
    gradients = np.stack([posterior.gradient(position) for position in kept])
    expected = ksd(kept / units, gradients * units, form="sum_of_roots")
    assert found.ksd == pytest.approx(expected, rel=1e-9)
    assert found.n_draws == 30
    assert found.n_row_evals == 30 * 40
    assert draws_ksd(draws, posterior).n_draws == 150


def test_ksd_of_a_run_in_units_of_a_matrix_is_that_of_other_parameters(run):
    posterior, draws = run
    C = np.array([[0.2, 0.0], [-0.1, 0.3]])
    positions = draws.positions.reshape(-1, 2)
    other = positions @ np.linalg.inv(C).T
    gradients = run_once(jax.vmap(jax.grad(lambda u: posterior.potential(C @ u))))(other)
    found = draws_ksd(draws, posterior, units=C).ksd
    assert found == pytest.approx(ksd(other, gradients), rel=1e-9)


def test_ksd_of_a_run_leaves_failed_chains_out(run):
    posterior, draws = run
    positions = draws.positions.copy()
    positions[1, 20:] = np.nan
    ok, non_finite = tallmc.diagnose.Outcome.OK, tallmc.diagnose.Outcome.NON_FINITE
    failed = dataclasses.replace(draws, positions=positions, outcomes=(ok, non_finite, ok))
    rest = dataclasses.replace(draws, positions=draws.positions[[0, 2]], outcomes=(ok, ok))
    assert draws_ksd(failed, posterior) == draws_ksd(rest, posterior)
    none = dataclasses.replace(draws, outcomes=(tallmc.diagnose.Outcome.DIVERGED,) * 3)
    with pytest.raises(tallmc.InvalidInput, match="draws must have a chain that completed"):
        draws_ksd(none, posterior)


@pytest.mark.slow
def test_ksd_of_a_run_with_few_rows_adds_their_noise_and_counts_them(run):
    posterior, draws = run
    exact = draws_ksd(draws, posterior)
    found = np.array(
        [draws_ksd(draws, posterior, size=4, seed=seed).ksd ** 2 for seed in range(100)]
    )
    assert draws_ksd(draws, posterior, size=4).n_row_evals == 150 * 4
    gradient = Simple().prepare(posterior, None)
    traces = []
    for position in draws.positions.reshape(-1, 2):
        r = residual_matrix(gradient, posterior.rows, jnp.asarray(position))
        traces.append((40 * np.sum(r**2) - np.sum(r.sum(0) ** 2)) / 4)
    error = found.std(ddof=1) / np.sqrt(len(found))
    assert abs(found.mean() - (exact.ksd**2 + np.mean(traces) / 150)) < 4.6 * error


def test_ksd_of_a_run_refuses_what_makes_no_sense(run):
    posterior, draws = run
    for message, call in {
        "draws must be the Draws of tallmc.sample; got 'ndarray'": lambda: draws_ksd(
            draws.positions, posterior
        ),
        "posterior must be the one that was sampled": lambda: draws_ksd(
            draws, linear(n_rows=40, dim=3)
        ),
        "most must be an int of at least 1": lambda: draws_ksd(draws, posterior, most=0),
        "size must be an int in \\[1, n_rows = 40\\]; got 41": lambda: draws_ksd(
            draws, posterior, size=41
        ),
        "units must be positive, or an invertible": lambda: draws_ksd(
            draws, posterior, units=[1.0, 0.0]
        ),
        "units must be positive, or an invertible matrix": lambda: draws_ksd(
            draws, posterior, units=np.ones((2, 2))
        ),
        "units must be a finite number, one number per coordinate": lambda: draws_ksd(
            draws, posterior, units=np.ones(3)
        ),
    }.items():
        with pytest.raises(tallmc.InvalidInput, match=message):
            call()


@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_draws_of_decreasing_steps_count_by_their_weights():
    """Steps of size 0 count for nothing: the discrepancy is that of the other draws."""
    posterior = linear()
    method = tallmc.methods.sgld(1e-3, batch_size=2)
    draws = tallmc.sample(posterior, method, chains=2, n_draws=40, progress=False)
    steps = np.tile(np.repeat([0.0, 1.0], 20), (2, 1))
    weighted = dataclasses.replace(draws, sample_stats={"step_size": steps})
    later = dataclasses.replace(draws, positions=draws.positions[:, 20:])
    found, wanted, all_draws = (draws_ksd(of, posterior)[0] for of in (weighted, later, draws))
    assert found == pytest.approx(wanted, rel=1e-10)
    assert abs(all_draws - wanted) > 0.01 * wanted
