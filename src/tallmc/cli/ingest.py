"""`tallmc ingest` writes tables of any size into a row store."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from .signals import exit_on_signals

EXIT_STATUSES = (
    "Exit status: 0 fine; 2 bad input; 4 the store could not be written, e.g. because the disk is "
    "full; 130 Ctrl-C; 143 SIGTERM. "
    "After 4, 130 and 143, the same command goes on after the last shard."
)


def ingest(
    tables: Annotated[
        list[Path],
        typer.Argument(
            metavar="TABLE...",
            help="Files (.csv, .csv.gz, .parquet, .arrow, .feather, .npz), or folders of them.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="OUT", help="New folder for the row store.", show_default=False
        ),
    ],
    response: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the response column, which is stored as it is, after the others.",
            show_default=False,
        ),
    ] = None,
    no_standardise: Annotated[
        bool,
        typer.Option("--no-standardise", help="Do not scale the columns to mean 0 and sd 1."),
    ] = False,
    no_intercept: Annotated[
        bool, typer.Option("--no-intercept", help="Do not add a column of ones.")
    ] = False,
    float64: Annotated[
        bool, typer.Option("--float64", help="Store float64 instead of float32: twice the bytes.")
    ] = False,
    max_levels: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most levels that a column of text may have.")
    ] = 100,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Do not show progress.")] = (
        False
    ),
) -> None:
    """Write tables of any size into a row store: a folder of .npy files with a manifest.

    The tables are read twice, in pieces: memory does not grow with them.
    Columns of text become one 0/1 column per level but the most frequent one.
    An interrupted command goes on where it stopped when it is run again.
    """
    with exit_on_signals("stopped; the same command goes on from here"):
        from ..ingestion import ingest as write_rows
        from ..ingestion.errors import some

        began = time.perf_counter()
        try:
            manifest = write_rows(
                tables,
                out,
                response=response,
                standardise=not no_standardise,
                intercept=not no_intercept,
                dtype="float64" if float64 else "float32",
                max_levels=max_levels,
                progress=False if no_progress else None,
            )
            written = sum((out / shard.name).stat().st_size for shard in manifest.shards)
        except OSError as error:
            print(f"tallmc: {out} could not be written: {error}", file=sys.stderr)
            raise typer.Exit(4) from None
    seconds = time.perf_counter() - began
    typer.echo(
        f"wrote {out}: {manifest.n_rows:,} rows of {len(manifest.columns)} numbers, "
        f"{written / 1e6:,.1f} MB in {seconds:.1f} s ({written / 1e6 / seconds:,.0f} MB/s)"
    )
    typer.echo(f"columns: {some(manifest.names)}")
    for category in manifest.categories:
        if category.name != response:
            typer.echo(f"{category.name}: compared with {category.levels[0]!r}")
    named = "" if response is None else f" --response {response}"
    typer.echo(f"fit it with: tallmc fit {out}{named} --family FAMILY -o fit")
