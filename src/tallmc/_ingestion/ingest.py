"""Turn a table of any size into a row store, in two passes, one decode and constant memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from .._core.errors import InvalidInput, check_int
from .._core.files import locked
from .._core.supervision import checkpoint
from .._rows.manifest import RowManifest, RowStoreError
from .._rows.writer import RowStoreWriter, other_rows, unfinished_store
from .encoding import (
    RowEncoder,
    TableSurvey,
    UnclearColumns,
    changed,
    grown_schema,
    make_schema,
    survey_table,
)
from .readers import Source, as_source
from .spool import Spool
from .values import MAX_STORED_LEVELS, TableBatch, without_missing

# Read ahead: a thread makes the next item of an iterator while the present one is used.

Item = TypeVar("Item")
_END = object()


def read_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items. An error is raised where it occurred."""
    rest = iter(items)
    with ThreadPoolExecutor(1, "tallmc-reader") as thread:
        coming = thread.submit(next, rest, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, rest, _END)
            yield item  # type: ignore[misc]


# Progress of a pass in rows: one line that is redrawn on a terminal, or lines for logs.

_BETWEEN_UPDATES = 0.2  # seconds, on terminals
_BETWEEN_LINES = 10.0  # seconds, elsewhere
_CLEAR = "\r\x1b[K"


Rows = TypeVar("Rows", bound=Sized)


def shown(
    batches: Iterable[Rows], stage: str, done: int, total: int | None, wanted: bool | None
) -> Iterator[Rows]:
    """The same batches, with a line on stderr on how far they are; `done` rows came before them.

    `wanted`: None to show progress on terminals only, True everywhere, False nowhere.
    """
    stream = sys.stderr
    redraws = stream is not None and stream.isatty()
    if stream is None or wanted is False or (wanted is None and not redraws):
        yield from batches
        return
    began = time.perf_counter()
    due = began if redraws else began + _BETWEEN_LINES
    before = done
    try:
        for batch in batches:
            yield batch
            done += len(batch)
            if (now := time.perf_counter()) >= due:
                line = _line(stage, done, total, (done - before) / max(now - began, 1e-9))
                if redraws:
                    stream.write(_CLEAR + line)
                    stream.flush()
                else:
                    print(f"tallmc: {line}", file=stream, flush=True)
                due = now + (_BETWEEN_UPDATES if redraws else _BETWEEN_LINES)
    finally:
        if redraws:
            stream.write(_CLEAR)
            stream.flush()


def _line(stage: str, done: int, total: int | None, per_second: float) -> str:
    pace = f"{per_second:,.0f} rows/s"
    if not total:
        return f"{stage}: {done:,} rows · {pace}"
    left, share = (total - done) / max(per_second, 1e-9), 100 * done / total
    return f"{stage}: {done:,} of {total:,} rows · {share:.0f} % · {pace} · {left:.0f} s left"


def ingest(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    response: str | None = None,
    standardise: bool = True,
    intercept: bool = True,
    dtype: str = "float32",
    max_levels: int = MAX_STORED_LEVELS,
    missing: str = "raise",
    append: bool = False,
    progress: bool | None = None,
) -> RowManifest:
    """Write a table into a row store: a folder of `.npy` shards with a manifest.

    The table is read batch by batch: memory does not grow with it. The first pass finds means,
    standard deviations and levels of text, and puts what it decoded into an unnamed file beside
    the folder, if the disk has room. The second pass writes. If it is interrupted, the same call
    goes on after the last shard, and the store has the same bytes.

    **Arguments:**

    - `source`: a path, a pattern such as "clicks-*.parquet", a folder (also of folders named
      key=value), or a list of them; CSV (also .csv.gz), Parquet, Arrow or Feather, and .npz. Or a
      table: a mapping of 1-D arrays, a data frame, a table of pyarrow. Or a list of such tables,
      or a function that returns an iterator of them and is called for each pass.
    - `folder`: the new folder.
    - `response`: the column that is the last number of a row. It is stored as it is; booleans, and
      text such as no and yes, become 0 and 1.
    - `standardise`: store (value − mean)/sd for all columns but the response.
    - `intercept`: put a column of ones first.
    - `dtype`: "float32" or "float64".
    - `max_levels`: the most levels that a column of text may have, at most 2²⁴. A row holds the
      number of its level, in the order of the category or of sorted text.
    - `missing`: "raise" refuses missing values, "drop" drops their rows. "indicator" gives text the
      level "(missing)", and a number its mean and a column "age_missing" of 0 and 1; rows without
      a response are dropped.
    - `append`: add the rows to the finished store in `folder`, with its columns, levels and
      scaling. Readers that have opened it before see the old rows only. An append that is
      interrupted has added nothing. `Draws.update` adds the new rows to a fit of the store.
    - `progress`: None to show progress on terminals, True to show it everywhere, False nowhere.

    **Returns:** the `RowManifest` of the store.

    **Raises:** `InvalidInput` if the table cannot be used: the message names column, file and row.
    `RowStoreError` if the folder holds a finished store, or anything else.

    >>> import tempfile
    >>> table = {"age": [20, 30, 70], "city": ["Oslo", "Rome", "Oslo"], "ill": [0, 0, 1]}
    >>> manifest = ingest(table, tempfile.mkdtemp(), response="ill")
    >>> manifest.names, manifest.n_rows
    (('intercept', 'age', 'city', 'ill'), 3)
    """
    if dtype not in ("float32", "float64"):
        raise InvalidInput("dtype", "be 'float32' or 'float64'", dtype)
    check_int("max_levels", max_levels, 1, 2**24)  # codes are exact in float32
    if missing not in ("raise", "drop", "indicator"):
        rule, cure = "be 'raise', 'drop' or 'indicator'", "Fill in the values before ingestion."
        raise InvalidInput("--missing (missing)", rule, missing, cure)
    table, folder = as_source(source), Path(folder)
    if append:
        if not standardise or not intercept or dtype != "float32":
            rule = "be left out with append, which has those of the row store"
            raise InvalidInput("standardise, intercept and dtype", rule, "others")
        return _appended(table, folder, response, max_levels, missing, progress)
    unfinished = unfinished_store(folder)
    options: dict[str, Any] = {"standardise": standardise, "intercept": intercept, "dtype": dtype}
    identity = {"tables": table.identity(), "response": response, **options}
    identity |= {"max_levels": max_levels} | ({} if missing == "raise" else {"missing": missing})
    schema, n_rows = None, 0
    if unfinished is not None:
        begun = unfinished.source
        if not isinstance(begun, dict) or {**identity, "n_rows": begun.get("n_rows")} != begun:
            raise other_rows(folder)
        if identity["tables"] is not None:  # the survey need not be made again
            schema, n_rows = dataclasses.replace(unfinished.manifest, shards=()), begun["n_rows"]
    with contextlib.closing(Spool(folder)) as spool:
        if schema is None:
            survey = survey_source(
                table, response, max_levels, progress, spool=spool, missing=missing
            )
            schema, n_rows = make_schema(survey, response, **options), survey.n_rows
        begun = {**identity, "n_rows": n_rows}
        with RowStoreWriter(
            folder, schema.columns, dtype, response, begun, schema.categories
        ) as writer:
            _write(table, spool, schema, writer, writer.n_rows, n_rows, missing, progress)
            if table.identity() != identity["tables"]:
                raise changed(table.name)
            return writer.finish()


def _write(
    table: Source,
    spool: Spool,
    schema: RowManifest,
    writer: RowStoreWriter,
    done: int,
    n_rows: int,
    missing: str,
    progress: bool | None,
) -> None:
    """Write the rows of a table after the first `done` ones."""
    encoder = RowEncoder(schema)
    rest = table.batches(schema.response, encoder.as_text, 0 if missing != "raise" else done)
    rest = _kept(rest, missing, schema.response, done)
    batches = read_ahead(spool.batches(done) if spool.complete else rest)
    batches = shown(batches, "writing", done, n_rows, progress)
    for parts in _shards(batches, writer.shard_rows):
        size = sum(n for _, n in parts)
        writer.add_shard(size, encoder.pieces(parts))
        done += size
    if done != n_rows:
        raise changed(table.name)


def _shards(
    batches: Iterable[TableBatch], shard_rows: int
) -> Iterator[list[tuple[TableBatch, int]]]:
    """What each shard consists of: batches, and how many of their first rows."""
    parts, room = [], shard_rows
    for batch in batches:
        checkpoint()
        while len(batch):
            parts.append((batch, min(len(batch), room)))
            batch, room = batch.without(parts[-1][1]), room - parts[-1][1]
            if not room:
                yield parts
                parts, room = [], shard_rows
    if parts:
        yield parts


def _kept(
    batches: Iterator[TableBatch], missing: str, response: str | None, first_row: int = 0
) -> Iterator[TableBatch]:
    """The rows that count; with "raise", after the first ones."""
    if missing == "raise":
        return batches
    return without_missing(batches, first_row, None if missing == "drop" else response or "")


def _appended(
    table: Source,
    folder: Path,
    response: str | None,
    max_levels: int,
    missing: str,
    progress: bool | None,
) -> RowManifest:
    """Add the rows of a table to a finished store."""
    manifest = RowManifest.read(folder)
    if response not in (None, manifest.response):
        rule = f"be that of the row store, {manifest.response!r}, or left out"
        raise InvalidInput("--response (response)", rule, response)
    as_text = frozenset(category.name for category in manifest.categories)
    max_levels = max(max_levels, *(len(category.levels) for category in manifest.categories), 1)
    with contextlib.closing(Spool(folder)) as spool, locked(folder) as free:
        survey = survey_source(
            table, manifest.response, max_levels, progress, as_text, spool, missing
        )
        schema = grown_schema(manifest, survey, table.name)
        if not free or RowManifest.read(folder) != manifest:
            raise RowStoreError(folder, "have one writer", "a second writing process")
        with RowStoreWriter(
            folder,
            schema.columns,
            schema.dtype,
            schema.response,
            categories=schema.categories,
            grows=manifest,
        ) as writer:
            _write(table, spool, schema, writer, 0, survey.n_rows, missing, progress)
            return writer.finish()


def survey_source(
    source: Source,
    response: str | None,
    max_levels: int = MAX_STORED_LEVELS,
    progress: bool | None = None,
    as_text: frozenset[str] = frozenset(),
    spool: Spool | None = None,
    missing: str = "raise",
) -> TableSurvey:
    """Survey a table. Columns of CSV files that turn out to hold text are read again as text."""
    total = source.n_rows()
    while True:
        batches = _kept(source.batches(response, as_text), missing, response)
        if spool is not None and source.is_decoded:
            batches = spool.keep(batches)
        batches = read_ahead(batches)
        try:
            return survey_table(
                shown(batches, "surveying", 0, total, progress),
                response,
                max_levels,
                source.name,
                mark=missing == "indicator",
            )
        except UnclearColumns as error:
            if not source.guesses_kinds or error.columns <= as_text:
                raise
            as_text |= error.columns
