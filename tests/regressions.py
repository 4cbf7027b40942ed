"""Every regression of `tallmc.models`, and the same models as log densities and in SciPy."""

import functools
import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

import tallmc
from problems import design
from tallmc import models
from tallmc.models.design import normal_prior, regression_data
from tallmc.models.families import FAMILIES
from tallmc.models.families.survival import PiecewiseExponential
from tallmc.models.regression import regression_posterior


def stein_z(drawn, gradient):
    """z-scores of E[φ ∂f − ∂φ] = 0, Stein's identity for draws from exp(−f), by φ and entry.

    Every φ is 0 at 0, where priors with unknown scales have a pole.
    """
    gradients = np.asarray(gradient(jnp.asarray(drawn)))
    functions = [
        (drawn, 1.0),
        (np.tanh(drawn), np.cosh(np.clip(drawn, -300, 300)) ** -2),
        (np.sin(2 * drawn), 2 * np.cos(2 * drawn)),
    ]
    terms = np.array([function * gradients - slope for function, slope in functions])
    return terms.mean(axis=1) / (terms.std(axis=1) / np.sqrt(len(drawn)))


N_ROWS, DIM = 60, 3
X = design(N_ROWS, DIM) / 3
CUTS = np.array([-0.8, 0.1, 1.3])
TRIALS = np.random.default_rng(4).integers(1, 9, N_ROWS)


class Classes:
    """A distribution over classes, with the interface of SciPy."""

    def __init__(self, chances):
        self.chances = chances

    def logpmf(self, y):
        return np.log(self.chances[np.arange(len(y)), np.asarray(y, int)])

    def mean(self):
        return self.chances


class Regression(NamedTuple):
    """A regression in three forms."""

    family: str
    """The name of its record in `tallmc.models.families`."""
    build: Callable[..., tallmc.models.AbstractPosterior]
    """The posterior from x, y and further arguments."""
    log_density: Callable[..., Any]
    """log p(y | z, shared parameters) of one row; for several predictors z is a vector."""
    law: Callable[..., Any]
    """The distribution of y in SciPy, from z, shared parameters and trials."""
    simulate: Callable[[np.random.Generator, np.ndarray], np.ndarray]
    """Responses for x."""
    shared: Mapping[str, Any] = MappingProxyType({})
    """The values of shared parameters at which models are compared."""

    @property
    def has_offset(self) -> bool:
        return FAMILIES[self.family].response != "classes"

    @property
    def has_weights(self) -> bool:
        family = FAMILIES[self.family]
        return not family.likelihood(family.links[0], 2, None).has_trials


def _binomial(x, y, weights=None, **arguments):
    return models.binomial_regression(
        x, y, TRIALS if weights is None else weights, 2.0, **arguments
    )


def _ordinal_log_density(z, params, y):
    free = params["cut_points"]
    cuts = jnp.cumsum(jnp.concatenate([free[:1], jnp.exp(free[1:])]))
    upper = jnp.concatenate([jax.nn.sigmoid(cuts - z), jnp.ones(1)])
    chances = jnp.diff(jnp.concatenate([jnp.zeros(1), upper]))
    return jnp.log(chances[y.astype(int)])


def _ordinal_law(z, params, trials):
    upper = scipy.special.expit(CUTS - z[:, None])
    return Classes(np.diff(np.pad(upper, ((0, 0), (1, 1)), constant_values=(0, 1)), axis=1))


def _softmax_law(z, params, trials):
    return Classes(scipy.special.softmax(np.column_stack([np.zeros(len(z)), z]), axis=1))


def _negative_binomial_law(z, params, trials):
    shape = np.exp(-params["log_dispersion"])
    return scipy.stats.nbinom(shape, shape / (shape + np.exp(z)))


def _negative_binomial_log_density(z, params, y):
    shape = jnp.exp(-params["log_dispersion"])
    return stats.nbinom.logpmf(y, shape, shape / (shape + jnp.exp(z)))


def _gamma_law(z, params, trials):
    shape = np.exp(params["log_shape"])
    return scipy.stats.gamma(shape, scale=np.exp(z) / shape)


def _gamma_log_density(z, params, y):
    shape = jnp.exp(params["log_shape"])
    return stats.gamma.logpdf(y, shape, scale=jnp.exp(z) / shape)


def _student_t_law(z, params, trials):
    return scipy.stats.t(np.exp(params["log_degrees"]), z, np.exp(params["log_scale"]))


def _student_t_log_density(z, params, y):
    return stats.t.logpdf(y, jnp.exp(params["log_degrees"]), z, jnp.exp(params["log_scale"]))


class ZeroCounts:
    """A zero-inflated or hurdle law of counts, with the interface of SciPy."""

    def __init__(self, base, zeros, is_hurdle):
        self.base = base
        at_zero = base.pmf(0)
        self.rest = (1 - zeros) / (1 - at_zero) if is_hurdle else 1 - zeros
        self.at_zero = zeros if is_hurdle else zeros + (1 - zeros) * at_zero

    def logpmf(self, y):
        return np.where(y == 0, np.log(self.at_zero), np.log(self.rest) + self.base.logpmf(y))

    def mean(self):
        return self.rest * self.base.mean()

    def var(self):
        return self.rest * (self.base.var() + self.base.mean() ** 2) - self.mean() ** 2


def _zero_counts(family, zero_parameter, shared):
    """A regression whose counts are those of another one, except for the zeros."""
    is_hurdle, is_poisson = zero_parameter == "logit_hurdle", not shared
    base_law = _negative_binomial_law if shared else lambda z, *_: scipy.stats.poisson(np.exp(z))

    def base_density(z, params, y):
        if is_poisson:
            return stats.poisson.logpmf(y, jnp.exp(z))
        return _negative_binomial_log_density(z, params, y)

    def log_density(z, params, y):
        zeros = jax.nn.sigmoid(params[zero_parameter])
        at_zero = jnp.exp(base_density(z, params, 0.0))
        positive = jnp.log(1 - zeros) + base_density(z, params, y)
        if is_hurdle:
            return jnp.where(y == 0, jnp.log(zeros), positive - jnp.log(1 - at_zero))
        return jnp.where(y == 0, jnp.log(zeros + (1 - zeros) * at_zero), positive)

    def law(z, params, trials):
        zeros = scipy.special.expit(params[zero_parameter])
        return ZeroCounts(base_law(z, params, trials), zeros, is_hurdle)

    def simulate(rng, x):
        return rng.poisson(rng.gamma(1.0, 2.0, len(x))) * (rng.random(len(x)) < 0.7)

    return Regression(
        family, _by_family(family), log_density, law, simulate, {**shared, zero_parameter: -0.6}
    )


BREAKS = np.array([0.5, 1.5])


def _tails_of(family, z, params, t, of):
    """P(T > t) and P(T < t), with the functions `of` JAX or NumPy."""
    if family == "piecewise_exponential":
        starts, ends = np.append(0.0, BREAKS), np.append(BREAKS, np.inf)
        exposure = of.clip(t - starts, 0.0, ends - starts)
        hazard = of.exp(z) * of.sum(of.exp(params["log_hazards"]) * exposure)
        return of.exp(-hazard), -of.expm1(-hazard)
    scale = of.exp(params["log_scale"]) if "log_scale" in params else 1.0
    w = (of.log(t) - z) / scale
    if family == "lognormal":
        law = stats.norm if of is jnp else scipy.stats.norm
        return law.sf(w), law.cdf(w)
    if family == "loglogistic":
        return 1 / (1 + of.exp(w)), 1 / (1 + of.exp(-w))
    return of.exp(-of.exp(w)), -of.expm1(-of.exp(w))


def _density_of(family, z, params, t):
    """p(T = t) by SciPy."""
    scale = np.exp(params.get("log_scale", 0.0))
    if family == "piecewise_exponential":
        hazard = np.exp(z + params["log_hazards"][np.searchsorted(BREAKS, t)])
        return hazard * _tails_of(family, z, params, t, np)[0]
    if family == "lognormal":
        return scipy.stats.lognorm.pdf(t, scale, scale=np.exp(z))
    law = scipy.stats.fisk if family == "loglogistic" else scipy.stats.weibull_min
    return law.pdf(t, 1 / scale, scale=np.exp(z))


class SurvivalLaw:
    """Censored and truncated times, with the interface of SciPy."""

    def __init__(self, family, z, params):
        self.z = z
        self.tails = lambda z, t: _tails_of(family, z, params, t, np)
        self.density = lambda z, t: _density_of(family, z, params, t)

    def logpdf(self, y):
        return np.array([self._of_row(z, *np.exp(row)) for z, row in zip(self.z, y, strict=True)])

    def _of_row(self, z, entry, lower, upper):
        (start, _), low, high = (
            self.tails(z, t) if 0 < t < np.inf else (float(t == 0), float(t > 0))
            for t in (entry, lower, upper)
        )
        if lower == upper:
            return np.log(self.density(z, lower) / start)
        # The difference of the smaller tails has no cancellation.
        chance = high[1] - low[1] if low[0] > 0.5 else low[0] - high[0]
        return np.log(chance / start)

    def mean(self):
        return self._integral(lambda t: 1.0)

    def var(self):
        return self._integral(lambda t: 2 * t) - self.mean() ** 2

    def _integral(self, weight):
        """∫ w(t) P(T > t) dt; the breaks of the hazard are ends of pieces."""
        ends = [0.0, *BREAKS, 5.0, 50.0, np.inf]
        return np.array(
            [
                sum(
                    scipy.integrate.quad(
                        lambda t, z=z: weight(t) * self.tails(z, t)[0] if t else weight(t),
                        *piece,
                        epsabs=1e-13,
                        epsrel=1e-12,
                        limit=200,
                    )[0]
                    for piece in itertools.pairwise(ends)
                )
                for z in self.z
            ]
        )


def log_times(rng, x):
    """Log times of entry and limits: of events, censored on the right, within and on the left."""
    time, kind = rng.lognormal(size=len(x)), np.arange(len(x)) % 4
    lower = np.where(kind == 3, 0.0, time)
    upper = np.choose(kind, [time, np.full(len(x), np.inf), 1.7 * time, time])
    entry = np.where((np.arange(len(x)) % 3 == 0) & (kind < 3), 0.4 * time, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.stack([entry, lower, upper], axis=1))


def _survival(family, shared):
    def log_density(z, params, y):
        entry, lower, upper = jnp.exp(y)

        def tails(t):
            known = (t > 0) & jnp.isfinite(t)
            found = _tails_of(family, z, params, jnp.where(known, t, 1.0), jnp)
            ends = jnp.where(t > 0, 0.0, 1.0), jnp.where(t > 0, 1.0, 0.0)
            return tuple(map(functools.partial(jnp.where, known), found, ends))

        is_event = lower == upper
        time = jnp.where(is_event, lower, 1.0)
        density = jax.grad(lambda t: _tails_of(family, z, params, t, jnp)[1])(time)
        low, high = tails(lower), tails(jnp.where(is_event, jnp.inf, upper))
        chance = jnp.where(low[0] > 0.5, high[1] - low[1], low[0] - high[0])
        return jnp.log(jnp.where(is_event, density, chance)) - jnp.log(tails(entry)[0])

    def build(x, y, weights=None, offset=None):
        if family != "piecewise_exponential":
            return FAMILIES[family].regression(x, y, 2.0, None, weights, offset)
        data = regression_data(x, y, None, weights, offset, times=True)
        likelihood = PiecewiseExponential(jnp.asarray(BREAKS, data.dtype))
        of_hazards = FAMILIES[family].shared(data, len(BREAKS) + 1)
        return regression_posterior(data, likelihood, normal_prior(2.0, data), shared=of_hazards)

    def law(z, params, trials):
        return SurvivalLaw(family, z, params)

    return Regression(family, build, log_density, law, log_times, shared)


class Tweedie:
    """A Poisson number of gamma variables, with the interface of SciPy."""

    def __init__(self, z, params):
        self.mu, self.phi = np.exp(z), np.exp(params["log_phi"])
        self.p = 1 + scipy.special.expit(params["logit_power"])

    def logpdf(self, y):
        shape, power = (2 - self.p) / (self.p - 1), self.p
        rate = self.mu ** (2 - power) / (self.phi * (2 - power))
        scale = self.phi * (power - 1) * self.mu ** (power - 1)
        n = np.arange(1, 2000)[:, None]
        terms = scipy.stats.poisson.logpmf(n, rate)
        terms = terms + scipy.stats.gamma.logpdf(np.where(y > 0, y, 1), n * shape, scale=scale)
        return np.where(y > 0, scipy.special.logsumexp(terms, axis=0), -rate)

    def mean(self):
        return self.mu

    def var(self):
        return self.phi * self.mu**self.p


def _tweedie_log_density(z, params, y):
    """The series of all small numbers of gamma variables."""
    phi, power = jnp.exp(params["log_phi"]), 1 + jax.nn.sigmoid(params["logit_power"])
    shape, n = (2 - power) / (power - 1), jnp.arange(1.0, 150.0)
    rate = jnp.exp(z) ** (2 - power) / (phi * (2 - power))
    scale = phi * (power - 1) * jnp.exp(z) ** (power - 1)
    sizes = stats.gamma.logpdf(jnp.where(y > 0, y, 1.0), n * shape, scale=scale)
    terms = stats.poisson.logpmf(n, rate) + sizes
    return jnp.where(y > 0, jax.nn.logsumexp(terms), -rate)


LEVEL, SMOOTHING = 0.3, 0.1


class Quantile:
    """z plus the logarithm of an F variable, with the interface of SciPy."""

    def __init__(self, z, params):
        self.z, self.scale = z, np.exp(params["log_scale"])
        self.odds = scipy.stats.beta((1 - LEVEL) * SMOOTHING, LEVEL * SMOOTHING)

    def logpdf(self, y):
        x, (a, b) = (y - self.z) / (self.scale * SMOOTHING), self.odds.args
        powers = a * scipy.special.log_expit(x) + b * scipy.special.log_expit(-x)
        return powers - scipy.special.betaln(a, b) - np.log(self.scale * SMOOTHING)

    def cdf(self, y):
        x, (a, b) = (y - self.z) / (self.scale * SMOOTHING), self.odds.args
        upper = scipy.special.betainc(b, a, scipy.special.expit(-x))
        return np.where(x < 0, self.odds.cdf(scipy.special.expit(x)), 1 - upper)

    def mean(self):
        return self.z


def _quantile_log_density(z, params, y):
    u = (y - z) / jnp.exp(params["log_scale"])
    loss = LEVEL * u + SMOOTHING * jnp.log1p(jnp.exp(-u / SMOOTHING))
    a, b = LEVEL * SMOOTHING, (1 - LEVEL) * SMOOTHING
    return -loss - params["log_scale"] - np.log(SMOOTHING) - scipy.special.betaln(a, b)


def _quantile(x, y, **further):
    data = regression_data(x, y, None, further.get("weights"), further.get("offset"))
    shared = FAMILIES["quantile"].shared(data, 0)
    likelihood = FAMILIES["quantile"].likelihood("identity", 0, LEVEL)
    return regression_posterior(data, likelihood, normal_prior(2.0, data), shared=shared)


def _beta_parts(z, params, sigmoid, exp):
    return sigmoid(z) * exp(params["log_precision"]), sigmoid(-z) * exp(params["log_precision"])


def _by_family(family):
    return lambda x, y, **further: FAMILIES[family].regression(x, y, 2.0, **further)


def _with_prior(function, **settings):
    return lambda x, y, **further: function(x, y, 2.0, **settings, **further)


REGRESSIONS = {
    "logistic": Regression(
        "bernoulli",
        _with_prior(models.logistic_regression),
        lambda z, params, y: stats.bernoulli.logpmf(y, jax.nn.sigmoid(z)),
        lambda z, params, trials: scipy.stats.bernoulli(scipy.special.expit(z)),
        lambda rng, x: rng.integers(0, 2, len(x)),
    ),
    "probit": Regression(
        "bernoulli",
        _with_prior(models.probit_regression),
        lambda z, params, y: stats.norm.logcdf((2 * y - 1) * z),
        lambda z, params, trials: scipy.stats.bernoulli(scipy.special.ndtr(z)),
        lambda rng, x: rng.integers(0, 2, len(x)),
    ),
    "binomial": Regression(
        "binomial",
        _binomial,
        # Rows hold shares of successes, and the trials are weights.
        lambda z, params, y: y * jax.nn.log_sigmoid(z) + (1 - y) * jax.nn.log_sigmoid(-z),
        lambda z, params, trials: scipy.stats.binom(trials, scipy.special.expit(z)),
        lambda rng, x: rng.binomial(TRIALS, 0.4),
    ),
    "known noise": Regression(
        "gaussian",
        _with_prior(models.linear_regression, noise_variance=0.7),
        lambda z, params, y: stats.norm.logpdf(y, z, jnp.sqrt(0.7)),
        lambda z, params, trials: scipy.stats.norm(z, np.sqrt(0.7)),
        lambda rng, x: rng.normal(size=len(x)),
    ),
    "linear": Regression(
        "gaussian",
        _with_prior(models.linear_regression),
        lambda z, params, y: stats.norm.logpdf(y, z, jnp.exp(params["log_scale"])),
        lambda z, params, trials: scipy.stats.norm(z, np.exp(params["log_scale"])),
        lambda rng, x: 3 + 2 * rng.normal(size=len(x)),
        {"log_scale": 0.6},
    ),
    "poisson": Regression(
        "poisson",
        _with_prior(models.poisson_regression),
        lambda z, params, y: stats.poisson.logpmf(y, jnp.exp(z)),
        lambda z, params, trials: scipy.stats.poisson(np.exp(z)),
        lambda rng, x: rng.poisson(1.5, len(x)),
    ),
    "negative binomial": Regression(
        "negative_binomial",
        _with_prior(models.negative_binomial_regression),
        _negative_binomial_log_density,
        _negative_binomial_law,
        lambda rng, x: rng.poisson(rng.gamma(1.0, 2.0, len(x))),
        {"log_dispersion": 0.4},
    ),
    "softmax": Regression(
        "categorical",
        _with_prior(models.softmax_regression),
        lambda z, params, y: jax.nn.log_softmax(jnp.concatenate([jnp.zeros(1), z]))[y.astype(int)],
        _softmax_law,
        lambda rng, x: rng.integers(0, 3, len(x)),
    ),
    "ordinal": Regression(
        "ordinal",
        _with_prior(models.ordinal_regression),
        _ordinal_log_density,
        _ordinal_law,
        lambda rng, x: rng.integers(0, 4, len(x)),
        {"cut_points": np.append(CUTS[0], np.log(np.diff(CUTS)))},
    ),
    "student t": Regression(
        "student_t",
        _with_prior(models.student_t_regression),
        _student_t_log_density,
        _student_t_law,
        lambda rng, x: 1 + 2 * rng.standard_t(3, len(x)),
        {"log_scale": 0.3, "log_degrees": 1.7},
    ),
    "gamma": Regression(
        "gamma",
        _with_prior(models.gamma_regression),
        _gamma_log_density,
        _gamma_law,
        lambda rng, x: rng.gamma(2.0, 3.0, len(x)),
        {"log_shape": 0.8},
    ),
    "zero-inflated poisson": _zero_counts("zero_inflated_poisson", "logit_zero_inflation", {}),
    "zero-inflated negative binomial": _zero_counts(
        "zero_inflated_negative_binomial", "logit_zero_inflation", {"log_dispersion": 0.4}
    ),
    "hurdle poisson": _zero_counts("hurdle_poisson", "logit_hurdle", {}),
    "hurdle negative binomial": _zero_counts(
        "hurdle_negative_binomial", "logit_hurdle", {"log_dispersion": 0.4}
    ),
    "beta": Regression(
        "beta",
        _by_family("beta"),
        lambda z, params, y: stats.beta.logpdf(y, *_beta_parts(z, params, jax.nn.sigmoid, jnp.exp)),
        lambda z, params, trials: scipy.stats.beta(
            *_beta_parts(z, params, scipy.special.expit, np.exp)
        ),
        lambda rng, x: rng.beta(2.0, 3.0, len(x)),
        {"log_precision": 1.2},
    ),
    "tweedie": Regression(
        "tweedie",
        _by_family("tweedie"),
        _tweedie_log_density,
        lambda z, params, trials: Tweedie(z, params),
        lambda rng, x: rng.gamma(2.0, 1.0, len(x)) * (rng.random(len(x)) < 0.7),
        {"log_phi": -0.5, "logit_power": 0.2},
    ),
    "quantile": Regression(
        "quantile",
        _quantile,
        _quantile_log_density,
        lambda z, params, trials: Quantile(z, params),
        lambda rng, x: 1 + 2 * rng.normal(size=len(x)),
        {"log_scale": 0.3},
    ),
    "exponential": _survival("exponential", {}),
    "weibull": _survival("weibull", {"log_scale": 0.3}),
    "lognormal": _survival("lognormal", {"log_scale": -0.7}),
    "loglogistic": _survival("loglogistic", {"log_scale": -2.3}),
    "piecewise exponential": _survival(
        "piecewise_exponential", {"log_hazards": np.array([0.3, -0.4, 0.2])}
    ),
}


_LIKE_OTHERS = {
    *("zero-inflated negative binomial", "hurdle negative binomial", "tweedie"),
    *("exponential", "lognormal", "loglogistic", "piecewise exponential"),
}
"""Regressions that share most of their code with others, and one with a long series."""
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in _LIKE_OTHERS else name
    for name in REGRESSIONS
]


class LogLikelihood(eqx.Module):
    """The log density of a row with its weight and its offset, as a user would write it."""

    log_density: Callable[..., Any]

    def __call__(self, params, row):
        z = row.x @ params["beta"]
        z = z if row.offset is None else z + row.offset
        value = self.log_density(z, params, row.y)
        return value if row.weight is None else row.weight * value


class LogPrior(eqx.Module):
    """The prior of a posterior as a function of its parameters."""

    posterior: Any

    def __call__(self, params):
        return -self.posterior.model.prior_potential(self.posterior.layout.ravel(params, "params"))


def built(name: str, dtype=np.float64, weighted: bool = True) -> tallmc.models.AbstractPosterior:
    """The posterior of this regression; with weights and offsets where it may have them."""
    regression, rng = REGRESSIONS[name], np.random.default_rng(1)
    arguments: dict[str, Any] = {}
    if weighted and regression.has_weights:
        arguments["weights"] = rng.uniform(0.5, 3.0, N_ROWS)
    if weighted and regression.has_offset:
        arguments["offset"] = 0.5 * rng.normal(size=N_ROWS)
    return regression.build(X.astype(dtype), regression.simulate(rng, X), **arguments)


def position_of(name: str, posterior: tallmc.models.AbstractPosterior) -> np.ndarray:
    """A position with the shared parameters of the registry."""
    regression = REGRESSIONS[name]
    n_shared = sum(np.size(value) for value in regression.shared.values())
    beta = np.random.default_rng(2).normal(size=posterior.dim - n_shared) / 2
    return np.concatenate([beta, *(np.ravel(value) for value in regression.shared.values())])


def by_densities(name: str, posterior: tallmc.models.AbstractPosterior) -> tallmc.Posterior:
    """The same posterior from a log density and automatic differentiation."""
    return tallmc.Posterior(
        LogLikelihood(REGRESSIONS[name].log_density),
        LogPrior(posterior),
        posterior.data,
        posterior.layout.unravel(posterior.init),
    )
