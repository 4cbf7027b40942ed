"""Turn a table of any size into a row store, in two passes and constant memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InvalidInput, check_int
from ..core.supervision import checkpoint
from ..rows.manifest import RowManifest
from ..rows.writer import RowStoreWriter, UnfinishedStore, other_rows, unfinished_store
from .ahead import read_ahead
from .encoding import RowEncoder, changed, make_schema
from .progress import shown
from .sources import AbstractSource, as_source
from .survey import TableSurvey, UnclearColumns, survey_table


def ingest(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    response: str | None = None,
    standardise: bool = True,
    intercept: bool = True,
    dtype: str = "float32",
    max_levels: int = 100,
    progress: bool | None = None,
) -> RowManifest:
    """Write a table into a row store: a folder of `.npy` shards with a manifest.

    The table is read twice, batch by batch: memory does not grow with it. The first pass finds
    means, standard deviations and levels of text. The second pass writes. If it is interrupted,
    the same call goes on after the last shard, and the store has the same bytes.

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
    - `max_levels`: the most levels that a column of text may have. The most frequent level has no
      column of its own.
    - `progress`: None to show progress on terminals, True to show it everywhere, False nowhere.

    **Returns:** the `RowManifest` of the store.

    **Raises:** `InvalidInput` if the table cannot be used: the message names column, file and row.
    `RowStoreError` if the folder holds a finished store, or anything else.

    >>> import tempfile
    >>> table = {"age": [20, 30, 70], "city": ["Oslo", "Rome", "Oslo"], "ill": [0, 0, 1]}
    >>> manifest = ingest(table, tempfile.mkdtemp(), response="ill")
    >>> manifest.names, manifest.n_rows
    (('intercept', 'age', 'city=Rome', 'ill'), 3)
    """
    if dtype not in ("float32", "float64"):
        raise InvalidInput("dtype", "be 'float32' or 'float64'", dtype)
    check_int("max_levels", max_levels, 1)
    table, folder = as_source(source), Path(folder)
    unfinished = unfinished_store(folder)
    identity = {
        "tables": table.identity(),
        "response": response,
        "standardise": standardise,
        "intercept": intercept,
        "dtype": dtype,
        "max_levels": max_levels,
    }
    schema, n_rows = _begun(unfinished, identity, folder)
    if schema is None:
        survey = survey_source(table, response, max_levels, progress)
        schema = make_schema(
            survey, response, standardise=standardise, intercept=intercept, dtype=dtype
        )
        n_rows = survey.n_rows
    begun = {**identity, "n_rows": n_rows}
    with RowStoreWriter(
        folder, schema.columns, dtype, response, begun, schema.categories
    ) as writer:
        written = _write(table, response, RowEncoder(schema), writer, n_rows, progress)
        if written != n_rows or table.identity() != identity["tables"]:
            raise changed(table.name)
        return writer.finish()


def _write(
    table: AbstractSource,
    response: str | None,
    encoder: RowEncoder,
    writer: RowStoreWriter,
    n_rows: int,
    progress: bool | None,
) -> int:
    """Write the rows that are not yet in finished shards. Returns the number of all rows."""
    done = writer.n_rows
    batches = read_ahead(table.batches(response, encoder.as_text, done))
    for batch in shown(batches, "writing", done, n_rows, progress):
        checkpoint()
        done += batch.n_rows
        while batch.n_rows:
            space = writer.space(batch.n_rows)
            encoder.encode(batch, space)
            writer.advance(len(space))
            batch = batch.without(len(space))
    return done


def survey_source(
    source: AbstractSource, response: str | None, max_levels: int, progress: bool | None
) -> TableSurvey:
    """Survey a table. Columns of CSV files that turn out to hold text are read again as text."""
    as_text: frozenset[str] = frozenset()
    total = source.n_rows()
    while True:
        batches = read_ahead(source.batches(response, as_text))
        try:
            return survey_table(
                shown(batches, "surveying", 0, total, progress), response, max_levels, source.name
            )
        except UnclearColumns as error:
            if not source.guesses_kinds or error.columns <= as_text:
                raise
            as_text |= error.columns


def _begun(
    unfinished: UnfinishedStore | None, identity: Mapping[str, Any], folder: Path
) -> tuple[RowManifest | None, int]:
    """Schema and number of rows, if an interrupted ingestion has found them already."""
    if unfinished is None:
        return None, 0
    source = unfinished.source
    if not isinstance(source, dict) or {**identity, "n_rows": source.get("n_rows")} != source:
        raise other_rows(folder)
    if identity["tables"] is None:
        return None, 0
    return dataclasses.replace(unfinished.manifest, shards=()), source["n_rows"]
