"""Diagnostics are what they are defined to be.

Checked by enumeration, in closed form, and as the fixed point of a recursion.
"""

import functools
import itertools
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import (
    exact_posterior,
    linear,
    logistic,
    logistic_by_autodiff,
    residual_matrix,
    slow_after,
    start_of,
)
from stationary import exact_law, gradient_covariance
from tallmc._core.arrays import DenseMap
from tallmc._core.statistics import pareto_k
from tallmc.diagnose import (
    ess,
    estimated_pseudo_variance,
    gaussian_kl,
    langevin_covariance,
    langevin_inflation,
    leimkuhler_matthews_covariance,
    log_loss,
    log_losses,
    pseudo_variance,
    rhat,
)
from tallmc.dynamics import Langevin, LeimkuhlerMatthews
from tallmc.geometry import Dense, Diagonal, Identity
from tallmc.gradient import SVRG, ControlVariate, Full, Simple
from tallmc.subsample import (
    AllRows,
    Bandit,
    BoundedNoise,
    ExponentiallyWeighted,
    Optimal,
    Preferential,
    Stratified,
    Uniform,
)

POSITION = np.array([0.7, -1.3])
FACTOR = np.array([[0.5, 0.0], [-0.3, 2.0]])
UNEVEN = np.array([1.0, 2.0, 0.0, 30.0, 0.5])

SUBSAMPLES = {
    "uniform": Uniform(),
    "without-replacement": Uniform(replace=False),
    "own-weights": Preferential(UNEVEN, floor=0.1),
    "certain-rows": Preferential(UNEVEN, floor=0.1, take_all=True),
    "optimal": Optimal(),
}
GRADIENTS = {"simple": Simple(), "control-variate": ControlVariate(), "svrg": SVRG(every=10)}


MODELS = {"glm": logistic(), "autodiff": logistic_by_autodiff()}
anchor_of = functools.cache(lambda model: tallmc.anchor.find_anchor(MODELS[model]))


def prepared(subsample, gradient, model="glm", size=3):
    method = tallmc.Method(subsample=subsample, gradient=gradient, batch_size=size, step_size=0.1)
    return method.prepare(MODELS[model], anchor_of(model)).kernel


def memory_at_rest(bound):
    """What the gradient of a chain that starts at the anchor knows before its first step."""
    return start_of(bound.kernel.gradient, bound.rows, bound.kernel.rest)


def every_batch(bound, name):
    """Row numbers, weights and probability of every batch that a step can see."""
    selection, N = bound.kernel.selection, bound.rows.n_rows
    if name == "without-replacement":
        sets = list(itertools.combinations(range(N), selection.size))
        weights = np.full(selection.size, N / selection.size)
        yield from ((list(rows), weights, 1 / len(sets)) for rows in sets)
        return
    certain = list(np.asarray(selection.certain)) if name != "optimal" else []
    if name == "optimal":
        position, carried = jnp.asarray(POSITION), memory_at_rest(bound)
        units = selection.units(bound.kernel.gradient, position, bound.rows, carried)
        p = np.asarray(units, float) / 2**32
    else:
        p = selection.stream.probabilities()
    draws = selection.size - len(certain)
    for rows in itertools.product(np.flatnonzero(p), repeat=draws):
        weights = np.concatenate([np.ones(len(certain)), 1 / (draws * p[list(rows)])])
        yield certain + list(rows), weights, np.prod(p[list(rows)])


CASES = [("glm", s, g) for s in SUBSAMPLES for g in GRADIENTS]
CASES += [("autodiff", "own-weights", "control-variate")]


@pytest.mark.parametrize(("model", "subsample", "gradient"), slow_after(8, CASES))
def test_pseudo_variance_is_the_trace_by_enumeration(model, subsample, gradient):
    bound = prepared(SUBSAMPLES[subsample], GRADIENTS[gradient], model)
    position, carried = jnp.asarray(POSITION), memory_at_rest(bound)
    r = residual_matrix(bound.kernel.gradient, bound.rows, position, carried)
    rows, weights, probability = zip(*every_batch(bound, subsample), strict=True)
    assert sum(probability) == pytest.approx(1, abs=1e-12)
    for geometry, factor in [(None, np.eye(2)), (DenseMap(jnp.asarray(FACTOR)), FACTOR)]:
        sums = np.stack(
            [w @ r[of_batch] @ factor for of_batch, w in zip(rows, weights, strict=True)]
        )
        trace = probability @ np.sum((sums - r.sum(0) @ factor) ** 2, axis=1)
        found = pseudo_variance(bound, POSITION, geometry=geometry)
        assert found == pytest.approx(trace, rel=1e-11)


def test_certain_rows_are_tested():
    bound = prepared(SUBSAMPLES["certain-rows"], Simple())
    assert len(bound.kernel.selection.certain) == 1


@pytest.mark.slow
def test_pseudo_variance_of_an_adaptive_size_is_that_of_its_rows_at_the_position():
    adaptive = prepared(Uniform(), ControlVariate(), size=BoundedNoise(noise_threshold=3.0))
    size = int(adaptive.kernel.selection.size_at(jnp.asarray(POSITION)))
    assert 1 < size < 5
    fixed = prepared(Uniform(), ControlVariate(), size=size)
    expected = pseudo_variance(fixed, POSITION)
    assert pseudo_variance(adaptive, POSITION) == pytest.approx(expected, rel=1e-12)


def test_all_rows_make_no_noise():
    assert pseudo_variance(prepared(AllRows(), Full(), size=None), POSITION) == 0.0


@pytest.mark.slow
def test_pseudo_variance_of_many_rows_keeps_its_digits_in_single_precision():
    double = linear(n_rows=20_000, dim=3)
    x, y = (np.asarray(column, np.float32) for column in double.data[:2])
    single = tallmc.models.linear_regression(x, y, prior_variance=4.0, noise_variance=1.5)
    assert single.dtype == np.float32
    position = np.array([0.5, 1.0, 2.0])
    method = tallmc.methods.sgld(1e-4, 10)
    exact, found = (
        pseudo_variance(method.prepare(posterior).kernel, position)
        for posterior in (double, single)
    )
    assert found == pytest.approx(exact, rel=1e-5)  # a row's residual has an error of a few 1e-7


@pytest.mark.parametrize(
    "subsample",
    slow_after(
        1,
        [
            "without-replacement",
            "stratified",
            "bandit",
            *(s for s in SUBSAMPLES if s != "without-replacement"),
        ],
    ),
)
def test_estimated_pseudo_variance_is_unbiased(subsample):
    strata = np.array([0, 1, 0, 1, 0])
    choice = {"stratified": Stratified(strata, at_least=2), "bandit": Bandit()} | SUBSAMPLES
    bound, geometry = prepared(choice[subsample], Simple(), size=4), DenseMap(jnp.asarray(FACTOR))
    if subsample == "stratified":
        r = residual_matrix(bound.kernel.gradient, bound.rows, jnp.asarray(POSITION)) @ FACTOR
        of_strata = [r[strata == h] for h in (0, 1)]
        exact = sum(np.sum(of.var(axis=0)) * len(of) ** 2 / 2 for of in of_strata)
    else:
        # Before its first step a bandit has the same weight for all rows.
        known = bound if subsample != "bandit" else prepared(Uniform(), Simple(), size=4)
        exact = pseudo_variance(known, POSITION, geometry=geometry)
    found = estimated_pseudo_variance(bound, POSITION, batches=20_000, geometry=geometry)
    assert abs(found.value - exact) < 4.6 * found.standard_error
    assert found.standard_error < 0.05 * exact


@pytest.mark.slow
def test_pseudo_variance_refuses_what_it_does_not_know():
    uniform = prepared(Uniform(), Simple())
    exponential = prepared(ExponentiallyWeighted(), Simple())
    stratified = prepared(Stratified(np.array([0, 1, 0, 1, 0])), Simple())
    unknown = (
        "kernel must draw rows with known probabilities, .*; got 'StratifiedSelection'. Try est"
    )
    for message, call in {
        unknown: lambda: pseudo_variance(stratified, POSITION),
        "kernel must come from a prepared method": lambda: pseudo_variance(
            tallmc.methods.sgld(0.1, 2), POSITION
        ),
        "position must be finite, with one value per coordinate \\(2\\)": lambda: pseudo_variance(
            uniform, [1.0]
        ),
        "kernel must have a subsample that provides the spread": lambda: estimated_pseudo_variance(
            exponential, POSITION
        ),
        "batches must be an int of at least 2": lambda: estimated_pseudo_variance(
            uniform, POSITION, batches=1
        ),
        "kernel must draw at least two rows": lambda: estimated_pseudo_variance(
            prepared(Uniform(), Simple(), size=1), POSITION
        ),
    }.items():
        with pytest.raises(tallmc.InvalidInput, match=message):
            call()


def test_gaussian_kl_is_the_expected_log_ratio():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 3))
    mean, covariance = rng.normal(size=3), a @ a.T + np.eye(3)
    other_mean, other = rng.normal(size=3), b @ b.T + np.eye(3)

    def quadratic(x, m, S):
        return (
            np.einsum("ki,ij,kj->k", x - m, np.linalg.inv(S), x - m) / 2
            + np.log(np.linalg.det(S)) / 2
        )

    # The log ratio is quadratic: its mean over points with this mean and covariance is exact.
    root = np.linalg.cholesky(covariance)
    points = mean + np.sqrt(3) * np.concatenate([root.T, -root.T])
    expected = np.mean(quadratic(points, other_mean, other) - quadratic(points, mean, covariance))
    assert gaussian_kl(mean, covariance, other_mean, other) == pytest.approx(expected, rel=1e-12)
    assert gaussian_kl(mean, covariance, mean, covariance) == pytest.approx(0, abs=1e-14)


def test_inflation_of_section_2_5_is_the_lyapunov_solution_with_four_times_its_noise():
    variance, step, V = 0.8, 0.6, 0.7
    printed = variance * (1 + step * V) / (1 - step / (4 * variance))
    assert variance * langevin_inflation(variance, step, 4 * V) == pytest.approx(printed, rel=1e-14)
    assert langevin_covariance([[1 / variance]], step, [[4 * V]]) == pytest.approx(
        printed, rel=1e-14
    )


def test_whitened_leimkuhler_matthews_is_inflated_by_hv_over_4_minus_h():
    h, v = 0.9, np.array([0.2, 3.0])
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    C = np.linalg.cholesky(covariance)
    noise = np.linalg.inv(C.T) @ np.diag(v) @ np.linalg.inv(C)  # variance v after whitening
    found = leimkuhler_matthews_covariance(np.linalg.inv(covariance), h, noise, factor=C)
    np.testing.assert_allclose(found, C @ np.diag(1 + h * v / (4 - h)) @ C.T, rtol=1e-12)


@pytest.mark.parametrize("geometry", [Identity(), Diagonal([0.5, 2.0]), Dense()])
@pytest.mark.parametrize(
    ("dynamics", "predicted"),
    [(Langevin(), langevin_covariance), (LeimkuhlerMatthews(), leimkuhler_matthews_covariance)],
)
def test_predicted_covariance_is_the_exact_stationary_law(dynamics, predicted, geometry):
    # Rows with the same x and different y: their gradients differ by a constant, so that the noise
    # is the same everywhere.
    x, y = np.tile([1.0, -0.6], (6, 1)), np.array([0.3, -1.0, 2.0, 0.1, 0.9, -2.2])
    posterior = tallmc.models.linear_regression(x, y, prior_variance=0.5, noise_variance=2.0)
    method = tallmc.Method(dynamics=dynamics, batch_size=2, step_size=0.3, geometry=geometry)
    bound = method.prepare(posterior, tallmc.anchor.find_anchor(posterior)).kernel
    noise_at = gradient_covariance(bound)
    noise = noise_at(np.zeros((2, 2)))
    np.testing.assert_allclose(noise_at(np.eye(2)), noise, atol=1e-10)
    _, covariance = exact_posterior(posterior)
    factor = np.asarray(bound.kernel.dynamics.geometry.push(jnp.eye(2))).T
    found = predicted(np.linalg.inv(covariance), 0.3, noise, factor=factor)
    np.testing.assert_allclose(found, exact_law(bound, 0.3).covariance, rtol=1e-10)


def test_gaussian_predictions_refuse_what_makes_no_sense():
    one = [[1.0]]
    for message, call in {
        "step_size must be a finite number and > 0 and < 4; got 5.0. Beyond": lambda: (
            langevin_covariance(one, 5.0, one)
        ),
        "hessian must be a symmetric positive definite 1×1": lambda: langevin_covariance(
            [[-1.0]], 0.1, one
        ),
        "noise must have shape \\(1, 1\\)": lambda: leimkuhler_matthews_covariance(one, 0.1, 0.3),
        "factor must be invertible": lambda: langevin_covariance(one, 0.1, one, factor=[[0.0]]),
        "variance must be positive": lambda: langevin_inflation(0.0, 0.1, 0.1),
        "noise_variance must not be negative": lambda: langevin_inflation(1.0, 0.1, -0.1),
        "step_size must be": lambda: langevin_inflation([1.0, 0.1], 0.4, 0.1),
        "mean must be a vector": lambda: gaussian_kl(1.0, one, 1.0, one),
        "reference_mean must have shape \\(1,\\)": lambda: gaussian_kl([1.0], one, [1.0, 2.0], one),
        "covariance must be a symmetric positive definite 2×2": lambda: gaussian_kl(
            [0, 0], [[1, 2], [2, 1]], [0, 0], np.eye(2)
        ),
        "reference_covariance must be finite": lambda: gaussian_kl([1.0], one, [1.0], [[np.nan]]),
    }.items():
        with pytest.raises(tallmc.InvalidInput, match=message):
            call()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n_draws", slow_after(1, [70, 1]))
def test_log_losses_are_those_of_the_probabilities(model, n_draws):
    posterior, rng = MODELS[model], np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), rng.integers(0, 2, 30)
    positions = rng.normal(size=(2, n_draws, 2))
    rows = type(posterior.data)(x, y)
    ones = 1 / (1 + np.exp(-np.einsum("nd,ckd->nck", x, positions)))
    probability = np.where(y[:, None, None] == 1, ones, 1 - ones)
    found = log_losses(positions, posterior, rows)
    np.testing.assert_allclose(found, -np.log(probability).mean(0), rtol=1e-12)
    mixture = -np.log(probability.mean((1, 2))).mean()
    assert log_loss(positions, posterior, rows) == pytest.approx(mixture, rel=1e-12)


def test_log_losses_do_not_overflow():
    posterior = MODELS["glm"]
    rows = (np.array([[1e4, 0.0]]), np.array([0]))
    mixture = log_loss([[1.0, 0.0], [2.0, 0.0]], posterior, rows)
    assert mixture == pytest.approx(1e4 + np.log(2), rel=1e-12)
    np.testing.assert_allclose(log_losses([[1.0, 0.0], [-1.0, 0.0]], posterior, rows), [1e4, 0.0])


@pytest.mark.slow
def test_log_losses_of_more_rows_than_a_block_are_added_up():
    posterior, rng = MODELS["glm"], np.random.default_rng(0)
    x, y = rng.normal(size=(20_001, 2)), rng.integers(0, 2, 20_001)
    positions = rng.normal(size=(3, 2))
    halves = [(x[:7000], y[:7000]), (x[7000:], y[7000:])]
    for loss in (log_loss, log_losses):
        sums = [len(rows[1]) * loss(positions, posterior, rows) for rows in halves]
        by_halves = sum(sums) / 20_001
        np.testing.assert_allclose(loss(positions, posterior, (x, y)), by_halves, rtol=1e-12)


def test_log_losses_refuse_what_makes_no_sense():
    posterior, position = MODELS["glm"], [[0.0, 0.0]]
    x, y = np.ones((3, 2)), np.zeros(3)
    for message, call in {
        "positions must have 2 coordinates along the last axis": lambda: log_loss(
            [0.0], posterior, (x, y)
        ),
        "positions must be finite": lambda: log_loss([[np.nan, 0.0]], posterior, (x, y)),
        "rows must have the structure of the posterior's data": lambda: log_loss(
            position, posterior, (x,)
        ),
        "rows must be real numbers": lambda: log_loss(position, posterior, (x, ["a", "b", "c"])),
        "rows must be arrays of one length": lambda: log_losses(position, posterior, (x, y[:2])),
        "whose rows have shapes \\[\\(2,\\), \\(\\)\\]": lambda: log_losses(
            position, posterior, (x[:, :1], y)
        ),
        "rows must be arrays": lambda: log_losses(position, posterior, (x[:0], y[:0])),
    }.items():
        with pytest.raises(tallmc.InvalidInput, match=message):
            call()


def test_ess_and_rhat_are_those_of_arviz_for_each_coordinate():
    import arviz_base
    import arviz_stats

    rng = np.random.default_rng(0)
    steps = rng.normal(size=(4, 200, 3)) * np.array([1.0, 0.3, 3.0])
    positions = np.cumsum(steps, axis=1) * 0.1 + rng.normal(size=steps.shape)
    tree = arviz_base.from_dict({"posterior": {"x": positions}})
    for found, expected in [
        (ess(positions), arviz_stats.ess(tree, method="bulk")),
        (rhat(positions), arviz_stats.rhat(tree, method="rank")),
    ]:
        np.testing.assert_allclose(found, expected.x.values, rtol=1e-12)
    assert np.ptp(ess(positions)) > 10


def test_ess_and_rhat_refuse_what_makes_no_sense():
    positions = np.random.default_rng(0).normal(size=(3, 10, 2))
    bad = positions.copy()
    bad[1, 2, 0] = np.inf
    shape = "positions must have shape \\(chains, draws, d\\) with chains >= 1 and draws >= 4"
    for message, call in {
        shape: lambda: ess(positions[0]),
        "draws >= 4; got shape \\(3, 3, 2\\)": lambda: ess(positions[:, :3]),
        "chains >= 2": lambda: rhat(positions[:1]),
        "positions must be finite; got NaN or infinity in chain 1": lambda: rhat(bad),
    }.items():
        with pytest.raises(tallmc.InvalidInput, match=message):
            call()


@pytest.mark.slow
def test_diagnostics_need_nothing_heavy_until_they_are_asked_for():
    program = """
import sys, numpy as np
sys.modules["arviz_stats"] = None
import tallmc.diagnose
assert not {"xarray", "arviz_base", "pandas"} & set(sys.modules)
assert tallmc.diagnose.ess(np.zeros((2, 10, 1))) == 20
assert tallmc._core.statistics.pareto_k(np.arange(100.0)) < 0.5
assert not {"xarray", "arviz_base", "pandas"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("size", [30, 226, 5000])
@pytest.mark.parametrize("tail", [0.3, 0.8, 2.0])
def test_paretos_k_is_that_of_arviz(size, tail):
    from arviz_stats.base import array_stats

    values = np.random.default_rng(size).pareto(1 / tail, size=size)
    expected = array_stats.pareto_khat(
        values[None], chain_axis=0, draw_axis=1, tail="right", r_eff=1.0
    )
    assert pareto_k(values) == pytest.approx(float(expected), rel=1e-9)
