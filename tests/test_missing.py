"""Missing covariates: a level of their own, or the mean and an indicator; never in silence."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

import tallmc
from tallmc._fit.encoding import DesignEncoding, make_design
from tallmc._fit.fit import regression_model, regression_problem
from tallmc._fit.model import RegressionModel
from tallmc._fit.reading import read_table
from test_cli import call, refused

N = 200


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(2)
    found = pd.DataFrame({"age": rng.normal(40, 9, N), "city": rng.choice(["Rome", "Oslo"], N)})
    found["member"] = pd.array(rng.random(N) < 0.5, dtype="boolean")
    found["y"] = 0.1 * found["age"] + (found["city"] == "Rome") + rng.normal(size=N)
    found.loc[:19, "age"] = np.nan
    found.loc[10:14, "city"] = None
    found.loc[30:32, "member"] = None
    found.loc[[50, 60], "y"] = np.nan
    return found


def design_of(table, **options):
    model = RegressionModel(family="gaussian", **{"missing": "indicator"} | options)
    return make_design(read_table(table), model, "number", "float64")


@pytest.mark.parametrize("options", [{"response": "y"}, {"formula": "y ~ age + city + member"}])
def test_the_design_has_levels_means_and_indicators(table, options):
    design = design_of(table, standardise=False, **options)
    kept = table[table["y"].notna()].reset_index(drop=True)
    age, city = kept["age"], kept["city"]
    columns = dict(zip(design.names, np.asarray(design.x).T, strict=True))
    assert list(columns)[1:] == [
        *("age", "city[T.Rome]", "city[T.(missing)]"),
        *("member[T.True]", "member[T.(missing)]", "age_missing"),
    ]
    np.testing.assert_allclose(columns["age"], age.fillna(age.mean()))
    np.testing.assert_array_equal(columns["age_missing"], age.isna())
    np.testing.assert_array_equal(columns["city[T.(missing)]"], city.isna())
    np.testing.assert_array_equal(columns["city[T.Rome]"], city == "Rome")
    np.testing.assert_array_equal(columns["member[T.(missing)]"], kept["member"].isna())
    assert design.notes[:4] == (
        "dropped 2 of 200 rows with missing values",
        f"age: 20 missing values are the mean, {age.mean():.4g}, and age_missing is 1 there",
        "city: 5 missing values are the level '(missing)'",
        "member: 3 missing values are the level '(missing)'",
    )
    # New rows get the mean of the fit, also after the encoding was saved.
    encoding = DesignEncoding.from_json(json.loads(json.dumps(design.encoding.to_json())))
    new = {"age": [np.nan, 30.0], "city": [None, "Oslo"], "member": [True, None]}
    x = dict(zip(design.names, encoding.apply(read_table(new)).x.T, strict=True))
    np.testing.assert_allclose(x["age"], [age.mean(), 30.0])
    np.testing.assert_array_equal(x["age_missing"], [1, 0])
    np.testing.assert_array_equal(x["city[T.(missing)]"], [1, 0])
    np.testing.assert_array_equal(x["member[T.(missing)]"], [0, 1])
    assert encoding.complete(read_table(new)).all()
    assert encoding == design.encoding


def test_columns_without_missing_values_stay_as_they_are(table):
    complete = table.dropna()
    plain, marked = (design_of(complete, response="y", missing=m) for m in ("raise", "indicator"))
    assert plain.names == marked.names and plain.encoding == marked.encoding
    design = design_of(table, response="y", missing="drop")
    assert len(design.y) == len(complete)
    assert design.encoding.notes_on_missing == [
        f"dropped {N - len(complete)} rows with missing values"
    ]


def test_fit_summary_and_predictions_say_so(table, tmp_path, capsys):
    table.to_csv(tmp_path / "t.csv", index=False)
    with warnings.catch_warnings(record=True, action="always") as caught:
        draws = tallmc.fit(
            "y ~ age + city",
            table,
            family="gaussian",
            missing="indicator",
            noise_variance=1.0,
            method=tallmc.methods.mala(0.002),
            chains=2,
            n_draws=20,
            progress=False,
        )
    assert any("age_missing is 1 there" in str(each.message) for each in caught)
    assert "age_missing is 1 there" in repr(draws.summary())
    assert "age_missing" in draws.values
    new = pd.DataFrame({"age": [np.nan, 30.0], "city": ["Rome", None]})
    assert np.isfinite(draws.predict(new).mean).all()
    by_city = tallmc.diagnose.marginal_effects(draws, column="city")
    assert by_city.labels == ("Rome − Oslo", "(missing) − Oslo")
    slope = tallmc.diagnose.marginal_effects(draws, column="age", n_draws=40).draws[:, 0]
    known = table["age"].notna().mean()  # rows without an age have no slope
    np.testing.assert_allclose(slope, known * draws.values["age"].ravel(), rtol=5e-3)
    draws.save(tmp_path / "draws.nc")
    loaded = tallmc.load(tmp_path / "draws.nc")
    np.testing.assert_allclose(loaded.predict(new).mean, draws.predict(new).mean, rtol=1e-5)
    short = ["--method", "mala", "--step-size", 0.002, "--chains", 2, "--draws", 4, "--thin", 1]
    command = ["fit", tmp_path / "t.csv", "--formula", "y ~ age + city", "--family", "gaussian"]
    command += [*short, "--burn-in", 0, "--noise-variance", 1, "-o", tmp_path / "out"]
    call(*command, "--missing", "indicator")
    assert "note: city: 5 missing values are the level '(missing)'" in capsys.readouterr().out
    assert "--missing must be one of raise, drop" in refused(capsys, *command, "--missing", "mean")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"age_missing": 1.0}, {"response": "y"}, "leave the name 'age_missing'"),
        ({"age": np.nan}, {"response": "y"}, "have values; got only missing"),
        ({}, {"formula": "y ~ C(age)"}, "Pass --categorical age"),
    ],
)
def test_what_cannot_be_filled_is_refused(table, change, options, message):
    with pytest.raises(tallmc.InvalidInput, match=message):
        design_of(table.assign(**change), **options)


@pytest.mark.parametrize("formula", ["y", "y ~ city + age", "y ~ s(age) + city"])
def test_a_row_store_marks_missing_values_as_a_table_does(table, formula, tmp_path):
    source = table.drop(columns="member")
    source.to_csv(tmp_path / "t.csv", index=False)
    options = {"response": "y", "missing": "indicator", "progress": False}
    manifest = tallmc.ingest(tmp_path / "t.csv", tmp_path / "rows", **options)
    assert manifest.n_rows == N - 2  # without a response
    model = {"family": "gaussian", "noise_variance": 1.0}
    in_memory = regression_problem(source, regression_model(formula, missing="indicator", **model))
    on_disk = regression_problem(tmp_path / "rows", regression_model(formula, **model))
    names = in_memory.form.columns.names
    assert sorted(on_disk.form.columns.names) == sorted(names)
    said = on_disk.form.encoding.notes_on_missing
    assert said[0].startswith("age: 20 missing values are the mean")
    assert said[1] == "city: 5 missing values are the level '(missing)'"
    here = dict(zip(names, np.asarray(in_memory.posterior.rows.columns.x).T, strict=True))
    there = on_disk.posterior.rows.in_memory().columns
    columns = dict(zip(on_disk.form.columns.names, np.asarray(there.x).T, strict=True))
    for name in names:
        if "s(" not in name:
            np.testing.assert_allclose(columns[name], here[name], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(there.y, in_memory.posterior.rows.columns.y, rtol=1e-4, atol=1e-5)
    # New rows are filled in the same way, also after the fit was saved.
    encoding = on_disk.form.encoding
    encoding = DesignEncoding.from_json(
        json.loads(json.dumps(encoding.to_json())), encoding.formula
    )
    new = read_table({"age": [np.nan, 30.0], "city": [None, "Oslo"]})
    x = dict(zip(encoding.scaled.names, np.asarray(encoding.apply(new).x).T, strict=True))
    assert (x["age_missing"][0] > 0 > x["age_missing"][1]) and np.isfinite(list(x.values())).all()


def test_rows_that_are_added_to_a_store_are_marked_as_its_own(table, tmp_path):
    options = {"response": "y", "missing": "indicator", "progress": False}
    source = table.drop(columns="member")
    tallmc.ingest(source, tmp_path / "rows", **options)
    before = np.asarray(tallmc.rows.open(tmp_path / "rows").in_memory().columns["age"])
    for rows in (source, source.dropna()):
        tallmc.ingest(rows, tmp_path / "rows", append=True, missing="indicator", progress=False)
    after = tallmc.rows.open(tmp_path / "rows").in_memory().columns
    np.testing.assert_array_equal(after["age"][N - 2 : 2 * N - 4], before)
    assert float(np.max(after["age_missing"][2 * N - 4 :])) < 0
    tallmc.ingest(source.dropna(), tmp_path / "complete", response="y", progress=False)
    with pytest.raises(tallmc.InvalidInput, match="only where the row store marks them"):
        tallmc.ingest(source, tmp_path / "complete", append=True, missing="indicator")
    with pytest.raises(tallmc.InvalidInput, match=r"empty: 198 missing.* --missing indicator"):
        tallmc.ingest(source.assign(empty=np.nan), tmp_path / "other", **options)
