"""Where a table comes from: files, or batches from Python. A source can be read several times."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .errors import TableError
from .files import TableFile, table_files
from .readers import n_rows_of, read_file
from .values import ColumnValues, TableBatch, batches_of, is_table


class AbstractSource(abc.ABC):
    """A table in batches."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """How messages call the table."""

    @property
    @abc.abstractmethod
    def guesses_kinds(self) -> bool:
        """Whether a column may seem to hold numbers in some batches and text in others (CSV)."""

    @abc.abstractmethod
    def identity(self) -> list[list[str | int]] | None:
        """JSON that differs if the table does; None if that cannot be told without reading it."""

    @abc.abstractmethod
    def n_rows(self) -> int | None:
        """The number of rows, if it is known before the table is read."""

    @abc.abstractmethod
    def batches(
        self, response: str | None, as_text: frozenset[str] = frozenset(), first_row: int = 0
    ) -> Iterator[TableBatch]:
        """The batches from the row `first_row` on; columns `as_text` of CSV files are text."""


@dataclasses.dataclass(frozen=True)
class FileSource(AbstractSource):
    """The rows of several files, one file after the other."""

    files: tuple[TableFile, ...]

    @property
    def name(self) -> str:
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return self.files[0].name + more

    @property
    def guesses_kinds(self) -> bool:
        return any(file.suffix in (".csv", ".csv.gz") for file in self.files)

    def identity(self) -> list[list[str | int]]:
        return [file.identity() for file in self.files]

    def n_rows(self) -> int | None:
        counts = [n_rows_of(file) for file in self.files]
        return None if None in counts else sum(count or 0 for count in counts)

    def batches(
        self, response: str | None, as_text: frozenset[str] = frozenset(), first_row: int = 0
    ) -> Iterator[TableBatch]:
        done = 0
        for file in self.files:
            count = n_rows_of(file) if first_row > done else None
            if count is not None and done + count <= first_row:
                done += count
                continue
            for batch in read_file(file, response, as_text, max(first_row - done, 0)):
                skip = first_row - done - batch.first_row
                if skip <= 0:
                    yield self.with_partition(file, batch)
                elif skip < batch.n_rows:
                    yield self.with_partition(file, batch.without(skip))
                last = batch.first_row + batch.n_rows
            done += last

    def with_partition(self, file: TableFile, batch: TableBatch) -> TableBatch:
        """The batch with the columns that the names of its folders give."""
        if not file.partition:
            return batch
        added = {
            key: _repeated(value, batch.n_rows, are_numbers=key in self._number_keys)
            for key, value in file.partition
        }
        return dataclasses.replace(batch, columns={**batch.columns, **added})

    @functools.cached_property
    def _number_keys(self) -> set[str]:
        """Partition keys whose values are whole numbers in all files."""
        values: dict[str, list[str | None]] = {}
        for file in self.files:
            for key, value in file.partition:
                values.setdefault(key, []).append(value)
        return {key for key, found in values.items() if all(map(_is_whole, found))}


@dataclasses.dataclass(frozen=True)
class PythonSource(AbstractSource):
    """Batches that Python code makes, anew in each pass."""

    make: Callable[[], Iterable[Any]]

    @property
    def name(self) -> str:
        return "the batches"

    @property
    def guesses_kinds(self) -> bool:
        return False

    def identity(self) -> None:
        return None

    def n_rows(self) -> None:
        return None

    def batches(
        self, response: str | None, as_text: frozenset[str] = frozenset(), first_row: int = 0
    ) -> Iterator[TableBatch]:
        done = 0
        for number, data in enumerate(self.make(), start=1):
            for batch in batches_of(data, f"batch {number}"):
                skip = first_row - done
                done += batch.n_rows
                if skip <= 0:
                    yield batch
                elif skip < batch.n_rows:
                    yield batch.without(skip)


def as_source(given: Any) -> AbstractSource:
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
    items = given if isinstance(given, list | tuple) else None
    if items is not None and all(isinstance(item, str | Path) for item in items):
        return FileSource(tuple(table_files(items)))
    return PythonSource(lambda: given)


def _is_whole(value: str | None) -> bool:
    return value is None or value.removeprefix("-").isdecimal()


def _repeated(value: str | None, n_rows: int, *, are_numbers: bool) -> ColumnValues:
    if value is None:
        return ColumnValues("missing", np.full(n_rows, np.nan))
    if are_numbers:
        return ColumnValues("number", np.full(n_rows, float(value)))
    return ColumnValues("text", np.zeros(n_rows, np.int64), (value,))
