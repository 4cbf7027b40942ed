"""Moves on the simplex against their laws, and mistakes in them that these tests find."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import beta, foldnorm, gamma, kstest, ncx2

from tallmc.contrib.simplex import AbstractGammaTransition, CoxIngersollRoss, ExpandedMean

LARGEST_Z = 4.6
CHAINS = 5_000


@functools.partial(jax.jit, static_argnums=(0, 1), static_argnames="seed")
def _run(transition, steps, theta, prior, counts, step_size, seed):
    drawn = transition.draw(jax.random.key(seed), steps, theta.shape, theta.dtype)

    def step(state, given):
        noise, counted = given
        return transition.move(state, prior, counted, step_size, noise), None

    return jax.lax.scan(step, theta, (drawn, counts))[0]


def moved(transition, theta, prior, counts, step_size, steps, seed=1, dtype=jnp.float64):
    """Independent chains after `steps` steps; counts are fixed, or an array for every step."""
    theta, prior, counts, step_size = (
        jnp.asarray(value, dtype) for value in (theta, prior, counts, step_size)
    )
    if counts.ndim < 3:
        counts = jnp.broadcast_to(counts, (steps, *counts.shape))
    return np.asarray(_run(transition, steps, theta, prior, counts, step_size, seed))


def moments_z(values, mean, variance):
    """The larger |z| of the mean and of the variance of independent values."""
    n = len(values)
    z_mean = (values.mean() - mean) / np.sqrt(variance / n)
    squares = (values - mean) ** 2
    z_variance = (squares.mean() - variance) / (squares.std() / np.sqrt(n))
    return max(abs(z_mean), abs(z_variance))


def cir_moments(theta, a, h):
    """Mean and variance after one exact transition over time h of dθ = (a − θ)dt + √(2θ)dW."""
    decay = np.exp(-h)
    mean = theta * decay + a * (1 - decay)
    return mean, 2 * theta * decay * (1 - decay) + a * (1 - decay) ** 2


class WithoutRoot(AbstractGammaTransition):
    """SGRLD with noise of constant size."""

    def draw(self, key, steps, shape, dtype):
        return ExpandedMean().draw(key, steps, shape, dtype)

    def move(self, theta, prior, counts, step_size, drawn):
        return ExpandedMean().move(theta, prior, counts, step_size, drawn / jnp.sqrt(theta))


class WithoutReflection(AbstractGammaTransition):
    """SGRLD that moves negative values to the floor."""

    def draw(self, key, steps, shape, dtype):
        return ExpandedMean().draw(key, steps, shape, dtype)

    def move(self, theta, prior, counts, step_size, drawn):
        total = jnp.sum(counts) * jnp.ones_like(theta)
        drift = prior - theta + counts - total * theta / jnp.sum(theta, axis=-1, keepdims=True)
        here = theta + step_size / 2 * drift + jnp.sqrt(step_size * theta) * drawn
        return jnp.maximum(here, 1e-300)


class WrongDecay(AbstractGammaTransition):
    """SCIR with e^{−ε} in place of e^{−ε/2} for the part of θ that stays."""

    def draw(self, key, steps, shape, dtype):
        return CoxIngersollRoss().draw(key, steps, shape, dtype)

    def move(self, theta, prior, counts, step_size, drawn):
        kept = theta * jnp.exp(-step_size / 2)
        return CoxIngersollRoss().move(kept, prior, counts, step_size, drawn)


@pytest.mark.parametrize("step_size", [0.02, 1.0, 20.0])
def test_cir_is_the_noncentral_chi_square(step_size):
    cases = list(itertools.product((1e-4, 0.3, 40.0), (0.1, 4.0)))
    theta, a = np.repeat(cases, CHAINS, axis=0).T[..., None]
    ends = moved(CoxIngersollRoss(), theta, a, 0.0, step_size, 1).reshape(len(cases), CHAINS)
    decay = np.exp(-step_size / 2)
    for (start, shape), drawn in zip(cases, ends, strict=True):
        law = ncx2(2 * shape, 2 * start * decay / (1 - decay), scale=(1 - decay) / 2)
        assert kstest(drawn, law.cdf).pvalue > 1e-5, (start, shape)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("theta", [3.0, 2e3, 2e7])
def test_cir_moments_are_the_closed_form_at_all_rates(theta, dtype):
    ends = moved(CoxIngersollRoss(), np.full((CHAINS, 1), theta), 0.1, 2.0, 0.01, 1, dtype=dtype)
    mean, variance = cir_moments(theta, 2.1, 0.005)
    assert moments_z(ends[:, 0].astype(np.float64), mean, variance) < LARGEST_Z


def gamma_z(transition, prior, step_size):
    """Moments of θ after time 12 from its stationary mean, against Gamma(α, 1)."""
    start = np.full((CHAINS, 1), prior)
    ends = moved(transition, start, prior, 0.0, step_size, int(np.ceil(12 / step_size)))
    return moments_z(ends[:, 0], prior, prior)


@pytest.mark.parametrize("step_size", [0.3, 3.0])
@pytest.mark.parametrize("prior", [0.1, 5.0])
def test_cir_leaves_the_gamma_law_invariant(prior, step_size):
    assert gamma_z(CoxIngersollRoss(), prior, step_size) < LARGEST_Z
    start = gamma(prior).rvs((CHAINS, 1), random_state=3)
    ends = moved(CoxIngersollRoss(), start, prior, 0.0, step_size, 1)[:, 0]
    assert kstest(ends, gamma(prior).cdf).pvalue > 1e-5


@pytest.mark.smoke
def test_a_wrong_decay_is_found():
    assert gamma_z(WrongDecay(), 5.0, 0.3) > LARGEST_Z


@pytest.mark.parametrize("step_size", [0.2, 2.0])
def test_cir_with_estimated_counts_has_the_inflated_variance(step_size):
    """V = e^{−2h}V + c²a + 2ce^{−h}a + c²v, so V = a + v(1 − e^{−h})/(1 + e^{−h})."""
    scale, rate, prior = 8.0, 0.5, 0.1  # n̂ = 8·Poisson(½): mean 4, variance 32

    steps = int(16 / step_size)
    counts = scale * np.random.default_rng(3).poisson(rate, (steps, CHAINS, 1))
    mean, variance = prior + scale * rate, scale**2 * rate
    start = np.full((CHAINS, 1), mean)
    ends = moved(CoxIngersollRoss(), start, prior, counts, step_size, steps)
    inflation = variance * np.tanh(step_size / 4)  # (1 − e^{−h})/(1 + e^{−h}) with h = ε/2
    assert moments_z(ends[:, 0], mean, mean + inflation) < LARGEST_Z
    assert moments_z(ends[:, 0], mean, mean) > LARGEST_Z, "the inflation must be visible"


def expanded_mean_z(transition):
    """Moments of an expanded mean far from zero, against variance α/(1 − ε/4)."""
    prior, step_size = 60.0, 0.4
    start = np.full((CHAINS, 1), prior)
    ends = moved(transition, start, prior, 0.0, step_size, 60)
    return moments_z(ends[:, 0], prior, prior / (1 - step_size / 4))


def test_expanded_mean_has_its_discretised_law():
    assert expanded_mean_z(ExpandedMean()) < LARGEST_Z


@pytest.mark.smoke
def test_noise_without_the_root_is_found():
    assert expanded_mean_z(WithoutRoot()) > LARGEST_Z


def test_expanded_mean_moves_the_share_by_the_counts():
    """W is Beta(α₁ + n₁, α₂ + n₂); at ε = 0.002 its bias is below the Monte-Carlo error."""
    start = np.tile([6.0, 4.0], (4000, 1))
    ends = moved(ExpandedMean(), start, [6.0, 4.0], [12.0, 2.0], 0.002, 1500)
    share = ends[:, 0] / ends.sum(axis=1)
    law = beta(18, 6)
    assert moments_z(share, law.mean(), law.var()) < LARGEST_Z


def reflection_z(transition):
    """One step from θ = 0.01 against the folded Gaussian."""
    theta, prior, step_size = 0.01, 0.1, 0.5
    ends = moved(transition, np.full((CHAINS, 1), theta), prior, 0.0, step_size, 1)[:, 0]
    mean, sd = theta + step_size / 2 * (prior - theta), np.sqrt(step_size * theta)
    squares = mean**2 + sd**2
    folded = foldnorm(mean / sd, scale=sd)
    return moments_z(ends, folded.mean(), squares - folded.mean() ** 2)


@pytest.mark.smoke
def test_expanded_mean_reflects_at_zero():
    assert reflection_z(ExpandedMean()) < LARGEST_Z
    assert reflection_z(WithoutReflection()) > LARGEST_Z


def test_expanded_mean_is_biased_near_zero_and_cir_is_not():
    prior, step_size = 0.1, 0.2
    start = gamma(prior).rvs((5000, 1), random_state=3)
    distance = {}
    for transition in (ExpandedMean(), CoxIngersollRoss()):
        ends = moved(transition, start, prior, 0.0, step_size, 100)[:, 0]
        distance[type(transition)] = kstest(ends, gamma(prior).cdf).statistic
    assert distance[CoxIngersollRoss] < 0.03  # 0.028 has probability 0.001 with 5000 draws
    assert distance[ExpandedMean] > 0.25


@pytest.mark.parametrize("transition", [ExpandedMean(), CoxIngersollRoss()], ids=["sgrld", "scir"])
def test_theta_stays_positive_and_finite_in_single_precision(transition):
    ends = moved(transition, np.full((200, 50), 1e-3), 0.01, 0.0, 0.5, 50, dtype=jnp.float32)
    assert ends.dtype == np.float32
    assert np.all(ends >= np.finfo(np.float32).tiny)
    assert np.all(np.isfinite(ends / ends.sum(axis=1, keepdims=True)))
