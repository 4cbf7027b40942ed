"""The tables of a run: printed as they come, then saved as Markdown and JSON with the versions and the machine."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

import jax

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("jax", "jaxlib", "numpy", "equinox", "optax", "blackjax", "numpyro")
_HOW_TO_READ = """# Performance

This page is written by `make bench` (`make bench-quick` prints a smaller one in under five minutes). Every figure is measured in
the run below, on the machine named there: the calls of a table take turns, the fastest of several counts, and “+x %” is by how
much the median was slower. Machines differ and this one is shared, so read the ratios, not the microseconds.

The problem, unless a table says otherwise, has covertype's shape: 435,759 rows, 55 coefficients, logistic regression, float32.
Peers run in environments of their own, with the JAX they need; *the floor* is the same loop in C (`benchmarks/peers/floor.c`).

Two things make steps on a CPU cheaper. Import tallmc before JAX does anything: it asks XLA, through `XLA_FLAGS`, to compile small
loops whole, and XLA listens once; that saves a quarter of a small step. And hand over data as NumPy arrays: they are then put
where random rows are found faster, which saves a tenth to a sixth of it, while JAX arrays stay where they are.
"""


@dataclasses.dataclass
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", f"| {' | '.join(self.columns)} |", "|" + " --- |" * len(self.columns)]
        return "\n".join([*lines, *(f"| {' | '.join(str(value) for value in row)} |" for row in self.rows)])


_tables: list[Table] = []


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(title, columns, rows)
    _tables.append(table)
    print(f"\n{table.markdown()}", flush=True)


def last_table() -> Table:
    return _tables[-1]


def facts() -> dict[str, str]:
    """Where and with what this was measured."""
    versions = {name: _version(name) for name in _PACKAGES}
    cores = len(os.sched_getaffinity(0))
    device = jax.devices()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {cores} cores, {device.device_kind} ({device.platform})",
        "python": platform.python_version(),
        **{name: version for name, version in versions.items() if version},
    }


def save(folder: Path, *, page: bool) -> None:
    """`results.md` and `results.json` in the folder; with `page` also `docs/performance.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = "\n\n".join(table.markdown() for table in _tables)
    where = "\n".join(f"- {name}: {value}" for name, value in facts().items())
    (folder / "results.md").write_text(f"{where}\n\n{tables}\n")
    contents = {"facts": facts(), "tables": [dataclasses.asdict(table) for table in _tables]}
    (folder / "results.json").write_text(json.dumps(contents, indent=1, default=str, ensure_ascii=False) + "\n")
    if page:
        accelerator = (Path(__file__).with_name("accelerator.md")).read_text()
        (_ROOT / "docs" / "performance.md").write_text(f"{_HOW_TO_READ}\n{where}\n\n{tables}\n\n{accelerator}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
