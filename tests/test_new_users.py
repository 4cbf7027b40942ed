"""What new users met: each was a surprise, a contradiction or a cure that did not work."""

import contextlib
import dataclasses
import inspect
import json
import re
import sys
import warnings
from pathlib import Path

import arviz_plots
import arviz_stats
import numpy as np
import pandas as pd
import pytest

import tallmc
from tallmc._core.arrays import layout_of
from tallmc._core.statistics import agreement, ess, rhat
from tallmc._fit.coefficients import Coefficients, DesignColumns
from tallmc._fit.fit import regression_problem
from tallmc._fit.model import RegressionModel
from tallmc._fit.reading import read_table
from tallmc.cli import app, main
from tallmc.cli.fit import FitProblem
from tallmc.report import write_report
from tallmc.results.report import _convergence_doubts


def quietly(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)


def call(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    age, city = (
        rng.uniform(20, 60, 400),
        rng.choice(["Bonn", "Jena", "Ulm"], 400, p=[0.2, 0.3, 0.5]),
    )
    buys = rng.random(400) < 1 / (1 + np.exp(4 - 0.1 * age + (city == "Ulm")))
    return pd.DataFrame({"age": age, "city": city, "buys": buys.astype(int)})


@pytest.fixture(scope="module")
def run(tmp_path_factory, table):
    """A stored run of short chains, and its draws: R-hat and ESS differ between coordinates."""
    path = tmp_path_factory.mktemp("run") / "run"
    options = {"chains": 4, "n_draws": 250, "burn_in": 30, "store": path, "progress": False}
    method = tallmc.methods.mala(0.03)
    return path, quietly(
        tallmc.fit, "buys ~ age + city", table, family="bernoulli", method=method, **options
    )


# Health, table, page and store state the same numbers


def test_health_states_the_numbers_of_the_table(run, tmp_path, capsys):
    path, draws = run
    table = draws.summary()
    assert draws.report.rhat == pytest.approx(table["rhat"].max(), rel=1e-9)
    assert draws.report.ess == pytest.approx(table["ess_bulk"].min(), rel=1e-9)
    loaded = tallmc.load(path)
    assert str(loaded.report) == str(draws.report)
    call("diagnose", path, "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["ess"], found["rhat"]) == (draws.report.ess, draws.report.rhat)
    write_report(path, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    cells = re.findall(r"<b>([\d.,]+)</b><span>(effective draws|largest R-hat)", page)
    assert [number for number, _ in cells] == [
        f"{round(draws.report.ess):,}",
        f"{draws.report.rhat:.3f}",
    ]


def test_draws_are_judged_in_the_coordinates_that_are_shown(run, table):
    """The intercept at age 0 mixes slowly; that of the sampler, at the mean age, does not."""
    _, draws = run
    x = np.random.default_rng(0).normal(size=(4, 250, 2))
    slow, ratio = np.cumsum(x[:, :, 1], axis=1) / 40, table.age.mean() / table.age.std(ddof=0)
    columns = DesignColumns(
        ("Intercept", "age"),
        {"Intercept": (0,), "age": (1,)},
        np.array([0.0, ratio]),
        np.array([1.0, 1.0]),
    )
    layout, _ = layout_of({"beta": np.zeros(2)})
    positions = np.stack([slow + ratio * x[:, :, 0], x[:, :, 0]], axis=2)
    judged = dataclasses.replace(
        draws, positions=positions, layout=layout, quantities=Coefficients(layout, columns)
    )
    shown, report = judged.summary(), judged.report
    assert report.ess == pytest.approx(shown["ess_bulk"]["Intercept"], rel=1e-6)
    assert report.rhat == pytest.approx(shown["rhat"]["Intercept"], rel=1e-6)
    assert report.ess < ess(positions).min() / 5


def test_the_largest_rhat_is_that_of_the_table_although_another_is_worse():
    """The R-hat that exceeds its own limit most is not the largest if its ESS is larger."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 400, 3))
    for t in range(1, 400):
        x[:, t, 1] = 0.95 * x[:, t - 1, 1] + 0.31 * x[:, t, 1]
    found = agreement(x)
    assert found.largest_rhat == pytest.approx(rhat(x).max(), rel=1e-12)
    np.testing.assert_allclose(found.bulk, ess(x), rtol=1e-12)


def test_a_small_goal_that_was_reached_is_no_doubt(run):
    _, draws = run
    settings = draws.settings | {"ess": 20}
    few = dataclasses.replace(draws, settings=settings)
    assert not any("effective draws" in doubt for doubt in few.report.doubts)
    assert any("effective draws" in doubt for doubt in draws.report.doubts)


@pytest.mark.parametrize(("ess", "of_what"), [((167.0, 400.0), "'s spread"), ((293.0, 400.0), "")])
def test_a_doubt_about_fewer_effective_draws_than_the_table_has_says_which(ess, of_what):
    found = agreement(np.random.default_rng(0).normal(size=(4, 50, 2)))
    judged = found._replace(ess=np.array(ess), bulk=np.array([293.0, 400.0]), rhat=1.0)
    (doubt,) = _convergence_doubts(judged, 350)
    expected = f"only {min(ess):.0f} effective draws for the worst parameter{of_what}."
    assert doubt.startswith(expected)


def test_the_results_of_a_fit_are_no_run(tmp_path):
    (tmp_path / "fit.json").write_text("{}")
    with pytest.raises(tallmc.InvalidInput, match=r"got the results of a fit\..* fit again"):
        write_report(tmp_path, tmp_path / "page.html")


# One rule for baselines and levels


@pytest.fixture(scope="module")
def row_store(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("rows") / "rows"
    tallmc.ingest(table, folder, response="buys", progress=False)
    return folder


def notes_of(data, formula="buys", **options):
    problem = regression_problem(data, RegressionModel("bernoulli", **options, **named(formula)))
    return problem.notes, problem.form.columns.names


def named(formula):
    return {"formula": formula} if "~" in formula else {"response": formula}


def test_tables_row_stores_and_parquet_in_place_have_one_baseline(table, row_store, tmp_path):
    """The first level, although another is the most frequent one."""
    table.to_parquet(tmp_path / "table.parquet")
    problem = FitProblem.read(
        tmp_path / "table.parquet", RegressionModel("bernoulli", response="buys"), True
    ).regression
    expected = notes_of(table)
    assert expected[0] == ("city: 3 levels, baseline 'Bonn'",)
    assert notes_of(row_store) == expected == (problem.notes, problem.form.columns.names)


def test_the_order_of_a_category_decides_everywhere(table, tmp_path):
    order = pd.CategoricalDtype(["Ulm", "Bonn", "Jena"], ordered=True)
    ordered = table.assign(city=table.city.astype(order))
    ordered.to_parquet(tmp_path / "table.parquet")
    tallmc.ingest(ordered, tmp_path / "frame", response="buys", progress=False)
    tallmc.ingest(tmp_path / "table.parquet", tmp_path / "file", response="buys", progress=False)
    for data in (ordered, tmp_path / "table.parquet", tmp_path / "frame", tmp_path / "file"):
        assert notes_of(data)[0] == ("city: 3 levels, baseline 'Ulm'",)


@pytest.mark.parametrize(
    ("terms", "note"),
    [
        ("city", "city: 3 levels, baseline 'Bonn'"),
        ("C(city, Treatment('Ulm')) + age", "city: 3 levels, baseline 'Ulm'"),
        ("0 + city", "city: 3 levels"),
        ("C(city, Sum)", "city: 3 levels"),
    ],
)
def test_notes_name_the_baseline_of_the_formula(table, terms, note):
    assert notes_of(table, f"buys ~ {terms}")[0] == (note,)


def test_tables_and_row_stores_have_one_limit_on_levels(tmp_path):
    rng = np.random.default_rng(0)
    for count, fits in ((100, True), (101, False)):
        codes = np.r_[np.arange(count), rng.integers(count, size=300)]
        many = {"x": np.char.add("level ", codes.astype(str)), "buys": codes % 2}
        tallmc.ingest(many, tmp_path / str(count), response="buys", progress=False)
        for data in (many, tmp_path / str(count)):
            with (
                contextlib.nullcontext()
                if fits
                else pytest.raises(tallmc.InvalidInput, match="at most 100 levels")
            ):
                notes_of(data)
    default = inspect.signature(tallmc.ingest).parameters["max_levels"].default
    assert inspect.signature(app.ingest).parameters["max_levels"].default == default


# Runs that would not end


@pytest.mark.parametrize("family", ["gaussian", "student_t"])
def test_unknown_noise_needs_more_rows_than_coefficients(family):
    rng = np.random.default_rng(0)
    few = pd.DataFrame(rng.normal(size=(4, 4)), columns=["a", "b", "c", "y"])
    with pytest.raises(tallmc.InvalidInput, match=r"more rows than coefficients \(4\).* 4 rows"):
        tallmc.fit("y ~ a + b + c", few, family=family)
    assert (
        regression_problem(few, RegressionModel(family, response="y", exclude=("a",))).notes == ()
    )
    if family == "gaussian":
        known = RegressionModel(family, response="y", noise_variance=1.0)
        assert regression_problem(few, known).posterior.dim == 4


def test_the_default_prior_is_the_one_that_the_docs_name(table):
    """rstanarm's: 2.5/sd(x) for a bernoulli response, 2.5 for the intercept at the means."""
    problem = regression_problem(table, RegressionModel("bernoulli", formula="buys ~ age"))
    expected = f"Intercept ~ normal(2.5); age ~ normal({2.5 / table.age.std(ddof=0):.4g})"
    assert problem.posterior.description["prior"] == expected
    for page in ("tables.md", "priors.md"):
        text = (Path(__file__).parents[1] / "docs" / page).read_text()
        assert "rstanarm" in text and "of Bambi and" not in text


# Formulas and predictions


@pytest.fixture(scope="module")
def spline(table):
    options = {"chains": 2, "n_draws": 30, "burn_in": 10, "progress": False}
    method = tallmc.methods.mala(0.02)
    return quietly(
        tallmc.fit, "buys ~ bs(age, df=4)", table, family="bernoulli", method=method, **options
    )


def test_marginal_effects_of_a_spline_stay_within_its_range(spline, table):
    effect = tallmc.diagnose.marginal_effects(spline, table, "age")
    inside = table[table.age.between(25, 55)]
    slope = [spline.predict(inside.assign(age=inside.age + h)).mean for h in (0.1, -0.1)]
    close = tallmc.diagnose.marginal_effects(spline, inside, "age")
    assert close.mean[0] == pytest.approx(((slope[0] - slope[1]) / 0.2).mean(), rel=0.02)
    assert np.isfinite(effect.mean).all()


def test_a_spline_beyond_its_range_has_a_cure_that_works(spline, table):
    old = pd.DataFrame({"age": [90.0]})
    with pytest.raises(tallmc.InvalidInput, match='extrapolation="clip"'):
        spline.predict(old)
    clipped = "buys ~ bs(age, df=4, extrapolation='clip')"
    encoding = regression_problem(table, RegressionModel("bernoulli", formula=clipped))
    design = encoding.form.encoding.apply(read_table(old))
    assert np.isfinite(design.x).all()


def test_predictions_keep_the_index_and_have_nan_where_asked(run, table):
    _, draws = run
    rows = table.head(4).set_index(pd.Index(["a", "b", "c", "d"]))
    rows.loc["b", "age"] = np.nan
    with pytest.raises(tallmc.InvalidInput, match=r"age: 1 missing.* missing='nan'"):
        draws.predict(rows)
    found = draws.predict(rows, missing="nan").to_frame()
    assert list(found.index) == list(rows.index)
    assert found["mean"].isna().tolist() == [False, True, False, False]
    whole = draws.predict(rows.drop("b")).to_frame()
    pd.testing.assert_frame_equal(found.drop("b"), whole)


def test_rows_with_missing_values_are_predicted_from_the_shell(run, tmp_path, capsys):
    (tmp_path / "new.csv").write_text("age,city\n30,Ulm\n,Bonn\n")
    command = ("predict", run[0], tmp_path / "new.csv", "-o", tmp_path / "p.csv")
    assert call(*command) == 2
    message = capsys.readouterr().err
    assert "--missing nan." in message and "--missing drop" not in message and ".." not in message
    assert call(*command, "--missing", "nan") == 0
    assert pd.read_csv(tmp_path / "p.csv")["mean"].isna().tolist() == [False, True]


@pytest.mark.parametrize(
    ("term", "role"),
    [
        ("offset(age)", "offset"),
        ("offset(log(age))", "exposure"),
        ("offset(np.log(age))", "exposure"),
    ],
)
def test_an_offset_may_be_part_of_the_formula(table, term, role):
    model = RegressionModel("poisson", formula=f"buys ~ city + {term}")
    assert (model.formula, getattr(model, role)) == ("buys ~ city", "age")
    given = RegressionModel("poisson", formula="buys ~ city", **{role: "age"})
    first, second = (regression_problem(table, each).posterior for each in (model, given))
    np.testing.assert_array_equal(first.data.offset, second.data.offset)


def test_natural_splines_get_a_hint_that_works(table):
    free = regression_problem(table, RegressionModel("bernoulli", formula="buys ~ cr(age, df=4)"))
    (note,) = free.notes
    term = note.partition("write ")[2]
    assert term == "cr(age,df=4, constraints='center')"
    fixed = regression_problem(table, RegressionModel("bernoulli", formula=f"buys ~ {term}"))
    assert fixed.notes == ()
    ranks = [np.linalg.matrix_rank(each.posterior.data.x) for each in (free, fixed)]
    assert ranks == [4, 5] and fixed.posterior.dim == free.posterior.dim == 5


# Messages name arguments of Python, or options of the command, and their cures work


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("buys ~ agee", {}, r"^formula must name a column of DataFrame; got 'agee'\. The"),
        ("boys", {}, r"^formula must name a column of DataFrame; got 'boys'"),
        ("buys ~ big city", {}, r"Put names with spaces or signs into backquotes: `big city`\.$"),
        ("my buys ~ age", {}, r"backquotes: `my buys`\.$"),
        (" ~ age", {}, r"Name the response, as in 'y ~ age'\.$"),
        ("log(age) ~ city", {}, r"Put the transformed response into a column of the table first"),
        ("buys ~ age", {"family": "normel"}, r"^family must be one of"),
        ("buys ~ age + gone", {}, r"missing='drop', mark .*, fill in .* with exclude\.$"),
        ("buys", {}, r"missing='drop', mark"),
        ("buys ~ age", {"prior": {"city": "normal(1)"}}, r"^prior must name terms"),
        ("buys ~ age", {"offset": "size"}, r"^offset must name a column"),
    ],
)
def test_errors_of_python_speak_python(table, formula, options, message):
    data = table.assign(
        **{"big city": 1.0, "my buys": 1, "gone": np.where(table.age > 30, 1, np.nan)}
    )
    with pytest.raises(tallmc.InvalidInput, match=message) as caught:
        tallmc.fit(formula, data, **({"family": "bernoulli"} | options))
    assert not re.search(r"--|TABLE|\.\.", str(caught.value))


def test_swapped_arguments_and_loaded_draws_without_rows_have_a_cure(run, table):
    with pytest.raises(tallmc.InvalidInput, match="The formula comes first"):
        tallmc.fit(table, "buys ~ age", family="bernoulli")
    loaded = tallmc.load(run[0])
    with pytest.raises(tallmc.InvalidInput, match=r"^rows must .* pass the table"):
        tallmc.diagnose.marginal_effects(loaded, column="age")
    with pytest.raises(tallmc.InvalidInput, match=r"^rows must .* pass the table"):
        tallmc.compare([loaded, loaded])
    averaged = tallmc.diagnose.marginal_effects(loaded, table, column="age")
    assert averaged.column == "age"
    with pytest.raises(tallmc.InvalidInput, match=r"more than 100 groups"):
        run[1].group_effects()


def test_errors_of_the_command_name_options_only(table, tmp_path, capsys):
    table.to_csv(tmp_path / "t.csv", index=False)
    for options in (("--formula", "buys ~ agee"), ("--response", "buys", "--weights", "w")):
        family = ("--family", "bernoulli", "-o", tmp_path / "out")
        assert call("fit", tmp_path / "t.csv", *options, *family) == 2
        message = capsys.readouterr().err
        assert f"tallmc: {options[-2]} must name a column" in message and "(" not in message


def test_cures_of_packages_that_are_missing_can_be_pasted(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(ImportError, match=r'pip install "tallmc\[numpyro\]"'):
        tallmc.from_numpyro(lambda: None, {"x": [1.0]}, "rows")


def test_messages_have_one_full_stop():
    assert str(tallmc.InvalidInput("a", "be b", "that failed.", "Do c.")).count("..") == 0


# After a fit: leave-one-out, and groups for ArviZ


def test_leave_one_out_after_a_fit_needs_the_table_only(run, table):
    _, draws = run
    problem = regression_problem(table, RegressionModel("bernoulli", formula="buys ~ age + city"))
    found = tallmc.diagnose.loo(draws, table, n=300)
    expected = tallmc.diagnose.loo(draws, problem.posterior, n=300)
    assert (found.elpd, found.se) == pytest.approx((expected.elpd, expected.se), rel=1e-9)


@pytest.mark.filterwarnings("ignore:.*(binary|discrete|longer than draw):UserWarning")
def test_arviz_gets_counts_as_integers(run, table):
    _, draws = run
    tree = draws.to_datatree(posterior_predictive=table, log_likelihood=table)
    simulated, observed = tree["posterior_predictive"]["buys"], tree["observed_data"]["buys"]
    assert simulated.dtype.kind == observed.dtype.kind == "i"
    np.testing.assert_array_equal(observed, table.buys)
    assert arviz_stats.loo(tree).elpd == pytest.approx(
        tallmc.diagnose.loo(draws, table, n=400).elpd, rel=1e-6
    )
    for plot in (
        arviz_plots.plot_ppc_dist,
        arviz_plots.plot_ppc_rootogram,
        arviz_plots.plot_loo_pit,
        arviz_plots.plot_forest,
        arviz_plots.plot_trace_dist,
    ):
        assert plot(tree, backend="none") is not None
    pits = arviz_stats.loo_pit(tree)
    assert pits["buys"].shape == (400,) and bool(((pits["buys"] >= 0) & (pits["buys"] <= 1)).all())


def test_simulated_responses_and_densities_have_the_same_draws(run, table, monkeypatch):
    """More draws than a prediction uses, as the default has: `loo_pit` aligns the two groups."""
    monkeypatch.setattr("tallmc.results.draws.MOST_DRAWS", 100)
    _, draws = run
    tree = draws.to_datatree(posterior_predictive=table[:50], log_likelihood=table[:50])
    assert dict(tree["posterior_predictive"].sizes) == dict(tree["log_likelihood"].sizes)
    assert arviz_stats.loo_pit(tree)["buys"].shape == (50,)
    alone = draws.to_datatree(posterior_predictive=table[:50])
    assert alone["posterior_predictive"].sizes["draw"] == 25
