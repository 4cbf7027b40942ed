"""`tallmc predict`: predictions for the rows of a new table, from the results of `tallmc fit`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from ..core.errors import InvalidInput
from ..core.words import counted
from ..frontends.loading import load_fit
from ..frontends.tables import read_table
from ..results.prediction import Prediction
from .report import say

_WRITERS = (".parquet", ".csv", ".feather")


def run_predict(
    fit: Path,
    table: Path,
    out: Path,
    *,
    formula: str | None,
    kind: str,
    interval: float,
    seed: int,
    overwrite: bool,
) -> int:
    """Predict, write and print. Returns the exit status."""
    console = Console(highlight=False, markup=False)
    _check_out(out, overwrite=overwrite)
    draws = load_fit(fit, formula)
    rows = read_table(table)
    prediction = draws.predict(rows, kind=kind, interval=interval, seed=seed)
    _write(prediction, out)
    columns = ", ".join(prediction.columns())
    say(console, f"read: {counted(rows.n_rows, 'row')} from {table}")
    say(console, f"predicted: {prediction}")
    say(console, f"saved: {out} with the columns {columns}")
    for doubt in draws.health.doubts:
        say(console, f"warning: {doubt}")
    return 0


def _check_out(out: Path, *, overwrite: bool) -> None:
    if out.suffix not in _WRITERS:
        raise InvalidInput("--out", f"end in one of {', '.join(_WRITERS)}", out.name)
    if out.exists() and not overwrite:
        raise InvalidInput("--out", "be a new file", f"{out}, which exists", "Pass --overwrite.")
    if not out.absolute().parent.is_dir():
        raise InvalidInput("--out", "be in a folder that exists", str(out.absolute().parent))


def _write(prediction: Prediction, out: Path) -> None:
    table = prediction.to_arrow()
    if out.suffix == ".csv":
        from pyarrow import csv

        csv.write_csv(table, out)
    elif out.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, out)
    else:
        from pyarrow import feather

        feather.write_feather(table, out)
