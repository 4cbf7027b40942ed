"""`tallmc ingest` writes tables of any size into a row store."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..ingestion import ingest
from ..ingestion.errors import some
from .signals import exit_on_signals


def run_ingest(
    tables: Sequence[Path],
    out: Path,
    response: str | None,
    *,
    standardise: bool,
    intercept: bool,
    dtype: str,
    max_levels: int,
    progress: bool,
) -> int:
    """Write the row store and print what it holds. Returns the exit status."""
    began = time.perf_counter()
    try:
        with exit_on_signals("stopped; the same command goes on from here"):
            manifest = ingest(
                list(tables),
                out,
                response=response,
                standardise=standardise,
                intercept=intercept,
                dtype=dtype,
                max_levels=max_levels,
                progress=None if progress else False,
            )
    except OSError as error:
        print(f"tallmc: {out} could not be written: {error}", file=sys.stderr)
        return 4
    seconds = time.perf_counter() - began
    megabytes = sum((out / shard.name).stat().st_size for shard in manifest.shards) / 1e6
    print(
        f"wrote {out}: {manifest.n_rows:,} rows of {len(manifest.columns)} numbers, "
        f"{megabytes:,.1f} MB in {seconds:.1f} s ({megabytes / seconds:,.0f} MB/s)"
    )
    print(f"columns: {some(manifest.names)}")
    for category in manifest.categories:
        if category.name != response:
            print(f"{category.name}: compared with {category.levels[0]!r}")
    named = "" if response is None else f" --response {response}"
    print(f"fit it with: tallmc fit {out}{named} --family FAMILY -o fit")
    return 0
