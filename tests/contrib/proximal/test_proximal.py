"""Proximal Langevin dynamics: its proximal points, its step, its stationary law and its order."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from constrained_laws import GridLaw, free_law

import tallmc
from problems import linear, logistic_by_autodiff
from tallmc.contrib.proximal import Proximal, myula, proximal_point
from tallmc.models.priors import (
    JoinedPrior,
    LaplacePrior,
    NormalPrior,
    PriorOfEntries,
    StudentTPrior,
    TemperedPrior,
)

SCALE, STEP, LIMIT = 0.15, 0.3, 4.6
LAPLACE = LaplacePrior(jnp.asarray(SCALE), jnp.asarray(0.0))
PRIORS = {
    "laplace": LaplacePrior(jnp.asarray([0.3, 2.0, 0.1]), jnp.asarray([0.0, -0.4, 0.2])),
    "tempered": TemperedPrior(LaplacePrior(jnp.asarray(0.5), jnp.asarray(0.1)), 0.25),
    "joined": JoinedPrior((LAPLACE, NormalPrior(jnp.asarray(0.7), jnp.asarray(0.3))), (1, 2)),
    "entries": PriorOfEntries((LAPLACE, NormalPrior(jnp.asarray(0.7))), ((2,), (0, 1))),
}


@pytest.mark.parametrize("name", PRIORS)
def test_proximal_points_minimise_and_give_the_gradient_of_the_envelope(name):
    """Each parameter by a search on a grid, since the prior is a product."""
    prior, smoothing = PRIORS[name], 0.2
    values = np.random.default_rng(0).normal(size=(4, 3))
    found = jax.jit(jax.vmap(lambda v: proximal_point(prior, v, jnp.asarray(smoothing))))(values)
    grid = np.linspace(-5, 5, 100_001)
    of_grid = jax.jit(jax.vmap(lambda y, unit: prior.potential(y * unit), (0, None)))

    for j, unit in enumerate(np.eye(3)):
        potential = np.asarray(of_grid(grid, unit))
        sums = lambda at, of=potential: of + (grid - at) ** 2 / (2 * smoothing)
        for at, point in zip(values[:, j], np.asarray(found)[:, j], strict=True):
            assert point == pytest.approx(grid[sums(at).argmin()], abs=1e-4)
            rise = sums(at + 1e-2).min() - sums(at - 1e-2).min()
            # The slope of the envelope changes by at most 1/λ per unit, here by 0.05.
            assert (at - point) / smoothing == pytest.approx(rise / 2e-2, abs=0.025)


@functools.cache
def lasso():
    """One coefficient near the kink of its prior; a step reads one of four rows."""
    x, y = np.array([[1.0], [0.5], [-1.0], [1.5]]), np.array([0.9, -0.4, 0.1, 0.3])
    posterior = tallmc.models.linear_regression(x, y, prior_variance=1.0, noise_variance=1.0)
    return eqx.tree_at(lambda of: of.model.prior, posterior, LAPLACE)


def drifted(position, step, smoothing, rows):
    """θ − (ε/2)[N ∇f_i + ∇f₀^λ] for each of some rows, transcribed from the paper."""
    x, y = np.asarray(lasso().data.x)[:, 0], np.asarray(lasso().data.y)
    lam = smoothing * step
    huber = np.clip(position / lam, -1 / SCALE, 1 / SCALE)
    slopes = [4 * x[i] * (x[i] * position - y[i]) for i in range(4)]
    chosen = slopes if rows == 1 else [np.mean(slopes, axis=0)]
    return [position - step / 2 * (slope + huber) for slope in chosen]


def law(step, smoothing=1.0, rows=1) -> GridLaw:
    return free_law(5.0, lambda at: drifted(at, step, smoothing, rows), step, 1201)


def target() -> GridLaw:
    points = np.linspace(-5, 5, 200_001)
    x, y = np.asarray(lasso().data.x), np.asarray(lasso().data.y)
    potential = 0.5 * ((x * points - y[:, None]) ** 2).sum(axis=0) + np.abs(points) / SCALE
    weights = np.exp(potential.min() - potential)
    return GridLaw(points, weights / weights.sum())


@pytest.mark.smoke
@pytest.mark.parametrize("smoothing", [0.5, 1.0, 3.0])
def test_a_step_is_that_of_the_paper(smoothing):
    bound = myula(STEP, smoothing=smoothing).prepare(lasso()).kernel
    dynamics, gradient = bound.kernel.dynamics, bound.kernel.gradient
    batch = tallmc.rows.Batch(lasso().data, jnp.ones(4))

    @jax.jit
    def step(position, noise):
        evaluate = lambda at, _: tallmc.subsample.selection.Estimate(
            gradient(at, batch), jnp.int32(4), None
        )
        state = dynamics.init(jax.random.key(0), position, evaluate)
        return dynamics.step(state, evaluate, jnp.asarray(STEP), noise).state.position

    for at in (-1.0, -0.02, 0.0, 0.01, 0.3):
        expected = drifted(at, STEP, smoothing, 4)[0] + np.sqrt(STEP) * 0.7
        found = step(jnp.asarray([at]), jnp.asarray([0.7]))
        np.testing.assert_allclose(found, [expected], rtol=1e-12)


def test_chains_have_the_stationary_law_of_their_steps():
    exact = law(STEP)
    draws = tallmc.sample(
        lasso(), myula(STEP, 1), chains=512, n_draws=200, burn_in=50, progress=False
    )
    x = np.asarray(draws.positions)[..., 0]
    for function in (lambda v: v, lambda v: v**2, np.abs, lambda v: (np.abs(v) < 0.1) + 0.0):
        per_chain = function(x).mean(axis=1)
        error = per_chain.std(ddof=1) / np.sqrt(len(per_chain))
        assert abs(per_chain.mean() - exact.expect(function)) < LIMIT * error


def test_the_bias_falls_with_the_step_size_and_is_below_that_of_subgradients():
    """Without gradient noise, by quadrature of the steps; the true law has a kink."""
    spread = lambda of: of.expect(np.square)
    truth = spread(target())
    bias = [spread(law(step, rows=4)) - truth for step in (0.2, 0.1, 0.05)]
    assert bias[0] > bias[1] > bias[2] > 0
    assert 1.6 < bias[1] / bias[2] < 2.6
    plain = free_law(5.0, lambda at: _subgradient_steps(at, 0.2), 0.2, 1201)
    assert abs(spread(plain) - truth) > 2 * bias[0]


def _subgradient_steps(position, step):
    smooth = drifted(position, step, 1e9, 4)[0]
    return [smooth - step / 2 * np.sign(position) / SCALE]


def test_bad_input_is_answered():
    with pytest.raises(tallmc.InvalidInput, match="smoothing must be a finite number"):
        Proximal(0.1)
    heavy = StudentTPrior(jnp.asarray(1.0), jnp.asarray(1.0), jnp.asarray(0.0))
    heavy = eqx.tree_at(lambda of: of.model.prior, linear(), heavy)
    with pytest.raises(tallmc.InvalidInput, match="Laplace or Gaussian prior"):
        myula(0.1, 2).prepare(heavy)
    with pytest.raises(tallmc.InvalidInput, match="be a regression of"):
        myula(0.1, 2).prepare(logistic_by_autodiff())
