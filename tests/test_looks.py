"""What users see first: the names of the package, the help, and one of a thing."""

import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import tallmc
from test_cli import call

COMMANDS = ["methods", "ingest", "fit", "resume", "diagnose", "report", "demo", "reproduce", "data"]


def test_dir_lists_public_names_only():
    assert dir(tallmc) == sorted(tallmc.__all__)


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "tallmc", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"tallmc {tallmc.__version__}\n")


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
    for name, named in tallmc.METHODS.items():
        assert re.match(r"[A-Z][a-z]+.* \((19|20)\d\d\)", named.equation), name


def test_one_of_a_thing_is_singular(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=100)
    y = (rng.random(100) < 0.5).astype(int)
    pd.DataFrame({"x": x, "y": y}).to_csv(tmp_path / "t.csv", index=False)
    options = ["--method", "sgld", "--size", 1, "--chains", 1, "--draws", 4, "--burn-in", 0]
    status = call(
        "fit", tmp_path / "t.csv", "--family", "bernoulli", *options, "-o", tmp_path / "out"
    )
    assert status in (0, 3)
    out = capsys.readouterr().out
    assert "100 rows, 1 column and the response y" in out
    assert "1 row per step, 1 chain of 4 draws" in out
