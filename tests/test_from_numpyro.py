"""NumPyro models become posteriors with NumPyro's own densities, or are refused with the reason."""

import functools
import sys
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tallmc
from kept_programs import run_once
from nuts_comparison import assert_same_moments
from problems import slow_after
from row_stores import write_store
from tallmc.interop.numpyro import from_numpyro
from test_pages import ROOT, run_blocks

numpyro = pytest.importorskip("numpyro")

import numpyro.distributions as dist  # noqa: E402
from numpyro import handlers  # noqa: E402
from numpyro.contrib.control_flow import scan  # noqa: E402
from numpyro.infer import MCMC, NUTS  # noqa: E402
from numpyro.infer.reparam import LocScaleReparam  # noqa: E402
from numpyro.infer.util import constrain_fn, potential_energy  # noqa: E402

N, D, GROUPS = 40, 3, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
Y = RNG.normal(size=N) + X @ np.array([1.0, -1.0, 0.5])
B = (RNG.random(N) < 0.5).astype(int)
G = RNG.integers(0, GROUPS, N)
K = RNG.integers(0, 3, N)
ROWS = {"x": X, "y": Y, "b": B, "g": G, "k": K, "pair": RNG.normal(size=(N, 2))}


def hierarchical(x, b, g):
    """Sites of many supports, one of them dynamic; a factor and an observed site outside."""
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    low = numpyro.sample("low", dist.Normal(0, 1))
    high = numpyro.sample("high", dist.TruncatedNormal(0.0, 1.0, low=low))
    mix = numpyro.sample("mix", dist.Dirichlet(jnp.ones(GROUPS)))
    share = numpyro.sample("share", dist.Beta(2.0, 3.0))
    with numpyro.plate("groups", GROUPS):
        offset = numpyro.sample("offset", dist.Normal(0, tau))
        numpyro.deterministic("odds", jnp.exp(offset))
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(D), 2.0).to_event(1))
    numpyro.factor("soft", -0.1 * (high - low) ** 2)
    numpyro.sample("earlier study", dist.Normal(beta[0], 0.5), obs=jnp.array(0.7))
    numpyro.deterministic("norm", jnp.sum(beta**2))
    numpyro.deterministic("predictor", x @ beta)  # depends on rows
    with numpyro.plate("N", len(x)):
        numpyro.deterministic("inside", tau)
        logits = share * (x @ beta) + offset[g] + jnp.log(mix)[g]
        numpyro.sample("b", dist.Bernoulli(logits=logits), obs=b)


def subsampled(x, b):
    """A plate of a fixed size with a subsample size, which indexes the rows; a scale."""
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(D), 2.0).to_event(1))
    with numpyro.plate("N", N, subsample_size=20) as rows, handlers.scale(scale=0.3):
        numpyro.sample("b", dist.Bernoulli(logits=x[rows] @ beta), obs=b[rows])


def correlated(pair):
    """A Cholesky factor, and rows that are vectors."""
    scales = numpyro.sample("scales", dist.LogNormal(jnp.zeros(2), 1.0).to_event(1))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
    numpyro.deterministic("correlation", factor @ factor.T)
    with numpyro.plate("N", len(pair)):
        law = dist.MultivariateNormal(jnp.zeros(2), scale_tril=scales[:, None] * factor)
        numpyro.sample("pair", law, obs=pair)


def ordinal(x, k):
    """Ordered cut points."""
    beta = numpyro.sample("beta", dist.Laplace(0.0, 1.0).expand([D]).to_event(1))
    cuts = dist.TransformedDistribution(
        dist.Normal(jnp.zeros(2), 1.0).to_event(1), dist.transforms.OrderedTransform()
    )
    cuts = numpyro.sample("cuts", cuts)
    with numpyro.plate("N", len(k)):
        numpyro.sample("k", dist.OrderedLogistic(x @ beta, cuts), obs=k)


@handlers.reparam(config={"offset": LocScaleReparam(0.0)})
def decentred(y, g):
    """A reparametrised site; degrees of freedom; a group plate."""
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.1))
    with numpyro.plate("groups", GROUPS):
        offset = numpyro.sample("offset", dist.Normal(0.0, tau))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.StudentT(freedom, offset[g], 1.0), obs=y)


def crossed(pair):
    """Rows along the second axis from the end, crossed with another plate."""
    with numpyro.plate("items", 2, dim=-1):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
    spread = numpyro.sample("spread", dist.InverseGamma(3.0, 1.0))
    with numpyro.plate("N", len(pair), dim=-2), numpyro.plate("items again", 2, dim=-1):
        numpyro.sample("pair", dist.Normal(mean, spread), obs=pair)


def factors(x, y):
    """A factor inside the plate, next to a masked site."""
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.Uniform(0.1, 5.0))
    with numpyro.plate("N", len(y)):
        numpyro.factor("penalty", -0.01 * (slope * x[:, 1]) ** 2)
        with handlers.mask(mask=x[:, 2] > 0):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], scale), obs=y)


def mixture(y):
    """A mixture, whose labels are summed out; an improper prior."""
    centres = numpyro.sample("centres", dist.Normal(jnp.array([-1.0, 1.0]), 0.5).to_event(1))
    shift = numpyro.sample("shift", dist.ImproperUniform(dist.constraints.real, (), ()))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("N", len(y)):
        components = dist.Normal(centres + shift, 1.0)
        law = dist.MixtureSameFamily(dist.Categorical(probs=weights), components)
        numpyro.sample("y", law, obs=y)


def horseshoe(x, y, expected):
    """A prior that uses the number of rows; a keyword argument."""
    size = expected / ((D - expected) * jnp.sqrt(len(y)))
    shrink = numpyro.sample("shrink", dist.HalfCauchy(size))
    with numpyro.plate("columns", D):
        local = numpyro.sample("local", dist.HalfCauchy(1.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, local * shrink))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def random_walk(y, g):
    """A prior that is a scan."""

    def step(level, _):
        level = numpyro.sample("level", dist.Normal(level, 0.5))
        return level, level

    _, levels = scan(step, 0.0, None, length=GROUPS)
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(levels[g], 1.0), obs=y)


MODELS: dict[str, tuple[Any, tuple[str, ...], dict[str, Any]]] = {
    "hierarchical": (hierarchical, ("x", "b", "g"), {}),
    "subsampled": (subsampled, ("x", "b"), {}),
    "crossed": (crossed, ("pair",), {}),
    "horseshoe": (horseshoe, ("x", "y"), {"expected": 1.5}),
    "correlated": (correlated, ("pair",), {}),
    "decentred": (decentred, ("y", "g"), {}),
    "factors": (factors, ("x", "y"), {}),
    "ordinal": (ordinal, ("x", "k"), {}),
    "mixture": (mixture, ("y",), {}),
    "random walk": (random_walk, ("y", "g"), {}),
}


@functools.cache
def converted(name):
    model, names, keywords = MODELS[name]
    return from_numpyro(model, {name: ROWS[name] for name in names}, "N", **keywords)


def whole_model(name):
    """The model with all rows in its plate, and its arguments."""
    model, names, keywords = MODELS[name]
    arguments = {name: jnp.asarray(ROWS[name]) for name in names} | keywords
    return handlers.substitute(model, data={"N": jnp.arange(N)}), arguments


@pytest.mark.filterwarnings("ignore:subsample_size does not match")
@pytest.mark.parametrize("name", slow_after(2, MODELS))
def test_the_density_is_that_of_numpyro(name):
    posterior, (position, potential) = converted(name), potential_of_numpyro(name)
    expected = float(run_once(potential)(posterior.layout.unravel(position)))
    assert np.isfinite(expected)
    assert float(posterior.potential(position)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", slow_after(1, MODELS))
@pytest.mark.filterwarnings("ignore:subsample_size does not match")
def test_the_gradient_is_that_of_numpyro(name):
    posterior, (position, potential) = converted(name), potential_of_numpyro(name)
    slope = run_once(jax.grad(potential))(posterior.layout.unravel(position))
    np.testing.assert_allclose(
        posterior.gradient(position), posterior.layout.ravel(slope), rtol=1e-9, atol=1e-9
    )


def potential_of_numpyro(name):
    """A position, and NumPyro's potential as a function of the parameters."""
    posterior = converted(name)
    noise = 0.3 * np.random.default_rng(1).normal(size=posterior.dim)
    whole, arguments = whole_model(name)
    return posterior.init + noise, lambda at: potential_energy(whole, (), arguments, at)


@pytest.mark.parametrize("name", slow_after(1, ["hierarchical", "correlated", "decentred"]))
def test_quantities_are_constrained_sites_and_deterministics(name):
    posterior = converted(name)
    position = np.asarray(posterior.init) + 0.3
    found = posterior.quantities.of(np.broadcast_to(position, (2, 5, posterior.dim)))
    whole, arguments = whole_model(name)
    params = posterior.layout.unravel(jnp.asarray(position))
    constrain = lambda at: constrain_fn(whole, (), arguments, at, return_deterministic=True)
    expected = run_once(constrain)(params)
    assert set(found) == set(expected) - {"predictor", "inside"}
    for site, values in found.items():
        assert values.shape == (2, 5, *expected[site].shape)
        np.testing.assert_allclose(values[1, 4], expected[site], rtol=1e-12)


def test_plates_name_dimensions():
    dims = converted("hierarchical").quantities.dims
    assert dims == {"offset": ("groups",), "odds": ("groups",)}
    assert converted("crossed").quantities.dims == {"mean": ("items",)}

    def named(y):
        numpyro.sample(
            "beta",
            dist.Normal(jnp.zeros(2), 1.0).to_event(1),
            infer={"event_dims": ["feature"]},
        )
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(0, 1), obs=y)

    assert from_numpyro(named, {"y": Y}, "N").quantities.dims == {"beta": ("feature",)}


def simple(x, y):
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def test_rows_are_arguments_of_the_compiled_functions():
    posterior = from_numpyro(simple, {"x": X, "y": Y}, "N")
    params = posterior.layout.unravel(posterior.init)
    row = {"x": X[:1], "y": Y[:1]}
    for function, arguments in (
        (posterior.model.log_likelihood, (params, row)),
        (posterior.model.log_prior, (params,)),
    ):
        constants = jax.make_jaxpr(function)(*arguments).consts
        assert max([np.size(value) for value in constants], default=0) < N


def test_the_model_holds_no_rows():
    """Workers get a pickled copy of the model."""
    rows = {"x": np.ones((10_000, D)), "y": np.ones(10_000)}
    posterior = from_numpyro(simple, rows, "N")
    assert len(cloudpickle.dumps(posterior.model)) < 10_000


@pytest.mark.slow
def test_precision_is_left_as_it_is():
    with jax.enable_x64(False):
        posterior = from_numpyro(simple, {"x": X, "y": Y}, "N")
        assert posterior.dtype == posterior.data["x"].dtype == jnp.float32
        assert np.isfinite(posterior.gradient(posterior.init)).all()
        assert jnp.zeros(0, float).dtype != jnp.float64
    assert jnp.zeros(0, float).dtype == jnp.float64


@pytest.mark.slow
def test_rows_may_be_a_data_frame_or_its_columns():
    pd = pytest.importorskip("pandas")

    def grouped(y, g):
        level = numpyro.sample("level", dist.Normal(0, 1).expand([GROUPS]).to_event(1))
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(level[g], 1.0), obs=y)

    expected = from_numpyro(grouped, {"y": Y, "g": G}, "N")
    frame = pd.DataFrame({"y": Y, "g": G})
    for rows in (frame, {"y": frame["y"], "g": frame["g"].tolist()}):
        found = from_numpyro(grouped, rows, "N")
        assert found.potential(expected.init) == expected.potential(expected.init)


def test_rows_may_be_a_row_store(tmp_path):
    def model(x0, x1, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(x0 * beta[0] + x1 * beta[1], 1.0), obs=y)

    folder = write_store(tmp_path / "rows", X[:, :2], Y, shard_rows=16, dtype="float64")
    stored = from_numpyro(model, tallmc.rows.open(folder), "N")
    expected = from_numpyro(model, {"x0": X[:, 0], "x1": X[:, 1], "y": Y}, "N")
    position = expected.init + 0.3
    assert isinstance(stored.rows, tallmc.rows.ShardedRows)
    assert float(stored.potential(position)) == pytest.approx(
        float(expected.potential(position)), rel=1e-12
    )


@pytest.mark.slow
def test_the_search_for_the_mode_starts_where_asked():
    value = numpyro.infer.init_to_value(values={"tau": jnp.array(0.5)})
    posterior = from_numpyro(decentred, {"y": Y, "g": G}, "N", init_strategy=value)
    start = posterior.quantities.of(np.asarray(posterior.init)[None, None])
    assert start["tau"].item() == pytest.approx(0.5, rel=1e-12)


def latent_rows(y):
    with numpyro.plate("N", len(y)):
        level = numpyro.sample("level", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def latent_rows_without_the_plate(y):
    level = numpyro.sample("level", dist.Normal(jnp.zeros(len(y)), 1.0).to_event(1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def missing_data(x, y=None):
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(D), 1.0).to_event(1))
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


def discrete(y):
    label = numpyro.sample("label", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(label, 1.0), obs=y)


def with_param(y):
    mean = numpyro.param("mean", 0.0)
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def with_mutable(y):
    numpyro.primitives.mutable("state", {"count": jnp.zeros(())})
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(0, scale), obs=y)


def baked_response(x):
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(D), 1.0).to_event(1))
    with numpyro.plate("N", len(x)):
        numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=jnp.asarray(Y))


def baked_and_indexed_response(x):
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(D), 1.0).to_event(1))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(x[rows] @ beta, 1.0), obs=jnp.asarray(Y)[rows])


def baked_and_indexed_covariate(y):
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(D), 1.0).to_event(1))
    with numpyro.plate("N", N) as rows:
        numpyro.sample("y", dist.Normal(jnp.asarray(X)[rows] @ beta, 1.0), obs=y[rows])


def centred_inside(x, y):
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(D), 1.0).to_event(1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal((x - x.mean(0)) @ beta, 1.0), obs=y)


def tempered(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)), handlers.scale(scale=1 / len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def prior_from_rows(y):
    mean = numpyro.sample("mean", dist.Normal(y.mean(), 1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def data_outside(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.factor("likelihood", dist.Normal(mean, 1.0).log_prob(y).sum())
    with numpyro.plate("N", len(y)):
        numpyro.factor("nothing", jnp.zeros(len(y)) * y)


def nothing_observed(y):
    numpyro.sample("mean", dist.Normal(y.shape[0], 1))
    with numpyro.plate("N", len(y)):
        pass


REFUSALS = {
    "plate unknown": (decentred, {"y": Y, "g": G}, "M", {}, r"plates: groups, N"),
    "no plate at all": (
        lambda y: numpyro.sample("y", dist.Normal(0, 1), obs=y),
        {"y": Y},
        "N",
        {},
        "plates: none",
    ),
    "plate of another size": (subsampled, {"x": X[:30], "b": B[:30]}, "N", {}, r"\(30\); got 40"),
    "latent per row": (latent_rows, {"y": Y}, "N", {}, "'level' must not be one unknown per row"),
    "latent per row, no plate": (
        latent_rows_without_the_plate,
        {"y": Y},
        "N",
        {},
        "'level' must not be one unknown per row",
    ),
    "data missing": (missing_data, {"x": X}, "N", {}, "If it is data, pass it in rows"),
    "discrete latent": (discrete, {"y": Y}, "N", {}, "'label' must be continuous"),
    "param site": (with_param, {"y": Y}, "N", {}, "'mean' must be a sample site; got a param"),
    "mutable site": (with_mutable, {"y": Y}, "N", {}, "'state' must be a sample site"),
    "data baked in": (baked_response, {"x": X}, "N", {}, "'y' must be observed through rows"),
    "data baked in and indexed": (
        baked_and_indexed_response,
        {"x": X},
        "N",
        {},
        "'y' must be observed through rows",
    ),
    "covariate baked in": (
        baked_and_indexed_covariate,
        {"y": Y},
        "N",
        {},
        "depends on this row alone",
    ),
    "rows that meet": (centred_inside, {"x": X, "y": Y}, "N", {}, "depends on this row alone"),
    "number of rows in it": (tempered, {"y": Y}, "N", {}, "depends on this row alone"),
    "prior from rows": (prior_from_rows, {"y": Y}, "N", {}, "'mean' must not depend on rows"),
    "data outside": (data_outside, {"y": Y}, "N", {}, "'likelihood' must not depend on rows"),
    "nothing observed": (nothing_observed, {"y": Y}, "N", {}, "must have an observed site"),
    "rows as keyword": (simple, {"y": Y}, "N", {"x": X}, "must run on some of the rows"),
    "unknown argument": (simple, {"x": X, "y": Y, "z": Y}, "N", {}, "unexpected keyword argument"),
    "given twice": (simple, {"x": X, "y": Y}, "N", {"y": Y}, "not name columns of rows"),
    "lengths differ": (simple, {"x": X, "y": Y[:-1]}, "N", {}, "'x': 40, 'y': 39"),
    "no rows": (simple, {}, "N", {"x": X, "y": Y}, "name at least one column"),
    "an array": (simple, X, "N", {}, "be a dictionary of columns"),
    "rows without names": (simple, tallmc.rows.resident(X), "N", {}, "as a dictionary"),
    "text": (simple, {"x": X, "y": ["a"] * N}, "N", {}, r"rows\['y'\] must be real numbers"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_cannot_be_converted_is_refused(what):
    model, rows, plate, keywords, message = REFUSALS[what]
    with pytest.raises(tallmc.InvalidInput, match=message) as caught:
        from_numpyro(model, rows, plate, **keywords)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(ImportError, match=r'pip install "tallmc\[numpyro\]"'):
        from_numpyro(simple, {"x": X, "y": Y}, "N")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decentred", "correlated"])
@pytest.mark.filterwarnings("ignore::tallmc.SamplingWarning")
def test_draws_agree_with_nuts_of_numpyro(name):
    draws = tallmc.sample(converted(name), chains=16, n_draws=300, progress=False)
    model, names, keywords = MODELS[name]
    reference = MCMC(
        NUTS(model),
        num_warmup=300,
        num_samples=300,
        num_chains=16,
        chain_method="vectorized",
        progress_bar=False,
    )
    reference.run(jax.random.key(1), **{row: ROWS[row] for row in names}, **keywords)
    assert_same_moments(draws.values, reference.get_samples(group_by_chain=True))


@pytest.mark.docs
def test_the_examples_of_the_page_run(capsys):
    pytest.importorskip("pymc")
    names = run_blocks(ROOT / "docs" / "other-libraries.md")
    spread = names["draws"].values["spread"]
    assert names["draws"].ok.all() and (spread > 0).all()
    assert "beta[price]" in capsys.readouterr().out
