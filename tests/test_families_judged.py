"""The default on every family agrees with importance sampling in float64 on the same density."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from tallmc._anchor.optimisers import CountedPasses
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel
from tallmc.models.families import FAMILIES

pytestmark = pytest.mark.slow

N_ROWS, LIMIT, SEEDS = 6_000, 4.6, 3
_DF = 8
TIMES = {
    "exponential": lambda rng, n: np.log(rng.exponential(size=n)),
    "weibull": lambda rng, n: 0.7 * np.log(rng.exponential(size=n)),
    "lognormal": lambda rng, n: 0.7 * rng.normal(size=n),
    "loglogistic": lambda rng, n: 0.5 * rng.logistic(size=n),
    "piecewise_exponential": lambda rng, n: np.log(rng.exponential(size=n)),
}


def _tweedie(rng, mean, power=1.4, phi=1.5):
    number = rng.poisson(mean ** (2 - power) / (phi * (2 - power)))
    sizes = rng.gamma(np.maximum(number, 1) * (2 - power) / (power - 1))
    return np.where(number > 0, sizes * phi * (power - 1) * mean ** (power - 1), 0)


OTHERS = {
    "probit": ("bernoulli", {"link": "probit"}),
    "weights": ("bernoulli", {"weights": "w"}),
    "exposure": ("poisson", {"exposure": "w"}),
    "few rows": ("poisson", {}),
}
"""Other links, rows of several counts, and all rows in every step."""


def _responses(rng, z):
    """By family, from the linear predictor."""
    n, mean, chance = len(z), np.exp(z), 1 / (1 + np.exp(-z))
    shown = rng.random(n) > 0.3
    mixed = rng.poisson(mean * rng.gamma(2, 0.5, n))
    trials = rng.integers(1, 20, n)
    return {
        "bernoulli": (rng.random(n) < chance).astype(int),
        "binomial": rng.binomial(trials, chance),
        "trials": trials,
        "gaussian": z + rng.normal(size=n),
        "poisson": rng.poisson(mean),
        "negative_binomial": mixed,
        "categorical": np.argmax(rng.gumbel(size=(n, 3)) + z[:, None] * [0, 1, -0.5], axis=1),
        "ordinal": np.searchsorted([-1.5, 0.2, 1.0], z + rng.logistic(size=n)),
        "student_t": z + 0.5 * rng.standard_t(4, n),
        "gamma": rng.gamma(3.0, mean / 3),
        "zero_inflated_poisson": rng.poisson(mean) * shown,
        "zero_inflated_negative_binomial": mixed * shown,
        "hurdle_poisson": rng.poisson(mean) * shown,
        "hurdle_negative_binomial": mixed * shown,
        "tweedie": _tweedie(rng, mean),
        "beta": np.clip(rng.beta(5 * chance, 5 * (1 - chance)), 1e-6, 1 - 1e-6),
        "quantile": z + rng.normal(size=n),
    }


def _posterior(name):
    rng = np.random.default_rng(1)
    family, options = OTHERS.get(name, (name, {}))
    n = 3_000 if name in ("tweedie", "few rows") else N_ROWS  # a row of tweedie costs 16 others
    x = rng.normal(size=(n, 2))
    z = 0.4 + x @ [0.8, -0.5]
    table = {"a": x[:, 0], "b": x[:, 1], "w": rng.integers(1, 5, n)}
    if name in TIMES:
        time, end = np.exp(z + TIMES[name](rng, n)), rng.uniform(0.5, 6, n)
        table |= {"time": np.minimum(time, end), "died": (time <= end).astype(float)}
        formula = "surv(time, died) ~ a + b"
        if name == "piecewise_exponential":
            options = {"breaks": (0.5, 1.5, 3.0)}
    else:
        exposed = z + np.log(table["w"]) if name == "exposure" else z
        responses, formula = _responses(rng, exposed), "y ~ a + b"
        table["y"] = responses[family]
        if name == "binomial":
            table["trials"], options = responses["trials"], {"trials": "trials"}
    model = RegressionModel(family=family, formula=formula, **options)
    return regression_problem(table, model).posterior


@run_once
def _potentials(posterior, positions):
    return jax.lax.map(posterior.potential, positions, batch_size=20)


def _by_importance(posterior, n_draws):
    """Mean, sd and effective draws, from Student's t around the mode."""
    with jax.enable_x64(True):
        accurate = CountedPasses(posterior, double=True).posterior
        anchor = tallmc.anchor.find_anchor(accurate)
        rng = np.random.default_rng(0)
        moves = rng.normal(size=(n_draws, accurate.dim))
        moves *= np.sqrt(_DF / rng.chisquare(_DF, (n_draws, 1)))
        draws = np.asarray(anchor.position) + moves @ np.asarray(anchor.factor).T
        potentials = np.asarray(_potentials(accurate, jnp.asarray(draws)))
    squares = np.sum(moves**2, axis=1)
    logs = -potentials + (_DF + accurate.dim) / 2 * np.log1p(squares / _DF)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ draws
    return mean, np.sqrt(weights @ (draws - mean) ** 2), 1 / np.sum(weights**2)


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
def test_the_default_agrees_with_importance_sampling(name):
    posterior = _posterior(name)
    mean, sd, n_effective = _by_importance(posterior, 2_000 if name == "tweedie" else 8_000)
    assert n_effective > 1_500
    for seed in range(SEEDS):
        draws = tallmc.sample(posterior, seed=seed, progress=False)
        assert draws.report.trusted, draws.report
        found = np.asarray(draws.positions[draws.ok], float)
        variance = 1 / draws.report.ess + 1 / n_effective
        errors = (found.mean(axis=(0, 1)) - mean) / sd
        assert np.abs(errors).max() < LIMIT * np.sqrt(variance), (seed, errors)
        # The log of an sd of n normal draws has the variance 1/2n.
        ratios = np.log(found.std(axis=(0, 1)) / sd)
        assert np.abs(ratios).max() < LIMIT * np.sqrt(variance / 2), (seed, ratios)
