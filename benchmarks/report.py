"""The tables of a run, printed at once and saved as Markdown and JSON with versions and machine."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

from tallmc import __version__

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("jax", "jaxlib", "numpy", "equinox", "optax", "blackjax", "numpyro")
_HOW_TO_READ = """# Performance

`make bench` writes this page. `make bench-quick` prints a smaller version in under five minutes.
Every figure is measured in the run below, on the machine named there. The calls of a table take
turns. The fastest of several calls counts, and “+x %” is how much slower the median was. Machines
differ and this one is shared, so read the ratios, not the microseconds.

Unless a table says otherwise, the problem has covertype's shape: 435,759 rows, 55 coefficients,
logistic regression, float32. Peers run in their own environments, with the JAX version that they
need. *The floor* is the same loop in C (`benchmarks/peers/floor.c`).

Two things make steps on a CPU cheaper:

- Import tallmc before JAX initialises a backend. The import sets `XLA_FLAGS`, which XLA reads
  once, so that XLA compiles small loops as one function. This saves a quarter of a small step.
- Pass data as NumPy arrays. They are copied to memory in which random rows are read faster, which
  saves a tenth to a sixth of a small step. JAX arrays are not copied.

"""


@dataclasses.dataclass
class Table:
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    stamp: str = ""
    """Where it was measured, if not where the others were."""

    def markdown(self) -> str:
        lines = [
            f"## {self.title}",
            "",
            f"| {' | '.join(self.columns)} |",
            "|" + " --- |" * len(self.columns),
        ]
        lines += [f"| {' | '.join(str(value) for value in row)} |" for row in self.rows]
        return "\n".join([*lines, "", self.stamp] if self.stamp else lines)


_tables: list[Table] = []
_origin: dict[str, Any] = {}  # of tables that were read


def print_table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(title, columns, rows)
    _tables.append(table)
    print(f"\n{table.markdown()}", flush=True)


def last_table() -> Table:
    return _tables[-1]


def facts() -> dict[str, str]:
    """The date, the machine and the versions of the measurement."""
    versions = {name: _version(name) for name in _PACKAGES}
    cores = len(os.sched_getaffinity(0))
    device = jax.devices()[0]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {cores} cores, {device.device_kind} ({device.platform})",
        "python": platform.python_version(),
        **{name: version for name, version in versions.items() if version},
    }


def stamp() -> str:
    """The line of a page of evidence that says what was measured, when and where.

    `tests/test_evidence.py` reads it.
    """
    found = facts()
    git = ["git", "describe", "--always", "--dirty"]
    revision = os.environ.get("TALLMC_REVISION") or (  # of a copy without its history
        subprocess.run(git, cwd=_ROOT, capture_output=True, text=True, check=False).stdout
    )
    return (
        f"Measured on {found['date']}, tallmc {__version__}, "
        f"revision {revision.strip() or 'unknown'}, {found['machine']}."
    )


def read(folder: Path) -> None:
    """Take over the tables of an earlier run. Where and when the first one ran is the page's."""
    kept = json.loads((folder / "results.json").read_text())
    tables = [Table(**table) for table in kept.pop("tables")]
    _origin.update({**kept, **_origin})
    for table in tables:
        table.stamp = table.stamp or kept["stamp"] * (kept["stamp"] != _origin["stamp"])
    _tables.extend(tables)


def save(folder: Path, *, page: bool) -> None:
    """Write `results.md` and `results.json`; with `page` also `docs/performance.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = "\n\n".join(table.markdown() for table in _tables)
    origin = {"facts": facts(), "stamp": stamp(), **_origin}
    where = "\n".join(f"- {name}: {value}" for name, value in origin["facts"].items())
    (folder / "results.md").write_text(f"{where}\n\n{tables}\n")
    contents = {**origin, "tables": [dataclasses.asdict(table) for table in _tables]}
    (folder / "results.json").write_text(
        json.dumps(contents, indent=1, default=str, ensure_ascii=False) + "\n"
    )
    if page:
        missed, accelerator = (
            Path(__file__).with_name(name).read_text() for name in ("missed.md", "accelerator.md")
        )
        versions = ", ".join(
            f"{name} {value}"
            for name, value in origin["facts"].items()
            if str(value) not in origin["stamp"]
        )
        (_ROOT / "docs" / "performance.md").write_text(
            f"{_HOW_TO_READ}{origin['stamp']}\nWith {versions}.\n\n"
            f"{missed}\n{tables}\n\n{accelerator}"
        )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
