"""Read one file in batches: CSV, Parquet and Arrow IPC (Feather) with pyarrow, .npz with NumPy."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from .errors import check_names, unreadable
from .files import TableFile
from .npz import npz_pieces
from .values import TableBatch, batches_of, rows_per_batch

if TYPE_CHECKING:
    import pyarrow as pa

_CSV_BLOCK = 2**23
_MOST_MAPPED = 2**30
_READ_AT_ONCE = 2**20


def read_file(
    file: TableFile, response: str | None, as_text: frozenset[str], skip: int
) -> Iterator[TableBatch]:
    """The batches of one file. At least one, which may have no rows.

    **Arguments:**

    - `file`: the file.
    - `response`: the name of the response, if there is one.
    - `as_text`: columns of CSV files that hold text in some row; others are guessed block by block.
    - `skip`: rows at the start of the file that may be left out, if that saves time.
    """
    if file.suffix == ".npz":
        first = 0
        for piece in npz_pieces(file.path, response):
            yield from batches_of(piece, file.name, first)
            first += len(next(iter(piece.values()), ()))
        return
    kind = {".csv": "CSV", ".csv.gz": "CSV", ".parquet": "Parquet", ".pq": "Parquet"}
    with _errors_of(file.path, kind.get(file.suffix, "Arrow")):
        if file.suffix in (".csv", ".csv.gz"):
            yield from _csv_batches(file, as_text)
        elif file.suffix in (".parquet", ".pq"):
            yield from _parquet_batches(file, skip)
        else:
            yield from _arrow_batches(file)


def n_rows_of(file: TableFile) -> int | None:
    """The number of rows, if the file tells without being read."""
    return sum(row_group_sizes(file)) if file.suffix in (".parquet", ".pq") else None


@contextlib.contextmanager
def _errors_of(path: Path, kind: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise unreadable(path, kind, error) from None


def _csv_batches(file: TableFile, as_text: frozenset[str]) -> Iterator[TableBatch]:
    open_file: Callable[[Path, Literal["rb"]], Any] = (
        gzip.open if file.suffix == ".csv.gz" else open
    )
    with open_file(file.path, "rb") as stream:
        names: list[str] | None = None
        first = 0
        for block in _blocks_of_lines(stream):
            table = _parsed(block, names, as_text, first)
            if names is None:
                check_names(file.name, table.column_names)
                names = table.column_names
            yield from batches_of(table, file.name, first)
            first += table.num_rows


def _blocks_of_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a file, cut at the ends of lines. At least one block, which may be empty."""
    rest, is_first = b"", True
    while piece := stream.read(_CSV_BLOCK):
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest, is_first = piece[end:], False
        else:
            rest += piece
    if rest or is_first:
        yield rest


def _parsed(
    block: bytes, names: list[str] | None, as_text: frozenset[str], first_row: int
) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(as_text, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )

    def parse(*, use_threads: bool) -> pa.Table:
        read = csv.ReadOptions(column_names=names, use_threads=use_threads)
        return csv.read_csv(io.BytesIO(block), read_options=read, convert_options=convert)

    try:
        return parse(use_threads=True)
    except pa.ArrowInvalid:
        # Without threads, pyarrow counts lines; the header is the first.
        header = names is None
        try:
            return parse(use_threads=False)
        except pa.ArrowInvalid as error:
            shifted = re.sub(
                r"Row #(\d+)",
                lambda found: f"row {int(found[1]) - header + first_row}",
                str(error),
            )
            raise pa.ArrowInvalid(shifted) from None


def open_parquet(path: Path) -> pa.parquet.ParquetFile:
    """Open a Parquet file to be read in constant memory.

    Mapped files are read 1.5 times as fast, but count as address space, which may be limited.
    """
    from pyarrow import parquet

    mapped = path.stat().st_size <= _MOST_MAPPED
    return parquet.ParquetFile(path, memory_map=mapped, buffer_size=0 if mapped else _READ_AT_ONCE)


def _parquet_batches(file: TableFile, skip: int) -> Iterator[TableBatch]:
    with open_parquet(file.path) as opened:
        check_names(file.name, opened.schema_arrow.names)
        first = 0
        if not opened.metadata.num_rows:
            yield from batches_of(opened.schema_arrow.empty_table(), file.name)
        for number, n_rows in enumerate(row_group_sizes(file)):
            if first + n_rows > skip and n_rows:
                yield from _row_group_batches(opened, number, file.name, first)
            first += n_rows


def row_group_sizes(file: TableFile) -> list[int]:
    """The number of rows of each row group of a Parquet file."""
    from pyarrow import parquet

    with _errors_of(file.path, "Parquet"):
        metadata = parquet.read_metadata(file.path)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def row_group_batches(file: TableFile, number: int, first: int) -> Iterator[TableBatch]:
    """The batches of one row group, which begins at the row `first` of a Parquet file."""
    with _errors_of(file.path, "Parquet"), open_parquet(file.path) as opened:
        yield from _row_group_batches(opened, number, file.name, first)


def _row_group_batches(
    opened: pa.parquet.ParquetFile, number: int, name: str, first: int
) -> Iterator[TableBatch]:
    size = rows_per_batch(sum(map(_bytes_of, opened.schema_arrow.types)))
    if opened.metadata.row_group(number).num_rows <= 2 * size:  # faster than in pieces
        yield from batches_of(opened.read_row_group(number), name, first)
        return
    for piece in opened.iter_batches(batch_size=size, row_groups=[number]):
        yield from batches_of(piece, name, first)
        first += piece.num_rows


def _bytes_of(kind: pa.DataType) -> int:
    """Bytes of a value in memory; a guess if values differ."""
    try:
        return max(kind.bit_width // 8, 1)
    except ValueError:
        return 16


def _arrow_batches(file: TableFile) -> Iterator[TableBatch]:
    import pyarrow as pa
    from pyarrow import ipc

    with pa.memory_map(str(file.path)) as source:
        try:
            opened = ipc.open_file(source)
            numbers = range(opened.num_record_batches)
            batches = (opened.get_batch(number) for number in numbers)
        except pa.ArrowInvalid:
            source.seek(0)
            opened = ipc.open_stream(source)
            batches = iter(opened)
        check_names(file.name, opened.schema.names)
        first, any_batch = 0, False
        for batch in batches:
            yield from batches_of(batch, file.name, first)
            first, any_batch = first + batch.num_rows, True
        if not any_batch:
            yield from batches_of(opened.schema.empty_table(), file.name)
