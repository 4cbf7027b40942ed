"""The bouncy particle sampler: its rates and reflections, and its stationary law."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_zig_zag import (
    CHAINS,
    LIMIT,
    POSTERIORS,
    Truth,
    all_rows,
    known_excess,
    law_z,
    skewed,
    truth_of,
    with_mixed_prior,
    z_of,
)

import tallmc
from problems import exact_posterior, linear, slow_after
from tallmc.contrib.bouncy import BouncyRates
from tallmc.contrib.zig_zag import Candidates, path_moments, reflected
from test_mutants import cast


@functools.cache
def kernel_of(name: str, order: int):
    return tallmc.contrib.bouncy.bouncy(1.0, order=order).prepare(POSTERIORS[name]()).kernel


@eqx.filter_jit
def imbalance_at(rates, u, velocity, posterior):
    """The errors of Σ λ_g(u, v) − λ_g(u, R_g v) = vᵀ∇U(u) over all terms, and of the lengths."""
    rows = posterior.rows
    of_rows = all_rows(rates, u, rows)
    unused = jnp.zeros(rows.n_rows)
    found = rates.candidates(velocity, of_rows, unused)
    after = jax.vmap(lambda normal: reflected(velocity, normal))(found.normals)
    back = jax.vmap(lambda v: rates.candidates(v, of_rows, unused).rates)(after)
    gradient = rates.known_gradient(u)
    bounced = reflected(velocity, rates.normal(jnp.int32(0), gradient))
    known = [jnp.maximum(rates.directions(v) @ gradient, 0)[0] for v in (velocity, bounced)]
    lengths = jnp.linalg.norm(jnp.concatenate([after, bounced[None]]), axis=1)
    total = jnp.sum(found.rates - jnp.diagonal(back)) + known[0] - known[1]
    change = velocity @ rates.metric.pull(posterior.gradient(rates.position(u)))
    lengthened = jnp.max(jnp.abs(lengths - jnp.linalg.norm(velocity)))
    return jnp.maximum(jnp.abs(total - change), lengthened)


def imbalance(bound, scale: float) -> float:
    """The largest of these errors at some places."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(10):
        u, velocity = rng.normal(size=(2, bound.posterior.dim)) * [[scale], [1.0]]
        at = map(jnp.asarray, (u, velocity))
        worst = max(worst, float(imbalance_at(bound.kernel.rates, *at, bound.posterior)))
    return worst


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", POSTERIORS)
def test_rates_and_reflections_are_balanced(name, order):
    # Predictors that move less have remainders to full precision (`quadrature.py`).
    assert imbalance(kernel_of(name, order), 0.02) < 1e-12
    assert imbalance(kernel_of(name, order), 1.0) < 1e-6


class WrongNormal(BouncyRates):
    """Rows reflect the velocity on a vector that is not theirs."""

    def candidates(self, velocity, rows, uniform):
        found = super().candidates(velocity, rows, uniform)
        normals = jnp.broadcast_to(self.linear + 1, found.normals.shape)
        return Candidates(found.rates, found.largest, normals)


class NoPrior(BouncyRates):
    """The prior forgotten."""

    def known_gradient(self, u):
        return self.linear + self.matrix @ u


@pytest.mark.smoke
@pytest.mark.parametrize("kind", [None, WrongNormal, NoPrior])
def test_the_balance_kills_a_wrong_normal_and_a_forgotten_prior(kind):
    bound = kernel_of("mixed prior", 1)
    if kind is None:
        assert imbalance(bound, 0.02) < 1e-12
    else:
        wrong = cast(bound.kernel.rates, kind)
        assert imbalance(eqx.tree_at(lambda of: of.kernel.rates, bound, wrong), 1.0) > 1e-2


def test_no_rate_exceeds_its_bound():
    rng = np.random.default_rng(0)
    for name in POSTERIORS:
        bound = kernel_of(name, 2)
        rates, rows = bound.kernel.rates, bound.rows
        share = rates.stream.probabilities()
        assert known_excess(rates) < 1e-12
        for scale in (0.3, 1.0, 3.0, 50.0):
            u, velocity = jnp.asarray(rng.normal(size=(2, bound.posterior.dim)))
            found = rates.candidates(
                velocity, all_rows(rates, scale * u, rows), jnp.zeros(len(share))
            )
            cap = share * float(rates.bound(jnp.linalg.norm(scale * u)) * rates.speed(velocity))
            assert (np.asarray(found.rates) <= np.asarray(found.largest) + 1e-15).all()
            assert (np.asarray(found.largest) <= cap).all()


@pytest.mark.parametrize(
    ("prior", "order"), slow_after(1, [("mixed", 2), ("mixed", 1), ("normal", 2), ("normal", 1)])
)
def test_the_stationary_law_is_the_posterior(prior, order):
    posterior = skewed(2) if prior == "normal" else with_mixed_prior()
    truth = truth_of(2) if prior == "normal" else Truth(posterior)
    draws = tallmc.sample(posterior, tallmc.contrib.bouncy.bouncy(1.3, order), **CHAINS)
    z = law_z(draws, truth)
    assert max(z.values()) < LIMIT, z
    assert draws.n_row_evals_sampling > 1000
    assert np.isfinite(path_moments(draws).mean).all()


def test_a_gaussian_posterior_needs_no_rows():
    posterior = linear()
    draws = tallmc.sample(posterior, tallmc.contrib.bouncy.bouncy(1.3), **CHAINS)
    mean, covariance = exact_posterior(posterior)
    centred = draws.positions - mean
    assert z_of(centred.mean(axis=1), 0.0) < LIMIT
    assert z_of((centred**2).mean(axis=1), np.diag(covariance)) < LIMIT
    assert draws.n_row_evals_sampling == 0


def test_bad_input_is_answered():
    with pytest.raises(tallmc.InvalidInput, match="refreshment must be a finite number and > 0"):
        tallmc.contrib.bouncy.bouncy(1.0, refreshment=0.0)
    with pytest.raises(tallmc.InvalidInput, match="order must be an int in"):
        tallmc.contrib.bouncy.bouncy(1.0, order=3)
