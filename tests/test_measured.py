"""A size that follows the noise: its measure is unbiased, its estimate is unbiased at any size, and it grows where it must."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import logistic, residual_matrix
from stationary import exact_law, law_z
from tallmc.diagnose import pseudo_variance
from tallmc.geometry import DenseGeometry
from tallmc.gradient import ControlVariate
from tallmc.subsample import Measured, Preferential
from tallmc.subsample.measured import Measure
from tallmc.subsample.selection import Memory
from test_unbiased import z_of_moments

POSITION = jnp.array([0.7, -1.3])
FACTOR = jnp.array([[0.8, 0.0], [-0.3, 1.7]])
COVARIANCE = np.asarray(FACTOR @ FACTOR.T)


def prepared(size, posterior, *, take_all=False, gradient=None):
    weights = np.array([4.0, 2.0, 0.1, 0.1, 0.5]) if take_all else "curvature"
    method = tallmc.Method(
        gradient=gradient or ControlVariate(),
        subsample=Preferential(weights, take_all=take_all),
        size=size,
        geometry=tallmc.geometry.Dense(COVARIANCE),
        step_size=0.1,
    )
    return method.prepare(posterior, tallmc.laplace(posterior)).kernel


def estimates(kernel, of_one_draw, number=40_000):
    """Many estimates at one position by chains that have measured this much noise."""
    measure = Measure(jnp.asarray(of_one_draw), jnp.asarray(0.0), jnp.zeros(2), jnp.int32(0))

    def one(key):
        rows = kernel.gather(jax.tree.map(lambda leaf: leaf[0], kernel.supply(key, 1))).rows
        return kernel.estimate(POSITION, rows, Memory(None, measure))

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(3), number))


@pytest.mark.parametrize("take_all", [False, True])
@pytest.mark.parametrize("size", [3, 4])
def test_the_measure_is_unbiased_by_parameter_and_in_all(size, take_all):
    posterior = logistic()
    kernel = prepared(Measured(size, noise=1.0), posterior, take_all=take_all)
    found = estimates(kernel, of_one_draw=0.0)
    base, C = kernel.selection.base, np.asarray(FACTOR)
    p = base.law.probabilities()
    r = residual_matrix(kernel.gradient, POSITION)[p > 0]
    p = p[p > 0]
    one_draw = C.T @ ((r.T / p) @ r - np.outer(r.sum(0), r.sum(0))) @ C
    measure = found.memory.selection
    assert np.all(np.asarray(measure.steps) == 1)
    for sample, exact in (
        (measure.sum_of_one_draw, np.trace(one_draw) / 2),
        (measure.sum_by_parameter[:, 0], (C @ one_draw @ C.T)[0, 0] / base.draws),
        (measure.sum_by_parameter[:, 1], (C @ one_draw @ C.T)[1, 1] / base.draws),
        (found.stats["grad_noise"], np.trace(one_draw) / base.draws),
    ):
        values = np.asarray(sample)
        assert abs(values.mean() - exact) < 4.6 * values.std() / np.sqrt(len(values))
    assert np.trace(one_draw) / base.draws == pytest.approx(
        pseudo_variance(kernel_of_fixed(kernel), POSITION, geometry=DenseGeometry(FACTOR)), rel=1e-9
    )


def kernel_of_fixed(kernel):
    """The same kernel with no more than the rows that every step sees."""
    import equinox as eqx

    return eqx.tree_at(lambda k: k.selection, kernel, kernel.selection.base)


@pytest.mark.parametrize("rows", [3, 5, 67, 130])
def test_the_estimate_has_the_mean_and_covariance_of_its_size(rows):
    """From the rows known ahead alone, and across the chunks in which more are drawn."""
    posterior = logistic(n_rows=200)
    kernel = prepared(Measured(3, noise=1.0), posterior)
    found = estimates(kernel, of_one_draw=float(rows), number=20_000)
    assert np.all(np.asarray(found.n_rows) == rows)
    p, r = kernel.selection.base.law.probabilities(), residual_matrix(kernel.gradient, POSITION)
    covariance = ((r.T / p) @ r - np.outer(r.sum(0), r.sum(0))) / rows
    assert z_of_moments(found.gradient, posterior.gradient(POSITION), covariance) < 4.6


def test_the_size_stays_between_its_limits():
    kernel = prepared(Measured(4, noise=1.0, max_size=40), logistic(n_rows=200))
    for level, rows in ((0.0, 4), (17.2, 18), (1e9, 40)):
        assert np.all(np.asarray(estimates(kernel, level, number=2).n_rows) == rows)


def test_the_size_follows_the_noise_into_the_tail_and_back():
    posterior = logistic(n_rows=200)
    kernel = prepared(Measured(16, noise=0.05), posterior, gradient=ControlVariate(2))
    anchor = tallmc.laplace(posterior).position
    supply = kernel.supply(jax.random.key(0), 450)
    positions = jnp.where((jnp.arange(450) // 150 == 1)[:, None], anchor + 3.0, anchor + 0.01)

    def step(measure, given):
        position, rows = given
        estimate = kernel.estimate(position, kernel.gather(rows).rows, Memory(None, measure))
        return estimate.memory.selection, estimate.n_rows

    start = kernel.selection.start(None)
    _, sizes = jax.lax.scan(step, start, (positions, supply))
    near, far, back = (np.asarray(sizes)[first : first + 20].mean() for first in (130, 280, 430))
    assert near == back == 16 and far > 64


def test_with_noise_below_its_aim_it_is_the_fixed_size():
    """Long runs have the exact stationary law of the fixed size, and take no more rows than that."""
    from problems import linear

    posterior = linear()
    parts = {
        "dynamics": tallmc.dynamics.LeimkuhlerMatthews(),
        "gradient": ControlVariate(),
        "geometry": tallmc.geometry.Dense(),
        "subsample": Preferential("curvature"),
        "step_size": 0.4,
    }
    fixed = tallmc.Method(**parts, size=6).prepare(posterior).kernel
    measured = tallmc.Method(**parts, size=Measured(6, noise=1e9)).prepare(posterior).kernel
    z = law_z(measured, exact_law(fixed, 0.4))
    assert max(z.values()) < 4.6, z
