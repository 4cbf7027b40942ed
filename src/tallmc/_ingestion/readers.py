"""Read one file in batches: CSV, Parquet and Arrow IPC (Feather) with pyarrow, .npz with NumPy."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from .errors import TableError, check_names, some, unreadable
from .values import ColumnValues, TableBatch, batches_of, check_lengths, is_table, rows_per_batch

if TYPE_CHECKING:
    import pyarrow as pa

# The files of a table: paths, patterns, folders, and folders named `key=value` (Hive).
#
# `pyarrow.dataset` would list and join them too, but its batches do not tell their file and row,
# which error messages name and an interrupted ingestion needs.

_MISSING = "__HIVE_DEFAULT_PARTITION__"
SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npz")


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A file with rows of the table."""

    path: Path
    name: str  # how messages call it: its path below the folder that was named
    partition: tuple[tuple[str, str | None], ...] = ()
    """Columns with one value in the whole file, from the names of its folders."""

    @property
    def suffix(self) -> str:
        """The ending, one of `SUFFIXES`."""
        return next(ending for ending in SUFFIXES if self.path.name.lower().endswith(ending))

    @property
    def is_parquet(self) -> bool:
        return self.suffix in (".parquet", ".pq")

    def n_rows(self) -> int | None:
        """The number of rows, if the file tells without being read."""
        return sum(row_group_sizes(self)) if self.is_parquet else None

    def identity(self) -> list[str | int]:
        """Changes if the file does, as far as its size and time of change tell."""
        found = self.path.stat()
        return [str(self.path.resolve()), found.st_size, found.st_mtime_ns]


def table_files(paths: Iterable[str | Path]) -> list[TableFile]:
    """The files at `paths` in their order; those of a folder, in the order of their names."""
    found = [file for path in paths for file in _files_at(path)]
    if not found:
        raise TableError("TABLE", "be at least one file", "none")
    keys = {tuple(key for key, _ in file.partition) for file in found}
    if len(keys) > 1:
        shown = some("/".join(names) or "none" for names in sorted(keys))
        raise TableError("TABLE", "have the same partition keys in all files", shown)
    return found


def _files_at(given: str | Path) -> Iterator[TableFile]:
    path = Path(given)
    if path.is_file():
        yield _checked(TableFile(path, path.name))
    elif path.is_dir():
        yield from _files_in(path)
    elif glob.has_magic(str(given)) and (matches := sorted(glob.glob(str(given)))):
        for match in matches:
            yield from _files_at(match)
    else:
        cure = "Check the path. Relative paths start at the current folder."
        raise TableError("TABLE", "be a file or folder", f"{path}, which does not exist", cure)


def _files_in(folder: Path) -> Iterator[TableFile]:
    """The files below a folder, except those whose name begins with "." or "_" (as in Spark)."""
    inside = [
        path.relative_to(folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(p[0] in "._" for p in path.relative_to(folder).parts)
    ]
    if not inside:
        raise TableError("TABLE", "have files with rows", f"{folder}, which has none")
    for path in inside:
        pairs = [part.partition("=") for part in path.parts[:-1] if "=" in part]
        partition = tuple(
            (unquote(key), None if value == _MISSING else unquote(value)) for key, _, value in pairs
        )
        yield _checked(TableFile(folder / path, str(path), partition))


def _checked(file: TableFile) -> TableFile:
    if not file.path.name.lower().endswith(SUFFIXES):
        cure = "Convert the file, e.g. with pandas: table.to_parquet(...)."
        raise TableError("TABLE", f"end in one of {', '.join(SUFFIXES)}", file.name, cure)
    return file


# Read .npz archives in pieces, without pickles: arrays by name, or a matrix X with a response.

MATRIX, NAMES = "X", "feature_names"
_PICKLES = "Pickles can run code; save numbers, not arrays of dtype object."


class _ArrayStream:
    """Reads an array of an archive some rows at a time; `np.load` would read it whole.

    A matrix in Fortran order is read by one stream per column.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str, stack: contextlib.ExitStack):
        self.name = name
        first, by_column = self._opened(archive, stack)
        self._files = [first]
        if by_column and len(self.shape) == 2:
            for j in range(1, self.shape[1]):
                # Seek before the next stream is opened: in Python 3.12 a stream of an archive seeks
                # from where any stream of the archive has read last.
                file, _ = self._opened(archive, stack)
                file.seek(file.tell() + j * self.shape[0] * self.dtype.itemsize)
                self._files.append(file)

    def _opened(
        self, archive: zipfile.ZipFile, stack: contextlib.ExitStack
    ) -> tuple[IO[bytes], bool]:
        file = stack.enter_context(archive.open(f"{self.name}.npy"))
        headers = np.lib.format
        is_first_version = headers.read_magic(file) == (1, 0)
        read = headers.read_array_header_1_0 if is_first_version else headers.read_array_header_2_0
        self.shape, by_column, self.dtype = read(file)
        if self.dtype.hasobject:
            raise ValueError(f"{self.name} is an array of Python objects")
        return file, by_column

    def read(self, count: int) -> np.ndarray:
        width = math.prod(self.shape[1:]) // len(self._files)
        parts = []
        for file in self._files:
            content = file.read(count * width * self.dtype.itemsize)
            if len(content) != count * width * self.dtype.itemsize:
                raise EOFError("the file ends too early")
            parts.append(np.frombuffer(content, self.dtype).reshape(count, width))
        return np.concatenate(parts, axis=1).reshape(count, *self.shape[1:])


Columns = Mapping[str, tuple[_ArrayStream, int | None]]
"""Where each column is: the array, and its column if the array is a matrix."""


def npz_pieces(path: Path, response: str | None) -> Iterator[dict[str, np.ndarray]]:
    """The columns of the table at `path`, some rows at a time.

    The archive has one 1-D array per column, or a matrix X, the response and at most feature_names.
    """
    if not zipfile.is_zipfile(path):
        raise unreadable(path, ".npz", "not an archive of arrays", "Write it with numpy.savez.")
    try:
        with zipfile.ZipFile(path) as archive, contextlib.ExitStack() as stack:
            files = [name for name in archive.namelist() if name.endswith(".npy")]
            names = [name.removesuffix(".npy") for name in files]
            arrays = {name: _ArrayStream(archive, name, stack) for name in names}
            columns = _columns(path, archive, arrays, response)
            lengths = {name: array.shape[0] for name, (array, _) in columns.items()}
            check_lengths(lengths)
            n_rows = next(iter(lengths.values()), 0)
            size = rows_per_batch(sum(array.dtype.itemsize for array, _ in columns.values()))
            used = {array.name: array for array, _ in columns.values()}
            for first in range(0, max(n_rows, 1), size):
                read = {name: a.read(min(size, n_rows - first)) for name, a in used.items()}
                yield {
                    name: read[array.name] if j is None else read[array.name][:, j]
                    for name, (array, j) in columns.items()
                }
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise unreadable(path, ".npz", error) from None
    except ValueError as error:
        if isinstance(error, TableError):
            raise
        raise unreadable(path, ".npz", error, _PICKLES) from None


def _columns(
    path: Path, archive: zipfile.ZipFile, arrays: dict[str, _ArrayStream], response: str | None
) -> Columns:
    if MATRIX not in arrays or len(arrays[MATRIX].shape) != 2:
        wrong = {name: array.shape for name, array in arrays.items() if len(array.shape) != 1}
        if wrong:
            found = some(f"{name} of shape {shape}" for name, shape in wrong.items())
            raise TableError("TABLE", "hold one 1-D array per column, or a 2-D X with y", found)
        check_names(path.name, arrays)
        return {name: (array, None) for name, array in arrays.items()}
    vectors = [name for name, array in arrays.items() if len(array.shape) == 1]
    if response is not None and response not in vectors:
        others = some(name for name in vectors if name != NAMES)
        cure = f"The 1-D arrays are: {others or 'none'}."
        raise TableError("--response", f"name a 1-D array of {path.name}", response, cure)
    extra = sorted(set(arrays) - {MATRIX, NAMES} - {response})
    if extra:
        rule = f"hold X, {response or 'no response'} and at most feature_names when X is a matrix"
        cure = "Remove them, or name the response with --response."
        raise TableError("TABLE", rule, f"also {some(extra)}", cure)
    given = None
    if NAMES in arrays:
        with archive.open(f"{NAMES}.npy") as file:
            given = [str(name) for name in np.lib.format.read_array(file, allow_pickle=False)]
    names = names_of_matrix(given, arrays[MATRIX].shape[1])
    after = [] if response is None else [response]
    check_names(path.name, [*names, *after])
    of_matrix = {name: (arrays[MATRIX], j) for j, name in enumerate(names)}
    return of_matrix | {name: (arrays[name], None) for name in after}


def names_of_matrix(given: list[str] | None, n_columns: int) -> list[str]:
    """The names of the columns of X: those given, or x1, x2, …"""
    names = [f"x{j}" for j in range(1, n_columns + 1)] if given is None else given
    if len(names) != n_columns:
        raise TableError(NAMES, f"name each of the {n_columns} columns of X", f"{len(names)} names")
    return names


_CSV_BLOCK = 2**23
_LONGEST_RECORD = 2**26
_QUOTED = re.compile(rb'(?:(?<=[,\n\r])|\A)"[^"]*(?:""[^"]*)*(")?')
_MOST_MAPPED = 2**30
_READ_AT_ONCE = 2**20


def read_file(
    file: TableFile, response: str | None, as_text: frozenset[str], skip: int
) -> Iterator[TableBatch]:
    """The batches of one file. At least one, which may have no rows.

    Columns `as_text` of CSV files hold text in some row; others are guessed block by block. The
    first `skip` rows may be left out, if that saves time.
    """
    if file.suffix == ".npz":
        first = 0
        for piece in npz_pieces(file.path, response):
            yield from batches_of(piece, file.name, first)
            first += len(next(iter(piece.values()), ()))
    elif file.suffix in (".csv", ".csv.gz"):
        with _errors_of(file.path, "CSV"):
            yield from _csv_batches(file, as_text)
    elif file.is_parquet:
        with _errors_of(file.path, "Parquet"):
            yield from _parquet_batches(file, skip)
    else:
        with _errors_of(file.path, "Arrow"):
            yield from _arrow_batches(file)


@contextlib.contextmanager
def _errors_of(path: Path, kind: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise unreadable(path, kind, error) from None


def _csv_batches(file: TableFile, as_text: frozenset[str]) -> Iterator[TableBatch]:
    # Not `pyarrow.csv.open_csv`: it takes the types of columns from the first block and fails
    # later, at 1.5 after whole numbers. Here each block has types of its own.
    import pyarrow as pa

    names: list[str] | None = None
    first, rest = 0, b""
    with pa.input_stream(str(file.path), buffer_size=_READ_AT_ONCE) as stream:  # unpacks .gz
        while True:
            piece = stream.read(_CSV_BLOCK)
            rest += piece
            end = _end_of_records(rest) if piece else len(rest)
            if piece and not end:
                if len(rest) > _LONGEST_RECORD:
                    raise pa.ArrowInvalid(f"a quote in row {first + 1} or below is not closed")
                continue
            block, rest = rest[:end], rest[end:]
            if block or names is None:
                table = _parsed(block, names, as_text, first)
                if names is None:
                    check_names(file.name, table.column_names)
                    names = table.column_names
                yield from batches_of(table, file.name, first)
                first += table.num_rows
            if not piece:
                return


def _end_of_records(block: bytes) -> int:
    """Where the last whole record of a block of CSV ends; quoted fields may have newlines."""
    end = block.rfind(b"\n") + 1
    if b'"' not in block:
        return end
    found = np.frombuffer(block, np.uint8, end)
    quotes = np.cumsum(found == ord('"'), dtype=np.int32)[found == ord("\n")]
    if not (quotes % 2).any():  # every line has its quotes in pairs
        return end
    # A quote opens a field only at its beginning: 5" is text as it is.
    last, begin = -1, 0
    for field in _QUOTED.finditer(block):
        last = max(last, block.rfind(b"\n", begin, field.start()))
        if field[1] is None:  # its closing quote comes in the next block
            return last + 1
        begin = field.end()
    return max(last, block.rfind(b"\n", begin)) + 1


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

    quoted = csv.ParseOptions(newlines_in_values=b'"' in block)

    def parse(*, use_threads: bool) -> pa.Table:
        read = csv.ReadOptions(column_names=names, use_threads=use_threads)
        return csv.read_csv(pa.BufferReader(block), read, quoted, convert)

    return parsed_csv(parse, first_row - (names is None))


def parsed_csv(parse: Callable[..., pa.Table], shift: int) -> pa.Table:
    """What `parse(use_threads=True)` returns; its errors name row n + `shift` for line n.

    Only without threads does pyarrow count lines, of which the header is the first.
    """
    import pyarrow as pa

    with contextlib.suppress(pa.ArrowInvalid):
        return parse(use_threads=True)
    try:
        return parse(use_threads=False)
    except pa.ArrowInvalid as error:
        counted = re.sub(r"Row #(\d+)", lambda n: f"row {int(n[1]) + shift}", str(error))
        raise pa.ArrowInvalid(counted) from None


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
    if opened.metadata.row_group(number).num_rows <= 4 * size:  # faster than in pieces
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
            batches = map(opened.get_batch, range(opened.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            batches = iter(opened := ipc.open_stream(source))
        check_names(file.name, opened.schema.names)
        first, any_batch = 0, False
        for batch in batches:
            yield from batches_of(batch, file.name, first)
            first, any_batch = first + batch.num_rows, True
        if not any_batch:
            yield from batches_of(opened.schema.empty_table(), file.name)


@dataclasses.dataclass(frozen=True)
class FileSource:
    """The rows of several files, one file after the other."""

    files: tuple[TableFile, ...]

    @property
    def name(self) -> str:
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return self.files[0].name + more

    @property
    def guesses_kinds(self) -> bool:
        """Whether a column may seem to hold numbers in some batches and text in others (CSV)."""
        return any(file.suffix in (".csv", ".csv.gz") for file in self.files)

    @property
    def is_decoded(self) -> bool:
        """Whether reading takes longer than reading the numbers from a file."""
        return any(file.is_parquet or file.suffix in (".csv", ".csv.gz") for file in self.files)

    def identity(self) -> list[list[str | int]]:
        """JSON that differs if the table does."""
        return [file.identity() for file in self.files]

    def n_rows(self) -> int | None:
        """The number of rows, if it is known before the table is read."""
        counts = [file.n_rows() for file in self.files]
        return None if None in counts else sum(count or 0 for count in counts)

    def batches(
        self, response: str | None, as_text: frozenset[str] = frozenset(), first_row: int = 0
    ) -> Iterator[TableBatch]:
        """The batches from the row `first_row` on; columns `as_text` of CSV files are text."""
        done = 0
        for file in self.files:
            count = file.n_rows() if first_row > done else None
            if count is not None and done + count <= first_row:
                done += count
                continue
            for batch in read_file(file, response, as_text, max(first_row - done, 0)):
                skip = first_row - done - batch.first_row
                if skip <= 0:
                    yield self.with_partition(file, batch)
                elif skip < len(batch):
                    yield self.with_partition(file, batch.without(skip))
                last = batch.first_row + len(batch)
            done += last

    def with_partition(self, file: TableFile, batch: TableBatch) -> TableBatch:
        """The batch with the columns that the names of its folders give."""
        if not file.partition:
            return batch
        added = {
            key: _repeated(value, len(batch), are_numbers=key in self.number_keys)
            for key, value in file.partition
        }
        return dataclasses.replace(batch, columns={**batch.columns, **added})

    @functools.cached_property
    def number_keys(self) -> set[str]:
        """Partition keys whose values are whole numbers in all files."""
        pairs = [pair for file in self.files for pair in file.partition]
        texts = [(key, value) for key, value in pairs if value is not None]
        others = {key for key, value in texts if not value.removeprefix("-").isdecimal()}
        return {key for key, _ in pairs} - others


@dataclasses.dataclass(frozen=True)
class PythonSource:
    """Batches that Python code makes again in each pass."""

    make: Callable[[], Iterable[Any]]
    name = "the batches"
    guesses_kinds = is_decoded = False

    def identity(self) -> None:
        """Cannot be told without reading the table."""

    def n_rows(self) -> None:
        """Not known before the table is read."""

    def batches(
        self, response: str | None, as_text: frozenset[str] = frozenset(), first_row: int = 0
    ) -> Iterator[TableBatch]:
        done = 0
        for number, data in enumerate(self.make(), start=1):
            for batch in batches_of(data, f"batch {number}"):
                skip = first_row - done
                done += len(batch)
                if skip <= 0:
                    yield batch
                elif skip < len(batch):
                    yield batch.without(skip)


Source = FileSource | PythonSource  # a table in batches, which can be read several times


def as_source(given: Any) -> Source:
    """The source that a user names: paths, a table, or batches that can be made twice."""
    if isinstance(given, str | Path):
        return FileSource(tuple(table_files([given])))
    if is_table(given):
        return PythonSource(lambda: [given])
    if callable(given):
        return PythonSource(given)
    if not isinstance(given, Iterable):
        rule = "be paths, a table, an iterable of batches or a function that returns one"
        raise TableError("source", rule, type(given).__name__)
    if iter(given) is given:
        cure = "Pass the function that makes it: the table is read twice."
        raise TableError("source", "not be used up by one pass", type(given).__name__, cure)
    if isinstance(given, list | tuple) and all(isinstance(item, str | Path) for item in given):
        return FileSource(tuple(table_files(given)))
    return PythonSource(lambda: given)


def _repeated(value: str | None, n_rows: int, *, are_numbers: bool) -> ColumnValues:
    if value is None:
        return ColumnValues("missing", np.full(n_rows, np.nan))
    if are_numbers:
        return ColumnValues("number", np.full(n_rows, float(value)))
    return ColumnValues("text", np.zeros(n_rows, np.int64), (value,))
