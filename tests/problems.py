"""Small problems with known exact answers, and registries of all parts of the library by axis."""

import functools
import json
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest

import tallmc
import tallmc.methods.automatic.method as automatic
from kept_programs import run_once
from laws import LAWS
from tallmc._core.arrays import Parameters
from tallmc.contrib.diverse_batches import Determinantal, PoissonDisk
from tallmc.gradient import SAGA, SVRG, Batch, ControlVariate, Full, Simple
from tallmc.models.posterior import ModelPosterior
from tallmc.results.draws import Timing
from tallmc.subsample import (
    AllRows,
    Bandit,
    BoundedNoise,
    ExponentiallyWeighted,
    Fixed,
    Optimal,
    Preferential,
    Stratified,
    TargetNoise,
    Uniform,
)

FEATURES = np.array(
    [
        [1.0, 0.2, 0.0, 0.3],
        [0.9, 0.3, 0.1, 0.0],
        [-0.5, 1.0, 0.4, 0.2],
        [0.1, -0.8, 1.0, 0.5],
        [0.0, 0.0, 0.0, 0.0],
    ]
)
"""Features of five rows. The first two are similar, and the last has none."""
SUBSAMPLES = {
    "uniform": Uniform(),
    "without-replacement": Uniform(replace=False),
    "gradient-weights": Preferential("gradient"),
    "curvature-weights": Preferential("curvature"),
    "frobenius-weights": Preferential("frobenius"),
    "lipschitz-weights": Preferential("lipschitz"),
    "residual-weights": Preferential("residual"),
    "take-all": Preferential(np.array([4.0, 2.0, 0.1, 0.1, 0.5]), take_all=True),
    "own-weights": Preferential(np.array([1.0, 2.0, 0.0, 5.0, 0.5]), floor=0.1),
    "stratified": Stratified(np.array([7, -1, 7, -1, 7])),
    "bandit": Bandit(),
    "optimal": Optimal(),
    "exponential": ExponentiallyWeighted(),
    "determinantal": Determinantal(FEATURES, floor=0.1),
    "poisson-disk": PoissonDisk(radius=1.0, features=FEATURES, tries=2, simulated=10_000),
    "all-rows": AllRows(),
}
GRADIENTS = {
    "simple": Simple(),
    "control-variate": ControlVariate(),
    "second-order": ControlVariate(order=2),
    "within-radius": ControlVariate(radius=2.0),
    "svrg": SVRG(every=10),
    "saga": SAGA(),
    "full": Full(),
}
SIZES = {
    "fixed": Fixed(3),
    "adaptive": BoundedNoise(noise_threshold=1.0),
    "measured": TargetNoise(3, noise=1.0),
}
DYNAMICS = {name: law.choice for name, law in LAWS.items()}


def by_control_variates(monkeypatch) -> None:
    """Have the default method find that a series does not do, and that all rows are too many."""
    monkeypatch.setattr(automatic.SurrogatePlanner, "plan", lambda planner: None)
    monkeypatch.setattr(automatic, "_MOST_NUMBERS", 0)


def slow_after(number: int, cases) -> list:
    """Mark all cases after the first `number` as slow.

    The slow cases check the same property as the others.
    """
    cases = list(cases)
    rest = (
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases[number:]
    )
    return [*cases[:number], *rest]


def slow_among(slow, cases) -> list:
    """Mark the cases that are named in `slow` as slow: they combine what other cases check."""
    cases = list(cases)
    assert set(slow) <= set(cases)
    return [pytest.param(case, marks=pytest.mark.slow) if case in slow else case for case in cases]


def design(n_rows: int, dim: int, seed: int = 0) -> np.ndarray:
    """Design matrix whose rows differ widely in norm, so that row selection affects results."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, dim)) * rng.lognormal(0, 0.8, size=(n_rows, 1))


def logistic(n_rows: int = 5, dim: int = 2, seed: int = 0) -> tallmc.models.AbstractPosterior:
    y = np.random.default_rng(seed + 1).integers(0, 2, n_rows)
    return tallmc.models.logistic_regression(design(n_rows, dim, seed), y, prior_variance=2.0)


def weighted_logistic(n_rows: int = 5, dim: int = 2) -> tallmc.models.AbstractPosterior:
    """A logistic regression whose rows have weights and offsets."""
    rng = np.random.default_rng(1)
    return tallmc.models.logistic_regression(
        design(n_rows, dim),
        rng.integers(0, 2, n_rows),
        prior_variance=2.0,
        weights=rng.uniform(0.5, 3.0, n_rows),
        offset=rng.normal(size=n_rows),
    )


def linear(n_rows: int = 12, dim: int = 2, seed: int = 0) -> tallmc.models.AbstractPosterior:
    x = design(n_rows, dim, seed)
    y = x @ np.arange(1, dim + 1) + np.random.default_rng(seed + 1).normal(size=n_rows)
    return tallmc.models.linear_regression(x, y, prior_variance=4.0, noise_variance=1.5)


class NormalPrior(eqx.Module):
    """Independent N(0, sd²) on `beta`."""

    sd: jax.Array

    def __call__(self, params):
        return jnp.sum(stats.norm.logpdf(params["beta"], 0, self.sd))


def logistic_log_likelihood(params, row):
    z = row.x @ params["beta"]
    return stats.bernoulli.logpmf(row.y, jnp.reciprocal(1 + jnp.exp(-z)))


def by_autodiff(glm: tallmc.models.AbstractPosterior, log_likelihood) -> tallmc.Posterior:
    """The same regression written by a user as two log densities.

    Pass a log-likelihood that is defined at module level, so that it is compiled once for all
    tests.
    """
    model: Any = glm.model
    return tallmc.Posterior(
        log_likelihood=log_likelihood,
        log_prior=NormalPrior(jnp.sqrt(model.prior.variance)),
        data=glm.data,
        init={"beta": glm.init},
        lipschitz=glm.lipschitz(),
    )


def logistic_by_autodiff(n_rows: int = 5, dim: int = 2) -> tallmc.Posterior:
    return by_autodiff(logistic(n_rows, dim), logistic_log_likelihood)


def exact_posterior(posterior) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a linear regression's posterior, in closed form."""
    x, y = np.asarray(posterior.data.x, float), np.asarray(posterior.data.y, float)
    noise = float(posterior.model.likelihood.noise_variance)
    precision = np.eye(x.shape[1]) / float(posterior.model.prior.variance) + x.T @ x / noise
    covariance = np.linalg.inv(precision)
    return covariance @ x.T @ y / noise, covariance


def laplace_draws(posterior, chains=4, draws=100, seed=0) -> tallmc.Draws:
    """Draws from the Laplace approximation. They stand for draws of the posterior."""
    anchor = tallmc.anchor.find_anchor(posterior)
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(chains, draws, posterior.dim)) @ np.asarray(anchor.factor).T
    outcomes = (tallmc.diagnose.Outcome.OK,) * chains
    positions, timing = np.asarray(anchor.position) + noise, Timing(0.0, 0.0, 0.0)
    made = tallmc.Draws(positions, {}, outcomes, 0, 0, timing, posterior.layout, {})
    return made.with_posterior(posterior)


def start_of(gradient, rows, position):
    """The memory of one chain that starts at `position`."""
    stacked = gradient.start(jnp.asarray(position)[None], rows)
    return jax.tree.map(lambda leaf: leaf[0], stacked)


def memory_of(gradient, rows):
    """The memory of an estimator that started at one position and read rows at another."""
    elsewhere = jnp.linspace(-0.4, 0.9, gradient.model.dim)
    carried = start_of(gradient, rows, elsewhere)
    indices = jnp.array([3, 0, 3])
    batch = Batch(rows.take(indices), jnp.ones(3), indices)
    residuals = gradient.residuals(elsewhere + 0.3, batch.rows, indices, carried)
    return gradient.learn(carried, batch, residuals)


def residual_matrix(gradient, rows, position, carried=None) -> np.ndarray:
    """The residuals r_i(θ), one matrix row per data row."""
    return np.asarray(_residual_matrix(gradient, rows, jnp.asarray(position), carried))


@run_once
def _residual_matrix(gradient, rows, position, carried):
    everything = rows.columns
    compact = gradient.residuals(position, everything, jnp.arange(rows.n_rows), carried)
    of_one = jax.vmap(lambda weights: gradient.model.combine(compact, everything, weights))
    return of_one(jnp.eye(rows.n_rows))


def labelled(posterior, labels):
    """The posterior with names for the entries of its parameters."""
    quantities = Parameters(posterior.layout.labelled(labels))
    return ModelPosterior(posterior.model, posterior.rows, quantities)


_NEW_PROCESS = """
import gc, json, sys
import tallmc
found = {"modules": sorted(sys.modules), "collects garbage": gc.isenabled(), "dir": dir(tallmc)}
from tallmc.methods.references import papers_of
found["modules before papers"] = sorted(sys.modules)
found["papers"] = [paper.year for paper in papers_of("ZigZag(step_size=1.0, order=2)")]
from tallmc import *
tune, diagnose.ess, tallmc.anchor.find_anchor, tallmc.correction, tallmc.contrib.series
found["modules in the end"], found["names"] = sorted(sys.modules), sorted(globals())
print(json.dumps(found))
"""


@functools.cache
def in_a_new_process() -> dict[str, Any]:
    """What a process that has just imported the package knows.

    It then asks for the papers of a contrib topic, and uses names that are imported late.
    """
    command = [sys.executable, "-c", _NEW_PROCESS]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(run.stdout)
