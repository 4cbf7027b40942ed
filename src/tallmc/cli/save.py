"""Write the results of a run as NetCDF, CSV and JSON, without pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidInput
from ..core.packages import check_installed
from ..frontends.loading import FIT_FILE
from ..results.draws import Draws
from ..results.saving import FILE

if TYPE_CHECKING:
    import pandas as pd

RESULT_FILES = (FILE, "summary.csv", FIT_FILE)
"""The files that `tallmc fit` writes."""


def check_out(out: Path, *, overwrite: bool) -> None:
    """Check before a run that its results can be written."""
    check_installed("arviz_base", "arviz_stats", "netCDF4", needed_by="--out")
    if (out / "draws.nc").exists() and not overwrite:
        raise InvalidInput(
            "--out",
            "be a folder without draws.nc",
            f"{out}, which has one",
            "Pass --overwrite or another folder.",
        )


def make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            "--out", "be a folder that exists or can be created", f"{out}: {error.strerror}"
        ) from None


def save_draws(out: Path, draws: Draws, summary: pd.DataFrame | None) -> list[str]:
    """Write draws.nc and, if there is a summary, summary.csv. Returns the file names."""
    draws.save(out / FILE)
    if summary is None:  # otherwise an old summary.csv would seem to describe these draws
        (out / "summary.csv").unlink(missing_ok=True)
        return [FILE]
    summary.to_csv(out / "summary.csv")
    return [FILE, "summary.csv"]


def save_json(path: Path, content: dict[str, Any]) -> str:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path.name
