"""The README's examples run, in the order in which they stand."""

import re
from pathlib import Path

import jax

README = Path(__file__).resolve().parents[1] / "README.md"


def test_readme_examples_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    names: dict = {}
    with jax.enable_x64(False):
        for block in blocks:
            exec(compile(block, README.name, "exec"), names)
    assert names["draws"].ok.all()
    slope = names["draws"].params["slope"]
    assert abs(slope.mean() - 2.0) < 4.6 * slope.std()
    assert "rhat" in capsys.readouterr().out


def test_readme_begins_with_the_two_commands():
    lines = [line.strip() for line in README.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert lines[1].startswith("make demo")
    assert lines[2].startswith("make test")
