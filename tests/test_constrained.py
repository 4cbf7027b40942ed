"""Constrained parameters: the density in unconstrained space, and what users see of it."""

import importlib.util
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.stats as stats
import numpy as np
import pytest
import xarray as xr
from numpyro.distributions import biject_to, constraints, transforms

import tallmc
from kept_programs import run_once
from problems import slow_among
from tallmc.models.transforms import _TRANSFORMS

SHAPES = {
    "scale": ("positive", 0.7),
    "chance": (constraints.unit_interval, 0.3),
    "weights": ("simplex", np.array([0.2, 0.5, 0.3])),
    "cuts": ("ordered_vector", np.array([-1.0, 0.5, 2.0])),
    "chol": ("lower_cholesky", np.array([[1.0, 0.0], [0.3, 2.0]])),
    "cholesky": ("cholesky", np.array([[1.0, 0.0], [0.3, 2.0]])),
    "corr": (constraints.corr_cholesky, np.array([[1.0, 0.0], [0.6, 0.8]])),
    "between": (constraints.interval(-1.0, 3.0), 0.5),
    "shifted": (transforms.AffineTransform(1.0, 3.0), 2.0),
}


def exponential(n_rows=200, **options):
    """Y ~ Exp(rate), rate ~ Gamma(2, 1): the posterior is Gamma(2 + N, 1 + Σy)."""
    y = np.random.default_rng(0).exponential(0.5, size=n_rows)
    posterior = tallmc.Posterior(
        log_likelihood=lambda p, y: jnp.log(p["rate"]) - p["rate"] * y,
        log_prior=lambda p: jnp.log(p["rate"]) - p["rate"],
        data=y,
        init={"rate": 1.0},
        transforms={"rate": "positive"},
        **options,
    )
    return posterior, y


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(tuple(SHAPES), id="all"),
        *(pytest.param((name,), id=name, marks=pytest.mark.slow) for name in SHAPES),
    ],
)
def test_the_density_has_the_jacobian_of_the_map(names):
    """∂T/∂u by automatic differentiation, on the coordinates that determine T."""
    posterior = tallmc.Posterior(
        log_likelihood=lambda p, row: 0.0 * row,
        log_prior=lambda p: -0.5 * sum(jnp.sum(p[name] ** 2) for name in names),
        data=np.ones(3),
        init={name: SHAPES[name][1] for name in names},
        transforms={name: SHAPES[name][0] for name in names},
    )
    u = np.asarray(posterior.init) + 0.1
    values = posterior.quantities.of(np.stack([posterior.init, u])[None])
    constrain = posterior.model.log_prior.constraints

    @run_once
    @jax.jacobian
    def jacobians(u):
        found = constrain(posterior.layout.unravel(u))
        return {name: found[name].ravel() for name in names}

    expected, coordinates = 0.0, []
    for name, jacobian in jax.tree.map(np.asarray, jacobians(u)).items():
        at_init, value = values[name][0]
        np.testing.assert_allclose(at_init, SHAPES[name][1], atol=1e-12)
        own = np.flatnonzero(np.abs(jacobian).sum(axis=0))
        free = jacobian[np.abs(jacobian).sum(axis=1) > 0][: len(own), own]
        expected += 0.5 * np.sum(value**2) - np.linalg.slogdet(free)[1]
        coordinates.extend(own)
    assert sorted(coordinates) == list(range(posterior.dim))
    assert posterior.potential(u) == pytest.approx(expected, abs=1e-10)


def prior_only(init, log_prior, constraint):
    """A posterior without information in its rows, so that it is its prior."""
    return tallmc.Posterior(
        log_likelihood=lambda p, row: 0.0 * row,
        log_prior=lambda p: log_prior(p["x"]),
        data=np.ones(2),
        init={"x": init},
        transforms={"x": constraint},
    )


def gamma_pair_and_normal(factor):
    """L₁₁ ~ Gamma(3, 1), L₂₂ ~ Gamma(2, 1), L₂₁ ~ N(0, 1)."""
    first, second = (stats.gamma.logpdf(factor[k, k], 3.0 - k) for k in (0, 1))
    return first + second + stats.norm.logpdf(factor[1, 0])


LAWS = {
    "scale": (
        prior_only(1.0, lambda x: stats.gamma.logpdf(x, 2.5), "positive"),
        np.linspace(-12, 4, 2001),
        2.5,
    ),
    "simplex": (
        prior_only(
            np.full(3, 1 / 3),
            lambda x: stats.dirichlet.logpdf(x[:2], jnp.array([2.0, 3.0, 1.5])),
            "simplex",
        ),
        np.linspace(-16, 16, 321),
        np.array([2.0, 3.0, 1.5]) / 6.5,
    ),
    "cholesky": (
        prior_only(np.eye(2), gamma_pair_and_normal, "cholesky"),
        np.linspace(-14, 14, 141),
        np.array([[3.0, 0.0], [0.0, 2.0]]),
    ),
}
"""A normalised prior, a grid per unconstrained coordinate, and the mean of the constrained law."""


@pytest.mark.parametrize("name", slow_among(["cholesky"], LAWS))
def test_the_law_in_unconstrained_space_is_the_prior_by_quadrature(name):
    """∫ exp(−f(u)) du = 1 and ∫ T(u) exp(−f(u)) du is the mean of the constrained prior."""
    posterior, grid, mean = LAWS[name]
    axes = np.meshgrid(*[grid] * posterior.dim, indexing="ij")
    points = jnp.asarray(np.stack([axis.ravel() for axis in axes], axis=1))
    density = np.exp(-np.asarray(run_once(jax.vmap(posterior.model.prior_potential))(points)))
    density *= (grid[1] - grid[0]) ** posterior.dim
    constrained = posterior.quantities.of(np.asarray(points)[None])["x"][0]
    assert density.sum() == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose(np.tensordot(density, constrained, 1), mean, atol=1e-3)


def of_shapes(names):
    """One posterior with these parameters of `SHAPES`."""
    return tallmc.Posterior(
        log_likelihood=lambda p, row: stats.norm.logpdf(row, 0.0, p["scale"]),
        log_prior=lambda p: -0.5 * sum(jnp.sum(p[name] ** 2) for name in names),
        data=np.linspace(-1.0, 2.0, 20),
        init={name: SHAPES[name][1] for name in names},
        transforms={name: SHAPES[name][0] for name in names},
    )


def outside_of_triangle(factor):
    """How far a 2×2 matrix is from a lower triangle with a positive diagonal."""
    diagonal = factor[..., [0, 1], [0, 1]]
    return np.maximum(np.abs(factor[..., 0, 1]), -diagonal.min(axis=-1))


BREACHES = {
    "scale": lambda x: -x,
    "chance": lambda x: np.abs(x - 0.5) - 0.5,
    "weights": lambda x: np.maximum(np.abs(x.sum(axis=-1) - 1), -x.min(axis=-1)),
    "cuts": lambda x: -np.diff(x, axis=-1),
    "chol": outside_of_triangle,
    "cholesky": outside_of_triangle,
    "corr": lambda x: outside_of_triangle(x) + np.abs((x**2).sum(axis=-1) - 1).max(axis=-1),
    "between": lambda x: np.abs(x - 1) - 2,
    "shifted": lambda x: np.zeros_like(x),
}
"""How far draws are from their constraints; at most zero, up to rounding, if they hold."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [("scale", "chol"), pytest.param(tuple(SHAPES), marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_constraints_hold_wherever_users_look(names, tmp_path):
    posterior = of_shapes(names)
    options = {"chains": 2, "burn_in": 20, "progress": False}
    with pytest.warns(tallmc.SamplingWarning):  # too short to agree
        draws = tallmc.sample(
            posterior,
            tallmc.methods.sgld(0.02, batch_size=10),
            n_draws=60,
            store=tmp_path / "run",
            **options,
        )
    with pytest.warns(tallmc.SamplingWarning):
        resumed = tallmc.resume(tmp_path / "run", posterior, n_draws=80, progress=False)
    tree = draws.to_datatree()["posterior"]
    loaded = tallmc.load(tmp_path / "run")
    for found in (draws.values, resumed.values, loaded.values, tree):
        for name in names:
            assert BREACHES[name](np.asarray(found[name])).max() < 1e-5, name
    entries = list(draws.summary().index)
    assert {"chol[1, 0]", "scale"} <= set(entries)
    assert len(entries) == sum(np.size(SHAPES[name][1]) for name in names) > posterior.dim
    assert list(loaded.summary().index) == entries
    assert list(tree["chol"].dims) == ["chain", "draw", "chol_dim_0", "chol_dim_1"]
    if names == tuple(SHAPES):  # a report of one parameter is read below
        tallmc.report.write_report(tmp_path / "run", tmp_path / "page.html", posterior=posterior)
        page = (tmp_path / "page.html").read_text()
        assert all(entry in page for entry in entries)


@pytest.mark.slow
def test_draws_store_tree_and_report_are_constrained(tmp_path):
    posterior, y = exponential()
    draws = tallmc.sample(
        posterior,
        tallmc.methods.mala(0.004),
        chains=4,
        n_draws=2000,
        store=tmp_path / "run",
        progress=False,
    )
    rate = draws.params["rate"]
    np.testing.assert_allclose(rate, np.exp(draws.positions[..., 0]), rtol=1e-6)
    shape, scale = 2 + len(y), 1 / (1 + y.sum())
    table = draws.summary()
    assert abs(table.loc["rate", "mean"] - shape * scale) <= 4.6 * table.loc["rate", "mcse_mean"]
    assert (
        abs(table.loc["rate", "sd"] - np.sqrt(shape) * scale) <= 4.6 * table.loc["rate", "mcse_sd"]
    )
    loaded = tallmc.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.params["rate"], rate)
    np.testing.assert_array_equal(loaded.positions, draws.positions)
    tree = xr.open_datatree(tmp_path / "run" / "draws.zarr", engine="zarr")
    np.testing.assert_array_equal(tree["posterior/rate"].values, rate)
    np.testing.assert_array_equal(tree["unconstrained/position"].values, draws.positions)
    np.testing.assert_array_equal(draws.to_datatree()["posterior/rate"].values, rate)
    resumed = tallmc.resume(tmp_path / "run", posterior, n_draws=2100, progress=False)
    np.testing.assert_array_equal(resumed.params["rate"][:, :2000], rate)
    tallmc.report.write_report(tmp_path / "run", tmp_path / "page.html", posterior=posterior)
    mean = f"{table.loc['rate', 'mean']:.2f}"
    assert mean in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_draws_of_a_failed_chain_are_missing_in_every_group(tmp_path):
    posterior, _ = exponential()
    start = np.array([[0.7], [np.float32(80.0)]])
    with pytest.warns(tallmc.SamplingWarning):
        tallmc.sample(
            posterior,
            tallmc.methods.sgld(1e-3, batch_size=10),
            chains=2,
            n_draws=50,
            start=start,
            store=tmp_path / "run",
            progress=False,
        )
    tree = xr.open_datatree(tmp_path / "run" / "draws.zarr", engine="zarr")
    for array in ("posterior/rate", "unconstrained/position"):
        assert np.isnan(tree[array].values[1]).all()
        assert np.isfinite(tree[array].values[0]).all()


class ScaleAndWeights(NamedTuple):
    scale: Any
    weights: Any


@pytest.mark.slow
def test_draws_have_the_structure_and_the_labels_of_init_whatever_the_order_of_names(tmp_path):
    """JAX sorts the keys of dicts, but not the fields of a tuple."""
    posterior = tallmc.Posterior(
        log_likelihood=lambda p, y: stats.norm.logpdf(y, p.weights[0], p.scale),
        log_prior=lambda p: -p.scale + stats.dirichlet.logpdf(p.weights, jnp.ones(3)),
        data=np.arange(20) % 2,
        init=ScaleAndWeights(0.5, np.full(3, 1 / 3)),
        transforms={"scale": "positive", "weights": "simplex"},
        labels={"weights": ["a", "b", "c"]},
    )
    draws = tallmc.sample(
        posterior,
        tallmc.methods.mala(1e-3),
        chains=2,
        n_draws=60,
        store=tmp_path / "run",
        progress=False,
    )
    draws.save(tmp_path / "draws.nc")
    scale = np.exp(draws.positions[..., 0])
    u = draws.positions[..., 1:] - np.log([2.0, 1.0])  # breaks of a stick
    first, second = (1 / (1 + np.exp(-u[..., k])) for k in (0, 1))
    weights = np.stack([first, (1 - first) * second, (1 - first) * (1 - second)], axis=-1)
    found = (draws, tallmc.load(tmp_path / "run"), tallmc.load(tmp_path / "draws.nc"))
    for values in (draws.params._asdict(), *(each.values for each in found)):
        np.testing.assert_allclose(values["scale"], scale, rtol=1e-6)
        np.testing.assert_allclose(values["weights"], weights, rtol=1e-5)
    for each in found:
        entries = ["scale", "weights[a]", "weights[b]", "weights[c]"]
        assert list(each.summary().index) == entries


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transforms": {"speed": "positive"}}, "transforms must name leaves of init"),
        ({"transforms": {"rate": "nonsense"}}, "be a NumPyro transform"),
        ({"transforms": {"rate": 3}}, "be a NumPyro transform"),
        ({"transforms": {"rate": "interval"}}, "pass an instance"),
        ({"transforms": {"rate": "simplex"}, "init": {"rate": np.array([0.5, 0.6])}}, "satisfy"),
        ({"transforms": {"rate": "cholesky"}, "init": {"rate": np.ones((2, 2))}}, "satisfy"),
        ({"transforms": {"rate": constraints.positive}, "init": {"rate": -1.0}}, "satisfy"),
        ({"labels": {"rate": ["a"]}}, "one name per entry"),
    ],
)
def test_bad_constraints_are_refused(options, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        tallmc.Posterior(
            log_likelihood=lambda p, y: -p["rate"] * y,
            log_prior=lambda p: -p["rate"],
            data=np.ones(3),
            **({"init": {"rate": 1.0}} | options),
        )


OWN_TRANSFORMS = ["positive", "unit_interval", "ordered_vector", "positive_ordered_vector"]


@pytest.mark.parametrize("name", [*OWN_TRANSFORMS, "simplex"])
def test_own_transforms_are_those_of_numpyro(name):
    own, theirs = _TRANSFORMS[name], biject_to(getattr(constraints, name))
    u = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)))

    @run_once
    def both(u):
        return [
            (of(u), of.inv(theirs(u)), jnp.sum(of.log_abs_det_jacobian(u, theirs(u))))
            for of in (own, theirs)
        ]

    for found, wanted in zip(*both(u), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_frequent_constraints_and_hidden_markov_models_need_no_numpyro(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in [each for each in sys.modules if each.split(".")[0] == "numpyro"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert exponential()[0].dim == 1
    y = np.random.default_rng(0).normal(size=40)
    assert tallmc.contrib.series.hidden_markov(y, 2).dim == 6
    with pytest.raises(ModuleNotFoundError, match="'corr_cholesky', unlike 'positive'"):
        prior_only(np.eye(2), lambda x: 0.0, "corr_cholesky")
