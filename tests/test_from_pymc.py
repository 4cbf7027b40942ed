"""PyMC models become posteriors with PyMC's own densities, or are refused with the reason."""

import functools
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from nuts_comparison import assert_same_moments
from problems import slow_after
from row_stores import write_store
from tallmc.interop.pymc import _without_precision_warnings, from_pymc
from test_prediction import draws_at

pytestmark = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _pymc():
    """Only the process that runs these tests imports PyMC, which takes seconds."""
    global pm, pt, pytensor
    pm = pytest.importorskip("pymc")
    import pytensor
    import pytensor.tensor as pt


@pytest.fixture(autouse=True)
def _no_c_compiler(_pymc):
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        yield


N, D, GROUPS = 40, 3, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
Y = RNG.normal(size=N) + X @ np.array([1.0, -1.0, 0.5])
B = (RNG.random(N) < 0.5).astype(int)
G = RNG.integers(0, GROUPS, N)
K = RNG.integers(0, 3, N)
PAIRS = RNG.normal(size=(N, 2))
COORDS = {"row": range(N), "column": ["age", "income", "dose"], "group": list("wxyz")}


def hierarchical():
    """Group effects, a simplex, a potential, an observed variable outside, deterministics."""
    with pm.Model(coords=COORDS) as model:
        x = pm.Data("x", X, dims=("row", "column"))
        b = pm.Data("b", B, dims="row")
        g = pm.Data("g", G, dims="row")
        tau = pm.HalfCauchy("tau", 1.0)
        offset = pm.Normal("offset", 0, tau, dims="group")
        beta = pm.Normal("beta", pt.zeros(x.shape[1]), 2.0, dims="column")
        mix = pm.Dirichlet("mix", np.ones(GROUPS))
        pm.Potential("soft", -0.1 * (beta**2).sum())
        pm.Normal("earlier study", beta[0], 0.5, observed=0.7)
        pm.Deterministic("odds", pm.math.exp(beta), dims="column")
        logits = pm.Deterministic("logits", x @ beta + offset[g] + pm.math.log(mix)[g], dims="row")
        pm.Bernoulli("observed", logit_p=logits, observed=b, dims="row")
    return model, ["x", "b", "g"]


def correlated():
    """A Cholesky factor with deterministics of its own, and rows that are vectors."""
    with pm.Model() as model:
        pair = pm.Data("pair", PAIRS)
        factor, _, _ = pm.LKJCholeskyCov("factor", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0))
        pm.MvNormal("observed", pt.zeros(2), chol=factor, observed=pair)
    return model, ["pair"]


def robust():
    """Degrees of freedom, a truncated and a bounded variable; rows that are matrices."""
    with pm.Model() as model:
        pair = pm.Data("pair", PAIRS)
        freedom = pm.Gamma("freedom", 2.0, 0.1)
        scale = pm.TruncatedNormal("scale", 1.0, 1.0, lower=0.1)
        low = pm.Normal("low", -1.0, 1.0)
        mean = pm.Uniform("mean", low, low + 3.0)  # the support depends on another variable
        pm.StudentT("observed", nu=freedom, mu=mean, sigma=scale, observed=pair)
    return model, ["pair"]


def ordinal():
    """Ordered cut points."""
    with pm.Model() as model:
        x, k = pm.Data("x", X), pm.Data("k", K)
        beta = pm.Laplace("beta", 0, 1, shape=D)
        cuts = pm.Normal(
            "cuts",
            [-1.0, 1.0],
            1.0,
            transform=pm.distributions.transforms.ordered,
            initval=[-1.0, 1.0],
        )
        pm.OrderedLogistic("observed", x @ beta, cuts, observed=k, compute_p=False)
    return model, ["x", "k"]


def mixture():
    """A mixture, and a flat prior."""
    with pm.Model() as model:
        y = pm.Data("y", Y)
        weights = pm.Dirichlet("weights", np.ones(2))
        shift = pm.Flat("shift")
        centres = pm.Normal("centres", [-1.0, 1.0], 0.5)
        pm.NormalMixture("observed", weights, centres + shift, 1.0, observed=y)
    return model, ["y"]


def horseshoe():
    """A prior that uses the number of rows; a potential per row; containers outside the rows."""
    with pm.Model() as model:
        x, y, size = pm.Data("x", X), pm.Data("y", Y), pm.Data("size", 1.5)
        shrink = pm.HalfCauchy("shrink", size / pt.sqrt(y.shape[0]))
        local = pm.HalfCauchy("local", 1.0, shape=D)
        raw = pm.Normal("raw", 0, 1, shape=D)
        beta = pm.Deterministic("beta", raw * local * shrink)
        scale = pm.InverseGamma("scale", 3, 1)
        pm.Potential("penalty", -0.01 * (x @ beta) ** 2)
        pm.Normal("observed", x @ beta, scale, observed=y)
    return model, ["x", "y"]


def walk():
    """A random walk as prior, counts and an exposure."""
    with pm.Model() as model:
        g, k, e = pm.Data("g", G), pm.Data("k", K), pm.Data("exposure", 1 + X[:, 0] ** 2)
        levels = pm.GaussianRandomWalk(
            "levels", sigma=0.5, init_dist=pm.Normal.dist(0, 1), shape=GROUPS
        )
        dispersion = pm.Exponential("dispersion", 1.0)
        pm.NegativeBinomial("observed", mu=e * pm.math.exp(levels[g]), alpha=dispersion, observed=k)
    return model, ["g", "k", "exposure"]


MODELS = {
    "hierarchical": hierarchical,
    "horseshoe": horseshoe,
    "correlated": correlated,
    "robust": robust,
    "ordinal": ordinal,
    "mixture": mixture,
    "random walk": walk,
}


@functools.cache
def converted(name):
    model, rows = MODELS[name]()
    return model, from_pymc(model, rows)


def point(posterior, position):
    """A position as PyMC takes it."""
    params = posterior.layout.split(np.asarray(position))
    return {name: np.asarray(value, np.float64) for name, value in params.items()}


@pytest.mark.slow
def test_settings_of_the_process_are_left_as_they_are():
    """The first conversion of a process imports PyTensor's JAX backend, which changes them."""
    settings = lambda: (jax.config.jax_enable_x64, os.environ.get("XLA_FLAGS"))
    before = settings()
    converted("horseshoe")
    assert "pytensor.link.jax.dispatch" in sys.modules
    assert settings() == before


def converted_at_a_position(name):
    model, posterior = converted(name)
    noise = 0.3 * np.random.default_rng(1).normal(size=posterior.dim)
    return model, posterior, posterior.init + noise


@pytest.mark.parametrize("name", slow_after(2, MODELS))
def test_the_density_is_that_of_pymc(name):
    model, posterior, position = converted_at_a_position(name)
    expected = float(model.compile_logp()(point(posterior, position)))
    assert np.isfinite(expected)
    assert -float(posterior.potential(position)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", slow_after(1, MODELS))
def test_the_gradient_is_that_of_pymc(name):
    model, posterior, position = converted_at_a_position(name)
    slope = model.compile_dlogp()(point(posterior, position))
    order = [value.name for value in model.value_vars]
    sizes = [np.size(point(posterior, position)[name]) for name in order]
    parts = dict(zip(order, np.split(slope, np.cumsum(sizes)[:-1]), strict=True))
    expected_slope = np.concatenate([parts[name] for name in posterior.layout.names])
    np.testing.assert_allclose(
        -np.asarray(posterior.gradient(position)), expected_slope, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", slow_after(1, ["hierarchical", "correlated", "horseshoe"]))
def test_quantities_are_constrained_variables_and_deterministics(name):
    model, posterior = converted(name)
    position = np.asarray(posterior.init) + 0.3
    found = posterior.quantities.of(np.broadcast_to(position, (2, 5, posterior.dim)))
    wanted = [
        *model.free_RVs,
        *(variable for variable in model.deterministics if variable.name != "logits"),
    ]
    assert set(found) == {variable.name for variable in wanted}
    values = model.compile_fn(model.replace_rvs_by_values(wanted), on_unused_input="ignore")
    for variable, expected in zip(wanted, values(point(posterior, position)), strict=True):
        assert found[variable.name].shape == (2, 5, *np.shape(expected))
        np.testing.assert_allclose(found[variable.name][1, 4], expected, rtol=1e-12)


def test_dims_and_coords_name_the_draws():
    with pm.Model(coords=COORDS) as model:
        x, y = pm.Data("x", X), pm.Data("y", Y)
        beta = pm.Normal("beta", 0, 1, dims="column")
        weights = pm.Dirichlet("weights", 5 * np.ones(GROUPS), dims="group")
        pm.Deterministic("odds", pm.math.exp(beta), dims="column")
        pm.Deterministic("predictor", x @ beta)
        pm.Normal("observed", x @ beta + weights[0], 1.0, observed=y)
    posterior = from_pymc(model, ["x", "y"])
    positions = np.random.default_rng(0).normal(size=(2, 100, posterior.dim))
    draws = draws_at(positions, posterior, quantities=posterior.quantities)
    tree = draws.to_datatree()["posterior"]
    assert set(tree.data_vars) == {"beta", "weights", "odds"}
    assert tree["odds"].dims == ("chain", "draw", "column")
    assert list(tree["column"].values) == ["age", "income", "dose"]
    np.testing.assert_allclose(tree["weights"].sum("group"), 1.0, rtol=1e-12)
    np.testing.assert_allclose(tree["odds"], np.exp(tree["beta"]), rtol=1e-12)
    assert "beta[income]" in draws.summary().index


@pytest.mark.slow
def test_draws_agree_with_nuts_on_the_density_of_pymc():
    numpyro = pytest.importorskip("numpyro")
    model, posterior = converted("ordinal")
    from pymc.sampling.jax import get_jaxified_logp  # its first import changes JAX's settings

    draws = tallmc.sample(posterior, chains=16, n_draws=300, progress=False)
    names = [value.name for value in model.value_vars]
    minus_logp = get_jaxified_logp(model, negative_logp=False)  # False means negated
    start = {
        name: jnp.zeros((16, *np.shape(value))) for name, value in model.initial_point().items()
    }
    reference = numpyro.infer.MCMC(
        numpyro.infer.NUTS(potential_fn=lambda at: minus_logp([at[name] for name in names])),
        num_warmup=300,
        num_samples=300,
        num_chains=16,
        chain_method="vectorized",
        progress_bar=False,
    )
    reference.run(jax.random.key(1), init_params=start)
    unconstrained = {
        name: np.asarray(values)
        for name, values in reference.get_samples(group_by_chain=True).items()
    }
    assert_same_moments(posterior.layout.split(draws.positions), unconstrained)


def regression(**given):
    """A regression with two containers; `given` replaces arguments of parts."""
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y", Y)
        beta = pm.Normal("beta", 0, 1, shape=D)
        pm.Normal("observed", x @ beta, 1.0, observed=given.get("observed", y))
    return model


@pytest.mark.slow
def test_rows_may_be_given_by_name():
    expected = from_pymc(regression(), ["x", "y"])
    position = expected.init + 0.3
    twice = {"x": np.concatenate([X, X]), "y": np.concatenate([Y, Y])}
    found = from_pymc(regression(), twice)
    assert found.n_rows == 2 * N
    prior = -float(expected.model.log_prior(expected.layout.unravel(position)))
    assert float(found.potential(position)) - prior == pytest.approx(
        2 * (float(expected.potential(position)) - prior), rel=1e-12
    )


@pytest.mark.slow
def test_rows_may_be_a_row_store(tmp_path):
    def model():
        with pm.Model() as found:
            x0, group, y = pm.Data("x0", X[:, 0]), pm.Data("x1", G), pm.Data("y", Y)
            offset = pm.Normal("offset", 0, 1, shape=GROUPS)
            pm.Normal("observed", x0 + offset[group], 1.0, observed=y)
        return found

    columns = np.column_stack([X[:, 0], G])
    folder = write_store(tmp_path / "rows", columns, Y, shard_rows=16, dtype="float64")
    stored = from_pymc(model(), tallmc.rows.open(folder))
    expected = from_pymc(model(), ["x0", "x1", "y"])
    assert isinstance(stored.rows, tallmc.rows.ShardedRows)
    position = expected.init + 0.3
    assert float(stored.potential(position)) == pytest.approx(
        float(expected.potential(position)), rel=1e-12
    )


def test_rows_are_arguments_of_the_compiled_functions():
    posterior = from_pymc(regression(), ["x", "y"])
    params = posterior.layout.unravel(posterior.init)
    row = {"x": X[:1], "y": Y[:1]}
    for function, arguments in (
        (posterior.model.log_likelihood, (params, row)),
        (posterior.model.log_prior, (params,)),
    ):
        constants = jax.make_jaxpr(function)(*arguments).consts
        assert max([np.size(value) for value in constants], default=0) < N


@pytest.mark.slow
@pytest.mark.filterwarnings("error:Explicitly requested dtype")
@pytest.mark.parametrize("name", slow_after(1, sorted(MODELS, key="horseshoe".__ne__)))
def test_single_precision_has_finite_gradients(name):
    with jax.enable_x64(False):
        model, rows = MODELS[name]()
        posterior = from_pymc(model, rows)
        assert posterior.dtype == jnp.float32
        assert jnp.zeros(0, float).dtype == jnp.float32
        position = posterior.init + jnp.float32(0.1)
        found, slope = posterior.potential(position), posterior.gradient(position)
        assert found.dtype == slope.dtype == jnp.float32
        assert np.isfinite(slope).all()
    expected = converted(name)[1].potential(np.asarray(position, np.float64))
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert jnp.zeros(0, float).dtype == jnp.float64


def test_threads_that_trace_at_the_same_time_are_silent():
    inside, outside = threading.Event(), threading.Event()

    def trace():
        with _without_precision_warnings():
            inside.set()
            outside.wait(5)
            warnings.warn("Explicitly requested dtype float64", stacklevel=1)

    with warnings.catch_warnings(record=True) as heard, ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("always")
        with _without_precision_warnings():
            traced = pool.submit(trace)
            inside.wait(0.2)
        outside.set()
        traced.result()
    assert not heard


SETTINGS = """
import os, sys, warnings
warnings.simplefilter("ignore")
import jax, numpy as np, pymc as pm, tallmc
from tallmc.interop.pymc import from_pymc
before = jax.config.jax_enable_x64, os.environ["XLA_FLAGS"]
with pm.Model() as model:
    y = pm.Data("y", np.zeros(5))
    pm.Normal("observed", pm.Normal("mean", 0, 1), 1.0, observed=y)
if "broken" in sys.argv:
    sys.modules["pymc.backends.arviz"] = None  # PyMC imports it after PyTensor's JAX backend
try:
    from_pymc(model, ["y"])
except ImportError:
    assert "broken" in sys.argv
assert "pytensor.link.jax.dispatch" in sys.modules
assert before == (jax.config.jax_enable_x64, os.environ["XLA_FLAGS"])
assert len(jax.devices()) == 1
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["broken"]], ids=str)
def test_settings_of_a_new_process_are_left_as_they_are(arguments):
    run = subprocess.run(
        [sys.executable, "-c", SETTINGS, *arguments], capture_output=True, text=True, check=False
    )
    assert run.stdout.strip() == "done", run.stderr


def unnamed_constants():
    with pm.Model() as model:
        y = pm.Data("y", Y)
        beta = pm.Normal("beta", 0, 1, shape=D)
        pm.Normal("observed", pt.constant(X) @ beta, 1.0, observed=y)
    return model


def latent_rows():
    with pm.Model(coords=COORDS) as model:
        y = pm.Data("y", Y, dims="row")
        level = pm.Normal("level", 0, 1, dims="row")
        pm.Normal("observed", level, 1.0, observed=y, dims="row")
    return model


def prior_from_rows():
    with pm.Model() as model:
        y = pm.Data("y", Y)
        pm.Normal("observed", pm.Normal("mean", y.mean(), 1), 1.0, observed=y)
    return model


def discrete():
    with pm.Model() as model:
        y = pm.Data("y", Y)
        pm.Normal("observed", pm.Bernoulli("label", 0.5), 1.0, observed=y)
    return model


def centred_inside():
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y", Y)
        beta = pm.Normal("beta", 0, 1, shape=D)
        pm.Normal("observed", (x - x.mean(0)) @ beta, 1.0, observed=y)
    return model


def summed():
    with pm.Model() as model:
        y = pm.Data("y", Y)
        mean = pm.Normal("mean", 0, 1)
        pm.Potential("likelihood", pm.logp(pm.Normal.dist(mean, 1.0), y).sum())
    return model


def two_lengths():
    with pm.Model() as model:
        x, y = pm.Data("x", X[:30]), pm.Data("y", Y)
        beta = pm.Normal("beta", 0, 1, shape=D)
        pm.Normal("observed", (x @ beta)[0], 1.0, observed=y)
    return model


def no_likelihood():
    with pm.Model() as model:
        pm.Data("y", Y)
        pm.Normal("mean", 0, 1)
    return model


REFUSALS = {
    "not a model": (lambda: "model", ["x"], "be a pymc.Model"),
    "unknown name": (regression, ["x", "z"], "containers: x, y"),
    "a variable": (regression, ["beta"], "containers: x, y"),
    "one string": (regression, "x", "be the names of pm.Data"),
    "no names": (regression, [], "name at least one column"),
    "lengths differ": (two_lengths, ["x", "y"], "'x': 30, 'y': 40"),
    "another shape": (regression, {"x": X[:, :2], "y": Y}, r"shape of the container, \(3,\)"),
    "data baked in": (
        lambda: regression(observed=Y),
        ["x"],
        "'observed' must be observed through pm.Data",
    ),
    "not all named": (regression, ["y"], "As long as the rows, and not named: x"),
    "response not named": (regression, ["x"], "'observed' must be observed through pm.Data"),
    "covariate baked in": (unnamed_constants, ["y"], "must run on some of the rows"),
    "latent per row": (latent_rows, ["y"], "'level' must not depend on rows"),
    "prior from rows": (prior_from_rows, ["y"], "'mean' must not depend on rows"),
    "discrete": (discrete, ["y"], "'label' must be continuous"),
    "rows that meet": (centred_inside, ["x", "y"], "depends on this row alone"),
    "summed": (summed, ["y"], "'likelihood' must have one log density per row"),
    "no likelihood": (no_likelihood, ["y"], "have an observed variable that depends on rows"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_converted_is_refused(what):
    model, rows, message = REFUSALS[what]
    with pytest.raises(tallmc.InvalidInput, match=message) as caught:
        from_pymc(model(), rows)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    model = regression()
    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(ImportError, match=r'pip install "tallmc\[pymc\]"'):
        from_pymc(model, ["x", "y"])
