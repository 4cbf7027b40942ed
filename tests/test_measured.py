"""A size that follows the measured noise.

The measure of the noise is unbiased, the gradient estimate is unbiased at any size, and the size
follows the noise. Draws beyond those of every step come from a reserve that the steps of a block
share.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear, logistic, residual_matrix
from stationary import exact_law, law_z
from tallmc._core.arrays import DenseMap, named_leaves
from tallmc._engine.run import Run, chain_keys
from tallmc._engine.supply import block_steps
from tallmc.diagnose import pseudo_variance
from tallmc.gradient import ControlVariate
from tallmc.subsample import Preferential, TargetNoise
from tallmc.subsample.measured import NoiseMeasurement
from tallmc.subsample.selection import Carried
from test_unbiased import z_of_moments

POSITION = jnp.array([0.7, -1.3])
FACTOR = jnp.array([[0.8, 0.0], [-0.3, 1.7]])
COVARIANCE = np.asarray(FACTOR @ FACTOR.T)


def prepared(size, posterior, *, take_all=False, gradient=None):
    weights = np.array([4.0, 2.0, 0.1, 0.1, 0.5]) if take_all else "curvature"
    method = tallmc.Method(
        gradient=gradient or ControlVariate(),
        subsample=Preferential(weights, take_all=take_all),
        batch_size=size,
        geometry=tallmc.geometry.Dense(COVARIANCE),
        step_size=0.1,
    )
    return method.prepare(posterior, tallmc.anchor.find_anchor(posterior)).kernel


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


@eqx.filter_jit
def estimates(bound, of_one_draw, number=40_000, left=None):
    """Many estimates at one position by chains that have measured this much noise.

    `left` is how many draws of its reserve each chain has not used; all of them by default.
    """
    kernel, rows = bound.kernel, bound.rows

    def one(key):
        drawn = jax.tree.map(lambda leaf: leaf[0], kernel.draw(key, 1).selection)
        reserve = drawn.reserve
        used = 0 if left is None else reserve.size - left
        carried = Carried(None, measurement(of_one_draw, reserve.words, used))
        return kernel.estimate(POSITION, kernel.selection.gather(drawn, rows), rows, carried)

    return jax.vmap(one)(jax.random.split(jax.random.key(3), number))


def covariance_of_one_draw(bound):
    """Cov(∇f̂) at the position from one draw of the stream, beside the rows of every step."""
    p = bound.kernel.selection.base.stream.probabilities()
    r = residual_matrix(bound.kernel.gradient, bound.rows, POSITION)[p > 0]
    return (r.T / p[p > 0]) @ r - np.outer(r.sum(0), r.sum(0))


@pytest.mark.parametrize("take_all", [False, True])
@pytest.mark.parametrize("size", [3, 4])
def test_the_measure_is_unbiased_by_parameter_and_in_all(size, take_all):
    bound = prepared(TargetNoise(size, noise=1.0), logistic(), take_all=take_all)
    found = estimates(bound, jnp.asarray(0.0))
    base, C = bound.kernel.selection.base, np.asarray(FACTOR)
    one_draw = C.T @ covariance_of_one_draw(bound) @ C
    measure = found.carried.selection
    assert np.all(np.asarray(measure.steps) == 1)
    for sample, exact in (
        (measure.sum_of_one_draw, np.trace(one_draw) / 2),
        (measure.sum_by_parameter[:, 0], (C @ one_draw @ C.T)[0, 0] / base.draws),
        (measure.sum_by_parameter[:, 1], (C @ one_draw @ C.T)[1, 1] / base.draws),
        (found.stats["grad_noise"], np.trace(one_draw) / base.draws),
    ):
        values = np.asarray(sample)
        assert abs(values.mean() - exact) < 4.6 * values.std() / np.sqrt(len(values))
    # The same kernel with only the rows that every step sees.
    fixed = eqx.tree_at(lambda b: b.kernel.selection, bound, base)
    exact = pseudo_variance(fixed, POSITION, geometry=DenseMap(FACTOR))
    assert np.trace(one_draw) / base.draws == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("rows", [3, 5, 67, 130])
def test_the_estimate_has_the_mean_and_covariance_of_its_size(rows):
    """With the draws of every step alone, and with further draws in one and in several chunks."""
    posterior = logistic(n_rows=200)
    bound = prepared(TargetNoise(3, noise=1.0), posterior)
    found = estimates(bound, jnp.asarray(float(rows)), number=20_000)
    assert np.all(np.asarray(found.n_rows) == rows)
    covariance = covariance_of_one_draw(bound) / rows
    assert z_of_moments(found.gradient, posterior.gradient(POSITION), covariance) < 4.6


def test_the_size_stays_between_its_limits():
    bound = prepared(TargetNoise(4, noise=1.0, max_size=40), logistic(n_rows=200))
    for level, rows in ((0.0, 4), (17.2, 18), (1e9, 40)):
        found = estimates(bound, jnp.asarray(level), number=2)
        assert np.all(np.asarray(found.n_rows) == rows)


def test_the_size_follows_the_noise_into_the_tail_and_back():
    posterior = logistic(n_rows=200)
    bound = prepared(TargetNoise(16, noise=0.05), posterior, gradient=ControlVariate(2))
    selection = bound.kernel.selection
    anchor = tallmc.anchor.find_anchor(posterior).position
    batches = selection.gather(selection.draw(jax.random.key(0), 450), bound.rows)
    positions = jnp.where((jnp.arange(450) // 150 == 1)[:, None], anchor + 3.0, anchor + 0.01)

    def step(measure, given):
        position, batch = given
        estimate = bound.kernel.estimate(position, batch, bound.rows, Carried(None, measure))
        return estimate.carried.selection, estimate.n_rows

    start = selection.start(jax.tree.map(lambda leaf: leaf[0], batches))
    _, sizes = jax.lax.scan(step, start, (positions, batches))
    near, far, back = (np.asarray(sizes)[first : first + 20].mean() for first in (130, 280, 430))
    assert near == back == 16 and far > 64


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


def with_reserve(drawn, size):
    """The same draws with a reserve of this size."""
    sizes = jnp.full_like(drawn.reserve.size, size)
    return eqx.tree_at(lambda of: of.reserve.size, drawn, sizes)


@eqx.filter_jit
def steps_of_a_block(bound, reserve_size, of_one_draw, number, steps):
    """Estimates of many chains that stay at one position for a block with a reserve of this size.

    Returns the gradients, the rows per step, and the noise of one draw measured before each step.
    """
    kernel, rows = bound.kernel, bound.rows

    def chain(key):
        drawn = with_reserve(kernel.draw(key, steps).selection, reserve_size)

        def step(measured, batch):
            estimate = kernel.estimate(POSITION, batch, rows, Carried(None, measured))
            seen = (estimate.gradient, estimate.n_rows, measured.of_one_draw)
            return estimate.carried.selection, seen

        batches = kernel.selection.gather(drawn, rows)
        return jax.lax.scan(step, measurement(of_one_draw), batches)[1]

    return jax.vmap(chain)(jax.random.split(jax.random.key(5), number))


def largest_z(sample):
    """Largest |z| of the mean of a sample against zero."""
    return np.abs(sample.mean(0) / (sample.std(0) / np.sqrt(len(sample)))).max()


def test_the_estimate_is_unbiased_when_the_reserve_caps_the_size():
    """The cap depends on earlier steps only.

    So the error of a step has mean zero given its size, covariance V/n with V that of one draw, and
    no correlation with the error of the step before.
    """
    posterior, reserve = logistic(n_rows=200), 24
    bound = prepared(TargetNoise(3, noise=AIM), posterior)
    found = steps_of_a_block(bound, jnp.int32(reserve), jnp.asarray(12 * AIM), 40_000, 5)
    gradients, sizes, of_one_draw = (np.asarray(part) for part in found)
    error = gradients - np.asarray(posterior.gradient(POSITION))
    one_draw = covariance_of_one_draw(bound)
    wanted = np.clip(np.ceil(of_one_draw / AIM), 3, 200)
    capped = sizes < wanted
    assert (sizes[:, 0] == 12).all() and capped[:, -1].mean() > 0.5
    for step in range(5):
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
def test_a_step_takes_no_more_than_what_is_left_of_the_reserve(left, take_all):
    """Whatever the noise, and with the mean and covariance of that number of draws."""
    posterior = logistic(n_rows=5) if take_all else logistic(n_rows=200)
    bound = prepared(TargetNoise(3, noise=1.0), posterior, take_all=take_all)
    base, largest = bound.kernel.selection.base, bound.kernel.selection.largest
    found = estimates(bound, jnp.asarray(1e9), number=20_000, left=jnp.int32(left))
    rows = min(base.size + left, largest)
    assert np.all(np.asarray(found.n_rows) == rows)
    used = bound.kernel.draw(jax.random.key(0), 1).selection.reserve.size[0] - left
    after = np.asarray(found.carried.selection.reserve_used)
    assert np.all(after == used + rows - base.size)
    covariance = covariance_of_one_draw(bound) / (rows - base.certain.shape[0])
    assert z_of_moments(found.gradient, posterior.gradient(POSITION), covariance) < 4.6


@pytest.mark.parametrize("reserve", [0, 1, 7, 30])
def test_the_steps_of_a_block_take_no_more_than_its_reserve(reserve):
    bound = prepared(TargetNoise(3, noise=AIM), logistic(n_rows=200))
    _, sizes, _ = steps_of_a_block(bound, jnp.int32(reserve), jnp.asarray(12 * AIM), 200, 8)
    further = np.cumsum(np.asarray(sizes) - 3, axis=1)
    assert (np.asarray(sizes) >= 3).all()
    assert (further <= reserve).all()
    assert (further[:, -1] == reserve).all(), "the noise must ask for more than the reserve has"


def reserve_of(stepped):
    """What a chain knows of its reserve, to be recorded with every step."""
    measured = stepped.state.carried.selection
    return {
        "of_one_draw": measured.of_one_draw,
        "reserve_words": measured.reserve_words,
        "reserve_used": measured.reserve_used,
    }


def measured_run(draws):
    """A run of two chains that use up the reserve in the middle of each block; no step is done."""
    method = tallmc.Method(
        gradient=ControlVariate(),
        subsample=Preferential("curvature"),
        batch_size=TargetNoise(3, noise=AIM_OF_RUN),
        geometry=tallmc.geometry.Dense(),
        step_size=0.4,
    )
    bound = method.prepare(logistic(n_rows=200)).kernel
    start = jnp.stack([bound.posterior.init, POSITION])
    return Run(bound, chain_keys(0, 2), start, 0, 1, draws, record=reserve_of)


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

    whole = run.kernel.draw(jax.random.key(0), block).selection.reserve.size[0]
    noise_before = np.roll(stats["of_one_draw"], 1, axis=1)
    wanted = np.clip(np.ceil(noise_before / AIM_OF_RUN), 3, 200)
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
    whole = int(kernel.draw(jax.random.key(0), block).selection.reserve.size[0])
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
