"""The examples of the README and of the pages of the site run in order. Part of `make docs`."""

import re
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def run_blocks(page: Path, given: dict | None = None) -> dict:
    """Run the Python blocks of a page in one namespace, which is returned."""
    names: dict = dict(given or {})
    with jax.enable_x64(False):
        for block in re.findall(
            r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
        ):
            exec(compile(block, page.name, "exec"), names)
    return names


def test_readme_example_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draws = run_blocks(README)["draws"]
    assert draws.report.trusted
    assert "verdict: " in capsys.readouterr().out
    run_blocks(ROOT / "docs" / "diagnostics.md", {"draws": draws})
    for name in ("forest.png", "traces.png"):  # the plots of arviz_plots
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_the_commands_of_the_readme_run_in_order(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(45, 12, 3_000)})
    table["clicked"] = (rng.random(len(table)) < 1 / (1 + np.exp(1 - table.age / 40))).astype(int)
    table.to_csv(tmp_path / "clicks.csv", index=False)
    table[["age"]].to_csv(tmp_path / "new.csv", index=False)
    commands = re.findall(
        r"`tallmc ([^`]+)`", README.read_text(encoding="utf-8").replace("\n", " ")
    )
    assert [command.split()[0] for command in commands] == ["fit", "predict", "report", "resume"]
    for command in commands:
        subprocess.run([sys.executable, "-m", "tallmc", *command.split()], cwd=tmp_path, check=True)
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == len(table)
    assert "clicked" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_examples_of_models_run(capsys):
    names = run_blocks(ROOT / "docs" / "models.md")
    assert names["draws"].ok.all()
    assert names["draws"].report.trusted
    assert names["share_right"] > 0.98
    assert "rhat" in capsys.readouterr().out


def test_examples_of_your_own_model_run():
    names = run_blocks(ROOT / "docs" / "own-model.md")
    slope = names["cauchy_draws"].params["slope"]
    assert abs(slope.mean() - 2.0) < 4.6 * slope.std()
    by_row, at_once = (
        names[name].potential(np.array([1.0, 2.0])) for name in ("cauchy", "at_once")
    )
    assert abs(by_row / at_once - 1) < 1e-5  # sums of 50,000 rows in single precision


def test_examples_of_compositions_run():
    names = run_blocks(ROOT / "docs" / "compositions.md")
    assert names["draws"].ok.all()
    assert names["whitened"].ok.all()


def test_examples_of_a_cluster_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_blocks(ROOT / "docs" / "cluster.md")["by_workers"].ok.all()


def test_examples_of_many_chains_run():
    names = run_blocks(ROOT / "docs" / "gpus.md")
    assert names["spread"].positions.shape == names["draws"].positions.shape == (256, 100, 5)
    assert names["spread"].ok.all()


def test_examples_of_tables_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes, and few effective draws in the second fit
        names = run_blocks(ROOT / "docs" / "tables.md")
    slope = names["draws"].values["age"]
    assert abs(slope.mean() - 0.04) < 4.6 * slope.std()
    assert "C(region) ~ laplace(1)" in capsys.readouterr().out
    assert (tmp_path / "draws.nc").stat().st_size > 0


def test_examples_of_stored_runs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name, n_rows in (("sales-2025.csv", 6_000), ("sales-2026-01.csv", 500)):
        age = random.normal(size=n_rows)
        bought = random.random(n_rows) < 1 / (1 + np.exp(-age))
        pd.DataFrame({"age": age, "bought": bought.astype(int)}).to_csv(name, index=False)
    names = run_blocks(ROOT / "docs" / "runs.md")
    assert names["draws"].positions.shape[1] == 2_000
    assert abs(names["sales"].values["age"].mean() - 1) < 0.2


def test_examples_of_simplices_run():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few effective draws
        names = run_blocks(ROOT / "docs" / "simplex.md")
    topics = names["draws"].values["topics"]
    assert topics.shape == (1, 500, 2, 4)


def test_examples_of_many_groups_run():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few effective draws
        names = run_blocks(ROOT / "docs" / "local.md")
    means = names["draws"].group_moments["logit"].mean
    assert np.corrcoef(means, names["logits"])[0, 1] > 0.5


def test_the_dynamics_of_the_walk_through_has_the_posterior():
    names = run_blocks(ROOT / "docs" / "adding-a-method.md")
    draws, exact = names["draws"], names["tallmc"].anchor.find_anchor(names["posterior"])
    assert draws.ok.all()
    sds = np.sqrt(np.diag(exact.covariance))
    shift = (draws.positions.mean(axis=(0, 1)) - exact.position) / sds
    assert abs(shift).max() < 0.5  # the posterior is nearly Gaussian, and its mode nearly its mean


def test_the_page_on_citing_shows_what_is_printed(capsys):
    run_blocks(ROOT / "docs" / "citing.md")
    shown = re.search(r"```text\n(.*?)```", (ROOT / "docs" / "citing.md").read_text(), re.DOTALL)
    assert shown is not None
    assert capsys.readouterr().out.strip() == shown[1].strip()


def test_examples_of_checking_run(capsys):
    names = run_blocks(ROOT / "docs" / "checking.md")
    assert names["draws"].report.trusted
    assert names["good"].report.trusted
    assert names["bad"].report.verdict == "doubtful"
    assert names["slow"].report.rhat > 1.1
    found = re.findall(r"^(\w+) +KSD ([\d.]+)", capsys.readouterr().out, re.MULTILINE)
    discrepancy = {name: float(value) for name, value in found}
    assert discrepancy["bad"] > discrepancy["good"]


def test_examples_of_smooths_run():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes on k
        names = run_blocks(ROOT / "docs" / "smooths.md")
    edf = names["draws"].smooths()["edf"]
    assert names["straighter"].smooths()["edf"]["s(age)"] < edf["s(age)"] < 9


def test_examples_of_priors_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # notes, and few effective draws
        names = run_blocks(ROOT / "docs" / "priors.md")
    default, narrow = names["default"].values[names["term"]], names["narrow"].values[names["term"]]
    rare, frequent = 0, 1  # islands and south
    shift = abs(default.mean(axis=(0, 1)) - narrow.mean(axis=(0, 1)))
    assert shift[frequent] < default[..., frequent].std() < shift[rare]
    assert "the rows do not determine beta[1] - beta[3]" in capsys.readouterr().out


def test_examples_of_predictions_run():
    names = run_blocks(ROOT / "docs" / "prediction.md")
    low, high = names["later"].low, names["later"].high
    assert low[1] > high[0] > 0
    np.testing.assert_allclose(names["prediction"].mean[0], 0.55, atol=0.05)
    estimate = names["estimate"]
    assert estimate.bad_share == 0 and abs(estimate.p_loo - 3) < 1


@pytest.mark.slow
def test_the_case_of_car_insurance_runs(shared, tmp_path, monkeypatch, capsys):
    with np.load(shared / "data" / "fremtpl2freq.npz", allow_pickle=False) as data:
        columns = {name: data[name] for name in data.files if not name.endswith("__levels")}
        levels = {name: data[f"{name}__levels"] for name in columns if f"{name}__levels" in data}
    for name, names in levels.items():
        columns[name] = names[columns[name]]
    pd.DataFrame(columns).to_csv(tmp_path / "freMTPL2freq.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names = run_blocks(ROOT / "docs" / "insurance.md")
    assert names["draws"].report.trusted
    assert (tmp_path / "insurance.png").exists()
    page = (ROOT / "docs" / "insurance.md").read_text(encoding="utf-8")
    printed = capsys.readouterr().out
    for line in ("610,213 policies", "tenth  1: 21", "surcharge      3,3"):
        assert line in page and line in printed
