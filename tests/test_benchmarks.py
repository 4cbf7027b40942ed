"""The benchmarks run: they are not part of the package, and what they use of it changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_quick_benchmarks_end_with_their_tables(tmp_path):
    pytest.importorskip("blackjax")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(tmp_path)]
    root = Path(__file__).resolve().parents[1]
    environment = {name: text for name, text in os.environ.items() if name != "XLA_FLAGS"}
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    tables = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "BlackJAX in a scan" in tables
    assert "KSD, gradients given" in tables
