"""Read Parquet files in place: each row group is a shard, decoded again in every pass.

The rows have the same bits as those that `tallmc.ingest` would write. The survey of the table is
made once; a pickled copy, such as that of a worker, takes it along.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._rows.manifest import RowManifest, ShardFile
from .._rows.shards import AbstractShards
from .encoding import RowEncoder, make_schema
from .errors import TableError
from .ingest import survey_source
from .readers import FileSource, TableFile, row_group_batches, row_group_sizes, table_files


class RowGroup(NamedTuple):
    """Where the rows of a shard are."""

    file: TableFile
    number: int
    first_row: int  # the number of rows before it in the file


@dataclasses.dataclass(frozen=True)
class ParquetShards(AbstractShards):
    """The row groups of Parquet files. Make it with `parquet_shards`."""

    schema: RowManifest
    groups: tuple[RowGroup, ...]
    path: str

    @property
    def manifest(self) -> RowManifest:
        return self.schema

    @property
    def folder(self) -> Path:
        return Path(self.path)

    def array(self, number: int, part: slice | None = None) -> np.ndarray:
        group, schema, begin = self.groups[number], self.schema, 0
        rows = np.empty((schema.shards[number].n_rows, len(schema.columns)), schema.dtype)
        encoder = RowEncoder(schema)  # of its own: threads read shards at the same time
        for batch in row_group_batches(group.file, group.number, group.first_row):
            complete, end = self._source.with_partition(group.file, batch), begin + len(batch)
            encoder.encode(complete, rows[begin:end])
            begin = end
        return rows if part is None else rows[part]

    def lines(self, number: int, lines: np.ndarray) -> np.ndarray:
        return self.array(number)[lines]

    def __reduce__(self) -> tuple[type, tuple[RowManifest, tuple[RowGroup, ...], str]]:
        return ParquetShards, (self.schema, self.groups, self.path)

    @functools.cached_property
    def _source(self) -> FileSource:
        return FileSource(tuple(dict.fromkeys(group.file for group in self.groups)))


def parquet_shards(
    paths: Iterable[str | Path],
    response: str | None = None,
    *,
    standardise: bool = True,
    intercept: bool = True,
) -> ParquetShards:
    """Survey Parquet files, to be read in place. The arguments are those of `tallmc.ingest`.

    Numbers beside rows are kept in a temporary folder, which is deleted when the process ends.
    """
    files = table_files(paths)
    others = [file.name for file in files if not file.is_parquet]
    if others:
        cure = "Write a row store with `tallmc ingest`."
        raise TableError("TABLE", "be Parquet to be read in place", others[0], cure)
    source = FileSource(tuple(files))
    survey = survey_source(source, response)
    schema = make_schema(
        survey, response, standardise=standardise, intercept=intercept, dtype="float32"
    )
    groups, shards = [], []
    for file in files:
        first = 0
        for number, n_rows in enumerate(row_group_sizes(file)):
            if n_rows:
                # The content is not read for a digest; the file is identified as in `ingest`.
                identity = json.dumps([*file.identity(), number]).encode()
                name = f"{file.name}:{number}".replace("/", "|")
                shards.append(
                    ShardFile(name, n_rows, f"sha256:{hashlib.sha256(identity).hexdigest()}")
                )
                groups.append(RowGroup(file, number, first))
            first += n_rows
    folder = tempfile.mkdtemp(prefix="tallmc-rows-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return ParquetShards(dataclasses.replace(schema, shards=tuple(shards)), tuple(groups), folder)
