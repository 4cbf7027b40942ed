"""What users see first: the names of the package, the help, summaries and notebooks."""

import re
import runpy
import sys

import numpy as np
import pandas as pd
import pytest

import tallmc
from problems import linear
from tallmc.results.report import RunReport, cell_text
from tallmc.results.summary import COLUMNS, SummaryTable
from test_cli import call

COMMANDS = ["methods", "ingest", "fit", "resume", "diagnose", "report", "predict", "demo"]


def test_dir_lists_public_names_only():
    assert dir(tallmc) == sorted(tallmc.__all__)


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tallmc", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("tallmc", run_name="__main__")
    assert (ended.value.code or 0, capsys.readouterr().out) == (0, f"tallmc {tallmc.__version__}\n")


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_flags_have_no_type_in_the_help(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    for option in ("--help", "-h"):
        assert call(*filter(None, [command]), option) == 0
        out = capsys.readouterr().out
        assert "bool" not in out.replace("booleans", "")
        assert re.search(r"--help +-h +Show this message and exit\.", out)
        assert max(map(len, out.splitlines())) <= 80


def test_every_equation_names_its_paper_and_year():
    for name, named in tallmc.methods.METHODS.items():
        assert re.match(r"[A-Z][a-z]+.* \((19|20)\d\d\)", named.reference), name


@pytest.mark.slow
def test_one_of_a_thing_is_singular(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=100)
    y = (rng.random(100) < 0.5).astype(int)
    pd.DataFrame({"x": x, "y": y}).to_csv(tmp_path / "t.csv", index=False)
    options = ["--method", "sgld", "--batch-size", 1, "--chains", 1, "--draws", 4, "--burn-in", 0]
    status = call(
        "fit", tmp_path / "t.csv", "--family", "bernoulli", *options, "-o", tmp_path / "out"
    )
    assert status in (0, 3)
    out = capsys.readouterr().out
    assert "100 rows, 1 column and the response y" in out
    assert "1 row per step, 1 chain of 4 draws" in out


@pytest.fixture(scope="module")
def draws():
    posterior = linear(n_rows=50)
    return tallmc.sample(
        posterior, tallmc.methods.sgld(1e-3, batch_size=5), chains=2, n_draws=50, progress=False
    )


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("name", ["x", "a_name_longer_than_most_terminals_have_room_for" * 3])
def test_a_printed_summary_fits_and_shows_ess_and_rhat(draws, monkeypatch, width, name):
    monkeypatch.setenv("COLUMNS", str(width))
    summary = draws.summary(labels={"beta": ["intercept", name][: draws.positions.shape[2]]})
    lines = str(summary).splitlines()
    shown = lines[0].split()
    assert max(map(len, lines)) <= width
    assert {"mean", "sd", "q05", "q95", "ess_bulk", "rhat"} <= set(shown)
    hidden = lines[-1].removeprefix("not shown: ").split(", ") if set(shown) < set(COLUMNS) else []
    assert sorted([*shown, *hidden]) == sorted(summary.columns)
    first = dict(zip(shown, lines[1].split()[1:], strict=True))
    for column, text in first.items():  # rounded in the text only
        last_digit = 10.0 ** -len(text.partition(".")[2])
        assert abs(float(text.replace(",", "")) - summary[column].iloc[0]) <= 0.501 * last_digit
    assert summary["mean"].iloc[0] == pytest.approx(
        draws.positions[:, :, 0].mean(dtype=float), rel=1e-12
    )


@pytest.mark.parametrize("value", [1.1402e-7, -7.302e-7, 3.2e-9, 0.00030267, 1.0000001])
@pytest.mark.parametrize("sd", [5.06e-7, 5.06e-5])
def test_small_numbers_are_short_and_right_to_a_hundredth_of_the_sd(value, sd):
    text = cell_text("mean", value, sd)
    assert abs(float(text) - value) <= 0.00501 * sd
    assert len(text) <= 9 or abs(value) > 1e-5


def test_a_long_summary_shows_its_ends(draws):
    long = pd.concat([draws.summary()] * 100)
    lines = str(long).splitlines()
    assert len(lines) < 20 and f"{len(long)} parameters" in lines


def test_a_summary_with_other_columns_is_printed_by_pandas(draws):
    summary = draws.summary()
    other = summary.assign(true=0.0)
    assert repr(other) == repr(pd.DataFrame(other))
    assert repr(summary[["mean"]]) == repr(pd.DataFrame(summary[["mean"]]))


def test_notebooks_show_the_verdict_first_and_escape_everything(draws):
    html = draws._repr_html_()
    assert html.index("verdict: ") < html.index("effective draws") < html.index("ess_bulk")
    assert html.index("verdict: ") < html.index("2 chains × 50 draws")
    assert html.count("<tr>") == 1 + draws.positions.shape[2]
    report = RunReport((), ("<script>1</script>",), 80.0, 1.2, None, None, None, None, (), None)
    shown = report._repr_html_()
    assert "<script>" not in shown and "doubt: &lt;script&gt;" in shown
    assert shown.index("verdict: doubtful") < shown.index("doubt: ")
    table = SummaryTable([[1.0] * len(COLUMNS)], index=["<script>x"], columns=list(COLUMNS))
    assert "<script>" not in table._repr_html_() and "&lt;script&gt;x" in table._repr_html_()


def test_a_notebook_shows_draws_that_have_no_summary():
    posterior = linear(n_rows=50)
    method = tallmc.methods.sgld(1e-3, batch_size=5)
    few = tallmc.sample(posterior, method, chains=2, n_draws=2, progress=False)
    assert "too few draws" in few._repr_html_() and "<table>" not in few._repr_html_()
