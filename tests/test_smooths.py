"""Smooth terms: bases and penalties, the integrated scale, fits of known truths, saved fits."""

import json
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.interpolate
import scipy.stats

import tallmc
from kept_programs import run_once
from tallmc._anchor.optimisers import CountedPasses
from tallmc._core.arrays import DenseMap
from tallmc._core.errors import InvalidInput
from tallmc._fit.encoding import DesignEncoding, make_design
from tallmc._fit.fit import regression_problem
from tallmc._fit.formulas import GroupText, is_plain, split_formula
from tallmc._fit.model import RegressionModel
from tallmc._fit.reading import read_table
from tallmc._fit.smooths import SmoothText, parse_smooth
from tallmc._fit.store_design import row_store_design
from tallmc.methods.surrogate import SeriesSurrogate
from tallmc.methods.trajectories import _LONGEST_STRETCH, Point, SurrogateHMC
from tallmc.models.priors import ScaleMixturePrior
from tallmc.models.smooths import SmoothBasis
from tallmc.report.content import SmoothCurve
from tallmc.report.plots import smooth_charts
from tallmc.results.smooths import notes_on_dimensions

warnings.filterwarnings("ignore", category=UserWarning, module="tallmc")


def _points(kind, n=2000):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, 2)) if kind == "tp" else rng.gamma(2.0, size=(n, 1))


def _basis(kind, k=9):
    points = _points(kind)
    return SmoothBasis.of(kind, points, k, (points.min(), points.max())), points


@pytest.mark.parametrize("kind", ["cr", "cc", "tp"])
def test_columns_are_centred_and_orthogonal_with_variances_of_sum_one(kind):
    basis, points = _basis(kind)
    columns = basis.columns(list(points.T))
    wiggly = columns[:, basis.n_free :]
    assert basis.n_columns == {"cr": 8, "cc": 7, "tp": 8}[kind]
    np.testing.assert_allclose(columns.mean(axis=0), 0, atol=1e-10)
    products = columns.T @ wiggly / len(points)
    np.testing.assert_allclose(products[: basis.n_free], 0, atol=1e-10)
    variances = np.diag(products[basis.n_free :])
    np.testing.assert_allclose(products[basis.n_free :], np.diag(variances), atol=1e-10)
    assert variances.sum() == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("kind", ["cr", "cc"])
def test_penalty_is_a_multiple_of_the_identity(kind):
    """∫ f''² of the columns themselves, by differences on a fine grid."""
    basis, points = _basis(kind)
    x = np.linspace(points.min(), points.max(), 40_001)
    bends = np.diff(basis.columns([x]), 2, axis=0)
    penalty = bends.T @ bends
    free, size = basis.n_free, penalty[-1, -1]
    expected = np.diag([0.0] * free + [1.0] * (basis.n_columns - free))
    np.testing.assert_allclose(penalty / size, expected, atol=2e-3)


def test_splines_are_those_of_scipy_and_straight_beyond_the_knots():
    basis, _ = _basis("cr")
    knots = np.array(basis.knots)[:, 0]
    x = np.linspace(knots[0], knots[-1], 301)
    for values, column in zip(basis.columns([knots]).T, basis.columns([x]).T, strict=True):
        spline = scipy.interpolate.CubicSpline(knots, values, bc_type="natural")
        np.testing.assert_allclose(column, spline(x), atol=1e-10)
    beyond = basis.columns([knots[-1] + np.arange(4.0)])
    np.testing.assert_allclose(np.diff(beyond, 2, axis=0), 0, atol=1e-10)
    inside = basis.columns([knots[-1] - np.array([1e-6, 0.0])])
    np.testing.assert_allclose(
        np.diff(beyond, axis=0)[0], np.diff(inside, axis=0)[0] * 1e6, rtol=1e-4
    )


def test_cyclic_splines_meet_with_value_and_slopes():
    basis, _ = _basis("cc")
    first, last, step = basis.knots[0][0], basis.knots[-1][0], 1e-3
    left = basis.columns([last - step * np.arange(3.0)[::-1]])
    right = basis.columns([first + step * np.arange(3.0)])
    np.testing.assert_allclose(left[-1], right[0], atol=1e-12)
    np.testing.assert_allclose(np.diff(left, 2, axis=0), np.diff(right, 2, axis=0), atol=1e-8)
    np.testing.assert_allclose(
        basis.columns([np.array([last + 1])]), basis.columns([first + np.ones(1)])
    )


def test_columns_in_a_program_are_those_of_numpy():
    for kind in ("cr", "cc", "tp"):
        basis, points = _basis(kind)
        values = [jnp.asarray(column) for column in points[:50].T]
        found = run_once(lambda *values, basis=basis: basis.columns(values))(*values)
        np.testing.assert_allclose(found, basis.columns(list(points[:50].T)), rtol=2e-4, atol=2e-4)


def test_integrated_scale_is_the_integral_of_scipy():
    """−log ∫ N(u; 0, σ²I) p(σ) dσ, up to a constant, for a half-t prior."""
    prior = ScaleMixturePrior.of(
        lambda scales: scipy.stats.t.logpdf(scales, 4, scale=2.0), 2.0, 1e-4, 6, jnp.float32
    )
    sizes = np.array([0.01, 0.1, 1.0, 5.0])
    found = [float(prior.potential(jnp.full(6, size))) for size in sizes]
    log_scales = np.linspace(np.log(1e-5), np.log(1e4), 20_001)
    scales = np.exp(log_scales)
    logs = scipy.stats.t.logpdf(scales, 4, scale=2.0) + log_scales
    exact = [
        -np.logaddexp.reduce(logs + 6 * scipy.stats.norm.logpdf(size, scale=scales))
        for size in sizes
    ]
    np.testing.assert_allclose(np.diff(found), np.diff(exact), atol=2e-4)


def test_terms_are_read_and_never_evaluated():
    found = parse_smooth("s(`flight hour`, bs='cc', k=12, ends=(0, 24), by=origin)")
    assert found == SmoothText(("flight hour",), 12, "cc", "origin", (0, 24))
    text = split_formula("y ~ a + s(x) + s(lon, lat, k=20) + (1 | g)")
    assert text.common == "a" and text.groups == (GroupText("1", ("g",)),)
    assert [smooth.name for smooth in text.smooths] == ["s(x)", "s(lon, lat)"]
    assert is_plain("y ~ a + s(x)", ["a", "x"]) and not is_plain("y ~ a + s(x)", ["a"])


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ s(np.log(x))", "smooth terms of columns alone"),
        ("y ~ s(x):g", "smooth terms of columns alone"),
        ("y ~ s(x, k=2)", "k of s(x)"),
        ("y ~ s(x, bs='ps')", "bs of s(x)"),
        ("y ~ s(x, z, w)", "one or two columns"),
        ("y ~ x + s(x)", "s(x) contains it"),
        ("y ~ s(x, ends=(0, 1))", "ends of s(x)"),
        ("y ~ s(x) + s(x, k=5)", "each smooth term once"),
        ("y ~ s(g)", "hold numbers"),
        ("y ~ s(few)", "different values"),
        ("y ~ (s(x) | g)", "smooth terms of columns alone"),
    ],
)
def test_wrong_terms_are_refused_in_one_line(formula, words):
    with pytest.raises(InvalidInput, match=r".") as refused:
        _design(formula)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def _table(n=400):
    rng = np.random.default_rng(2)
    x, z = rng.uniform(size=n), rng.normal(size=n)
    group = np.array(["a", "b", "c"])[rng.integers(0, 3, n)]
    numbers = {"x": x, "z": z, "w": z**2, "hour": rng.integers(0, 24, n), "few": x.round()}
    return {**numbers, "g": group, "y": np.sin(6 * x) + 0.3 * rng.normal(size=n)}


def _design(formula, table=None):
    model = RegressionModel(family="gaussian", formula=formula)
    return make_design(read_table(_table() if table is None else table), model, "number", "float64")


def test_encodings_of_files_make_the_same_columns():
    formula = "y ~ g + s(x) + s(hour, bs='cc', k=6) + s(x, z) + s(z, by=g, k=5) + s(w, by=x, k=4)"
    design = _design(formula)
    content = json.loads(json.dumps(design.encoding.to_json()))
    again = DesignEncoding.from_json(content).apply(read_table(_table()))
    np.testing.assert_array_equal(design.x, again.x)
    places = design.encoding.scaled.terms.terms
    assert len(places["s(x)"]) == 9 and len(places["s(hour)"]) == 4
    assert len(places["s(x, z)"]) == 29 and len(places["s(z):g[b]"]) == 4
    # s(w, by=x) is x times a curve that need not be zero on average.
    x = np.asarray(_table()["x"])
    np.testing.assert_allclose(design.x[:, places["s(w):x"][0]], x)
    only_b = design.x[:, list(places["s(z):g[b]"])]
    assert (only_b[np.array(_table()["g"]) != "b"] == 0).all()


def test_hours_are_a_circle_of_24():
    (smooth,) = _design("y ~ s(hour, bs='cc')").encoding.scaled.terms.smooths
    assert (smooth.basis.knots[0], smooth.basis.knots[-1]) == ((0.0,), (24.0,))


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(3)
    n = 6000
    table = {"x": rng.uniform(size=n), "z": rng.uniform(size=n)}
    table["y"] = 5 + 2 * np.sin(6 * table["x"]) + table["z"] + 2 * rng.normal(size=n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = tallmc.fit(
            "y ~ s(x) + s(z)", table, family="gaussian", seed=1, progress=False, ess=1000
        )
    return table, draws


def test_curves_have_the_truth_in_their_bands_and_the_default_stays_checked(fitted):
    """z is straight in truth: its scale is near zero, where a hierarchy would have a funnel."""
    table, draws = fitted
    assert draws.report.trusted
    for name, of in (("x", lambda x: 2 * np.sin(6 * x)), ("z", lambda z: z)):
        curve = draws.smooth(f"s({name})")
        truth = of(curve[name]) - of(table[name]).mean()
        assert (np.abs(curve["mean"] - truth) / curve["sd"]).max() < 4.6
        assert curve["sd"].max() < 0.25


def test_degrees_of_freedom_are_those_of_the_normal_equations(fitted):
    """edf and σ, from the closed form of the marginal likelihood, on all rows."""
    table, draws = fitted
    found = draws.smooths()
    assert list(found.index) == ["s(x)", "s(z)"]
    model = draws.predictive.model
    design = _design("y ~ s(x) + s(z)", table)
    x, noise = np.asarray(design.x, np.float64), float(draws.values["sigma"].mean())
    noise /= design.encoding.response.sd
    gram, moments = x.T @ x / noise**2, x.T @ design.y / noise**2
    priors = dict(zip(("s(x)", "s(z)"), model.scale_mixtures(), strict=True))
    nodes = {name: np.asarray(prior.log_scales) for name, (_, prior) in priors.items()}
    # A grid over both scales.
    logs = np.full([len(of) for of in nodes.values()], -np.inf)
    edf = np.zeros((*logs.shape, 2))
    for i, j in np.ndindex(*logs.shape):
        precision = np.full(len(gram), 1 / 2.5**2)
        for place, (at, _), of in zip((i, j), priors.values(), nodes.values(), strict=True):
            precision[at] = np.exp(-2 * of[place])
        root = np.linalg.cholesky(gram + np.diag(precision))
        half = np.linalg.solve(root, moments)
        logs[i, j] = half @ half / 2 - np.log(np.diag(root)).sum() + np.log(precision).sum() / 2
        for k, (at, prior) in enumerate(priors.values()):
            logs[i, j] += float(prior.log_weights[(i, j)[k]])
            inverse = np.linalg.inv(root)
            edf[i, j, k] = 1 + len(at) - np.sum(precision[at] * np.sum(inverse**2, axis=0)[at])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    exact = np.einsum("ij,ijk->k", weights, edf)
    np.testing.assert_allclose(found["edf"], exact, atol=0.15)
    sds = [weights.sum(axis=1 - k) @ np.exp(of) for k, of in enumerate(nodes.values())]
    scale = design.encoding.response.sd
    np.testing.assert_allclose(found["sd"], np.array(sds) * scale, rtol=0.15)
    assert found["edf"]["s(z)"] < 4 < 5 < found["edf"]["s(x)"] < found["most"]["s(x)"]


def test_saved_fits_know_their_smooths(fitted, tmp_path):
    table, draws = fitted
    draws.save(tmp_path / "draws.nc")
    loaded = tallmc.load(tmp_path / "draws.nc")
    np.testing.assert_allclose(loaded.smooths(), draws.smooths(), rtol=1e-5)
    np.testing.assert_allclose(loaded.smooth("s(x)"), draws.smooth("s(x)"), rtol=1e-5)
    new = {name: column[:5] for name, column in table.items()}
    np.testing.assert_array_equal(loaded.predict(new).mean, draws.predict(new).mean)


def test_charts_show_one_curve_per_term(fitted):
    _, draws = fitted
    found = draws.smooths()
    curves = [
        SmoothCurve(name, (name[2],), draws.smooth(name, points=20), *found.loc[name][:2])
        for name in found.index
    ]
    charts = smooth_charts(curves)
    assert len(charts) == 2 and "degrees of freedom" in charts[0] and "polygon" in charts[0]
    rng = np.random.default_rng(0)
    grid = pd.DataFrame(np.stack(np.meshgrid([0.0, 1, 2], [0.0, 1, 2]), -1).reshape(-1, 2))
    plate = grid.set_axis(["lon", "lat"], axis=1).assign(mean=rng.normal(size=9))
    (chart,) = smooth_charts([SmoothCurve("s(lon, lat)", ("lon", "lat"), plate, 3.0, 8.0)])
    assert "Means where lat is 0, 1, 2" in chart


def test_small_dimensions_are_noted():
    table = pd.DataFrame({"edf": [8.6, 3.0], "most": [9.0, 9.0]}, index=["s(x)", "s(z)"])
    assert notes_on_dimensions(table) == [
        "s(x) uses 8.6 of 9 degrees of freedom: try a larger k",
    ]


def test_the_anchor_takes_a_few_passes_and_is_of_the_posterior():
    """Scales and mode are found together: one pass per Newton step."""
    table = _table()
    model = RegressionModel(family="gaussian", formula="y ~ s(x)")
    posterior = regression_problem(table, model).posterior
    anchor = tallmc.anchor.find_anchor(posterior)
    assert anchor.n_row_evals <= 5 * posterior.n_rows
    assert anchor.converged and anchor.decrement < 0.1
    value, gradient = CountedPasses(posterior).value_and_gradient(anchor.position)
    np.testing.assert_allclose(anchor.potential, value, rtol=1e-6)
    sds = np.sqrt(np.diag(anchor.covariance))
    np.testing.assert_allclose(sds * anchor.accurate[0], sds * gradient, atol=1e-3)


@pytest.mark.parametrize("forgotten", [0, 1])
def test_stretches_leave_the_law_of_the_effects_invariant(forgotten):
    """Draws of the prior are as they were, unless the move forgets a factor of its Jacobian."""
    model = RegressionModel(family="gaussian", formula="y ~ s(x) + s(z)")
    posterior = regression_problem(_table(), model).posterior
    dim, dtype = posterior.dim, posterior.dtype
    zero, unit = jnp.zeros(dim, dtype), jnp.eye(dim, dtype=dtype)
    flat = SeriesSurrogate(
        *(posterior.model, zero, DenseMap(unit), zero, 0 * unit, unit, None, None),
        accurate=False,
    )
    kernel = SurrogateHMC(hard_rows=0, step_size=1.0).kernel(posterior, flat)
    rng = np.random.default_rng(2)
    before = jnp.asarray(posterior.model.sample_prior(rng, 4000), dtype)
    uniforms = jnp.asarray(rng.random((4000, 4)), dtype)

    @run_once
    @jax.vmap
    def stretched(v, uniforms):
        log_factor = _LONGEST_STRETCH * (2 * uniforms[1] - 1)
        start = Point(
            v,
            flat.potential_and_gradient(v)[0] - forgotten * log_factor,
            0 * v,
            jnp.zeros((), dtype),
        )
        return kernel._stretched(start, uniforms).whitened

    after = stretched(before, uniforms)
    scores = []
    for places, _ in posterior.model.scale_mixtures():
        one, other = (np.log(np.linalg.norm(of[:, places], axis=1)) for of in (before, after))
        assert np.mean(one != other) > 0.1
        for power in (1, 2):
            changes = (other - one.mean()) ** power - (one - one.mean()) ** power
            scores.append(changes.mean() / changes.std() * np.sqrt(len(changes)))
    assert (np.abs(scores).max() < 4.6) == (not forgotten), scores


@pytest.mark.slow
def test_command_and_row_store_fit_and_predict(tmp_path):
    """The same curve from a CSV in the shell, with a report, and from a row store."""
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"x": rng.uniform(size=3000).round(4)})
    frame["y"] = np.sin(6 * frame.x) + rng.normal(size=3000)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    command = [sys.executable, "-m", "tallmc"]
    options = ["--formula", "y ~ s(x)", "--family", "gaussian", "--seed", "1"]
    folders = ["-o", "fit", "--store", "run"]
    done = subprocess.run(
        [*command, "fit", "rows.csv", *options, *folders],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "s(x):" in done.stdout and "degrees of freedom" in done.stdout
    subprocess.run([*command, "report", "run", "--out", "page.html"], cwd=tmp_path, check=True)
    assert "Smooth terms" in (tmp_path / "page.html").read_text()
    curve = tallmc.load(tmp_path / "fit").smooth("s(x)")
    tallmc.ingest(frame, tmp_path / "rows", response="y", progress=False)
    of_store = tallmc.fit("y ~ s(x)", tmp_path / "rows", family="gaussian", progress=False)
    again = of_store.smooth("s(x)")
    np.testing.assert_allclose(again["mean"], curve["mean"], atol=0.3 * curve["sd"].min())
    assert of_store.predict(frame.head(3)).mean.shape == (3,)


def test_curves_of_unknown_terms_are_refused(fitted):
    with pytest.raises(InvalidInput, match=r"s\(x\), s\(z\)"):
        fitted[1].smooth("s(q)")


def test_row_stores_have_the_columns_of_the_table(tmp_path):
    """The same columns of the same rows, also of every level of `by`."""
    table = _table()
    tallmc.ingest(table, tmp_path / "rows", response="y", progress=False)
    formula = "y ~ s(x) + s(hour, bs='cc', k=6) + s(x, z, k=8) + s(z, by=g, k=5) + s(w, by=x, k=4)"
    model = RegressionModel(family="gaussian", formula=formula)
    rows = tallmc.rows.open(tmp_path / "rows")
    encoding, sds, view = row_store_design(rows, model)
    design = _design(formula, table)
    assert encoding.scaled.names == design.names
    found = view(rows.lines(np.arange(rows.n_rows)))
    np.testing.assert_allclose(found.x, design.x, rtol=2e-3, atol=2e-3)
    assert sds.shape == (found.x.shape[1],)
    with pytest.raises(InvalidInput, match="columns of the row store"):
        row_store_design(rows, RegressionModel(family="gaussian", formula="y ~ s(q)"))
