"""Noise correction: the covariance of exact gradients in spite of the noise, and what happens when there is no room."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import SUBSAMPLES, exact_posterior, linear, logistic, slow_after
from stationary import exact_law, gradient_covariance, law_z, run_chains
from tallmc import NoiseCorrection
from tallmc.correction import drag, shrunk
from tallmc.dynamics import Langevin, Underdamped
from tallmc.geometry import Dense, Identity
from tallmc.gradient import ControlVariate, Full, Simple
from tallmc.subsample import AllRows, Preferential, Stratified
from test_unbiased import all_batches

ROUND = Stratified(np.arange(12) % 2, at_least=2)
FRICTION = 8.0


def even(dim):
    """Rows of much the same size, so that no batch is far noisier than another."""
    rng = np.random.default_rng(3)
    x = rng.choice([-1.0, 1.0], size=(16, dim)) * rng.uniform(0.8, 1.2, size=(16, dim))
    y = x.sum(1) + rng.choice([-1.0, 1.0], size=16) * rng.uniform(0.8, 1.2, size=16)
    return tallmc.models.linear_regression(x, y, prior_variance=4.0, noise_variance=1.0)


def share_of_noise(method, posterior):
    """The share of a step's noise that the gradient brings, in its noisiest direction, with a step of size one."""
    kernel = method.prepare(posterior).kernel
    C = np.asarray(kernel.dynamics.geometry.push(jnp.eye(posterior.dim))).T
    V = C.T @ gradient_covariance(kernel)(exact_posterior(posterior)[1]) @ C
    return np.linalg.eigvalsh(V)[-1] / (4 if isinstance(method.dynamics, Langevin) else 4 * method.dynamics.friction)


@pytest.mark.parametrize(
    ("dynamics", "geometry", "shape"),
    slow_after(
        2,
        [
            (Langevin(), Identity(), "dense"),
            (Underdamped(2.0), Dense(), "dense"),
            (Langevin(), Dense(), "diagonal"),
            (Underdamped(FRICTION), Identity(), "diagonal"),
        ],
    ),
    ids=["langevin", "underdamped-dense", "langevin-dense", "underdamped"],
)
def test_corrected_law_is_that_of_exact_gradients(dynamics, geometry, shape):
    """Unbiased from each batch, so exact in second moments; the diagonal form where there is no other part, in one dimension."""
    posterior = even(dim=1 if shape == "diagonal" else 2)
    parts = {"dynamics": dynamics, "geometry": geometry, "gradient": Simple(), "size": 12}
    step = 0.15 / share_of_noise(tallmc.Method(**parts, step_size=1.0), posterior)
    noisy = exact_law(tallmc.Method(**parts, step_size=step).prepare(posterior).kernel, step)
    quiet = {**parts, "gradient": Full(), "subsample": AllRows(), "size": None}
    exact = exact_law(tallmc.Method(**quiet, step_size=step).prepare(posterior).kernel, step)
    assert np.trace(noisy.covariance) > 1.08 * np.trace(exact.covariance)
    corrected = tallmc.Method(**parts, step_size=step, correction=NoiseCorrection(shape)).prepare(posterior).kernel
    z = law_z(corrected, exact)
    assert max(z.values()) < 4.6, z


@pytest.mark.parametrize("name", [n for n, s in SUBSAMPLES.items() if s.knows_its_spread and n not in ("bandit", "optimal")])
def test_spread_estimates_the_covariance_without_bias_by_enumeration(name):
    posterior, position = logistic(), jnp.array([0.7, -1.3])
    method = tallmc.Method(subsample=SUBSAMPLES[name], gradient=ControlVariate(), size=3, step_size=0.1)
    kernel = method.prepare(posterior, tallmc.laplace(posterior)).kernel
    estimate = jax.jit(lambda picks: kernel.estimate(position, kernel.gather(tallmc._kernel.Supply(picks, None)).rows))
    batches = [(estimate(picks), p) for picks, p in all_batches(kernel, position, None)]
    p = np.array([weight for _, weight in batches])
    values = np.stack([found.gradient for found, _ in batches])
    spreads = np.stack([np.asarray(found.spread).T @ np.asarray(found.spread) for found, _ in batches])
    exact = (values - p @ values).T * p @ (values - p @ values)
    np.testing.assert_allclose(np.tensordot(p, spreads, 1), exact, atol=1e-12 * np.abs(exact).max())


@pytest.mark.parametrize("shape", slow_after(1, ["dense", "diagonal"]))
def test_calibrated_friction_brings_the_variance_back(shape):
    """Of the variance that noise and discretisation add, at least two thirds go."""
    posterior = even(dim=2)
    parts = {"dynamics": Underdamped(FRICTION), "size": 4}
    step = 0.3 / share_of_noise(tallmc.Method(**parts, step_size=1.0), posterior)
    noisy = exact_law(tallmc.Method(**parts, step_size=step).prepare(posterior).kernel, step).covariance
    exact = exact_posterior(posterior)[1]  # more friction also takes some of the discretisation error
    correction = NoiseCorrection(shape, through="friction", calibrate_every=300)
    kernel = tallmc.Method(**parts, step_size=step, correction=correction).prepare(posterior).kernel
    draws = run_chains(kernel, chains=512, steps=200, thin=20, burn_in=2000, start=exact_posterior(posterior)[0])
    excess = np.trace(np.cov(draws.reshape(-1, 2).T)) - np.trace(exact)
    assert abs(excess) < np.trace(noisy - exact) / 3


def test_passes_of_a_calibrated_correction_are_counted():
    correction = NoiseCorrection(calibrate_every=10)
    method = tallmc.Method(size=2, step_size=0.001, correction=correction)
    draws = tallmc.sample(linear(), method, chains=1, draws=25, burn_in=0)
    assert draws.n_row_evals_sampling == 25 * 2 + 3 * 12


@pytest.mark.parametrize("covariance", [np.array([0.5, 3.0]), np.array([[0.5, 0.4], [0.4, 3.0]])], ids=["diagonal", "dense"])
def test_injected_noise_is_positive_by_construction(covariance):
    """Directions with too much noise get none; the rest of it is reported."""
    normal = np.random.default_rng(0).normal(size=(100_000, 2))
    noise = np.asarray(jax.vmap(lambda z: shrunk(z, jnp.asarray(covariance), jnp.asarray(0.5)).noise)(jnp.asarray(normal)))
    V = np.diag(covariance) if covariance.ndim == 1 else covariance
    values, axes = np.linalg.eigh(0.5 * V)
    wanted = axes @ np.diag(np.maximum(1 - values, 0)) @ axes.T
    products = np.einsum("ni,nj->nij", noise, noise)
    error = products.std(0) / np.sqrt(len(noise)) + 1e-12
    assert (np.abs(products.mean(0) - wanted) / error).max() < 4.6
    found = shrunk(jnp.asarray(normal[0]), jnp.asarray(covariance), jnp.asarray(0.5))
    assert float(found.stats["uncorrected_noise"]) == pytest.approx(np.maximum(values - 1, 0).sum() / values.sum())
    assert int(found.outcome) == tallmc.Outcome.OK
    assert int(shrunk(jnp.asarray(normal[0]), jnp.asarray(covariance), jnp.asarray(0.6)).outcome) == tallmc.Outcome.TOO_NOISY


def test_drag_is_the_papers_friction():
    momentum, V = jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.5], [0.5, 1.0]])
    np.testing.assert_allclose(drag(momentum, V, jnp.asarray(0.1)).force, 0.05 * np.asarray(V) @ [1.0, -2.0])
    np.testing.assert_allclose(drag(momentum, jnp.diagonal(V), jnp.asarray(0.1)).force, [0.1, -0.1])
    assert int(drag(momentum, 1e3 * V, jnp.asarray(0.1)).outcome) == tallmc.Outcome.TOO_NOISY


def test_a_step_too_large_for_the_correction_is_an_outcome_not_a_wrong_answer():
    method = tallmc.Method(size=2, step_size=0.5, correction=NoiseCorrection())
    with pytest.warns(tallmc.SamplingWarning, match="more gradient noise than the step can take off"):
        draws = tallmc.sample(linear(), method, chains=3, draws=50, burn_in=0)
    assert set(draws.outcomes) == {tallmc.Outcome.TOO_NOISY}
    assert np.isnan(draws.positions[:, -1]).all()


def test_noise_left_uncorrected_is_reported():
    """Rows of very different size: now and then a batch whose spread is more than a step in one direction."""
    method = tallmc.Method(size=3, step_size=0.3, correction=NoiseCorrection())
    with pytest.warns(tallmc.SamplingWarning, match="of the gradient noise was too much for its step"):
        draws = tallmc.sample(linear(), method, chains=64, draws=8, burn_in=0, start=exact_posterior(linear())[0])
    assert draws.ok.any()


def test_strata_know_their_spread_when_each_is_drawn_from_twice():
    method = tallmc.Method(size=6, subsample=ROUND, step_size=0.005, correction=NoiseCorrection())
    draws = tallmc.sample(linear(), method, chains=2, draws=50)
    assert draws.ok.all()
    assert 0 <= draws.sample_stats["uncorrected_noise"].max() <= 1


def test_correction_goes_with_preferential_weights_and_control_variates():
    posterior, step = even(dim=2), 0.03
    parts = {"gradient": ControlVariate(), "subsample": Preferential("curvature"), "size": 8, "step_size": step}
    kernel = tallmc.Method(**parts, correction=NoiseCorrection("dense")).prepare(posterior).kernel
    z = law_z(kernel, exact_law(tallmc.ula(step).prepare(posterior).kernel, step))
    assert max(z.values()) < 4.6, z
