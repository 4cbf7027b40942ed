"""Draws in one file, fits that are loaded again, predictions from the shell, marginal effects."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from pyarrow import csv, parquet

import tallmc
from problems import linear, slow_after
from tallmc._fit.formulas import is_plain
from tallmc.cli import main

N_ROWS = 300
FORMULA = "clicked ~ age * C(region)"
QUICK = {
    "method": tallmc.methods.mala(0.02),
    "chains": 2,
    "n_draws": 60,
    "burn_in": 40,
    "progress": False,
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    found = pd.DataFrame(
        {
            "age": rng.uniform(20, 80, N_ROWS),
            "region": rng.choice(["north", "south", "west"], N_ROWS),
            "member": rng.random(N_ROWS) < 0.5,
        }
    )
    chance = 1 / (1 + np.exp(2 - 0.04 * found.age - 0.5 * (found.region == "south")))
    found["clicked"] = np.where(rng.random(N_ROWS) < chance, "yes", "no")
    found["price"] = 3 * found.age + 10 * found.member + rng.normal(size=N_ROWS)
    return found


def fit(formula, table, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tallmc.fit(formula, table, **(QUICK | options))


@pytest.fixture(scope="module")
def clicks(table):
    return fit(FORMULA, table, family="bernoulli")


def same_draws(a, b):
    np.testing.assert_array_equal(a.positions, b.positions)
    assert list(a.values) == list(b.values)
    for name in a.values:
        np.testing.assert_array_equal(a.values[name], b.values[name])
    for name in a.sample_stats:
        np.testing.assert_array_equal(a.sample_stats[name], b.sample_stats[name])
    assert str(a.report) == str(b.report)
    assert (a.outcomes, a.timing, a.n_row_evals) == (b.outcomes, b.timing, b.n_row_evals)
    pd.testing.assert_frame_equal(pd.DataFrame(a.summary()), pd.DataFrame(b.summary()))


def test_saved_draws_are_loaded_as_they_were(tmp_path, clicks):
    clicks.save(tmp_path / "draws.nc")
    loaded = tallmc.load(tmp_path / "draws.nc")
    same_draws(clicks, loaded)
    assert loaded.settings["model"]["response level that counts as 1"] == "yes"
    assert [path.name for path in tmp_path.iterdir()] == ["draws.nc"]


def test_saved_draws_of_plain_parameters_keep_bias_and_failed_chains(tmp_path):
    start = np.array([[0.1, 0.2], [1e30, 1e30]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = tallmc.sample(
            linear(),
            tallmc.methods.sgld_cv(0.01, batch_size=3),
            chains=2,
            n_draws=80,
            start=start,
            measure_bias=True,
            progress=False,
        )
    assert draws.ok.tolist() == [True, False]
    draws.save(tmp_path / "draws.nc")
    same_draws(draws, tallmc.load(tmp_path / "draws.nc"))


@pytest.mark.slow
def test_a_file_that_is_no_draws_is_refused(tmp_path):
    (tmp_path / "draws.nc").write_bytes(b"nothing")
    with pytest.raises(tallmc.InvalidInput, match=r"be draws that Draws\.save"):
        tallmc.load(tmp_path / "draws.nc")
    with pytest.raises(tallmc.InvalidInput, match="be a file that can be written"):
        linear_draws().save(tmp_path / "no" / "draws.nc")


def linear_draws():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tallmc.sample(
            linear(), tallmc.methods.mala(0.1), chains=1, n_draws=10, progress=False
        )


# Marginal effects


@pytest.mark.slow
def test_the_effect_of_a_column_is_its_coefficient_if_the_link_is_the_identity(table):
    draws = fit("price ~ age + member", table, family="gaussian")
    for column in ("age", "member"):
        effect = tallmc.diagnose.marginal_effects(draws, table, column, n_draws=120)
        name = "age" if column == "age" else next(n for n in draws.values if n.startswith("member"))
        np.testing.assert_allclose(
            np.sort(effect.draws[:, 0]), np.sort(draws.values[name].ravel()), rtol=2e-3
        )


def test_effects_are_averages_of_differences_of_predictions(clicks, table):
    effect = tallmc.diagnose.marginal_effects(clicks, table, "region", n_draws=120)
    assert effect.labels == ("south − north", "west − north")
    for k, level in enumerate(("south", "west")):
        high, low = (
            clicks.predict(table.assign(region=each), n_draws=None).mean.mean()
            for each in (level, "north")
        )
        assert effect.mean[k] == pytest.approx(high - low, abs=1e-6)
    both = tallmc.diagnose.marginal_effects(clicks, table, "region", contrasts=[("south", "west")])
    assert both.mean[0] == pytest.approx(effect.mean[0] - effect.mean[1], abs=1e-6)
    frame = effect.to_frame()
    assert (frame["low"] <= frame["mean"]).all() and (frame["mean"] <= frame["high"]).all()
    per_year = tallmc.diagnose.marginal_effects(clicks, table, "age", n_draws=120).mean[0]
    moved = [clicks.predict(table.assign(age=table.age + h), n_draws=None) for h in (0.5, -0.5)]
    assert per_year == pytest.approx((moved[0].mean - moved[1].mean).mean(), rel=1e-2)


def test_groups_grids_and_ratios_are_averages_of_predictions(clicks, table):
    def effects(*arguments, **options):
        return tallmc.diagnose.marginal_effects(clicks, *arguments, n_draws=120, **options)

    def averages(rows):
        return clicks.average_response(rows, n_draws=None)

    whole = effects()  # of what the fit has read
    assert whole.labels == ("mean",) and whole.n_rows == len(table)
    np.testing.assert_allclose(whole.draws[:, 0], averages(table), rtol=1e-5)
    by = effects(table, by=["region", "member"])
    groups = table.groupby(["region", "member"])
    assert [tuple(each.values()) for each in by.where] == [group for group, _ in groups]
    for k, (_, rows) in enumerate(groups):
        np.testing.assert_allclose(by.draws[:, k], averages(rows), rtol=1e-5)
    pair = {"contrasts": [(50, 30)], "at": {"region": ["south", "west"]}}
    ratio = effects(table, "age", comparison="ratio", **pair)
    assert ratio.labels == ("50 / 30",) * 2
    assert list(ratio.to_frame()["region"]) == ["south", "west"]
    for k, region in enumerate(("south", "west")):
        high, low = (averages(table.assign(region=region, age=age)) for age in (50.0, 30.0))
        np.testing.assert_allclose(ratio.draws[:, k], high / low, rtol=1e-5)
    difference = effects(table, "age", **pair)
    np.testing.assert_allclose(difference.draws[:, 1], high - low, atol=1e-6)
    slopes = effects(table, "age", by="region")
    shares = table["region"].value_counts(normalize=True).sort_index()
    np.testing.assert_allclose(
        slopes.draws @ shares.to_numpy(), effects(table, "age").draws[:, 0], rtol=1e-3, atol=1e-6
    )
    assert effects(table, "age", n_rows=50).n_rows == 50
    assert "(region = south)" in repr(slopes)


def test_effects_of_a_row_store_are_those_of_its_table(table, tmp_path):
    shown = table[["age", "region", "clicked"]]
    shown = shown.assign(clicked=(shown["clicked"] == "yes") * 1)
    shown.to_csv(tmp_path / "t.csv", index=False)
    tallmc.ingest(tmp_path / "t.csv", tmp_path / "rows", response="clicked", progress=False)
    draws = fit("clicked ~ age + region", tmp_path / "rows", family="bernoulli")
    for column, options in (
        ("age", {"by": "region"}),
        ("region", {"at": {"age": [30, 40]}}),
        (None, {"by": "region"}),
    ):
        found, expected = (
            tallmc.diagnose.marginal_effects(draws, rows, column, n_rows=None, **options)
            for rows in (None, shown)
        )
        assert found.labels == expected.labels and found.where == expected.where
        np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-3, atol=1e-6)
    some = tallmc.diagnose.marginal_effects(draws, column="age", n_rows=70)
    assert some.n_rows == 70


@pytest.mark.slow
def test_effects_on_classes_add_up_to_zero(table):
    draws = fit("region ~ age", table, family="categorical")
    effect = tallmc.diagnose.marginal_effects(draws, table, "age")
    assert effect.labels == ("per unit, north", "per unit, south", "per unit, west")
    np.testing.assert_allclose(effect.draws.sum(axis=1), 0, atol=1e-6)


@pytest.mark.parametrize(
    ("column", "options", "message"),
    [
        ("price", {}, "be one that the fit uses"),
        ("weight", {}, "name a column"),
        ("age", {"contrasts": [("a", "b")]}, r"contrasts \(age\) must be a finite number"),
        ("region", {"contrasts": [("east", "north")]}, "levels that the fit has seen"),
        ("age", {"interval": 2}, "interval must be"),
        ("age", {"comparison": "odds"}, 'be "difference" or "ratio"'),
        ("age", {"comparison": "ratio"}, "Pass contrasts="),
        ("age", {"by": "shop"}, "name a column"),
        ("age", {"at": {"price": 1.0}}, "name columns that the fit uses"),
        ("age", {"at": {"age": "old"}}, r"at \(age\) must be a finite number"),
    ],
)
def test_bad_questions_about_effects_are_refused(clicks, table, column, options, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        tallmc.diagnose.marginal_effects(clicks, table, column, **options)


def test_effects_need_a_fit_of_a_table():
    with pytest.raises(tallmc.InvalidInput, match="come from a fit of a table"):
        tallmc.diagnose.marginal_effects(linear_draws(), {"x": [1.0]}, "x")


# The shell


def call(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


@pytest.fixture(scope="module")
def shell_fit(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("fit")
    table.to_csv(folder / "table.csv", index=False)
    call(
        *("fit", folder / "table.csv", "--formula", FORMULA, "--family", "bernoulli"),
        *("-o", folder / "fit", "--store", folder / "run", "--method", "mala"),
        *("--draws", 40, "--chains", 2, "--no-progress"),
    )
    return folder


SPLINE = "clicked ~ bs(age, df=4) + C(region, Treatment('west'))"


@pytest.fixture(scope="module")
def python_run(tmp_path_factory, table):
    """A run of Python on a data frame, and its draws."""
    run = tmp_path_factory.mktemp("python") / "run"
    return run, fit(SPLINE, table, family="bernoulli", store=run)


def test_a_python_fit_predicts_after_loading_without_its_formula(python_run, tmp_path, table):
    run, draws = python_run
    expected = draws.predict(table).mean
    np.testing.assert_array_equal(tallmc.load(run).predict(table).mean, expected)
    draws.save(tmp_path / "draws.nc")
    loaded = tallmc.load(tmp_path / "draws.nc")
    np.testing.assert_array_equal(loaded.predict(table).mean, expected)
    np.testing.assert_array_equal(loaded.log_likelihood(table), draws.log_likelihood(table))
    loaded.save(tmp_path / "again.nc")  # nothing is lost on the way
    np.testing.assert_array_equal(tallmc.load(tmp_path / "again.nc").predict(table).mean, expected)


def test_a_python_fit_predicts_and_resumes_from_the_shell(python_run, tmp_path, table, capsys):
    run, draws = python_run
    table.to_csv(tmp_path / "table.csv", index=False)
    assert call("predict", run, tmp_path / "table.csv", "-o", tmp_path / "p.parquet") == 0
    found = parquet.read_table(tmp_path / "p.parquet")["mean"].to_numpy()
    np.testing.assert_allclose(found, draws.predict(table).mean, rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        longer = tallmc.resume(run, table, n_draws=70, progress=False)
    np.testing.assert_array_equal(longer.positions[:, :60], draws.positions)
    assert longer.predict(table).mean.shape == (N_ROWS,)
    with pytest.raises(tallmc.InvalidInput, match="resumed with the posterior it was started with"):
        tallmc.resume(run, table[:-1], progress=False)
    assert call("resume", run) == 2
    assert "--table must be given" in capsys.readouterr().err
    assert call("resume", run, "--table", tmp_path / "table.csv", "--draws", 80) in (0, 3)
    assert tallmc.load(run).positions.shape[1] == 80


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ x",
        "y ~ 0 + x*g + (1 + x | g)",
        "y ~ . - x",
        "y ~ bs(x, df=4) + cr(x, df=3, constraints='center') + poly(x, 2)",
        "y ~ C(g, Treatment('a')) + C(g, Sum) + C(g, contr.helmert)",
        "y ~ np.log1p(x) + I(x**2 / 3 - 1) + I(x > 2) + center(`a b`)",
    ],
)
def test_plain_formulas_are_taken_from_files(formula):
    assert is_plain(formula, ("x", "g", "a b"))


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ f(x)",
        "y ~ x.__class__",
        "y ~ np.log(__import__('os').system('true'))",
        "y ~ (lambda: x)()",
        "y ~ C(x, levels=[i for i in (1,)])",
        "y ~ np.load(x)",
        "y ~ np.log(x, out=x)",
        "y ~ I(9**9**9 * x)",
        "y ~ I(9**9 * x)",
        "y ~ I(999999999 * [0])",
        "y ~ (x + g)**99",
        "y ~ unknown",
        "y ~ {open('f').read()}",
        "y ~ C(g, Treatment('\\\\\"), open(\"f'))",
        "y ~ C(g, **x)",
        "y ~ (f(x) | g)",
        "y ~ `a b` + `no such`",
    ],
)
def test_formulas_with_code_of_their_own_are_not(formula):
    assert not is_plain(formula, ("x", "g", "a b"))


@pytest.mark.parametrize("fitted", slow_after(1, ["run", "fit"]))
def test_predictions_from_the_shell_are_those_of_the_draws(shell_fit, tmp_path, table, fitted):
    again = ("--formula", "clicked~age*C(region)")
    out = tmp_path / "predictions.parquet"
    arguments = ("predict", shell_fit / fitted, shell_fit / "table.csv", "-o", out)
    assert call(*arguments, *again) == 0
    expected = tallmc.load(shell_fit / fitted, formula=FORMULA).predict(table)
    found = parquet.read_table(out).to_pandas()
    pd.testing.assert_frame_equal(found, expected.to_frame(), check_dtype=False, rtol=1e-6)
    assert call(*arguments, *again) == 2  # the file exists
    assert call(*arguments, *again, "--overwrite", "--kind", "response") == 0
    assert set(np.unique(parquet.read_table(out).column("low"))) <= {0.0, 1.0}


def test_predictions_refuse_what_does_not_fit(shell_fit, tmp_path, capsys):
    new, out = tmp_path / "new.csv", tmp_path / "p.csv"
    new.write_text("age,region\n30,south\n40,east\n")

    def refusal(*options, to=out):
        assert call("predict", shell_fit / "fit", new, "-o", to, *options) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        return message

    assert "got 'east' in row 2" in refusal()
    assert "be that of the fit" in refusal("--formula", "clicked ~ age")
    assert "end in one of" in refusal("--formula", FORMULA, to=tmp_path / "p.xlsx")
    new.write_text("age\n30\n")
    assert "without region" in refusal("--formula", FORMULA)
    assert not out.exists()
    new.write_text("age,region\n30,south\n")
    assert call("predict", shell_fit / "fit", new, "-o", out, "--formula", FORMULA) == 0
    assert csv.read_csv(out).num_rows == 1


def test_a_stored_formula_with_code_is_never_evaluated(shell_fit, tmp_path, capsys):
    content = json.loads((shell_fit / "fit" / "fit.json").read_text())
    evil = "clicked ~ age + np.log(__import__('os').system('touch exploded'))"
    for part in (content["model"], content["encoding"]):
        part["formula"] = evil
    folder = tmp_path / "fit"
    folder.mkdir()
    (folder / "draws.nc").write_bytes((shell_fit / "fit" / "draws.nc").read_bytes())
    (folder / "fit.json").write_text(json.dumps(content))
    draws = tallmc.load(folder)
    with pytest.raises(tallmc.InvalidInput, match=r"tallmc.load\(path, formula="):
        draws.predict({"age": [30.0], "region": ["south"]})
    (tmp_path / "new.csv").write_text("age,region\n30,south\n")
    assert call("predict", folder, tmp_path / "new.csv", "-o", tmp_path / "p.csv") == 2
    assert "be passed again" in capsys.readouterr().err
    with pytest.raises(tallmc.InvalidInput, match="be that of the fit"):
        tallmc.load(folder, formula=FORMULA)
