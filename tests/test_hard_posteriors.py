"""Posteriors that are far from a Gaussian: the default is right, or says that it is not.

All references are exact: quadrature in one or two dimensions, and sums over Gaussians.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from tallmc.dynamics import HMC, ModeJumpingHMC
from tallmc.methods.automatic.method import FEW_ROWS
from tallmc.methods.trajectories import SurrogateHMC


class Hard(NamedTuple):
    """A posterior with the mean and the sd of every parameter."""

    posterior: tallmc.models.AbstractPosterior
    mean: np.ndarray
    sd: np.ndarray


def moments(log_density, points):
    """Means and sds of a density that is known on a grid of points (n, d)."""
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = weights @ points
    return mean, np.sqrt(weights @ (points - mean) ** 2)


def on_a_grid(posterior, *axes):
    """Means and sds of the parameters of a posterior, by quadrature."""
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    potentials = run_once(lambda at: jax.lax.map(posterior.potential, at, batch_size=256))
    return moments(-np.asarray(potentials(jnp.asarray(points)), np.float64), points)


def assert_right_or_doubtful(hard, draws, *, must_be_right=True):
    """Draws without a doubt are within the reported errors."""
    report = draws.report
    if not must_be_right and not report.trusted:
        return
    assert report.trusted, str(report)
    found = draws.positions[draws.ok]
    mean_error = (np.abs(found.mean(axis=(0, 1)) - hard.mean) / hard.sd).max()
    sd_error = np.abs(found.std(axis=(0, 1)) / hard.sd - 1).max()
    assert mean_error < report.mean_error < 0.2, (mean_error, str(report))
    # The Monte-Carlo error of an sd is reported for a Gaussian; with other tails it is larger.
    assert sd_error < 2 * report.sd_error < 0.25, (sd_error, str(report))


# Two modes


def squared_log_likelihood(params, x):
    return -((x - params["t"] ** 2) ** 2) / 6


class Tilt(eqx.Module):
    """The log prior ct − t²/200."""

    slope: jax.Array

    def __call__(self, params):
        return self.slope * params["t"] - params["t"] ** 2 / 200


def two_modes(n_rows, share=0.4):
    """x_i ~ N(t², 3): modes at ±√(mean of x). The prior gives the left mode its share."""
    x = 1.0 + math.sqrt(3) * np.random.default_rng(0).normal(size=n_rows)
    mode = math.sqrt(x.mean())
    tilt = Tilt(jnp.asarray(math.log((1 - share) / share) / (2 * mode)))
    posterior = tallmc.Posterior(squared_log_likelihood, tilt, x, {"t": 0.7})
    near = np.linspace(-8, 8, 400) / math.sqrt(n_rows)
    return Hard(posterior, *on_a_grid(posterior, np.r_[near - mode, near + mode]))


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_both_modes_of_a_likelihood_are_visited(n_rows):
    hard = two_modes(n_rows)
    draws = tallmc.sample(hard.posterior, ess=2000)
    method = draws.settings["method"]
    if n_rows > FEW_ROWS:
        assert isinstance(method, SurrogateHMC)
    else:
        assert isinstance(method.dynamics, ModeJumpingHMC)
    assert "another mode" in str(draws.report) and "40% of the probability" in str(draws.report)
    assert_right_or_doubtful(hard, draws)
    left = (draws.positions < 0).mean()
    assert abs(left - 0.4) < 4.6 * math.sqrt(0.24 / draws.report.ess)


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [200, 6000])
def test_a_run_with_two_modes_is_resumed_bit_for_bit(tmp_path, n_rows):
    posterior = two_modes(n_rows).posterior
    tallmc.sample(posterior, n_draws=30, store=tmp_path / "run")
    resumed = tallmc.resume(tmp_path / "run", posterior, n_draws=60)
    whole = tallmc.sample(posterior, n_draws=60)
    np.testing.assert_array_equal(resumed.positions, whole.positions)
    assert resumed.n_row_evals_sampling == whole.n_row_evals_sampling


@pytest.mark.slow
def test_modes_that_chains_cannot_visit_are_a_doubt(monkeypatch):
    monkeypatch.setattr("tallmc.methods.automatic.method._MOST_NUMBERS", 0)
    monkeypatch.setattr("tallmc.methods.automatic.hard_rows._SMALL", 0)
    draws = tallmc.sample(two_modes(6000).posterior, ess=400)
    assert np.ptp(np.sign(draws.positions)) == 0, "the chains changed modes after all"
    assert not draws.report.trusted
    doubts = " ".join(draws.report.doubts)
    assert "another mode" in doubts and "the chains stayed in one mode" in doubts


@pytest.mark.slow
def test_jumps_that_are_never_accepted_are_given_up_with_a_doubt(monkeypatch):
    """Chains that cannot change modes would never reach their effective draws."""
    monkeypatch.setattr("tallmc.dynamics.hmc._JUMP_SHARE", 0.0)
    draws = tallmc.sample(two_modes(300).posterior, ess=200)
    assert np.ptp(np.sign(draws.positions)) == 0
    assert isinstance(draws.settings["method"].dynamics, HMC)
    assert "about 40% of the probability; the chains stayed in one mode" in str(draws.report)


class MixtureLikelihood(eqx.Module):
    """p N(x; a, v) + (1 − p) N(x; a + b, v)."""

    p: float = eqx.field(static=True)
    v: float = eqx.field(static=True)

    def __call__(self, params, x):
        a, b = params["a"], params["b"]
        first = jnp.log(self.p) - (x - a) ** 2 / (2 * self.v)
        return jnp.logaddexp(first, jnp.log1p(-self.p) - (x - a - b) ** 2 / (2 * self.v))


def wide_prior(params):
    return -(params["a"] ** 2) / 20 - params["b"] ** 2 / 2


def mixture(n_rows, p, v):
    """Welling and Teh (2011), section 5.1 at p = ½, v = 2: modes near (0, 1) and (1, −1)."""
    rng = np.random.default_rng(1)
    x = np.where(rng.random(n_rows) < p, 0.0, 1.0) + math.sqrt(v) * rng.normal(size=n_rows)
    init = {"a": 0.1, "b": 0.5}
    posterior = tallmc.Posterior(MixtureLikelihood(p, v), wide_prior, x, init)
    axis = np.linspace(-4.5, 4.5, 400)
    return Hard(posterior, *on_a_grid(posterior, axis, axis))


@pytest.mark.parametrize(
    ("n_rows", "p", "v"),
    [(300, 0.5, 2.0), (1000, 0.55, 0.3), (6000, 0.5, 0.5)],
    ids=["welling-teh", "unequal", "tall"],
)
@pytest.mark.slow
def test_mixtures_are_right_or_doubtful(n_rows, p, v):
    hard = mixture(n_rows, p, v)
    assert_right_or_doubtful(hard, tallmc.sample(hard.posterior, ess=2000), must_be_right=False)


@pytest.mark.slow
def test_a_distant_mode_with_little_probability_is_a_doubt():
    """0.5 % of the probability at 50 standard deviations: it determines the standard deviation."""
    draws = tallmc.sample(two_modes(1000, share=0.005).posterior, ess=400)
    assert not draws.report.trusted
    assert "0.5% of the probability" in " ".join(draws.report.doubts), str(draws.report)


# A curved ridge


def product_log_likelihood(params, x):
    return -((x - params["a"] * params["b"]) ** 2) / 2


def standard_prior(params):
    return -(params["a"] ** 2 + params["b"] ** 2) / 2


def product(n_rows):
    """x_i ~ N(ab, 1): the product is known well, each factor alone is not."""
    x = 1.0 + np.random.default_rng(2).normal(size=n_rows)
    init = {"a": 1.5, "b": 0.5}
    posterior = tallmc.Posterior(product_log_likelihood, standard_prior, x, init)
    # With s = ab, the measure da db is ds da/|a|, and the density is smooth in s and log |a|.
    s, log_a = np.meshgrid(
        x.mean() + np.linspace(-8, 8, 200) / math.sqrt(n_rows), np.linspace(-5, 5, 2000)
    )
    a, b = np.exp(log_a).ravel(), (s / np.exp(log_a)).ravel()
    log_density = -n_rows * (s.ravel() - x.mean()) ** 2 / 2 - (a**2 + b**2) / 2
    points = np.c_[np.r_[a, -a], np.r_[b, -b]]
    return Hard(posterior, *moments(np.r_[log_density, log_density], points))


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [400, 50_000])
def test_a_curved_ridge_is_right_or_doubtful(n_rows):
    """With 50,000 rows a run without a limit takes many minutes."""
    hard = product(n_rows)
    draws = tallmc.sample(hard.posterior, ess=1000, max_seconds=120)
    assert_right_or_doubtful(hard, draws, must_be_right=False)


# Kinks


def normal_log_likelihood(params, rows):
    x, y = rows
    return -((y - x @ params["beta"]) ** 2) / 2


def laplace_prior(params):
    return -jnp.sum(jnp.abs(params["beta"])) / 0.01


def kinks(n_rows, dim):
    """A linear regression with orthogonal columns, so that the coefficients are independent."""
    rng = np.random.default_rng(3)
    x = np.linalg.qr(rng.normal(size=(n_rows, dim)))[0] * math.sqrt(n_rows)
    beta = np.where(np.arange(dim) % 2, 0.02 * rng.normal(size=dim), 0.0)
    y = x @ beta + rng.normal(size=n_rows)
    init = {"beta": jnp.zeros(dim) + 0.01}
    posterior = tallmc.Posterior(normal_log_likelihood, laplace_prior, (x, y), init, batched=True)
    grid = np.linspace(-0.15, 0.15, 20_001)
    log_prior = -np.abs(grid) / 0.01
    each = [
        moments(log_prior - n_rows * (grid - estimate) ** 2 / 2, grid[:, None])
        for estimate in x.T @ y / n_rows
    ]
    mean, sd = (np.concatenate(parts) for parts in zip(*each, strict=True))
    return Hard(posterior, mean, sd)


@pytest.mark.slow
@pytest.mark.parametrize(("n_rows", "dim"), [(6000, 4), (50_000, 40)])
def test_kinks_in_the_prior_are_right_or_doubtful(n_rows, dim):
    hard = kinks(n_rows, dim)
    assert_right_or_doubtful(hard, tallmc.sample(hard.posterior, ess=1000), must_be_right=False)


# Hierarchies


def grouped(effect, rows):
    group, y = rows
    return -((y - effect[group]) ** 2) / 2


def non_centred_log_likelihood(params, rows):
    return grouped(params["mu"] + jnp.exp(params["log_tau"]) * params["z"], rows)


def non_centred_prior(params):
    squares = params["mu"] ** 2 + (params["log_tau"] + 1) ** 2 + jnp.sum(params["z"] ** 2)
    return -squares / 2


def centred_log_likelihood(params, rows):
    return grouped(params["z"], rows)


def centred_prior(params):
    mu, log_tau, effect = params["mu"], params["log_tau"], params["z"]
    squares = mu**2 + (log_tau + 1) ** 2 + jnp.sum((effect - mu) ** 2) / jnp.exp(2 * log_tau)
    return -squares / 2 - effect.shape[0] * log_tau


def hierarchy(n_rows, n_groups, *, centred, least=1):
    """Effects of groups of very unequal size, N(μ, τ²) with unknown log τ.

    Given τ everything is Gaussian, so the reference is a sum over a grid of log τ.
    """
    rng = np.random.default_rng(4)
    share = rng.pareto(0.7, size=n_groups) + 0.01
    group = np.r_[
        np.repeat(np.arange(n_groups), least),
        rng.choice(n_groups, size=n_rows - least * n_groups, p=share / share.sum()),
    ]
    y = (0.5 + 0.3 * rng.normal(size=n_groups))[group] + rng.normal(size=n_rows)
    init = {"log_tau": -1.0, "mu": 0.0, "z": jnp.zeros(n_groups)}
    densities = (
        (centred_log_likelihood, centred_prior)
        if centred
        else (non_centred_log_likelihood, non_centred_prior)
    )
    rows = (group.astype(np.int32), y)
    posterior = tallmc.Posterior(*densities, rows, init, batched=True)

    count = np.bincount(group)
    mean_y = np.bincount(group, weights=y) / count
    log_weights, means, variances = [], [], []
    for log_tau in (grid := np.linspace(-9, 3, 1200)):
        tau = math.exp(log_tau)
        # Precision and mean of (μ, z), with θ = μ + τz or θ = z.
        design = np.c_[np.ones(n_groups), np.diag(np.full(n_groups, tau))]
        prior = np.eye(n_groups + 1)
        precision = prior + design.T @ (count[:, None] * design)
        covariance = np.linalg.inv(precision)
        centre = covariance @ (design.T @ (count * mean_y))
        log_weights.append(
            centre @ precision @ centre / 2
            - np.linalg.slogdet(precision)[1] / 2
            - (log_tau + 1) ** 2 / 2
        )
        if centred:
            to_effects = np.r_[np.eye(n_groups + 1)[:1], design]
            centre, covariance = to_effects @ centre, to_effects @ covariance @ to_effects.T
        means.append(np.r_[log_tau, centre])
        variances.append(np.r_[0.0, np.diag(covariance)])
    assert len(grid) == len(means)
    weights = np.exp(np.array(log_weights) - max(log_weights))
    weights /= weights.sum()
    mean = weights @ np.array(means)
    sd = np.sqrt(weights @ (np.array(variances) + (np.array(means) - mean) ** 2))
    return Hard(posterior, mean, sd)


@pytest.mark.slow
@pytest.mark.parametrize(("n_rows", "n_groups"), [(1000, 4), (6000, 10), (20_000, 30)])
def test_a_non_centred_hierarchy_is_right_or_doubtful(n_rows, n_groups):
    hard = hierarchy(n_rows, n_groups, centred=False)
    draws = tallmc.sample(hard.posterior, ess=1000)
    assert draws.settings["method"].dynamics.__class__ in (HMC, ModeJumpingHMC)
    assert "effective draws take about" in str(draws.report)
    assert_right_or_doubtful(hard, draws, must_be_right=False)


@pytest.mark.slow
@pytest.mark.parametrize(("n_rows", "n_groups"), [(6000, 5), (120_000, 60)])
def test_a_centred_hierarchy_is_right(n_rows, n_groups):
    hard = hierarchy(n_rows, n_groups, centred=True, least=50)
    assert_right_or_doubtful(hard, tallmc.sample(hard.posterior, ess=1000))
