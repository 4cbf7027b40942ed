"""`tallmc fit` reads the tables that users have, and says in one line what it cannot read."""

import gzip
import io
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from rich.console import Console

from problems import slow_after
from tallmc.cli.output import in_lines, print_coefficients
from test_cli import call, refused

N = 120
SHORT = ["--method", "mala", "--chains", 2, "--draws", 4, "--thin", 1, "--burn-in", 0]
SHORT += ["--step-size", 0.01]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(5)
    age, income = rng.uniform(20, 60, N).round(2), rng.lognormal(size=N).round(3)
    bought = np.where(rng.random(N) < 0.5, "yes", "no")
    return pd.DataFrame({"age": age, "income": income, "bought": bought})


def fit(path, out, *options, family="bernoulli"):
    """Fit `bought` and return the exit status; four draws are too few to be trusted."""
    given = [] if "--formula" in options else ["--response", "bought"]
    return call("fit", path, *given, "--family", family, "-o", out, *SHORT, *options)


def posterior(out):
    with xr.open_datatree(out / "draws.nc") as tree:
        return tree["posterior"].to_dataset().load()


@pytest.fixture(scope="module")
def of_csv(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("csv")
    frame.to_csv(folder / "t.csv", index=False)
    assert fit(folder / "t.csv", folder / "out") == 3
    return posterior(folder / "out")


def written(kind, frame, folder, monkeypatch):
    text = frame.to_csv(index=False)
    path = folder / f"t.{kind}"
    if kind == "csv.gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif kind == "tsv":
        frame.to_csv(path, index=False, sep="\t")
    elif kind == "semicolons.csv":
        frame.to_csv(path, index=False, sep=";", decimal=",")
    elif kind == "spaces.csv":
        path.write_text(text.replace("age,income,bought", " age, income , bought", 1))
    elif kind == "folder":
        path.mkdir()
        frame[:50].to_parquet(path / "part-0.parquet")
        frame[50:].to_parquet(path / "part-1.parquet")
    else:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return "-"
    return path


@pytest.mark.parametrize(
    "kind",
    slow_after(1, ["csv.gz", "tsv", "semicolons.csv", "spaces.csv", "folder", "standard input"]),
)
def test_every_kind_of_table_gives_the_draws_of_the_csv_file(
    kind, frame, of_csv, tmp_path, monkeypatch, capsys
):
    assert fit(written(kind, frame, tmp_path, monkeypatch), tmp_path / "out") == 3
    out = capsys.readouterr().out
    assert "read: 120 rows, 2 columns and the response bought from" in out
    assert "note: response bought: 'yes' counts as 1" in out
    xr.testing.assert_identical(posterior(tmp_path / "out").drop_attrs(), of_csv.drop_attrs())


def test_a_run_on_standard_input_is_resumed_with_the_table(frame, tmp_path, monkeypatch, capsys):
    path = written("standard input", frame, tmp_path, monkeypatch)
    assert fit(path, tmp_path / "out", "--store", tmp_path / "run") == 3
    capsys.readouterr()
    message = refused(capsys, "resume", tmp_path / "run", "--draws", 8)
    assert "Pass --table with the file" in message
    frame.to_csv(tmp_path / "t.csv", index=False)
    table = ["--table", tmp_path / "t.csv", "--no-progress"]
    assert call("resume", tmp_path / "run", "--draws", 8, *table) == 3


@pytest.mark.slow
def test_identifiers_weights_and_text_are_noted(frame, tmp_path, capsys):
    rng = np.random.default_rng(0)
    region = rng.choice(["north", "south"], N)
    odd = frame.assign(id=np.arange(N), weight=rng.integers(1, 4, N), region=region)
    odd.to_csv(tmp_path / "t.csv", index=False)
    assert fit(tmp_path / "t.csv", tmp_path / "all") == 3
    out = capsys.readouterr().out
    assert "note: column 'id' looks like an identifier" in out and "--exclude" in out
    assert "note: column 'weight' is a covariate; if it weights the rows, pass --weights" in out
    assert "note: region: 2 levels, baseline 'north'" in out
    assert list(posterior(tmp_path / "all")) == [
        "Intercept",
        "age",
        "income",
        "id",
        "weight",
        "region",
    ]
    options = ["--exclude", "id", "--exclude", "region", "--weights", "weight"]
    assert fit(tmp_path / "t.csv", tmp_path / "chosen", *options) == 3
    assert "note: column" not in capsys.readouterr().out
    assert list(posterior(tmp_path / "chosen")) == ["Intercept", "age", "income"]
    description = json.loads((tmp_path / "chosen" / "fit.json").read_text())["description"]
    assert description["weights"] == "weight"


def test_latin_1_is_read_and_said(frame, of_csv, tmp_path, capsys):
    renamed = frame.rename(columns={"age": "größe"})
    renamed.to_csv(tmp_path / "t.csv", index=False, encoding="latin-1")
    assert fit(tmp_path / "t.csv", tmp_path / "out") == 3
    assert "note: t.csv is not UTF-8: read as Windows-1252" in capsys.readouterr().out
    np.testing.assert_array_equal(posterior(tmp_path / "out")["größe"], of_csv["age"])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([f"1,{k:03}" for k in range(N)], "income"),
        ([10**18 + k for k in range(N)], "hold numbers below 2^53"),
        (pd.date_range("2020-01-01", periods=N), "Turn dates into numbers first"),
        ([None, *range(1, N)], "Drop these rows with --missing drop, mark them with --missing"),
        (["p"] * N, "income"),
        ([f"name {k}" for k in range(N)], "income"),
    ],
    ids=["thousands", "1e18", "dates", "missing", "constant text", "many levels"],
)
def test_columns_that_cannot_be_used_get_one_line_with_the_cure(
    frame, tmp_path, capsys, column, message
):
    path = tmp_path / "t.csv"
    frame.assign(income=column).to_csv(path, index=False)
    options = ["--response", "bought", "--family", "bernoulli", "-o", tmp_path / "out", *SHORT]
    assert message in refused(capsys, "fit", path, *options)
    assert not (tmp_path / "out").exists()


def test_a_separator_that_cannot_be_detected_is_named(frame, of_csv, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False, sep="^")
    assert fit(tmp_path / "t.csv", tmp_path / "out", "--separator", "^") == 3
    xr.testing.assert_identical(posterior(tmp_path / "out").drop_attrs(), of_csv.drop_attrs())


@pytest.mark.parametrize("family", slow_after(1, ["Bernoulli", "logistic", "LOGIT", "binary"]))
def test_families_have_other_names(frame, of_csv, tmp_path, family):
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert fit(tmp_path / "t.csv", tmp_path / "out", family=family) == 3
    xr.testing.assert_identical(posterior(tmp_path / "out").drop_attrs(), of_csv.drop_attrs())


@pytest.mark.slow
def test_a_plain_formula_is_not_passed_again_to_resume_and_report(frame, tmp_path, capsys):
    path, run = tmp_path / "t.csv", tmp_path / "run"
    frame.to_csv(path, index=False)
    formula = ["--formula", "bought ~ age * income"]
    assert fit(path, tmp_path / "out", *formula, "--store", run, "--standardised") == 3
    out = capsys.readouterr().out
    assert "age:income" in out and "Results are in standardised units." in out
    assert "prior: Intercept ~ normal(2.5); age ~ normal(" in out
    assert "be that of the fit" in refused(capsys, "resume", run, "--formula", "bought ~ age")
    assert call("resume", run, "--draws", 8, "--no-progress") == 3
    assert call("report", run, "-o", tmp_path / "page.html") == 0
    page = (tmp_path / "page.html").read_text()
    assert "age:income" in page and "bernoulli" in page
    shutil.move(path, tmp_path / "moved.csv")
    assert call("report", run, "-o", tmp_path / "page.html") == 0


def test_help_of_fit_explains_every_choice(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert call("fit", "--help") == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for said in (
        "--formula",
        "--prior",
        "--prior-only",
        "--separator",
        "--exposure",
        "--missing",
        "--standardised",
        "normal(2.5 sd(y)/sd(x)), as in rstanarm",
        "binomial, gaussian, poisson, negative_binomial, categorical, ordinal, student_t, gamma",
        "- for standard input",
        "fit.json",
        "pass only formulas that you trust",
    ):
        assert said in out, said


NAMES = [
    "Intercept",
    "age:C(region)[south]",
    "C(shop):C(region)[a shop of its own, south]",
    "a_name_that_is_longer_than_the_room_for_it",
]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_coefficients_fit_the_terminal_and_are_broken_between_words(capsys, width):
    summary = pd.DataFrame(
        dict.fromkeys(("mean", "sd", "q05", "q95", "ess_bulk", "rhat"), -1234.5), index=NAMES
    )
    headings = {name: name for name in summary}
    print_coefficients(Console(width=width), summary, headings)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    shown = [name for name in NAMES if name in out]
    assert shown == (NAMES if width == 200 else NAMES[:2] if width == 80 else NAMES[:1])


def test_lines_of_a_name_are_broken_where_it_has_parts():
    for name in (*NAMES, "x" * 50):
        for width in range(12, 60):
            lines = in_lines(name, width).splitlines()
            assert "".join(lines).replace(" ", "") == name.replace(" ", "")
            assert max(map(len, lines)) <= width
    assert in_lines(NAMES[1], 19).splitlines() == ["age:", "C(region)[south]"]


def test_prior_only_writes_the_picture_of_the_priors_and_no_draws(frame, tmp_path, capsys):
    frame.to_csv(tmp_path / "t.csv", index=False)
    out, options = tmp_path / "out", ["--prior", "normal(1)", "--prior-only"]
    refused_store = ("--store", tmp_path / "run", *options)
    assert fit(tmp_path / "t.csv", out, *refused_store) == 2
    assert "--store must be left out with --prior-only" in " ".join(capsys.readouterr().err.split())
    assert fit(tmp_path / "t.csv", out, *options) == 0
    assert [path.name for path in out.iterdir()] == ["prior.html"]
    page = (out / "prior.html").read_text()
    assert "Prior predictive check of bought" in page and "age ~ normal(1)" in page
    assert "wrote: prior.html in" in capsys.readouterr().out
