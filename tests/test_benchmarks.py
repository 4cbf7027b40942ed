"""The benchmarks run: they are not part of the package, and what they use of it changes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]


def test_the_quick_benchmarks_end_with_their_tables(tmp_path):
    pytest.importorskip("blackjax")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(tmp_path)]
    environment = {name: text for name, text in os.environ.items() if name != "XLA_FLAGS"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    tables = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "BlackJAX in a scan" in tables
    assert "KSD, gradients given" in tables


@pytest.fixture
def trust(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import trust

    return trust


def test_the_table_of_trust_continues_where_it_was_interrupted(trust, tmp_path):
    def run():
        options = ["--posteriors", "rare event", "--methods", "mala", "--folder", str(tmp_path)]
        command = [sys.executable, "-m", "benchmarks.trust", *options]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "1 of 1 references to make" in (first := run()) and "2 of 2 cases to run" in first
    (folder,) = tmp_path.iterdir()
    case = ("rare event", "mala", "suggested")
    results = trust.Results(folder, 60.0)
    kept = results.row(case)
    assert kept.verdict in ("checked", "doubtful") and kept.mean < 1
    results.path(*case).unlink()
    assert "0 of 1 references to make" in (second := run()) and "1 of 2 cases to run" in second
    assert results.row(case)._replace(seconds=0) == kept._replace(seconds=0)


@pytest.mark.parametrize("limit", [1e-6, 5.0])
def test_a_case_of_trust_that_its_limit_ends_is_stopped(trust, limit, monkeypatch):
    monkeypatch.setattr(trust, "_DRAWS", 10**8)
    true = trust.Moments(np.zeros(1), np.ones(1))
    row = trust.run_case(("rare event", "mala", "suggested"), true, limit)
    assert row.verdict == "stopped" and f"the limit of {limit:g} seconds" in row.why


def test_a_case_of_trust_that_does_not_end_is_killed(trust, tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "_GRACE", 0.5)
    results, case = trust.Results(tmp_path, 0.0), ("rare event", "mala", "suggested")
    results.make_row_in_process(case)
    row = results.row(case)
    assert row.verdict == "stopped" and row.why == "killed after 0.5 seconds; last stage: starting"
