"""Searches for modes other than the anchor find those that exist, and no others."""

import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from problems import logistic
from tallmc._anchor import other_modes
from tallmc._anchor.optimisers import CountedPasses


def squared_mean(n_rows: int, tilt: float = 0.0, init: float = 1.0) -> tallmc.Posterior:
    """x_i ~ N(θ², 3) with modes near ±2; the tilt of the prior favours the positive one."""
    x = np.random.default_rng(0).normal(4.0, 3.0, n_rows)
    return tallmc.Posterior(
        lambda theta, row: stats.norm.logpdf(row, theta**2, 3.0),
        lambda theta: stats.norm.logpdf(theta, 0.0, 10.0) + tilt * theta,
        jnp.asarray(x),
        init,
    )


def test_both_signs_of_a_squared_parameter_are_found():
    posterior = squared_mean(1000)
    anchor = tallmc.anchor.find_anchor(posterior)
    (mode,) = other_modes(posterior, anchor)
    np.testing.assert_allclose(mode.position, -anchor.position, rtol=1e-4)
    assert mode.potential_difference == pytest.approx(0.0, abs=1e-4)
    assert mode.mass_ratio == pytest.approx(1.0, rel=1e-3)
    sd = float(anchor.covariance[0, 0] ** 0.5)
    assert mode.distance == pytest.approx(2 * abs(float(anchor.position[0])) / sd, rel=1e-3)


def test_unequal_modes_have_their_masses():
    """A tilt of log(1.5)/4 per unit of θ gives the modes near ±2 about 60 and 40 %."""
    posterior = squared_mean(1000, tilt=np.log(1.5) / 4)
    anchor = tallmc.anchor.find_anchor(posterior)
    (mode,) = other_modes(posterior, anchor)
    grid = np.linspace(-3, 3, 6001)
    potentials = run_once(lambda at: jax.lax.map(posterior.potential, at, batch_size=256))
    log_density = -np.asarray(potentials(jnp.asarray(grid[:, None])))
    density = np.exp(log_density - log_density.max())
    positive = density[grid > 0].sum() / density.sum()
    assert 0.55 < positive < 0.65
    assert float(anchor.position[0]) > 0
    assert mode.mass_ratio == pytest.approx((1 - positive) / positive, rel=0.02)


@pytest.mark.slow
def test_the_swapped_components_of_a_mixture_are_found():
    """x_i ~ ⅓ N(a, 1) + ⅔ N(b, 1): besides the true mode there is one with a and b swapped."""
    rng = np.random.default_rng(1)
    x = np.where(rng.random(1500) < 1 / 3, rng.normal(-2, 1, 1500), rng.normal(2, 1, 1500))

    def log_likelihood(params, row):
        a, b = stats.norm.logpdf(row, params, 1.0)
        return jnp.logaddexp(a - jnp.log(3.0), b + jnp.log(2 / 3))

    posterior = tallmc.Posterior(
        log_likelihood,
        lambda params: jnp.sum(stats.norm.logpdf(params, 0.0, 5.0)),
        jnp.asarray(x),
        jnp.array([-1.0, 1.0]),
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    np.testing.assert_allclose(anchor.position, [-2, 2], atol=0.3)
    modes = other_modes(posterior, anchor)
    assert len(modes) == 1
    first, second = modes[0].position
    assert first > 1 and second < 0
    assert modes[0].potential_difference > 10


@pytest.mark.slow
def test_all_orders_of_three_components_are_found():
    """x_i ~ ⅓ Σ N(a_k, 1): six modes, more than there are starts where none is found."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=600) + np.array([-4.0, 0.0, 4.0])[rng.integers(0, 3, size=600)]
    posterior = tallmc.Posterior(
        lambda means, row: jax.nn.logsumexp(stats.norm.logpdf(row, means, 1.0)) - jnp.log(3.0),
        lambda means: jnp.sum(stats.norm.logpdf(means, 0.0, 5.0)),
        jnp.asarray(x),
        jnp.array([-3.0, 0.5, 3.0]),
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    modes = other_modes(posterior, anchor)
    orders = {tuple(np.argsort(mode.position)) for mode in modes}
    assert len(modes) == len(orders) == 5
    assert tuple(np.argsort(anchor.position)) not in orders
    np.testing.assert_allclose([mode.mass_ratio for mode in modes], 1.0, rtol=1e-3)


def test_from_the_worse_mode_the_better_one_is_found():
    posterior = squared_mean(1000, tilt=2.0, init=-1.0)
    worse = tallmc.anchor.find_anchor(posterior)
    assert worse.position[0] < -1
    (mode,) = other_modes(posterior, worse)
    assert mode.position[0] > 1
    assert mode.mass_ratio > 100


def test_a_log_concave_model_is_not_searched():
    posterior = logistic(n_rows=300, dim=3)
    passes = CountedPasses(posterior)
    assert other_modes(posterior, tallmc.anchor.find_anchor(posterior), passes=passes) == []
    assert passes.n_row_evals == 0


def test_other_modes_need_a_hessian():
    posterior = squared_mean(50)
    with pytest.raises(tallmc.InvalidInput, match="have a Hessian"):
        other_modes(posterior, tallmc.anchor.find_anchor(posterior, hessian=False))


def test_a_search_on_sorted_rows_begins_with_random_ones():
    """On a contiguous block of sorted rows the mode is hundreds of sds away from the anchor."""
    x = np.sort(np.random.default_rng(2).normal(1.0, 2.0, 60_000))
    posterior = tallmc.Posterior(
        lambda params, row: stats.norm.logpdf(row, params["mean"], jnp.exp(params["log_sd"])),
        lambda params: stats.norm.logpdf(params["mean"], 0, 10) - params["log_sd"] ** 2 / 2,
        jnp.asarray(x),
        {"mean": 0.0, "log_sd": 0.0},
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    passes = CountedPasses(posterior)
    assert other_modes(posterior, anchor, passes=passes) == []
    of_part = CountedPasses(posterior, 1 / 3)
    assert passes.n_row_evals % of_part._subset.n_rows == 0, "all rows were read"
    drawn = np.asarray(of_part.posterior.rows.columns)
    assert abs(drawn.mean() - x.mean()) < 4.6 * x.std() / len(drawn) ** 0.5
