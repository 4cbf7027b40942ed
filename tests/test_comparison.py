"""Evidence against exact values, and `compare` against ArviZ."""

import dataclasses
import io
import math
import types

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.integrate
import scipy.stats

import tallmc
from problems import laplace_draws, slow_after
from row_stores import stored_logistic, write_store
from tallmc.diagnose import Evidence, evidence, kfold, loo
from tallmc.diagnose.comparison import _named
from tallmc.methods.abstract import Account
from tallmc.models import priors
from tallmc.models.families.ordinal import CutPointPrior
from tallmc.models.groups import lkj_log_integral, lkj_potential
from tallmc.models.hierarchy import GroupEffects, Horseshoe
from test_cli import call, refused

RNG = np.random.default_rng(3)
X = np.c_[np.ones(150), RNG.normal(size=150)]
Y = X @ [0.4, 0.9] + 0.7 * RNG.normal(size=150)
OTHER = np.c_[np.ones(150), X[:, 1] + RNG.normal(size=150)]


def exact(draws):
    return dataclasses.replace(draws, account=Account(None, exact=True))


@pytest.fixture(scope="module")
def linear():
    """The posterior is Gaussian, so that these are draws of it."""
    posterior = tallmc.models.linear_regression(X, Y, prior_variance=4.0, noise_variance=0.49)
    return posterior, exact(laplace_draws(posterior, draws=500))


def is_within_error(found: Evidence, expected: float) -> bool:
    assert 0 < found.se < 0.05
    return abs(found.log_evidence - expected) < 4.6 * found.se + 1e-3  # rounding


def test_evidence_of_a_linear_regression_is_exact(linear):
    posterior, draws = linear
    covariance = 4.0 * X @ X.T + 0.49 * np.eye(len(Y))
    expected = scipy.stats.multivariate_normal(cov=covariance).logpdf(Y)
    found = [evidence(draws, posterior, seed=seed) for seed in (0, 1)]
    assert all(is_within_error(each, expected) for each in found)
    difference = found[0] - found[1]
    assert difference.se == pytest.approx(math.hypot(found[0].se, found[1].se))


def test_evidence_of_a_logistic_regression_is_that_of_quadrature(tmp_path):
    """Draws come from a grid, so that they are exact; also from rows on disk."""
    on_disk, in_memory = stored_logistic(tmp_path / "rows", n_rows=100)
    x, y = (np.asarray(column, np.float64) for column in (in_memory.data.x, in_memory.data.y))
    middle = np.asarray(tallmc.anchor.find_anchor(in_memory).position, np.float64)
    step, side = 0.02, np.arange(-2, 2.01, 0.02)
    grid = middle + np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    z = grid @ x.T
    log_joint = (y * z - np.logaddexp(0, z)).sum(axis=1)
    log_joint += scipy.stats.norm.logpdf(grid, scale=math.sqrt(10)).sum(axis=1)
    mass = np.exp(log_joint - log_joint.max())
    expected = log_joint.max() + math.log(mass.sum() * step**2)
    rng = np.random.default_rng(0)
    chosen = grid[rng.choice(len(grid), 2000, p=mass / mass.sum())]
    positions = (chosen + step * (rng.random((2000, 2)) - 0.5)).reshape(4, 500, 2)
    for posterior in (in_memory, on_disk):
        like = laplace_draws(posterior, draws=4)
        draws = exact(dataclasses.replace(like, positions=positions.astype(np.float32)))
        assert is_within_error(evidence(draws, posterior), expected)


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [300, 8000])  # all rows exactly; hard rows and a series
def test_evidence_of_the_default_method_with_unknown_noise(n_rows):
    """β | σ is integrated by hand, log σ by quadrature."""
    rng = np.random.default_rng(n_rows)
    x = np.c_[np.ones(n_rows), rng.normal(size=n_rows)]
    y = x @ [0.4, 0.9] + 0.7 * rng.normal(size=n_rows)
    posterior = tallmc.models.linear_regression(x, y, prior_variance=4.0)
    found = evidence(tallmc.sample(posterior, seed=0, progress=False), posterior)
    prior = posterior.model.prior.parts[1]
    centre, sd = float(prior.mean), math.sqrt(float(prior.variance))

    def log_density(s):
        noise = math.exp(2 * s)
        capacity = np.eye(2) / 4.0 + x.T @ x / noise
        solved = np.linalg.solve(capacity, x.T @ y / noise)
        log_det = n_rows * 2 * s + 2 * math.log(4.0) + np.linalg.slogdet(capacity)[1]
        squares = y @ y / noise - (x.T @ y / noise) @ solved
        of_rows = -0.5 * (n_rows * math.log(2 * math.pi) + log_det + squares)
        return of_rows + scipy.stats.norm.logpdf(s, centre, sd)

    level = log_density(math.log(0.7))
    bounds = math.log(0.7) - 0.5, math.log(0.7) + 0.5
    inside = scipy.integrate.quad(
        lambda s: math.exp(log_density(s) - level), *bounds, points=[math.log(0.7)], limit=200
    )[0]
    expected = level + math.log(inside)
    assert abs(found.log_evidence - expected) < 4.6 * found.se + 1e-6 * abs(expected)


SCALARS = {
    "normal": priors.NormalPrior(jnp.asarray(2.0), jnp.asarray(0.3)),
    "tempered": priors.NormalPrior(jnp.asarray(2.0)).tempered(0.5),
    "student_t": priors.StudentTPrior(jnp.asarray(1.5), jnp.asarray(4.0), jnp.asarray(0.2)),
    "laplace": priors.LaplacePrior(jnp.asarray(0.7), jnp.asarray(0.0)),
    "log half t": priors.LogHalfStudentTPrior(jnp.asarray(1.5), jnp.asarray(4.0)),
    "log gamma": priors.LogGammaPrior(jnp.asarray(2.0), jnp.asarray(0.5)),
    "cut point": CutPointPrior(),
}


@pytest.mark.parametrize("name", SCALARS)
def test_constants_of_priors_are_their_integrals(name):
    prior = SCALARS[name]
    grid = np.linspace(-60, 60, 240_001)
    potentials = eqx.filter_vmap(prior.potential)(jnp.asarray(grid, jnp.float32)[:, None])
    integral = scipy.integrate.trapezoid(np.exp(-np.asarray(potentials, np.float64)), grid)
    tail = 1e-4 if name == "student_t" else 2e-5
    assert prior.log_integral(1) == pytest.approx(math.log(integral), abs=tail)
    joined = priors.JoinedPrior((prior, priors.NormalPrior(jnp.ones(2))), (1, 2))
    both = prior.log_integral(1) + math.log(2 * math.pi)
    assert joined.log_integral(3) == pytest.approx(both)
    if name not in ("normal", "tempered"):
        assert prior.tempered(0.5).log_integral(1) is None
        parts = priors.PriorOfEntries((prior.tempered(0.5),), ((0,),))
        assert parts.log_integral(1) is None


def test_constants_of_hyperpriors_are_their_integrals():
    grid = np.linspace(-30, 30, 60_001)
    free = jnp.asarray(grid, jnp.float32)[:, None]
    potentials = eqx.filter_vmap(lambda c: lkj_potential(c, 2))(free)
    integral = scipy.integrate.trapezoid(np.exp(-np.asarray(potentials, np.float64)), grid)
    assert lkj_log_integral(2) == pytest.approx(math.log(integral), abs=1e-5)
    # Given their scales the effects are normal: potentials at zero effects have their constants.
    sd_prior = priors.LogHalfStudentTPrior(jnp.ones(2), jnp.asarray(4.0))
    effects = GroupEffects(0, 3, 2, sd_prior)
    of_scales = sd_prior.log_integral(2) + lkj_log_integral(2)
    assert effects.log_integral() == pytest.approx(of_scales + 3 * math.log(2 * math.pi))
    shoe = Horseshoe((0,), jnp.asarray(0.1), jnp.asarray(2.5), jnp.asarray(4.0))
    half, s = 2.0, 2.5
    slab = scipy.stats.invgamma(half, scale=half * s**2)
    # p(log c²) = c² p(c²), compared at c² = 3 with all else fixed: β = 0, λ = τ₀, τ = τ₀.
    hyper = jnp.log(jnp.asarray([0.1, 0.1, 3.0]))
    found = -float(shoe.potential(jnp.zeros(1), hyper)) - shoe.log_integral()
    variance = 3.0 * 1e-4 / (3.0 + 1e-4)
    expected = slab.logpdf(3.0) + math.log(3.0)
    expected += scipy.stats.halfcauchy(scale=0.1).logpdf(0.1) + math.log(0.1)
    expected += scipy.stats.halfcauchy().logpdf(0.1) + math.log(0.1)
    expected += scipy.stats.norm(scale=math.sqrt(variance)).logpdf(0.0)
    assert found == pytest.approx(expected, abs=1e-5)


def test_no_evidence_is_one_line(linear):
    posterior, draws = linear
    noisy = dataclasses.replace(draws, account=Account(None))
    with pytest.raises(tallmc.InvalidInput, match=r"stochastic gradient.*\. Use the default"):
        evidence(noisy, posterior)
    flat = tallmc.Posterior(
        lambda params, row: -0.5 * (row - params["m"]) ** 2,
        lambda params: 0.0,
        Y,
        {"m": 0.0},
    )
    of_flat = exact(laplace_draws(flat, draws=20))
    with pytest.raises(tallmc.InvalidInput, match=r"prior must be proper .* none of m"):
        evidence(of_flat, flat)
    few = dataclasses.replace(draws, positions=draws.positions[:, :1])
    with pytest.raises(tallmc.InvalidInput, match="at least 8, four per parameter"):
        evidence(few, posterior)


def test_draws_that_are_too_few_are_named_in_one_line(linear):
    posterior, draws = linear
    few = dataclasses.replace(draws, positions=draws.positions[:1, :2], outcomes=draws.outcomes[:1])
    with pytest.raises(tallmc.InvalidInput, match=r"tails that a Pareto law fits.*Draw more"):
        loo(few, posterior, n=3)
    still = dataclasses.replace(draws, positions=0 * draws.positions)
    with pytest.raises(tallmc.InvalidInput, match=r"be more than the parameters \(2\)"):
        tallmc.diagnose.robust(still, posterior)


def test_compare_is_that_of_arviz(linear):
    import arviz_stats

    posterior, draws = linear
    others = [
        tallmc.models.linear_regression(columns, Y, prior_variance=4.0, noise_variance=0.49)
        for columns in (OTHER, OTHER - X + [1, 0])
    ]
    posteriors = [posterior, *others]
    fits = {"a": draws, "b": exact(laplace_draws(others[0])), "c": exact(laplace_draws(others[1]))}
    found = tallmc.compare(fits, posteriors)
    trees = {
        name: fits[name].to_datatree(log_likelihood=of.data)
        for name, of in zip(fits, posteriors, strict=True)
    }
    expected = arviz_stats.compare(trees)
    assert list(found.index) == list(expected.index)
    assert list(found["rank"]) == list(expected["rank"])
    for column in ("elpd", "p", "elpd_diff", "se", "dse"):
        np.testing.assert_allclose(found[column], expected[column], rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(found["weight"], expected["weight"], atol=2e-3)
    assert (found["subsampling_dse"] == 0).all()
    assert found.loc["a", "log_evidence"] == evidence(draws, posterior).log_evidence


def test_errors_of_some_rows_are_errors_of_the_difference(linear):
    posterior, draws = linear
    other = tallmc.models.linear_regression(OTHER, Y, prior_variance=4.0, noise_variance=0.49)
    pair = [draws, exact(laplace_draws(other))]
    whole = tallmc.compare(pair, [posterior, other]).iloc[1]
    some = [tallmc.compare(pair, [posterior, other], n=60, seed=s).iloc[1] for s in range(8)]
    z = [(one["elpd_diff"] - whole["elpd_diff"]) / one["subsampling_dse"] for one in some]
    assert np.abs(z).max() < 4.6
    assert 0.2 < np.std(z) < 2.5  # chi-square with 8 degrees of freedom at |z| = 4.6


NOISE = np.random.default_rng(5).normal(size=(4, 40))
FEW = np.c_[np.ones(40), NOISE[:3].T]
FEW[0, 1], NOISE[3, 0] = 10.0, 0.0  # the other rows say little about this one
OF_FEW = FEW @ [0.4, 0.9, 0.0, 0.3] + 0.7 * NOISE[3]
REFITS = {"method": tallmc.methods.mala(0.008), "chains": 16, "n_draws": 2000, "burn_in": 200}


def densities_without(fold):
    """log p(y_i | rows of other folds) of a linear regression with known noise."""
    found = np.empty(len(FEW))
    for k in np.unique(fold):
        kept, held = FEW[fold != k], FEW[fold == k]
        covariance = np.linalg.inv(kept.T @ kept / 0.49 + np.eye(4) / 4.0)
        mean = held @ covariance @ kept.T @ OF_FEW[fold != k] / 0.49
        variance = 0.49 + np.einsum("ij,jk,ik->i", held, covariance, held)
        found[fold == k] = scipy.stats.norm.logpdf(OF_FEW[fold == k], mean, np.sqrt(variance))
    return found


@pytest.mark.parametrize("where", slow_after(1, ["memory", "shards"]))
def test_folds_are_exact_refits(where, tmp_path):
    """The far row has a bad k. Over seeds, its log density has an error of sd 0.04, others 0.02."""
    store = tallmc.rows.open(write_store(tmp_path / "rows", FEW, OF_FEW, shard_rows=4))
    in_memory, on_disk = (
        tallmc.models.linear_regression(*rows, prior_variance=4.0, noise_variance=0.49)
        for rows in ((FEW, OF_FEW), (store,))
    )
    draws = exact(laplace_draws(in_memory, draws=500))
    one_by_one = densities_without(np.arange(40))
    by_weights = loo(draws, in_memory)
    assert by_weights.pareto_k[0] > 0.7 and "see tallmc.diagnose.kfold" in repr(by_weights)
    assert by_weights.elpd - one_by_one.sum() > 0.4
    posterior, fold = {
        "memory": (in_memory, np.random.default_rng(0).permutation(40) % 3),
        "shards": (on_disk, np.repeat(np.random.default_rng(0).permutation(10) % 3, 4)),
    }[where]
    found, expected = kfold(draws, posterior, folds=3, **REFITS), densities_without(fold)
    np.testing.assert_allclose(found.pointwise[0], expected[0], atol=4.6 * 0.04)
    np.testing.assert_allclose(found.pointwise[1:], expected[1:], atol=4.6 * 0.02)
    assert abs(found.elpd - expected.sum()) < 4.6 * 0.05
    assert found.p_loo == pytest.approx(by_weights.p_loo + by_weights.elpd - found.elpd)
    assert np.isnan(found.pareto_k).all() and found.bad_share == 0


@pytest.mark.slow
def test_folds_of_some_rows_have_an_error_of_their_number():
    posterior = tallmc.models.linear_regression(
        FEW, OF_FEW, prior_variance=4.0, noise_variance=0.49
    )
    draws = exact(laplace_draws(posterior, draws=500))
    some = kfold(draws, posterior, folds=2, n=20, **REFITS | {"n_draws": 20})
    assert some.n == 20 and some.subsampling_se > 0


def test_folds_that_cannot_be_are_refused(linear):
    posterior, draws = linear
    with pytest.raises(tallmc.InvalidInput, match="folds must be an int in"):
        kfold(draws, posterior, folds=151)
    with pytest.raises(tallmc.InvalidInput, match="n must be at least the number of folds"):
        kfold(draws, posterior, folds=10, n=5)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "t.csv"
    pd.DataFrame({"a": X[:, 1], "b": OTHER[:, 1], "y": Y}).to_csv(path, index=False)
    return path


def short(formula, table, **options):
    method = tallmc.methods.mala(0.003)
    chosen = {"family": "gaussian", "chains": 2, "n_draws": 40, "burn_in": 20, "progress": False}
    return tallmc.fit(formula, table, method=method, noise_variance=0.49, **chosen | options)


def test_fits_know_their_table_also_in_the_shell(table, tmp_path, capsys):
    fits = [
        short(formula, table, store=tmp_path / name)
        for name, formula in (("one", "y ~ a"), ("two", "y ~ b"))
    ]
    found = tallmc.compare(fits)
    assert list(found.index) == ["y ~ a", "y ~ b"]
    assert np.isfinite(found["log_evidence"]).all()
    assert loo(fits[0]).elpd == pytest.approx(found.loc["y ~ a", "elpd"], rel=1e-5)
    for rows in ((), (table,), (pd.read_csv(table),)):
        assert evidence(fits[0], *rows).log_evidence == found.loc["y ~ a", "log_evidence"]
    stored = tallmc.compare([tallmc.load(tmp_path / name) for name in ("one", "two")])
    columns = ["elpd", "dse", "log_evidence"]
    np.testing.assert_allclose(stored[columns], found[columns], rtol=1e-5)
    assert call("compare", tmp_path / "one", tmp_path / "two", "--json") == 0
    printed = pd.read_json(io.StringIO(capsys.readouterr().out), orient="index")
    np.testing.assert_allclose(printed["elpd"], found["elpd"], rtol=1e-5)
    assert call("compare", tmp_path / "one", tmp_path / "two") == 0
    assert "elpd_diff" in capsys.readouterr().out
    assert "be different folders" in refused(capsys, "compare", tmp_path / "one", tmp_path / "one")


@pytest.mark.slow
def test_comparison_by_folds_is_one_by_one_refits_also_in_the_shell(tmp_path, capsys):
    frame = pd.DataFrame(FEW[:, 1:], columns=list("abc")).assign(y=OF_FEW)
    frame.to_csv(tmp_path / "t.csv", index=False)
    prior = {"prior": "normal(0, 2)", "standardise": False}
    draws = short("y ~ a + b + c", tmp_path / "t.csv", store=tmp_path / "run", **prior)
    found = tallmc.compare({"all": draws}, folds=40).loc["all"]
    assert abs(found["elpd"] - densities_without(np.arange(40)).sum()) < 0.3
    assert not found["warning"] and tallmc.compare([draws])["warning"].all()
    assert call("compare", tmp_path / "run", "--folds", 40, "--json") == 0
    printed = pd.read_json(io.StringIO(capsys.readouterr().out), orient="index")
    np.testing.assert_allclose(printed["elpd"], found["elpd"], rtol=1e-4)
    assert call("compare", tmp_path / "run") == 0
    assert "pass --folds 10" in capsys.readouterr().out


@pytest.mark.slow
def test_a_fit_of_few_rows_of_a_store_knows_its_store(table, tmp_path):
    """They are read into memory, and the method keeps no series."""
    tallmc.ingest(table, tmp_path / "rows", response="y", progress=False)
    draws = short("y ~ a + b", tmp_path / "rows")
    frame = pd.read_csv(table)
    expected = draws.predict(frame).mean
    np.testing.assert_allclose(
        draws.predict(tmp_path / "rows").mean, expected, rtol=1e-3, atol=1e-4
    )
    assert loo(draws).elpd == pytest.approx(loo(draws, frame).elpd, rel=1e-4)
    tallmc.ingest(frame * 2, tmp_path / "other", response="y", progress=False)
    with pytest.raises(tallmc.InvalidInput, match="be those of the fit; got another row store"):
        draws.predict(tmp_path / "other")


@pytest.mark.slow
def test_fits_with_many_groups_are_compared_in_the_shell(tmp_path, capsys):
    groups = np.repeat(np.arange(110), 3)
    frame = pd.DataFrame({"y": RNG.normal(size=330) + 0.1 * groups, "shop": groups.astype(str)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    draws = short("y ~ 1 + (1 | shop)", tmp_path / "t.csv", store=tmp_path / "run")
    assert call("compare", tmp_path / "run", "--rows", 60, "--json") == 0
    printed = pd.read_json(io.StringIO(capsys.readouterr().out), orient="index")
    assert printed["elpd"].iloc[0] == pytest.approx(loo(draws, n=60).elpd, rel=1e-4)
    with pytest.raises(tallmc.InvalidInput, match=r"integrated out\. Use tallmc\.diagnose\.loo"):
        kfold(draws)


def test_effects_and_robust_errors_in_the_shell_are_those_of_python(table, tmp_path, capsys):
    frame = pd.read_csv(table).assign(g=np.where(X[:, 1] > 0, "high", "low"), c=np.arange(150) % 30)
    frame.to_csv(tmp_path / "t.csv", index=False)
    draws = short("y ~ a + g", tmp_path / "t.csv", store=tmp_path / "run")

    def shown(*options):
        assert call("effects", tmp_path / "run", *options, "--json") == 0
        return pd.read_json(io.StringIO(capsys.readouterr().out))

    effects = tallmc.diagnose.marginal_effects
    expected = effects(draws, column="g", by="c", at={"a": [0, 1]}).to_frame()
    found = shown("--column", "g", "--by", "c", "--at", "a=0,1")
    assert list(found.columns) == ["g", *expected.columns]
    np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-5)
    of_clusters = tallmc.diagnose.robust(draws, cluster="c")
    np.testing.assert_allclose(
        shown("--column", "a", "--cluster", "c")["sd"],
        effects(of_clusters, column="a").to_frame()["sd"],
        rtol=1e-4,
    )
    assert call("effects", tmp_path / "run", "--robust") == 0
    assert "errors: robust: sandwich covariance of 150 rows" in capsys.readouterr().out
    assert "as in age=30,40" in refused(capsys, "effects", tmp_path / "run", "--at", "a")


def test_fits_to_other_rows_are_refused(table):
    frame = pd.read_csv(table)
    fits = [short("y ~ a", frame), short("y ~ b", frame[:100])]
    with pytest.raises(tallmc.InvalidInput, match="same rows; got 150 rows and 100 rows"):
        tallmc.compare(fits)
    turned = short("y ~ b", frame.assign(y=-frame["y"]))
    with pytest.raises(tallmc.InvalidInput, match="other responses in y ~ b than in y ~ a"):
        tallmc.compare([fits[0], turned])
    with pytest.raises(tallmc.InvalidInput, match="rows must be those of the fit"):
        tallmc.compare([fits[0]], frame.assign(a=2 * frame["a"]))
    with pytest.raises(tallmc.InvalidInput, match="rows must be one per fit"):
        tallmc.compare(fits, [frame])


def test_fits_with_the_same_formula_are_named_by_their_family():
    def fits(*families):
        return [
            types.SimpleNamespace(settings={"model": {"formula": "y ~ x", "family": of}})
            for of in families
        ]

    assert list(_named(fits("poisson", "gamma"))) == ["y ~ x, poisson", "y ~ x, gamma"]
    assert list(_named(fits("poisson", "poisson"))) == ["fit 1", "fit 2"]
