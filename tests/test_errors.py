# mypy: disable-error-code="arg-type"
"""Bad input to a public function raises an error with the parameter, the rule and the value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from problems import linear, logistic, slow_after
from tallmc import InvalidInput, Method, Posterior, models, sample
from tallmc._anchor import find_anchor
from tallmc.correction import NoiseCorrection
from tallmc.dynamics import MALA, Langevin
from tallmc.gradient import ControlVariate, Full, Simple
from tallmc.schedule import Constant, Polynomial
from tallmc.subsample import (
    AllRows,
    Bandit,
    BoundedNoise,
    Fixed,
    Optimal,
    Preferential,
    Stratified,
    Uniform,
    curvature_weights,
    gradient_weights,
    probabilities,
)
from tallmc.subsample.selection import SubsampleContext

X, Y = np.eye(3), np.array([0, 1, 1])
GAUSSIAN = lambda p, row: -0.5 * (p - row) ** 2
FLAT = lambda p: 0.0 * p
SGLD = tallmc.methods.sgld(0.1, batch_size=2)

CASES = {
    # models
    "y outside": (
        lambda: models.logistic_regression(X, [0, 1, 2], 1.0),
        "y must be 0 or 1 in every row; got 2 in row 2",
    ),
    "count": (
        lambda: models.poisson_regression(X, [0, 1.5, 2], 1.0),
        "y must be a count .* in every row; got 1.5 in row 1",
    ),
    "negative count": (
        lambda: models.poisson_regression(X, [0, -1, 2], 1.0),
        "y must be a count .* got -1 in row 1",
    ),
    "nan": (
        lambda: models.linear_regression([[1.0], [np.nan]], [0, 1], 1.0),
        "X and y must be finite; got NaN or infinity in row 1",
    ),
    "X shape": (
        lambda: models.logistic_regression([1.0, 2.0], [0, 1], 1.0),
        r"X must be a matrix .* got shape \(2,\)",
    ),
    "y shape": (
        lambda: models.logistic_regression(X, [0, 1], 1.0),
        r"y must have one value per row of X \(3\); got shape \(2,\)",
    ),
    "text": (lambda: models.logistic_regression(X, ["a", "b", "c"], 1.0), "y must be real numbers"),
    "prior": (
        lambda: models.logistic_regression(X, Y, 0.0),
        "prior_variance must be positive and finite",
    ),
    "prior length": (
        lambda: models.logistic_regression(X, Y, [1.0, 2.0]),
        r"prior_variance must be .* one per column \(3\)",
    ),
    "noise": (
        lambda: models.linear_regression(X, Y, 1.0, noise_variance=-1),
        "noise_variance must be a finite number and > 0; got -1",
    ),
    "covariance": (
        lambda: models.gaussian(X, -np.eye(3), np.zeros(3), np.eye(3)),
        "covariance must be a symmetric positive definite 3×3",
    ),
    "asymmetric": (
        lambda: models.gaussian(X, np.eye(3), np.zeros(3), np.tri(3)),
        "prior_covariance must be a symmetric positive",
    ),
    "prior mean": (
        lambda: models.gaussian(X, np.eye(3), np.zeros(2), np.eye(3)),
        "prior_mean must be a finite vector of length 3",
    ),
    "gaussian rows": (
        lambda: models.gaussian([[np.inf, 0.0]], np.eye(2), np.zeros(2), np.eye(2)),
        "X must be finite",
    ),
    # posterior
    "int init": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones(3), 0),
        "init, leaf theta must be floating point; got dtype int.* 0.0",
    ),
    "nan init": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones(3), np.nan),
        "init, leaf theta must be finite",
    ),
    "no init": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones(3), {}),
        "init must hold at least one parameter",
    ),
    "no data": (lambda: Posterior(GAUSSIAN, FLAT, {}, 0.0), "data must hold at least one array"),
    "ragged": (
        lambda: Posterior(GAUSSIAN, FLAT, (np.ones(3), np.ones(2)), 0.0),
        "data must be arrays with one common, non-empty",
    ),
    "empty": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones((0, 2)), 0.0),
        "data must be arrays with one common, non-empty",
    ),
    "vector": (
        lambda: Posterior(lambda p, row: p - row, FLAT, np.ones((3, 2)), 0.0),
        r"log_likelihood\(params, row\) must return a floating-point scalar",
    ),
    "vector prior": (
        lambda: Posterior(GAUSSIAN, lambda p: p, np.ones(3), np.ones(2)),
        "must return a floating-point scalar",
    ),
    "lipschitz": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones(3), 0.0, lipschitz=-1.0),
        "lipschitz must be positive and finite",
    ),
    "no lipschitz": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones(3), 0.0).lipschitz(),
        r"know its Lipschitz .* Posterior\(..., lipschitz=L\)",
    ),
    "text init": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones(3), "0"),
        "init, leaf theta must be real numbers",
    ),
    "complex": (
        lambda: models.linear_regression([[1j]], [0.0], 1.0),
        "X must be real numbers.*got dtype complex",
    ),
    "half": (
        lambda: models.linear_regression(np.ones((2, 1), np.float16), [0, 1], 1.0),
        "X must be real numbers.*got dtype float16",
    ),
    "half init": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones(3), np.float16(0)),
        "init, leaf theta must be real numbers",
    ),
    "overflow": (
        lambda: models.linear_regression(np.ones((2, 1), np.float32), [0, 1e39], 1.0),
        r"y must fit in float32; got 1e\+39",
    ),
    "underflow": (
        lambda: models.linear_regression(np.ones((2, 1), np.float32), [0, 1], 1e-50),
        "prior_variance must be positive",
    ),
    "prior text": (
        lambda: models.linear_regression(X, Y, "big"),
        "prior_variance must be real numbers",
    ),
    "lipschitz text": (
        lambda: Posterior(GAUSSIAN, FLAT, np.ones(3), 0.0, lipschitz="a"),
        "lipschitz must be real numbers",
    ),
    "not a function": (
        lambda: Posterior(None, FLAT, np.ones(3), 0.0),
        "log_likelihood must be a function; got None",
    ),
    "text data": (
        lambda: Posterior(GAUSSIAN, FLAT, np.array(["a"]), 0.0),
        "data must be real numbers",
    ),
    "list data": (
        lambda: Posterior(GAUSSIAN, FLAT, [1.0, 2.0], 0.0),
        "Pass arrays: a list is a pytree of its entries",
    ),
    "int prior": (
        lambda: Posterior(GAUSSIAN, lambda p: 0, np.ones(3), 0.0),
        r"log_prior\(params\) must return.*flat prior return 0.0",
    ),
    "same names": (
        lambda: Posterior(
            lambda p, row: 0.0 * row, lambda p: 0.0, np.ones(3), {"a": {"b": 0.0}, "a.b": 0.0}
        ),
        "init must give its leaves different names",
    ),
    # anchor
    "optimiser": (
        lambda: find_anchor(linear(), optimiser="newton"),
        "optimiser must be Newton.*write the brackets",
    ),
    "optimiser class": (
        lambda: find_anchor(linear(), optimiser=tallmc.anchor.Newton),
        "optimiser must be Newton.*write the brackets",
    ),
    "adam seed": (lambda: tallmc.anchor.Adam(seed=-1), "seed must be an int in"),
    "not a posterior": (
        lambda: find_anchor("posterior"),
        "posterior must be a tallmc posterior; got 'str'",
    ),
    "at": (
        lambda: find_anchor(linear(), at={"beta": np.zeros(5)}),
        r"at must have the structure and shapes of init \(beta \(2,\)\)",
    ),
    "tolerance": (
        lambda: tallmc.anchor.Newton(tolerance=0),
        "tolerance must be a finite number and > 0; got 0",
    ),
    "newton steps": (
        lambda: tallmc.anchor.Newton(max_steps=0),
        "max_steps must be an int of at least 1; got 0",
    ),
    "lbfgs": (lambda: tallmc.anchor.LBFGS(max_steps=0), "max_steps must be an int of at least 1"),
    "sgd": (lambda: tallmc.anchor.SGD(step_size=0.0), "step_size must be a finite number and > 0"),
    "sgd steps": (lambda: tallmc.anchor.SGD(1e-3, steps=0), "steps must be an int of at least 1"),
    "adam": (lambda: tallmc.anchor.Adam(step_size=-1), "step_size must be a finite number and > 0"),
    "adam size": (lambda: tallmc.anchor.Adam(size=0), "size must be an int of at least 1"),
    # schedules and sizes
    "step": (
        lambda: tallmc.methods.sgld(-0.1, batch_size=2),
        "step_size must be a finite number and > 0; got -0.1",
    ),
    "step text": (
        lambda: tallmc.methods.sgld("0.1", batch_size=2),
        "step_size must be a finite number and > 0; got '0.1'",
    ),
    "constant": (lambda: Constant(float("inf")), "step_size must be a finite number"),
    "gamma": (
        lambda: Polynomial(1.0, 1.0, 1.5),
        "gamma must be a finite number and >= 0 and <= 1; got 1.5",
    ),
    "b": (lambda: Polynomial(1.0, 0.0, 0.5), "b must be a finite number and > 0"),
    "a": (lambda: Polynomial(0.0, 1.0, 0.5), "a must be a finite number and > 0"),
    "size": (
        lambda: tallmc.methods.sgld(0.1, batch_size=0),
        "size must be an int of at least 1; got 0",
    ),
    "size float": (
        lambda: tallmc.methods.sgld(0.1, batch_size=2.5),
        "size must be an int of at least 1; got 2.5",
    ),
    "size bool": (lambda: Fixed(True), "size must be an int"),
    "size too large": (
        lambda: sample(linear(), tallmc.methods.sgld(0.1, batch_size=13)),
        r"size must be an int in \[1, n_rows = 12\]; got 13",
    ),
    "wor too large": (
        lambda: sample(linear(), tallmc.methods.sgld(0.1, batch_size=13, replace=False)),
        r"size must be an int in \[1, n_rows = 12\]",
    ),
    "optimal too large": (
        lambda: Method(subsample=Optimal(), batch_size=13, step_size=0.1).prepare(linear()),
        "n_rows = 12",
    ),
    "threshold": (
        lambda: BoundedNoise(noise_threshold=0.0),
        "noise_threshold must be a finite number and > 0",
    ),
    "pilot": (lambda: BoundedNoise(pilot_steps=3), "pilot_steps must be an int of at least 20"),
    "pilot chains": (
        lambda: BoundedNoise(pilot_chains=0),
        "pilot_chains must be an int of at least 1",
    ),
    "pilot size": (
        lambda: sample(linear(), tallmc.methods.sgld_cv(0.1, BoundedNoise(pilot_size=99))),
        r"size must be an int in \[1, n_rows = 12\]",
    ),
    "max size": (
        lambda: sample(linear(), tallmc.methods.sgld_cv(0.1, BoundedNoise(1.0, max_size=99))),
        "max_size must be an int in .* got 99",
    ),
    # weights
    "weights name": (
        lambda: Preferential("norm"),
        "be one of gradient, curvature, frobenius, lipschitz, residual, or an array",
    ),
    "floor": (
        lambda: Preferential("gradient", floor=-0.1),
        "floor must be a finite number and >= 0 and <= 1",
    ),
    "weights length": (
        lambda: sample(linear(), own([1.0, 2.0])),
        r"weights must be numbers, one per row \(12\); got .* shape \(2,\)",
    ),
    "weights text": (
        lambda: sample(linear(), own(["a"] * 12)),
        r"weights must be numbers, one per row \(12\)",
    ),
    "negative": (
        lambda: probabilities([1.0, -1.0], 0.05),
        "preferential weights must be finite and not negative; got -1 in row 1",
    ),
    "zero": (
        lambda: probabilities([1.0, 0.0], 0.0),
        "preferential weights must be strictly positive; got p = 0 in row 1, "
        "which would never be drawn.*Pass floor=0.05",
    ),
    "curvature weights": (
        lambda: curvature_weights(linear(), find_anchor(linear(), hessian=False)),
        "anchor must have a Hessian for curvature weights",
    ),
    "lipschitz weights": (
        lambda: sample(
            poisson(), Method(subsample=Preferential("lipschitz"), batch_size=2, step_size=0.1)
        ),
        "posterior must have Lipschitz gradients",
    ),
    "floor of probabilities": (
        lambda: probabilities([1.0], 2.0),
        "floor must be a finite number and >= 0 and <= 1",
    ),
    "matrix of weights": (
        lambda: probabilities([[1.0]], 0.1),
        r"preferential weights must be a vector.*got shape \(1, 1\)",
    ),
    "no weights": (lambda: probabilities([], 0.1), "preferential weights must be a vector"),
    "no anchor": (
        lambda: gradient_weights(linear(), None),
        r"anchor must come from find_anchor\(posterior\); got 'NoneType'",
    ),
    "replace": (lambda: Uniform(replace="no"), "replace must be True or False; got 'no'"),
    "pilot kernel": (
        lambda: tallmc.methods.method.noise_threshold(SGLD, find_anchor(linear())),
        "kernel must be a prepared method of fixed size",
    ),
    # compositions
    "full on a subsample": (
        lambda: Method(gradient=Full(), subsample=Uniform(), batch_size=2, step_size=0.1),
        r"subsample must be AllRows\(\) with the full gradient",
    ),
    "mala on a subsample": (
        lambda: Method(
            dynamics=MALA(), gradient=Simple(), subsample=Uniform(), batch_size=2, step_size=0.1
        ),
        r"subsample must be AllRows\(\) with MALA, "
        "whose accept step needs the exact gradient and potential",
    ),
    "size with all rows": (
        lambda: Method(gradient=Full(), subsample=AllRows(), batch_size=2, step_size=0.1),
        "size must be left out",
    ),
    "no size": (
        lambda: Method(subsample=Uniform(), step_size=0.1),
        "size must be given with a subsample",
    ),
    "adaptive simple": (
        lambda: tallmc.methods.sgld(0.1, BoundedNoise()),
        r"gradient must be ControlVariate\(order=1\) with an adaptive size",
    ),
    "adaptive wor": (
        lambda: tallmc.methods.sgld_cv(0.1, BoundedNoise(1.0), replace=False).prepare(linear()),
        "size must be fixed without replacement",
    ),
    "adaptive optimal": (
        lambda: Method(
            gradient=ControlVariate(),
            subsample=Optimal(),
            batch_size=BoundedNoise(1.0),
            step_size=0.1,
        ).prepare(linear()),
        "size must be fixed with state-dependent weights",
    ),
    "class": (
        lambda: Method(dynamics=Langevin, batch_size=2, step_size=0.1),
        "dynamics must be one of the parts in tallmc.dynamics.*write the brackets",
    ),
    "not a part": (
        lambda: Method(gradient="simple", batch_size=2, step_size=0.1),
        "gradient must be one of the parts in tallmc.gradient; got 'simple'",
    ),
    "adaptive poisson": (
        lambda: sample(poisson(), tallmc.methods.asgld_cv(0.1, 1.0)),
        "posterior must have Lipschitz gradients",
    ),
    # sample
    "sample posterior": (
        lambda: sample(np.ones(3), SGLD),
        "posterior must be a tallmc posterior; got 'ndarray'",
    ),
    "prepare posterior": (lambda: SGLD.prepare(np.ones(3)), "posterior must be a tallmc posterior"),
    "method": (lambda: sample(linear(), "sgld"), "method must be a Method; got 'sgld'"),
    "method uncalled": (
        lambda: sample(linear(), tallmc.methods.sgld),
        "method must be a Method.*Call it with its settings",
    ),
    "chains": (
        lambda: sample(linear(), SGLD, chains=0),
        "chains must be an int of at least 1; got 0",
    ),
    "draws": (
        lambda: sample(linear(), SGLD, n_draws=0),
        "draws must be an int of at least 1; got 0",
    ),
    "thin": (lambda: sample(linear(), SGLD, thin=0), "thin must be an int of at least 1; got 0"),
    "burn-in": (
        lambda: sample(linear(), SGLD, burn_in=-1),
        "burn_in must be an int of at least 0; got -1",
    ),
    "seed": (
        lambda: sample(linear(), SGLD, seed=-1),
        r"seed must be an int in \[0, 4294967295\]; got -1",
    ),
    "too many": (
        lambda: sample(linear(), SGLD, n_draws=2**31, burn_in=0),
        "burn_in \\+ draws · thin must be an int in",
    ),
    "start": (
        lambda: sample(linear(), SGLD, start={"beta": np.zeros(3)}),
        "start must have the structure and shapes of init",
    ),
    "start nan": (
        lambda: sample(linear(), SGLD, start={"beta": np.full(2, np.nan)}),
        "start must be finite",
    ),
    "anchor": (
        lambda: sample(linear(), tallmc.methods.sgld_cv(0.1, batch_size=2), anchor="here"),
        r"anchor must come from find_anchor\(posterior\)",
    ),
    "anchor of another": (
        lambda: sample(
            linear(), tallmc.methods.sgld_cv(0.1, batch_size=2), anchor=find_anchor(linear(dim=3))
        ),
        r"anchor must come from find_anchor\(posterior\) of the same posterior",
    ),
    "anchor of other data": (
        lambda: sample(
            linear(), tallmc.methods.sgld_cv(0.1, batch_size=2), anchor=find_anchor(linear(seed=5))
        ),
        r"anchor must come from find_anchor\(posterior\) of the same posterior; "
        "got one whose potential",
    ),
    "callback": (lambda: sample(linear(), SGLD, callback=5), "callback must be callable"),
    "anchor without hessian": (
        lambda: sample(
            linear(),
            tallmc.methods.sgld_cv_ps(0.1, batch_size=2),
            anchor=find_anchor(linear(), hessian=False),
        ),
        "anchor must have a Hessian for this method; got 'none'. "
        r"Use find_anchor\(posterior, hessian=True\)",
    ),
    # strata and bandits
    "strata": (lambda: Stratified(0), "strata must be an int of at least 1; got 0"),
    "strata text": (lambda: Stratified("kmeans"), "strata must be real numbers"),
    "strata float": (lambda: Stratified(2.5), "strata must be an int of at least 1; got 2.5"),
    "labels float": (
        lambda: Stratified(np.ones(12)),
        "strata must be a number of clusters, or integer labels, one per row",
    ),
    "labels length": (
        lambda: strata(Stratified(np.arange(5))),
        r"strata must be labels, one per row \(12\); got an array of shape \(5,\)",
    ),
    "too many strata": (
        lambda: strata(Stratified(13)),
        r"strata must be an int in \[1, n_rows = 12\]; got 13",
    ),
    "more strata than draws": (
        lambda: strata(Stratified(np.arange(12) % 4)),
        "size must be at least 4, 1 for each of the 4 strata; got 3. "
        "Choose fewer strata or a larger size",
    ),
    "twice as many": (
        lambda: strata(Stratified(np.arange(12) % 2, at_least=2)),
        "size must be at least 4, 2 for each of the 2 strata; got 3",
    ),
    "stratified too large": (
        lambda: strata(Stratified(2), 13),
        r"size must be an int in \[1, n_rows = 12\]",
    ),
    "allocation": (
        lambda: Stratified(2, allocation="equal"),
        'allocation must be "proportional" or "neyman"; got \'equal\'',
    ),
    "at least": (lambda: Stratified(2, at_least=0), "at_least must be an int of at least 1; got 0"),
    "missing columns": (
        lambda: Stratified(2).prepare(
            SubsampleContext(Posterior(GAUSSIAN, FLAT, np.array([1.0, np.nan, 2.0]), 0.0)), Fixed(2)
        ),
        "data must be finite to be compared; got NaN or infinity in row 1. "
        r"Pass Stratified\(labels\)",
    ),
    "adaptive strata": (
        lambda: Method(
            gradient=ControlVariate(),
            subsample=Stratified(2),
            batch_size=BoundedNoise(1.0),
            step_size=0.1,
        ).prepare(linear()),
        "size must be fixed with strata: the draws are allocated",
    ),
    "one draw has no spread": (
        lambda: Method(
            subsample=Stratified(2), batch_size=3, step_size=0.1, correction=NoiseCorrection()
        ),
        "subsample must know the spread of its batches",
    ),
    "bandit floor": (
        lambda: Bandit(floor=0),
        "floor must be a finite number and > 0 and < 1; got 0",
    ),
    "bandit rate": (
        lambda: Bandit(rate=1.5),
        "rate must be a finite number and > 0 and <= 1; got 1.5",
    ),
    "bandit too large": (
        lambda: strata(Bandit(), 13),
        r"size must be an int in \[1, n_rows = 12\]",
    ),
    "adaptive bandit": (
        lambda: Method(
            gradient=ControlVariate(),
            subsample=Bandit(),
            batch_size=BoundedNoise(1.0),
            step_size=0.1,
        ).prepare(linear()),
        "size must be fixed with weights learned during the run",
    ),
    "coarse bandit": (
        lambda: strata(Bandit(floor=0.999999), 3, linear(n_rows=40)),
        "posterior must have at most about 33 rows for learned.*fewer than 8 units; got 40 rows. "
        "Use Preferential",
    ),
}


def strata(subsample, size=3, posterior=None):
    return Method(subsample=subsample, batch_size=size, step_size=0.1).prepare(
        posterior or linear()
    )


def own(weights):
    return Method(subsample=Preferential(weights), batch_size=2, step_size=0.1)


def poisson():
    return models.poisson_regression(X, [0, 1, 2], 1.0)


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_our_own_error(case):
    call, message = CASES[case]
    with pytest.raises(InvalidInput, match=message):
        call()


def test_labels_must_name_parameters():
    draws = sample(logistic(), SGLD, chains=2, n_draws=10)
    with pytest.raises(InvalidInput, match="labels must name parameters among beta; got 'gamma'"):
        draws.to_datatree(labels={"gamma": ["a"]})
    with pytest.raises(InvalidInput, match=r"labels\['beta'\] must have one name per entry \(2\)"):
        draws.to_datatree(labels={"beta": ["a"]})


def test_errors_are_value_errors():
    assert issubclass(InvalidInput, ValueError)


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_after(1, [SGLD, tallmc.methods.sgld_cv_ps(0.01, 2)]))
def test_float32_data_under_double_precision_stay_float32(method):
    x = jnp.ones((4, 2), jnp.float32)
    posterior = models.linear_regression(x, np.ones(4), prior_variance=1.0, noise_variance=1.0)
    draws = sample(posterior, method, chains=2, n_draws=10)
    assert draws.positions.dtype == np.float32


def test_integers_that_do_not_fit_are_refused_not_wrapped():
    big = np.array([3_000_000_000, 1])
    with jax.enable_x64(False):
        posterior = models.linear_regression(big[:, None], [0.0, 1.0], 1.0, noise_variance=1.0)
        np.testing.assert_array_equal(posterior.data.x[:, 0], np.float32([3e9, 1]))
        with pytest.raises(InvalidInput, match="data must fit in int32; got 3000000000"):
            Posterior(GAUSSIAN, FLAT, big, 0.0)
        with pytest.raises(InvalidInput, match=r"data must fit in float32; got 1e\+39"):
            Posterior(GAUSSIAN, FLAT, np.array([1e39]), 0.0)


def test_an_anchor_of_another_precision_is_refused():
    single = models.linear_regression(np.eye(3, dtype=np.float32), Y, 1.0, noise_variance=1.0)
    double = models.linear_regression(np.eye(3), Y, 1.0, noise_variance=1.0)
    with pytest.raises(
        InvalidInput, match="anchor must have the posterior's precision, float32; got 'float64'"
    ):
        sample(single, tallmc.methods.sgld_cv(0.1, batch_size=2), anchor=find_anchor(double))
