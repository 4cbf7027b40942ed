"""Start, stop, resume, diagnose and report stored runs by command line; check exit statuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import tallmc
from tallmc._store import writer
from tallmc._store.reader import open_store
from test_cli import call, refused
from test_faults import small_disk

OPTIONS = [
    "--family",
    "bernoulli",
    "--method",
    "sgld_cv_ps",
    "--thin",
    2,
    "--burn-in",
    10,
    "--chains",
    2,
    "--no-progress",
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("table") / "patients.csv"
    x = rng.normal(size=(400, 2))
    y = rng.random(400) < 1 / (1 + np.exp(-x @ [1.0, -0.5]))
    pd.DataFrame({"age": x[:, 0], "<b>dose": x[:, 1], "y": y.astype(int)}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    """A short stored run."""
    folder = tmp_path_factory.mktemp("run")
    assert (
        call("fit", table, *OPTIONS, "--draws", 60, "-o", folder / "out", "--store", folder / "run")
        == 3
    )
    return folder / "run"


def coefficients(out):
    with xr.open_datatree(out / "draws.nc") as tree:
        posterior = tree["posterior"].to_dataset()
        return np.stack([posterior[name].values for name in posterior], axis=-1)


@pytest.mark.slow
def test_resume_extends_a_run_as_if_it_had_never_ended(run, table, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    assert (
        call(
            "resume", tmp_path / "run", "--draws", 140, "-o", tmp_path / "resumed", "--no-progress"
        )
        == 3
    )
    said = capsys.readouterr().out
    assert "400 rows, 2 columns and the response y" in said and "Intercept" in said
    assert call("fit", table, *OPTIONS, "--draws", 140, "-o", tmp_path / "whole") == 3
    np.testing.assert_array_equal(
        coefficients(tmp_path / "resumed"), coefficients(tmp_path / "whole")
    )
    content = [
        json.loads((tmp_path / out / "fit.json").read_text()) for out in ("resumed", "whole")
    ]
    assert content[0]["columns"] == content[1]["columns"] == ["Intercept", "age", "<b>dose"]
    assert content[0]["means"] == content[1]["means"]


@pytest.mark.slow
def test_resume_says_which_files_lack_the_new_draws(run, table, tmp_path, capsys):
    out, store = tmp_path / "out", tmp_path / "run"
    assert call("fit", table, *OPTIONS, "--draws", 60, "-o", out, "--store", store) == 3
    assert call("resume", store, "--no-progress") == 3  # no new draws
    assert "old: " not in capsys.readouterr().out
    assert call("resume", store, "--draws", 70, "--no-progress") == 3
    cure = f"`tallmc resume {store} -o {out} --overwrite`"
    old = f"old: draws.nc, summary.csv, fit.json in {out} lack the new draws; {cure} replaces"
    assert old in capsys.readouterr().out
    assert call("resume", store, "--draws", 80, "-o", out, "--overwrite", "--no-progress") == 3
    assert "old: " not in capsys.readouterr().out
    assert coefficients(out).shape[1] == 80
    assert call("resume", store, "--draws", 90, "-o", tmp_path / "new", "--no-progress") == 3
    assert f"fit.json in {out} lack the new draws" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_with_unknown_noise_is_resumed_and_reported(table, tmp_path):
    """The response, 0 or 1, serves as a number here."""
    options = ["gaussian" if option == "bernoulli" else option for option in OPTIONS]
    store = tmp_path / "run"
    short = ["--draws", 60, "-o", tmp_path / "short", "--store", store]
    assert call("fit", table, *options, *short) == 3
    resume = ["--draws", 140, "-o", tmp_path / "resumed", "--no-progress"]
    assert call("resume", store, *resume) == 3
    assert call("fit", table, *options, "--draws", 140, "-o", tmp_path / "whole") == 3
    trees = [xr.open_datatree(tmp_path / out / "draws.nc") for out in ("resumed", "whole")]
    for name in ("Intercept", "age", "_<b>dose", "sigma"):  # NetCDF has no names like "<b>dose"
        draws = [tree["posterior"][name].values for tree in trees]
        assert draws[0].shape == (2, 140)
        np.testing.assert_array_equal(*draws)
    assert call("report", store, "-o", tmp_path / "page.html") == 0
    assert "sigma" in (tmp_path / "page.html").read_text()


def test_a_table_that_has_moved_is_named_and_another_is_refused(run, table, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    moved, other = tmp_path / "moved.csv", tmp_path / "other.csv"
    shutil.copy(table, moved)
    frame = pd.read_csv(table)
    frame.loc[7, "age"] += 0.1
    frame.to_csv(other, index=False)
    assert call("resume", tmp_path / "run", "--table", moved, "--draws", 80, "--no-progress") == 3
    capsys.readouterr()
    said = refused(capsys, "resume", tmp_path / "run", "--table", other, "--draws", 90)
    assert "be resumed with the posterior it was started with" in said
    assert "be the folder of a run" in refused(capsys, "resume", tmp_path / "nowhere")
    assert "be a new folder; got one that holds a run" in refused(
        capsys, "fit", table, *OPTIONS, "-o", tmp_path / "out", "--store", tmp_path / "run"
    )


def test_diagnose_says_what_speaks_against_a_run_and_exits_with_1(run, capsys):
    assert call("diagnose", run) == 1  # 60 draws are too few
    said = capsys.readouterr().out
    assert said.startswith("warning: ")
    assert "effective draws for the worst parameter" in said
    assert call("diagnose", run, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["finished"] and (found["chains"], found["draws"], found["parameters"]) == (
        2,
        60,
        3,
    )
    assert any("Run longer" in message for message in found["warnings"])
    assert "be the folder of a run" in refused(capsys, "diagnose", run.parent)


def test_a_run_of_python_is_judged_and_reported_and_resumed_from_python(tmp_path, capsys):
    posterior = tallmc.models.linear_regression(
        np.ones((20, 1)), np.arange(20.0), prior_variance=1e6, noise_variance=1.0
    )
    tallmc.sample(
        posterior, tallmc.methods.mala(0.05), chains=4, n_draws=2000, store=tmp_path / "run"
    )
    assert call("diagnose", tmp_path / "run") == 0
    assert capsys.readouterr().out == "checked: nothing speaks against these draws\n"
    assert call("report", tmp_path / "run", "-o", tmp_path / "page.html") == 0
    assert "Checked: nothing speaks against these draws." in (tmp_path / "page.html").read_text()
    assert "come from `tallmc fit --store`" in refused(capsys, "resume", tmp_path / "run")


def test_diagnose_finds_damage(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "setup.npz").write_bytes(b"")
    assert call("diagnose", tmp_path / "run") == 1
    assert "1 files are damaged or missing (setup.npz)" in capsys.readouterr().out


@pytest.mark.slow
def test_report_is_written_with_the_names_of_the_table_and_what_needs_the_data(
    run, tmp_path, capsys
):
    assert call("report", run, "-o", tmp_path / "page.html", "-p", "age", "-p", "<b>dose") == 0
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;dose" in page and "<b>dose" not in page
    assert "patients.csv" in page
    assert "Distance between the draws so far and the posterior" in page
    assert "--parameter must be one of Intercept, age, <b>dose" in refused(
        capsys, "report", run, "-p", "weight"
    )


def check_stopped(number, said, folder):
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert f"stopped by {name}; `tallmc resume {folder / 'run'}` continues" in said
    opened = open_store(folder / "run")
    assert opened.lost == 0 and not opened.manifest.finished
    assert opened.manifest.progress["stopped_by"] == name
    assert coefficients(folder / "out").shape[1] == opened.manifest.n_draws > 0


def endless(table, folder):
    """Arguments of a run that only a signal ends."""
    options = ["--draws", 10**8, "-o", folder / "out", "--store", folder / "run"]
    return ["fit", table, *OPTIONS, *options]


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_a_run_with_its_draws_and_a_status_of_their_own(
    number, status, table, tmp_path, capsys, monkeypatch
):
    """In this process. The next test and those of `test_signals.py` end another."""

    def settle_and_signal(sink, snapshot, **options):
        settle(sink, snapshot, **options)
        if not options and (tmp_path / "run" / "blocks" / "state-0000001.npz").exists():
            signal.raise_signal(number)

    settle = writer.StoreSink.settle
    monkeypatch.setattr(writer, "_SECONDS_PER_BLOCK", 0.0)
    monkeypatch.setattr(writer, "_SHARE_PER_BLOCK", 0.0)
    monkeypatch.setattr(writer.StoreSink, "settle", settle_and_signal)
    monkeypatch.setattr("tallmc.cli.end_at_once", sys.exit)
    assert call(*endless(table, tmp_path)) == status
    check_stopped(number, capsys.readouterr().out, tmp_path)


# A shell makes background processes ignore Ctrl-C.
_FIT_IN_SHORT_BLOCKS = """
import signal
from tallmc._store import writer
from tallmc.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
writer._SECONDS_PER_BLOCK = writer._SHARE_PER_BLOCK = 0.0
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_a_process_with_its_draws_and_a_status_of_their_own(
    number, status, table, tmp_path
):
    child = subprocess.Popen(
        [sys.executable, "-c", _FIT_IN_SHORT_BLOCKS, *map(str, endless(table, tmp_path))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    first_block = tmp_path / "run" / "blocks" / "state-0000001.npz"
    while child.poll() is None and not first_block.exists():
        time.sleep(0.02)
    child.send_signal(number)
    said, errors = child.communicate(timeout=120)
    assert child.returncode == status, errors
    check_stopped(number, said, tmp_path)


@pytest.mark.slow
def test_a_full_disk_has_a_status_of_its_own(table, tmp_path, capsys):
    with small_disk(tmp_path / "disk", "1m") as disk:
        arguments = [
            "fit",
            table,
            *OPTIONS,
            "--draws",
            30_000,
            "-o",
            tmp_path / "out",
            "--store",
            disk / "run",
        ]
        assert call(*arguments) == 4
        said = capsys.readouterr().out
        assert "No space left on device" in said and "stopped by the store" in said
        assert open_store(disk / "run").lost == 0
    assert coefficients(tmp_path / "out").shape[1] > 0


def test_help_documents_the_exit_statuses(capsys):
    words = {
        "resume": "4 the store could not be written",
        "diagnose": "1 warnings printed",
        "report": "2 no such run",
    }
    for command, documented in words.items():
        assert call(command, "--help") == 0
        assert documented in " ".join(capsys.readouterr().out.split())
