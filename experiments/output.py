"""Write the results of an experiment: numbers (CSV), figure (PNG), verdict (Markdown, JSON)."""

from __future__ import annotations

import csv
import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax

from tallmc import __version__

from .results import Claim, Result, ResultTable

_VARIANT_TITLES = {
    "run": "as run by the authors' code",
    "meant": "as meant by the paper",
    "stated": "as stated in the paper",
    "works": "as it works",
}


_REVISION_VARIABLE = "TALLMC_REVISION"


class Origin(NamedTuple):
    """Where numbers come from."""

    command: str
    date: str
    revision: str
    device: str
    seconds: float

    @classmethod
    def now(cls, command: str, seconds: float) -> Self:
        device = jax.devices()[0]
        kind = f"{os.cpu_count()} cores" if device.platform == "cpu" else device.device_kind
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        return cls(command, date, revision(), kind, round(seconds, 1))

    def __str__(self) -> str:
        return (
            f"`{self.command}`, {self.date}, revision {self.revision}, {self.device}, "
            f"{self.seconds:.0f} s"
        )


def revision() -> str:
    """What TALLMC_REVISION says, for copies of the code, or the commit of this code."""
    if given := os.environ.get(_REVISION_VARIABLE):
        return given
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return f"tallmc {__version__}"
    return found.stdout.strip()


def write_result(
    out: Path, name: str, title: str, variant: str, result: Result, origin: Origin
) -> list[str]:
    """Write the four files of a variant. Returns their names."""
    from .plot import plot

    stem = f"{name}-as-{variant}"
    _write_numbers(out / f"{stem}.csv", result)
    plot(out / f"{stem}.png", result, f"{title}, as {variant}")
    text = f"{verdict_text(name, title, variant, result)}\n{origin}\n"
    (out / f"{stem}.md").write_text(text, encoding="utf-8")
    verdict = _verdict_content(name, variant, result) | {"origin": origin._asdict()}
    content = json.dumps(verdict, indent=2, ensure_ascii=False)
    (out / f"{stem}.json").write_text(content + "\n", encoding="utf-8")
    return [f"{stem}.{ending}" for ending in ("csv", "png", "md", "json")]


def verdict_text(name: str, title: str, variant: str, result: Result) -> str:
    parts = [f"# {name}, {_VARIANT_TITLES[variant]}", f"{title}."]
    if result.claims:
        parts.append(
            _markdown_table(
                ResultTable(
                    "",
                    ["claim", "expected", "found", "holds"],
                    [_claim_row(claim) for claim in result.claims],
                )
            )
        )
    parts += [f"{table.title}:\n\n{_markdown_table(table)}" for table in result.tables]
    parts += list(result.remarks)
    return "\n\n".join(parts) + "\n"


def _claim_row(claim: Claim) -> list[str]:
    return [
        claim.statement,
        claim.expected,
        claim.found,
        "yes" if claim.holds else "**no**" if claim.required else "no",
    ]


def _markdown_table(table: ResultTable) -> str:
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _verdict_content(name: str, variant: str, result: Result) -> dict[str, Any]:
    return {
        "experiment": name,
        "as": variant,
        "holds": bool(result.holds),
        "claims": [claim._asdict() | {"holds": bool(claim.holds)} for claim in result.claims],
        "tables": [
            {"title": table.title, "columns": list(table.columns), "rows": table.rows}
            for table in result.tables
        ],
        "remarks": list(result.remarks),
    }


def _write_numbers(path: Path, result: Result) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["panel", "curve", "kind", "x", "y", "sd"])
        for curve in result.curves:
            sds = [""] * len(curve.x) if curve.sd is None else [f"{sd:.6g}" for sd in curve.sd]
            for x, y, sd in zip(curve.x, curve.y, sds, strict=True):
                writer.writerow([curve.panel, curve.label, curve.kind, f"{x:.6g}", f"{y:.8g}", sd])
