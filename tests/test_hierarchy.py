"""Hyper-parameters: group effects, horseshoe and R2-D2 are those of densities by hand."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest
import scipy.special
import scipy.stats

import tallmc
from kept_programs import run_once
from problems import slow_after
from regressions import stein_z
from tallmc._core.arrays import DenseMap
from tallmc.models.design import (
    GroupedObservations,
    GroupTerm,
    Observations,
    RegressionData,
    columns_of,
)
from tallmc.models.families.bernoulli import Bernoulli
from tallmc.models.families.gaussian import GaussianScale
from tallmc.models.generalised_linear import GeneralisedLinear
from tallmc.models.hierarchy import R2D2, GroupEffects, Horseshoe, LeadingRows
from tallmc.models.priors import AbstractPrior, LogHalfStudentTPrior, NormalPrior, PriorOfEntries
from tallmc.models.regression import Effects, Hyper, Shared, regression_posterior
from tallmc.rows import Batch, ResidentRows

N_ROWS, GROUPS = 40, (4, 3)
RNG = np.random.default_rng(0)
FIXED = np.column_stack([np.ones(N_ROWS), RNG.normal(size=N_ROWS)])
CODES = [RNG.integers(0, groups, N_ROWS) for groups in GROUPS]
COLUMNS = [FIXED, np.ones((N_ROWS, 1))]
WEIGHT, OFFSET = RNG.uniform(0.5, 2, N_ROWS), RNG.normal(size=N_ROWS)
RESPONSES = {
    "bernoulli": RNG.integers(0, 2, N_ROWS).astype(float),
    "gaussian": RNG.normal(size=N_ROWS),
}


class OfCommon(AbstractPrior):
    """N(0, 2) for the first entries, nothing for the rest."""

    n_common: int

    @property
    def log_concave(self):
        return True

    def potential(self, values):
        return 0.25 * jnp.sum(values[: self.n_common] ** 2)


class Rows(RegressionData):
    """Rows that a front end has made."""

    def __init__(self, rows, n_columns):
        self.rows, self.n_columns = ResidentRows(rows), n_columns
        self.dtype, self.names = jnp.dtype(float), None

    def check_response(self, rule, allowed, *, whole=True):
        raise AssertionError("not checked here")

    def some(self, chosen):
        rows = self.rows.take(jnp.asarray(chosen))
        x = rows.fixed if isinstance(rows, GroupedObservations) else rows.x
        return Observations(np.asarray(x), np.asarray(rows.y), rows.offset, rows.weight)


def likelihood_of(family):
    if family == "bernoulli":
        return Bernoulli(), []
    return GaussianScale(), [Shared("log_scale", 0.0, NormalPrior(jnp.asarray(9.0)))]


def log_density(family, z, y, params):
    if family == "bernoulli":
        return y * z - jnp.logaddexp(0.0, z)
    return stats.norm.logpdf(y, z, jnp.exp(params["log_scale"]))


def shared_log_prior(params):
    return stats.norm.logpdf(params["log_scale"], 0, 3.0) if "log_scale" in params else 0.0


def log_half_t(log_sd, degrees, scale):
    return stats.t.logpdf(jnp.exp(log_sd), degrees, 0, scale) + log_sd


def grouped(family):
    """(1 + x | g) + (1 | h) with weights and offsets, and the same by hand."""
    terms = tuple(
        GroupTerm(jnp.asarray(codes), jnp.asarray(columns), groups)
        for codes, columns, groups in zip(CODES, COLUMNS, GROUPS, strict=True)
    )
    y = jnp.asarray(RESPONSES[family])
    rows = GroupedObservations(
        jnp.asarray(FIXED), y, jnp.asarray(OFFSET), jnp.asarray(WEIGHT), terms
    )
    likelihood, shared = likelihood_of(family)
    scales = jnp.array([2.5, 1.0, 0.7])
    of_g, of_h = (LogHalfStudentTPrior(of, jnp.asarray(4.0)) for of in (scales[:2], scales[2:]))
    hyper = [
        Hyper(("log_sd", "free"), (np.log([0.5, 0.4]), np.zeros(1)), GroupEffects(2, 4, 2, of_g)),
        Hyper(("log_sd_h",), (np.log([0.3]),), GroupEffects(10, 3, 1, of_h)),
    ]
    posterior = regression_posterior(
        Rows(rows, 2 + 8 + 3),
        likelihood,
        OfCommon(2),
        shared=shared,
        effects=[Effects("g", (4, 2)), Effects("h", (3, 1))],
        hyper=hyper,
    )

    def log_likelihood(params, row):
        z = row["x"] @ params["beta"] + row["offset"] + row["x"] @ params["g"][row["g"]]
        z += params["h"][row["h"], 0]
        return row["weight"] * log_density(family, z, row["y"], params)

    def log_prior(params):
        sds, correlation = jnp.exp(params["log_sd"]), jnp.tanh(params["free"][0])
        covariance = jnp.outer(sds, sds) * jnp.array([[1, correlation], [correlation, 1]])
        of_effects = jnp.sum(
            stats.multivariate_normal.logpdf(params["g"], jnp.zeros(2), covariance)
        )
        of_effects += jnp.sum(stats.norm.logpdf(params["h"], 0, jnp.exp(params["log_sd_h"])))
        of_sds = jnp.sum(log_half_t(params["log_sd"], 4.0, scales[:2]))
        of_sds += jnp.sum(log_half_t(params["log_sd_h"], 4.0, scales[2:]))
        of_sds += jnp.log1p(-(correlation**2))  # uniform on (−1, 1), and the derivative of tanh
        of_common = jnp.sum(stats.norm.logpdf(params["beta"], 0, jnp.sqrt(2.0)))
        return of_common + of_effects + of_sds + shared_log_prior(params)

    by_hand = {"x": FIXED, "y": y, "offset": OFFSET, "weight": WEIGHT, "g": CODES[0], "h": CODES[1]}
    init = posterior.layout.unravel(posterior.init)
    return posterior, tallmc.Posterior(log_likelihood, log_prior, by_hand, init)


def horseshoe(family):
    """Three of four coefficients with the regularised horseshoe, and the same by hand."""
    x = np.column_stack([FIXED, RNG.normal(size=(N_ROWS, 2))])
    y, entries = RESPONSES[family], (1, 2, 3)
    likelihood, shared = likelihood_of(family)
    hyperprior = Horseshoe(entries, jnp.asarray(0.2), jnp.asarray(2.0), jnp.asarray(4.0))
    names = ("log_local", "log_global", "log_slab")
    hyper = Hyper(names, (np.zeros(3), np.asarray(-1.0), np.asarray(0.5)), hyperprior)
    rows = Observations(jnp.asarray(x), jnp.asarray(y))
    posterior = regression_posterior(
        Rows(rows, 4), likelihood, OfCommon(1), shared=shared, hyper=[hyper]
    )

    def log_likelihood(params, row):
        return log_density(family, row["x"] @ params["beta"], row["y"], params)

    def log_prior(params):
        local, overall = jnp.exp(params["log_local"]), jnp.exp(params["log_global"])
        slab = jnp.exp(params["log_slab"])
        regularised = slab * local**2 / (slab + overall**2 * local**2)
        beta = params["beta"]
        total = stats.norm.logpdf(beta[0], 0, jnp.sqrt(2.0))
        total += jnp.sum(stats.norm.logpdf(beta[1:], 0, overall * jnp.sqrt(regularised)))
        total += jnp.sum(log_half_t(params["log_local"], 1.0, 1.0))
        total += log_half_t(params["log_global"], 1.0, 0.2)
        # c² ~ Inv-Gamma(2, 8): 1/c² ~ Gamma(2, rate 8), |d(1/c²)/d log c²| = 1/c²
        total += stats.gamma.logpdf(1 / slab, 2.0, scale=1 / 8.0) - params["log_slab"]
        return total + shared_log_prior(params)

    init = posterior.layout.unravel(posterior.init)
    return posterior, tallmc.Posterior(log_likelihood, log_prior, {"x": x, "y": y}, init)


def r2d2(family):
    """Three of four coefficients with R2-D2, and the same by hand."""
    x = np.column_stack([FIXED, RNG.normal(size=(N_ROWS, 2))])
    y, entries, sds = RESPONSES[family], (1, 2, 3), jnp.array([1.0, 0.5, 2.0])
    likelihood, shared = likelihood_of(family)
    noise = jnp.asarray(1.0) if family == "bernoulli" else None
    hyperprior = R2D2(entries, sds, noise, 4, jnp.array([0.6, 1.4]), jnp.asarray(0.5))
    hyper = Hyper(("log_gammas", "logit"), (np.zeros(3), np.asarray(-1.0)), hyperprior)
    rows = Observations(jnp.asarray(x), jnp.asarray(y))
    posterior = regression_posterior(
        Rows(rows, 4), likelihood, OfCommon(1), shared=shared, hyper=[hyper]
    )

    def log_likelihood(params, row):
        return log_density(family, row["x"] @ params["beta"], row["y"], params)

    def log_prior(params):
        gammas, r2 = jnp.exp(params["log_gammas"]), jax.nn.sigmoid(params["logit"])
        sigma, beta = jnp.exp(params.get("log_scale", 0.0)), params["beta"]
        variance = sigma**2 * gammas / jnp.sum(gammas) * r2 / (1 - r2) / sds**2
        total = stats.norm.logpdf(beta[0], 0, jnp.sqrt(2.0))
        total += jnp.sum(stats.norm.logpdf(beta[1:], 0, jnp.sqrt(variance)))
        total += jnp.sum(stats.gamma.logpdf(gammas, 0.5) + params["log_gammas"])
        total += stats.beta.logpdf(r2, 0.6, 1.4) + jnp.log(r2 * (1 - r2))
        return total + shared_log_prior(params)

    init = posterior.layout.unravel(posterior.init)
    return posterior, tallmc.Posterior(log_likelihood, log_prior, {"x": x, "y": y}, init)


CASES = {
    f"{make.__name__} {family}": (make, family)
    for make in (grouped, horseshoe, r2d2)
    for family in ("bernoulli", "gaussian")
}


FAST = ["grouped gaussian", "horseshoe bernoulli"]
"""Both structures and both families. The slow cases are the other combinations."""
every_case = pytest.mark.parametrize(
    "case", [*FAST, *(pytest.param(c, marks=pytest.mark.slow) for c in CASES if c not in FAST)]
)


class Inputs(NamedTuple):
    """The arguments of all functions that are compared."""

    position: Any
    factor: Any
    batch_weights: Any
    spread: Any
    metric: Any
    width: Any


@run_once
def _values(posterior, inputs):
    """What is compared between a posterior and the same by hand."""
    model, rows, position = posterior.model, posterior.data, inputs.position
    centre, batch = 0.7 * position, Batch(rows, inputs.batch_weights)
    maps = DenseMap(inputs.spread), inputs.width, DenseMap(inputs.metric)
    compact = [model.remainders(order, position, centre, rows) for order in (0, 1, 2)]
    return {
        "gradient": posterior.gradient(position),
        "Hessian": posterior.hessian(position),
        "rise": posterior.potential(1.1 * position) - posterior.potential(position),
        "remainders": [model.expand(of_order, rows) for of_order in compact],
        "norms": [model.norms(of_order, rows) for of_order in compact],
        "sums": [model.sum_remainders(order, position, centre, batch) for order in (0, 1, 2)],
        "curvature norms": model.curvature_norms(position, inputs.factor, rows),
        "gaussian mean squares": model.gaussian_mean_square_remainders(1, position, *maps, rows),
    }


@functools.cache
def compared(case):
    """The posterior, the arguments, and the values of the posterior and of the same by hand."""
    make, family = CASES[case]
    posterior, by_hand = make(family)
    rng, dim = np.random.default_rng(2), posterior.dim
    position = rng.normal(size=dim) / 2
    inputs = Inputs(
        position,
        rng.normal(size=(dim, dim)),
        rng.uniform(0.5, 2, N_ROWS),
        *rng.normal(size=(2, dim, dim)) / 5,
        np.asarray(0.7),
    )
    assert not posterior.model.log_concave
    assert posterior.layout.names == by_hand.layout.names
    on_device = jax.tree.map(jnp.asarray, inputs)
    found, expected = (_values(p, on_device) for p in (posterior, by_hand))
    return posterior, inputs, jax.tree.map(np.asarray, found), jax.tree.map(np.asarray, expected)


@every_case
def test_potential_gradient_and_hessian_are_those_by_hand(case):
    *_, found, expected = compared(case)
    np.testing.assert_allclose(found["gradient"], expected["gradient"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["Hessian"], expected["Hessian"], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found["rise"], expected["rise"], rtol=1e-9)


@every_case
def test_remainders_are_those_by_hand(case):
    *_, found, expected = compared(case)
    for order in (0, 1, 2):
        dense = expected["remainders"][order]
        np.testing.assert_allclose(found["remainders"][order], dense, rtol=1e-7, atol=1e-10)
        norms = np.linalg.norm(dense, axis=1)
        np.testing.assert_allclose(found["norms"][order], norms, rtol=1e-7, atol=1e-10)
        sums = found["sums"][order], expected["sums"][order]
        np.testing.assert_allclose(*sums, rtol=1e-7, atol=1e-9)


@every_case
def test_curvature_norms_are_those_by_hand(case):
    *_, found, expected = compared(case)
    norms = found["curvature norms"], expected["curvature norms"]
    np.testing.assert_allclose(*norms, rtol=1e-8, atol=1e-10)


@every_case
def test_gaussian_mean_squares_use_the_spread_of_the_parameters(case):
    """Closed forms: θ_inner has the covariance F₁F₁ᵀ of the first rows of F. Else: same probes.

    The metric mixes parameters and hyper-parameters, so rows of C must not be mistaken.
    """
    posterior, inputs, found, by_hand = compared(case)
    inner, rows = posterior.model.inner, posterior.data
    if isinstance(inner, GeneralisedLinear):
        first = [
            np.linalg.cholesky(m[: inner.dim] @ m[: inner.dim].T)
            for m in (inputs.spread, inputs.metric)
        ]
        spread, metric = (DenseMap(jnp.asarray(part)) for part in first)
        at = jnp.asarray(inputs.position[: inner.dim])
        expected = inner.gaussian_mean_square_remainders(
            1, at, spread, jnp.asarray(inputs.width), metric, rows
        )
    else:
        expected = by_hand["gaussian mean squares"]
    found = found["gaussian mean squares"]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-14)


SDS = jnp.array([1.0, 0.5, 2.0])
HYPERPRIORS = {
    "group effects": GroupEffects(0, 4, 1, LogHalfStudentTPrior(SDS[:1], jnp.asarray(4.0))),
    "correlated effects": GroupEffects(
        0, 2, 3, LogHalfStudentTPrior(jnp.ones(3), jnp.asarray(4.0))
    ),
    "horseshoe": Horseshoe((0, 1, 2), jnp.asarray(0.2), jnp.asarray(2.0), jnp.asarray(4.0)),
    "r2d2": R2D2((0, 1, 2), SDS, jnp.asarray(1.5), 0, jnp.array([1.2, 2.8]), jnp.asarray(0.5)),
}
N_PARAMETERS = {"group effects": 4, "correlated effects": 6, "horseshoe": 3, "r2d2": 3}


@pytest.mark.parametrize("name", HYPERPRIORS)
def test_draws_of_hyperpriors_have_the_law_of_the_potential(name):
    hyperprior, n = HYPERPRIORS[name], N_PARAMETERS[name]
    parameters = np.full((20_000, n), np.nan)
    hyper = hyperprior.sample(np.random.default_rng(0), parameters)
    drawn = np.concatenate([parameters, hyper], axis=1)
    potential = jax.grad(lambda at: hyperprior.potential(at[:n], at[n:]))
    gradient = run_once(jax.vmap(potential))
    assert np.abs(stein_z(drawn, gradient)).max() < 4.6
    assert np.abs(stein_z(1.1 * drawn, gradient)).max() > 4.6


@pytest.mark.parametrize("known", [True, False])
def test_the_density_of_r2d2_is_that_of_scipy_with_its_constant(known):
    """Shares by a Dirichlet density: Σg ~ Gamma(kξ) is independent of them, with the Jacobian."""
    xi, (a, b), sds = 0.7, (1.2, 2.8), np.asarray(SDS)
    noise = jnp.asarray(1.5) if known else None
    hyperprior = R2D2((0, 1, 2), SDS, noise, 3, jnp.array([a, b]), jnp.asarray(xi))
    beta, log_gammas, logit = np.array([0.3, -1.0, 0.2]), np.array([-1.0, 0.4, -2.0]), 0.8
    sigma = 1.5 if known else np.exp(-0.4)
    total, r2 = np.exp(log_gammas).sum(), scipy.special.expit(logit)
    shares = np.exp(log_gammas) / total
    expected = np.sum(
        scipy.stats.norm.logpdf(beta, 0, sigma * np.sqrt(shares * r2 / (1 - r2)) / sds)
    )
    expected += scipy.stats.dirichlet.logpdf(shares, np.full(3, xi))
    expected += scipy.stats.gamma.logpdf(total, 3 * xi) + np.log(total * np.prod(shares))
    expected += scipy.stats.beta.logpdf(r2, a, b) + np.log(r2 * (1 - r2))
    parameters, hyper = jnp.array([*beta, -0.4]), jnp.array([*log_gammas, logit])
    potential = run_once(lambda *at: hyperprior.potential(*at))(parameters, hyper)
    assert -potential - hyperprior.log_integral() == pytest.approx(expected, rel=1e-12)


def test_the_draws_of_r2d2_explain_r2_with_the_noise_of_each_draw():
    """Σ β_j² s_j²/σ² has the mean τ² given R², and log σ comes from the parameters."""
    hyperprior = R2D2((0, 1, 2), SDS, None, 3, jnp.array([4.0, 6.0]), jnp.asarray(0.5))
    parameters = np.full((20_000, 4), np.nan)
    parameters[:, 3] = np.random.default_rng(1).normal(size=20_000)
    hyper = hyperprior.sample(np.random.default_rng(0), parameters)
    scaled = parameters[:, :3] * np.asarray(SDS) / np.exp(parameters[:, 3:])
    ratio = np.sum(scaled**2, axis=1) - np.exp(hyper[:, -1])
    assert abs(ratio.mean()) < 4.6 * ratio.std() / np.sqrt(20_000)
    uniform = scipy.stats.beta(4, 6).cdf(scipy.special.expit(hyper[:, -1]))
    assert scipy.stats.kstest(uniform, "uniform").pvalue > 4e-6


def test_leading_rows_are_those_of_the_matrix():
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(5, 5))
    leading = LeadingRows(DenseMap(jnp.asarray(factor)), 2)
    gradients, moves = rng.normal(size=(4, 3)), rng.normal(size=(4, 5))
    assert leading.n_columns(3) == 5
    np.testing.assert_allclose(leading.pull(jnp.asarray(gradients)), gradients @ factor[:3])
    np.testing.assert_allclose(leading.push(jnp.asarray(moves)), moves @ factor[:3].T)


def test_the_matrix_of_a_group_term_has_dummies_times_columns():
    codes, columns = np.array([2, 0, 2]), np.array([[1.0, 3.0], [1.0, 4.0], [1.0, 5.0]])
    term = GroupTerm(jnp.asarray(codes), jnp.asarray(columns), 3)
    expected = np.zeros((3, 3, 2))
    for row, code in enumerate(codes):
        expected[row, code] = columns[row]
    rows = GroupedObservations(jnp.asarray(columns), jnp.zeros(3), None, None, (term, term))
    whole = np.hstack([columns, *2 * [expected.reshape(3, 6)]])
    np.testing.assert_array_equal(columns_of(rows).matrix(), whole)


def test_several_predictors_have_no_group_terms():
    from tallmc.models.families.softmax import Softmax

    with pytest.raises(tallmc.InvalidInput, match="group terms must be left out with several"):
        regression_posterior(
            Rows(Observations(jnp.asarray(FIXED), jnp.zeros(N_ROWS)), 6),
            Softmax(3),
            PriorOfEntries((), ()),
            effects=[Effects("g", (4, 1))],
        )


@pytest.mark.slow
@pytest.mark.parametrize("family", slow_after(1, ["bernoulli", "gaussian"]))
def test_the_search_starts_near_the_effects_that_the_rows_support(family):
    """From effects of zero, it would go where effects and spreads are zero."""
    rng, n, groups = np.random.default_rng(1), 6000, 12
    codes, x = rng.integers(0, groups, n), rng.normal(size=n)
    effects, columns = rng.normal(size=(groups, 2)) * [0.7, 0.4], np.column_stack([np.ones(n), x])
    z = 0.3 - 0.5 * x + np.sum(columns * effects[codes], axis=1)
    y = rng.random(n) < 1 / (1 + np.exp(-z)) if family == "bernoulli" else z + rng.normal(size=n)
    term = GroupTerm(jnp.asarray(codes), jnp.asarray(columns), groups)
    rows = GroupedObservations(jnp.asarray(columns), jnp.asarray(y, float), None, None, (term,))
    prior = LogHalfStudentTPrior(jnp.asarray(2.5), jnp.asarray(4.0))
    hyperprior = GroupEffects(2, groups, 2, prior)
    likelihood, shared = likelihood_of(family)
    posterior = regression_posterior(
        Rows(rows, 2 + 2 * groups),
        likelihood,
        OfCommon(2),
        shared=shared,
        effects=[Effects("u", (groups, 2))],
        hyper=[Hyper(("log_sd", "free"), (np.log([3.0, 3.0]), np.zeros(1)), hyperprior)],
    )
    anchor = tallmc.anchor.find_anchor(posterior)
    at_start = posterior.layout.unravel(posterior.init)
    at_mode = posterior.layout.unravel(anchor.position)
    assert anchor.converged
    # The standard error of the log of a standard deviation of 12 effects is 1/√24.
    assert np.abs(at_start["log_sd"] - np.log([0.7, 0.4])).max() < 4.6 / np.sqrt(2 * groups)
    assert np.abs(at_start["log_sd"] - at_mode["log_sd"]).max() < 0.2
    assert np.abs(at_start["u"] - at_mode["u"]).max() < 0.1
