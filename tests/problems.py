"""Small problems whose answers are known exactly, and every part of the library on each axis."""

import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest

import tallmc
from tallmc._rows import take_rows
from tallmc.dynamics import (
    MALA,
    Hamiltonian,
    Langevin,
    LeimkuhlerMatthews,
    NoseHoover,
    RandomWalk,
    RiemannianHamiltonian,
    RiemannianLangevin,
    RMSprop,
    Splitting,
    Underdamped,
    table_1,
)
from tallmc.gradient import SAGA, SVRG, Batch, ControlVariate, Full, Simple
from tallmc.subsample import (
    Adaptive,
    AllRows,
    Bandit,
    ExponentiallyWeighted,
    Fixed,
    Measured,
    Optimal,
    Preferential,
    Stratified,
    Uniform,
)

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
    "all-rows": AllRows(),
}
GRADIENTS = {
    "simple": Simple(),
    "control-variate": ControlVariate(),
    "second-order": ControlVariate(order=2),
    "svrg": SVRG(every=10),
    "saga": SAGA(),
    "full": Full(),
}
SIZES = {"fixed": Fixed(3), "adaptive": Adaptive(noise_threshold=1.0), "measured": Measured(3, noise=1.0)}
DYNAMICS = {
    "langevin": Langevin(),
    "leimkuhler-matthews": LeimkuhlerMatthews(),
    "rmsprop": RMSprop(),
    "riemannian-langevin": RiemannianLangevin(),
    "underdamped": Underdamped(friction=3.0),
    "trajectories": Hamiltonian(length=3),
    "splitting": Splitting(friction=3.0),
    "nose-hoover": NoseHoover(friction=3.0),
    "riemannian-hamiltonian": RiemannianHamiltonian(friction=10.0),
    "recipe": table_1.sghmc_recipe(2, friction=3.0),
    "mala": MALA(),
    "random-walk": RandomWalk(),
}


def slow_after(number: int, cases) -> list:
    """The first so many cases in the suite that runs every time; the others, which show the same, in the slow one."""
    cases = list(cases)
    rest = (pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases[number:])
    return [*cases[:number], *rest]


def design(n_rows: int, dim: int, seed: int = 0) -> np.ndarray:
    """Rows of very different size, so that it matters which of them are seen."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, dim)) * rng.lognormal(0, 0.8, size=(n_rows, 1))


def logistic(n_rows: int = 5, dim: int = 2, seed: int = 0) -> tallmc.AbstractPosterior:
    y = np.random.default_rng(seed + 1).integers(0, 2, n_rows)
    return tallmc.models.logistic_regression(design(n_rows, dim, seed), y, prior_variance=2.0)


def linear(n_rows: int = 12, dim: int = 2, seed: int = 0) -> tallmc.AbstractPosterior:
    x = design(n_rows, dim, seed)
    y = x @ np.arange(1, dim + 1) + np.random.default_rng(seed + 1).normal(size=n_rows)
    return tallmc.models.linear_regression(x, y, prior_variance=4.0, noise_variance=1.5)


def by_autodiff(glm: tallmc.AbstractPosterior, log_density) -> tallmc.Posterior:
    """The same regression written by a user as two log densities."""
    prior_sd = jnp.sqrt(glm.prior_variance)
    return tallmc.Posterior(
        log_likelihood=lambda params, row: log_density(row.x @ params["beta"], row.y),
        log_prior=lambda params: jnp.sum(stats.norm.logpdf(params["beta"], 0, prior_sd)),
        data=glm.data,
        init={"beta": glm.init},
        lipschitz=glm.lipschitz(),
    )


def logistic_by_autodiff(n_rows: int = 5, dim: int = 2) -> tallmc.Posterior:
    return by_autodiff(logistic(n_rows, dim), lambda z, y: stats.bernoulli.logpmf(y, jnp.reciprocal(1 + jnp.exp(-z))))


def exact_posterior(posterior) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a linear regression's posterior, in closed form."""
    x, y = np.asarray(posterior.data.x, float), np.asarray(posterior.data.y, float)
    noise = float(posterior.family.noise_variance)
    precision = np.eye(x.shape[1]) / float(posterior.prior_variance) + x.T @ x / noise
    covariance = np.linalg.inv(precision)
    return covariance @ x.T @ y / noise, covariance


def memory_of(gradient):
    """The memory of an estimator that started elsewhere and has seen some rows at yet another position."""
    elsewhere = jnp.linspace(-0.4, 0.9, gradient.posterior.dim)
    memory = gradient.start(elsewhere)
    indices = jnp.array([3, 0, 3])
    batch = Batch(take_rows(gradient.posterior.data, indices), jnp.ones(3), indices)
    return gradient.learn(memory, batch, gradient.residuals(elsewhere + 0.3, batch.rows, indices, memory))


def residual_matrix(gradient, position, memory=None) -> np.ndarray:
    """r_i(θ) of every row, one a line."""
    posterior = gradient.posterior
    compact = gradient.residuals(position, posterior.data, jnp.arange(posterior.n_rows), memory)
    identity = np.eye(posterior.n_rows)
    return np.stack([posterior.combine(compact, posterior.data, jnp.asarray(row)) for row in identity])
