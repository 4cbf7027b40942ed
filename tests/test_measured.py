"""A size that follows the measured noise.

The measure of the noise is unbiased, the gradient estimate is unbiased at any size, and the size
follows the noise. Draws beyond those of every step come from a reserve that the steps of a block
share.
"""

import functools
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import linear, logistic, residual_matrix, slow_after
from stationary import exact_law, law_z
from tallmc._core.arrays import DenseMap, named_leaves
from tallmc._engine.run import Run, chain_keys
from tallmc._engine.supply import block_steps
from tallmc._rows.law import RowDraws
from tallmc.diagnose import pseudo_variance
from tallmc.gradient import ControlVariate
from tallmc.subsample import Preferential, TargetNoise
from tallmc.subsample.measured import NoiseMeasurement
from tallmc.subsample.selection import Carried, alternating_signs
from test_unbiased import z_of_moments

POSITION = jnp.array([0.7, -1.3])
FACTOR = jnp.array([[0.8, 0.0], [-0.3, 1.7]])
COVARIANCE = np.asarray(FACTOR @ FACTOR.T)


@functools.cache
def posterior_of(n_rows):
    """The posterior, its anchor, and its gradient at the position."""
    posterior = logistic(n_rows=n_rows)
    gradient = np.asarray(posterior.gradient(POSITION))
    return posterior, tallmc.anchor.find_anchor(posterior), gradient


def prepared(size, n_rows, *, take_all=False, gradient=None):
    posterior, anchor, _ = posterior_of(n_rows)
    weights = np.r_[n_rows, np.linspace(1, 2, n_rows - 1)] if take_all else "curvature"
    method = tallmc.Method(
        gradient=gradient or ControlVariate(),
        subsample=Preferential(weights, take_all=take_all),
        batch_size=size,
        geometry=tallmc.geometry.Dense(COVARIANCE),
        step_size=0.1,
    )
    return method.prepare(posterior, anchor).kernel


def measurement(of_one_draw, reserve_words=(0, 0), reserve_used=0):
    """The memory of a chain that has measured this much noise and used this much of a reserve."""
    return NoiseMeasurement(
        jnp.asarray(of_one_draw, float),
        jnp.asarray(0.0),
        jnp.zeros(2),
        jnp.int32(0),
        jnp.asarray(reserve_words, jnp.uint32),
        jnp.int32(reserve_used),
    )


N_ROWS, LANES = 140, 20_000  # enough for all pairs of rows


@run_once
def _estimates(bound, of_one_draw, left, given, is_given):
    kernel, rows = bound.kernel, bound.rows

    def one(key, of_lane):
        drawn = jax.tree.map(lambda leaf: leaf[0], kernel.draw(key, 1).selection)
        base = jax.tree.map(lambda a, b: jnp.where(is_given, a, b), of_lane, drawn.base)
        drawn, reserve = eqx.tree_at(lambda of: of.base, drawn, base), drawn.reserve
        used = jnp.where(left < 0, 0, reserve.size - left)
        carried = Carried(None, measurement(of_one_draw, reserve.words, used))
        return kernel.estimate(POSITION, kernel.selection.gather(drawn, rows), rows, carried)

    found = jax.vmap(one)(jax.random.split(jax.random.key(3), LANES), given)
    measured = found.carried.selection
    return found.gradient, found.n_rows, found.stats["grad_noise"], measured


def estimates(bound, of_one_draw, left=-1, given=None):
    """Many estimates at one position by chains that have measured this much noise.

    `left` is how many draws of its reserve each chain has not used; all of them by default. `given`
    are rows and weights of the first chains, in place of random ones.
    """
    size = bound.kernel.selection.base.size
    indices, weights = np.zeros((LANES, size), np.int32), np.zeros((LANES, size))
    if given is not None:
        indices[: len(given[0])], weights[: len(given[0])] = given
    draws = RowDraws(jnp.asarray(indices), jnp.asarray(weights))
    found = _estimates(
        bound, np.float64(of_one_draw), np.int32(left), draws, np.bool_(given is not None)
    )
    gradient, n_rows, noise, measured = jax.tree.map(np.asarray, found)
    return Found(gradient, n_rows, noise, measured)


class Found(NamedTuple):
    gradient: Any
    n_rows: Any
    grad_noise: Any
    measured: Any


def covariance_of_one_draw(bound):
    """Cov(∇f̂) at the position from one draw of the stream, beside the rows of every step."""
    p = bound.kernel.selection.base.stream.probabilities()
    r = residual_matrix(bound.kernel.gradient, bound.rows, POSITION)[p > 0]
    return (r.T / p[p > 0]) @ r - np.outer(r.sum(0), r.sum(0))


def all_draws(base):
    """All tuples of rows that a step may draw: row numbers, weights and probabilities."""
    p = base.stream.probabilities()
    tuples = np.array(list(itertools.product(np.flatnonzero(p), repeat=base.draws)))
    certain = np.tile(np.asarray(base.certain), (len(tuples), 1))
    weights = np.c_[np.ones(certain.shape), 1 / (base.draws * p[tuples])]
    return np.c_[certain, tuples].astype(np.int32), weights, p[tuples].prod(axis=1)


@pytest.fixture(scope="module")
def of_many_rows():
    """A kernel that takes from 2 to 130 of 140 rows."""
    return prepared(TargetNoise(2, noise=1.0, max_size=130), N_ROWS)


@pytest.fixture(scope="module")
def with_a_certain_row():
    """A kernel that takes 3 rows or more, one of them always."""
    return prepared(TargetNoise(3, noise=1.0), N_ROWS, take_all=True)


@pytest.mark.parametrize("kind", slow_after(1, ["with_a_certain_row", "of_many_rows"]))
def test_the_measure_is_unbiased_by_parameter_and_in_all(kind, request):
    bound = request.getfixturevalue(kind)
    base = bound.kernel.selection.base
    assert (base.draws, base.n_certain) == (2, int(kind == "with_a_certain_row"))
    check_measure(bound)


def test_signs_of_any_number_of_draws_have_sum_zero_and_as_many_squares_as_draws():
    """So E(Σ s_k t_k)² = n Var(t) for n draws t_k of one law, also if n is odd."""
    cases = [(size, certain) for size in range(2, 7) for certain in range(size - 1)]
    signs = run_once(lambda: [alternating_signs(*case, jnp.float64) for case in cases])()
    for (size, certain), of_case in zip(cases, signs, strict=True):
        found = np.asarray(of_case)
        assert found.shape == (size,) and not np.any(found[:certain])
        assert found.sum() == 0
        assert (found**2).sum() == pytest.approx(size - certain, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "take_all"), [(3, False), (4, False), (5, True)])
def test_the_measure_is_unbiased_at_other_sizes(size, take_all):
    check_measure(prepared(TargetNoise(size, noise=1.0), 5, take_all=take_all))


def check_measure(bound):
    """By enumeration of all draws of a step, whose estimate is that of the fixed size."""
    base, C = bound.kernel.selection.base, np.asarray(FACTOR)
    indices, weights, chances = all_draws(base)
    assert chances.sum() == pytest.approx(1, rel=1e-12)
    found = jax.tree.map(
        lambda leaf: leaf[: len(chances)], estimates(bound, 0.0, given=(indices, weights))
    )
    one_draw = C.T @ covariance_of_one_draw(bound) @ C
    measure = found.measured
    assert np.all(measure.steps == 1) and np.all(found.n_rows == base.size)
    by_parameter = (C @ one_draw @ C.T).diagonal() / base.draws
    np.testing.assert_allclose(chances @ measure.sum_of_one_draw, np.trace(one_draw) / 2)
    np.testing.assert_allclose(chances @ measure.sum_by_parameter, by_parameter)
    np.testing.assert_allclose(chances @ found.grad_noise, np.trace(one_draw) / base.draws)
    # With noise below its aim, the estimate is that of the fixed size from the same draws.
    r = residual_matrix(bound.kernel.gradient, bound.rows, POSITION)
    exact = posterior_of(bound.rows.n_rows)[2]
    fixed = exact - r.sum(axis=0) + np.einsum("kn,knd->kd", weights, r[indices])
    np.testing.assert_allclose(found.gradient, fixed, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(chances @ found.gradient, exact, rtol=1e-10)
    # The same kernel with only the rows that every step sees.
    fixed = eqx.tree_at(lambda b: b.kernel.selection, bound, base)
    exact = pseudo_variance(fixed, POSITION, geometry=DenseMap(FACTOR))
    assert np.trace(one_draw) / base.draws == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("rows", [2, 5, 67, 120])
def test_the_estimate_has_the_mean_and_covariance_of_its_size(of_many_rows, rows):
    """With the draws of every step alone, and with further draws in one and in several chunks."""
    found = estimates(of_many_rows, rows)
    assert np.all(found.n_rows == rows)
    covariance = covariance_of_one_draw(of_many_rows) / rows
    assert z_of_moments(found.gradient, posterior_of(N_ROWS)[2], covariance) < 4.6


def test_the_size_stays_between_its_limits(of_many_rows):
    for level, rows in ((0.0, 2), (17.2, 18), (1e9, 130)):
        assert np.all(estimates(of_many_rows, level).n_rows == rows)
    without_limit = prepared(TargetNoise(2, noise=1.0), N_ROWS)
    assert without_limit.kernel.selection.largest == N_ROWS


def test_the_size_follows_the_noise_into_the_tail_and_back():
    bound = prepared(TargetNoise(16, noise=0.05), N_ROWS, gradient=ControlVariate(2))
    anchor = np.asarray(posterior_of(N_ROWS)[1].position)
    positions = np.where((np.arange(450) // 150 == 1)[:, None], anchor + 3.0, anchor + 0.01)

    @run_once
    def sizes_at(bound, positions):
        selection = bound.kernel.selection
        batches = selection.gather(selection.draw(jax.random.key(0), 450), bound.rows)

        def step(measure, given):
            position, batch = given
            estimate = bound.kernel.estimate(position, batch, bound.rows, Carried(None, measure))
            return estimate.carried.selection, estimate.n_rows

        start = selection.start(jax.tree.map(lambda leaf: leaf[0], batches))
        return jax.lax.scan(step, start, (positions, batches))[1]

    sizes = np.asarray(sizes_at(bound, jnp.asarray(positions)))
    near, far, back = (sizes[first : first + 20].mean() for first in (130, 280, 430))
    assert near == back == 16 and far > 64


@pytest.mark.slow
def test_with_noise_below_its_aim_it_is_the_fixed_size():
    """Long runs have the exact stationary law of the fixed size."""
    posterior = linear()
    parts = {
        "dynamics": tallmc.dynamics.LeimkuhlerMatthews(),
        "gradient": ControlVariate(),
        "geometry": tallmc.geometry.Dense(),
        "subsample": Preferential("curvature"),
        "step_size": 0.4,
    }
    fixed = tallmc.Method(**parts, batch_size=6).prepare(posterior).kernel
    measured = (
        tallmc.Method(**parts, batch_size=TargetNoise(6, noise=1e9)).prepare(posterior).kernel
    )
    z = law_z(measured, exact_law(fixed, 0.4))
    assert max(z.values()) < 4.6, z


# The reserve.

AIM = 1000.0  # at the position: some 10 draws per step
AIM_OF_RUN = 0.05  # some 20 draws per step


CHAINS, STEPS = 20_000, 8


def with_reserve(drawn, size):
    """The same draws with a reserve of this size."""
    sizes = jnp.full_like(drawn.reserve.size, size)
    return eqx.tree_at(lambda of: of.reserve.size, drawn, sizes)


@pytest.fixture(scope="module")
def of_a_block():
    return prepared(TargetNoise(3, noise=AIM), N_ROWS)


def steps_of_a_block(bound, reserve_size):
    return jax.tree.map(np.asarray, _steps_of_a_block(bound, np.int32(reserve_size)))


@run_once
def _steps_of_a_block(bound, reserve_size):
    """Estimates of many chains that stay at one position for a block with a reserve of this size.

    Returns the gradients, the rows per step, and the noise of one draw measured before each step.
    """
    kernel, rows = bound.kernel, bound.rows

    def chain(key):
        drawn = with_reserve(kernel.draw(key, STEPS).selection, reserve_size)

        def step(measured, batch):
            estimate = kernel.estimate(POSITION, batch, rows, Carried(None, measured))
            seen = (estimate.gradient, estimate.n_rows, measured.of_one_draw)
            return estimate.carried.selection, seen

        batches = kernel.selection.gather(drawn, rows)
        return jax.lax.scan(step, measurement(12 * AIM), batches)[1]

    return jax.vmap(chain)(jax.random.split(jax.random.key(5), CHAINS))


def largest_z(sample):
    """Largest |z| of the mean of a sample against zero."""
    return np.abs(sample.mean(0) / (sample.std(0) / np.sqrt(len(sample)))).max()


def test_the_estimate_is_unbiased_when_the_reserve_caps_the_size(of_a_block):
    """The cap depends on earlier steps only.

    So the error of a step has mean zero given its size, covariance V/n with V that of one draw, and
    no correlation with the error of the step before.
    """
    gradients, sizes, of_one_draw = steps_of_a_block(of_a_block, 24)
    error = gradients - posterior_of(N_ROWS)[2]
    one_draw = covariance_of_one_draw(of_a_block)
    wanted = np.clip(np.ceil(of_one_draw / AIM), 3, N_ROWS)
    capped = sizes < wanted
    assert (sizes[:, 0] == 12).all() and capped[:, -1].mean() > 0.5
    for step in range(STEPS):
        standardised = error[:, step] * np.sqrt(sizes[:, step])[:, None]
        assert z_of_moments(standardised, np.zeros(2), one_draw) < 4.6
        for group in (capped[:, step], ~capped[:, step]):
            if group.sum() > 1000:
                assert z_of_moments(standardised[group], np.zeros(2), one_draw) < 4.6
    assert min(capped[:, 2].sum(), (~capped[:, 2]).sum()) > 1000, "both groups must be tested"
    products = np.einsum("kti,ktj->ktij", error[:, 1:], error[:, :-1])
    assert largest_z(products.reshape(len(products), -1)) < 4.6


@pytest.mark.parametrize(
    ("left", "take_all"),
    [(0, False), (1, False), (5, False), (40, False), (0, True), (1, True)],
)
def test_a_step_takes_no_more_than_what_is_left_of_the_reserve(
    of_many_rows, with_a_certain_row, left, take_all
):
    """Whatever the noise, and with the mean and covariance of that number of draws."""
    bound = with_a_certain_row if take_all else of_many_rows
    base, largest = bound.kernel.selection.base, bound.kernel.selection.largest
    found = estimates(bound, 1e9, left=left)
    rows = min(base.size + left, largest)
    assert np.all(found.n_rows == rows)
    used = max(4 * base.draws, largest - base.size) - left  # of the reserve of one step
    assert np.all(found.measured.reserve_used == used + rows - base.size)
    covariance = covariance_of_one_draw(bound) / (rows - base.n_certain)
    assert z_of_moments(found.gradient, posterior_of(bound.rows.n_rows)[2], covariance) < 4.6


@pytest.mark.parametrize("reserve", [0, 1, 7, 30])
def test_the_steps_of_a_block_take_no_more_than_its_reserve(of_a_block, reserve):
    _, sizes, _ = steps_of_a_block(of_a_block, reserve)
    further = np.cumsum(sizes - 3, axis=1)
    assert (sizes >= 3).all()
    assert (further <= reserve).all()
    enough = further[:, -1] == reserve
    assert enough.mean() > 0.99, "the noise must ask for more than the reserve has"


def reserve_of(stepped):
    """What a chain knows of its reserve, to be recorded with every step."""
    measured = stepped.state.carried.selection
    return {
        "of_one_draw": measured.of_one_draw,
        "reserve_words": measured.reserve_words,
        "reserve_used": measured.reserve_used,
    }


def whole_reserve(kernel, steps):
    """The draws of the reserve of a block of so many steps."""
    sizes = run_once(lambda: kernel.draw(jax.random.key(0), steps).selection.reserve.size)
    return int(sizes()[0])


@functools.cache
def kernel_of_runs():
    method = tallmc.Method(
        gradient=ControlVariate(),
        subsample=Preferential("curvature"),
        batch_size=TargetNoise(3, noise=AIM_OF_RUN),
        geometry=tallmc.geometry.Dense(),
        step_size=0.4,
    )
    posterior, anchor, _ = posterior_of(N_ROWS)
    return method.prepare(posterior, anchor).kernel


def measured_run(draws):
    """A run of two chains that use up the reserve in the middle of each block; no step is done."""
    bound = kernel_of_runs()
    start = jnp.stack([bound.posterior.init, POSITION])
    return Run(bound, chain_keys(0, 2), start, 0, 1, draws, record=reserve_of)


@pytest.mark.slow
def test_the_reserve_restarts_with_each_block():
    """Every step takes what the noise asks for, or what is left of the reserve of its block."""
    run = measured_run(1400)
    block = block_steps(run.kernel, run.rows)
    assert 2 * block < 1400
    run.run_to(1400)
    stats = run.sample_stats()
    used, words, sizes = (stats[name] for name in ("reserve_used", "reserve_words", "batch_size"))
    steps = np.arange(1400)
    used_before = np.where(steps % block == 0, 0, np.roll(used, 1, axis=1))
    np.testing.assert_array_equal(used, used_before + sizes - 3)

    whole = whole_reserve(run.kernel, block)
    noise_before = np.roll(stats["of_one_draw"], 1, axis=1)
    wanted = np.clip(np.ceil(noise_before / AIM_OF_RUN), 3, N_ROWS)
    taken = 3 + np.minimum(wanted - 3, whole - used_before)
    np.testing.assert_array_equal(sizes[:, 1:], taken[:, 1:])
    ends = used[:, block - 1 :: block]
    assert (ends == int(whole)).all(), "each whole block must use up its reserve"
    capped = sizes < wanted
    assert capped[:, 1:].any() and not capped[:, 1:].all()

    assert (words == words[:, steps // block * block]).all()
    assert len(np.unique(words[:, ::block].reshape(-1, 2), axis=0)) == 2 * 3


def test_a_run_cut_in_the_middle_of_a_block_goes_on_bitwise():
    """Before and after the reserve is used up, and at both sides of a block's end."""
    run, draws = measured_run(700), 700
    kernel, block = run.kernel, run.block
    run.run_to(draws)
    positions, used, last = run.positions(), run.sample_stats()["reserve_used"], run.state
    whole = whole_reserve(kernel, block)
    cuts = [50, block - 2, block - 1, block, block + 1, 600]
    assert (used[:, 49] < whole).all() and (used[:, block - 3] == whole).all()
    for cut in cuts:
        first = measured_run(draws)
        first.run_to(cut)
        second = measured_run(draws)
        second.restore(first.snapshot())
        second.run_to(draws)
        np.testing.assert_array_equal(first.positions(), positions[:, :cut])
        np.testing.assert_array_equal(second.positions(), positions[:, cut:])
        np.testing.assert_array_equal(second.sample_stats()["reserve_used"], used[:, cut:])
        found, expected = named_leaves(second.state), named_leaves(last)
        assert found.keys() == expected.keys()
        for name, leaf in expected.items():
            np.testing.assert_array_equal(found[name], leaf)


def test_a_pointer_lost_at_a_cut_changes_the_draws():
    """The control of the test above: the snapshot without `reserve_used` is not enough."""
    whole = measured_run(200)
    whole.run_to(200)
    first = measured_run(200)
    first.run_to(100)
    snapshot = first.snapshot()
    (name,) = (name for name in snapshot.leaves if name.endswith(".reserve_used"))
    assert (snapshot.leaves[name] > 0).all()
    forgotten = {**snapshot.leaves, name: np.zeros_like(snapshot.leaves[name])}
    second = measured_run(200)
    second.restore(snapshot._replace(leaves=forgotten))
    second.run_to(200)
    assert (second.positions() != whole.positions()[:, 100:]).any(axis=(1, 2)).all()
