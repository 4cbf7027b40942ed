"""The gallery: every script in `examples/` is run, and shown with its output and its pictures.

A script begins with a docstring, whose first line is the title. It writes pictures into the current
folder. A line such as

    N_ROWS = 1_000_000  # reduced: 20_000

has a second value for a reduced run, which takes seconds.
"""

from __future__ import annotations

import ast
import enum
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from .places import EXAMPLES, ROOT

_REDUCED = re.compile(r"^(\w+ = ).+?  # reduced: (.+)$", re.MULTILINE)


class Runs(enum.StrEnum):
    """How the examples are run."""

    FULL = "full"
    REDUCED = "reduced"
    NONE = "none"
    """Pages show the code only."""


class Example(NamedTuple):
    """A script of the gallery."""

    name: str
    title: str
    text: str
    """What the example shows."""
    code: str
    """The script without its docstring."""


class Result(NamedTuple):
    """What a run of an example left."""

    output: str
    pictures: tuple[str, ...]
    seconds: float


def examples() -> list[Path]:
    """The scripts, in the order of the site's navigation."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return sorted(
        EXAMPLES.glob("*.py"), key=lambda script: navigation.find(f"gallery/{script.stem}.md")
    )


def read(script: Path) -> Example:
    """Split a script into its title, its text and its code."""
    source = script.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstring = ast.get_docstring(tree)
    assert docstring, f"{script.name} has no docstring"
    title, _, text = docstring.partition("\n")
    end = tree.body[0].end_lineno or 0
    code = "\n".join(source.splitlines()[end:]).strip("\n")
    return Example(script.stem, title.rstrip("."), text.strip(), _without_reduced(code))


def reduced_source(source: str) -> str:
    """The script with the values of a reduced run.

    >>> reduced_source("N = 1_000  # reduced: 10")
    'N = 10'
    """
    return _REDUCED.sub(r"\1\2", source)


def run(script: Path, folder: Path, *, reduced: bool) -> Result:
    """Run a script in a process of its own; its pictures lie in `folder`."""
    source = script.read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob("*.png"))
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-"],
        input=reduced_source(source) if reduced else source,
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script.parent.name}/{script.name} failed:\n{done.stderr}")
    pictures = {file for file in folder.glob("*.png") if file not in before}
    return Result(
        done.stdout, tuple(sorted(file.name for file in pictures)), time.perf_counter() - started
    )


def write_pages(folder: Path, runs: Runs) -> None:
    """Write a page and a notebook per example, and an index with pictures.

    An example is run if its page is older than its script.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = ["# Gallery", "", "Scripts from `examples/`, run when this site was built.", ""]
    index += ['<div class="grid cards" markdown>', ""]
    for script in examples():
        example = read(script)
        page = folder / f"{example.name}.md"
        if not page.exists() or page.stat().st_mtime < script.stat().st_mtime:
            for old in folder.glob(f"{example.name}*.png"):
                old.unlink()
            page.write_text(_page(example, _result(script, folder, runs)), encoding="utf-8")
        (folder / f"{example.name}.ipynb").write_text(notebook(example), encoding="utf-8")
        index += _card(example, folder)
    (folder / "index.md").write_text("\n".join([*index, "</div>", ""]), encoding="utf-8")


def notebook(example: Example) -> str:
    """The example as a Jupyter notebook without outputs: a cell per paragraph of its code."""
    text = f"# {example.title}\n\n{example.text}\n\nNeeds `tallmc` with its extra `plots`."
    cells: list[dict] = [{"cell_type": "markdown", "source": text}]
    for paragraph in re.split(r"\n\n+(?![ \n])", example.code):
        cells.append(
            {"cell_type": "code", "source": paragraph, "execution_count": None, "outputs": []}
        )
    for number, cell in enumerate(cells):
        cell |= {"id": f"cell-{number}", "metadata": {}}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"metadata": {"kernelspec": kernel}, "cells": cells}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, **content}, indent=1) + "\n"


def _result(script: Path, folder: Path, runs: Runs) -> Result | None:
    if runs is Runs.NONE:
        return None
    print(f"running {script.name}", flush=True)
    return run(script, folder, reduced=runs is Runs.REDUCED)


def _page(example: Example, result: Result | None) -> str:
    lines = [f"# {example.title}", "", example.text, ""]
    if result is not None:
        lines += [f"![{example.title}]({name})\n" for name in result.pictures]
    lines += ["```python", example.code, "```", "", f"[As a notebook]({example.name}.ipynb)", ""]
    if result is None:
        return "\n".join(lines)
    if result.output.strip():
        lines += ["Output:", "", "```text", result.output.strip("\n"), "```", ""]
    return "\n".join([*lines, f"The script took {result.seconds:.0f} s, imports included.", ""])


def _card(example: Example, folder: Path) -> list[str]:
    link = f"({example.name}.md)"
    lines = [f"**[{example.title}]{link}**", example.text.split("\n\n")[0].replace("\n", "\n    ")]
    if pictures := sorted(folder.glob(f"{example.name}*.png")):
        lines.insert(0, f"[![{example.title}]({pictures[0].name})]{link}")
    return ["-   " + "\n\n    ".join(lines), ""]


def _without_reduced(code: str) -> str:
    return re.sub(r"  # reduced: .+$", "", code, flags=re.MULTILINE)
