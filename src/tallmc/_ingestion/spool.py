"""Decoded batches in a file, so that the second pass need not decode the table again.

The file has no name, so it ends with the process. It is given up where disk space is short: the
second pass then decodes the table. Batches are mapped, not read: a copy took longer than the
survey of the table.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from .values import ColumnValues, TableBatch

_ALIGNED = 8


class _Column(NamedTuple):
    values: ColumnValues  # without the numbers
    dtype: np.dtype


class _Spooled(NamedTuple):
    batch: TableBatch  # without its columns
    columns: dict[str, _Column]
    n_rows: int
    n_bytes: int


class Spool:
    """The batches of a table, on the disk of a folder that may not exist yet."""

    def __init__(self, folder: Path):
        self._place = next(path for path in folder.absolute().parents if path.is_dir())
        self._file: IO[bytes] | None = None
        self._batches: list[_Spooled] = []
        self._levels: dict[str, dict[str, int]] = {}  # of all batches: each would take memory
        self.complete = False
        """Whether all batches are there."""

    def keep(self, batches: Iterable[TableBatch]) -> Iterator[TableBatch]:
        """The same batches. The spool is complete after the last one."""
        self.close()
        with contextlib.suppress(OSError):
            self._file = tempfile.TemporaryFile(dir=self._place)  # noqa: SIM115  (`close`)
        for batch in batches:
            if self._file is not None:
                try:
                    self._add(self._file, batch)
                except OSError:
                    self.close()
            yield batch
        self.complete = self._file is not None

    def batches(self, first_row: int) -> Iterator[TableBatch]:
        """The batches from this row on."""
        assert self._file is not None, "the spool is complete"
        done, place = 0, 0
        levels = {name: tuple(codes) for name, codes in self._levels.items()}
        for spooled in self._batches:
            if spooled.n_rows and done + spooled.n_rows > first_row:
                content = mmap.mmap(
                    self._file.fileno(), spooled.n_bytes, access=mmap.ACCESS_READ, offset=place
                )
                yield _joined(spooled, content, levels).without(max(first_row - done, 0))
            done, place = done + spooled.n_rows, place + spooled.n_bytes

    def close(self) -> None:
        """Free the disk space."""
        if self._file is not None:
            self._file.close()
        self._file, self._batches, self._levels, self.complete = None, [], {}, False

    def _add(self, file: IO[bytes], batch: TableBatch) -> None:
        columns, begin = {}, file.tell()
        for name, values in batch.columns.items():
            numbers = np.ascontiguousarray(values.numbers)
            if values.kind == "text":
                codes = self._levels.setdefault(name, {})
                found = [codes.setdefault(level, len(codes)) for level in values.levels]
                numbers = np.array([*found, -1], np.int32)[numbers]
            if numbers.dtype.hasobject:
                raise OSError("values that are no numbers")
            file.write(numbers.data)
            file.write(bytes(-numbers.nbytes % _ALIGNED))
            bare = dataclasses.replace(values, numbers=np.empty(0), levels=())
            columns[name] = _Column(bare, numbers.dtype)
        file.write(bytes(-file.tell() % mmap.ALLOCATIONGRANULARITY))  # where a map may begin
        file.flush()
        end = file.tell()
        if shutil.disk_usage(self._place).free < end:  # the store needs room, too
            raise OSError("little space is left")
        empty = TableBatch(batch.origin, batch.first_row, {})
        self._batches.append(_Spooled(empty, columns, len(batch), end - begin))


def _joined(
    spooled: _Spooled, content: mmap.mmap, levels: Mapping[str, tuple[str, ...]]
) -> TableBatch:
    columns, place = {}, 0
    for name, (values, dtype) in spooled.columns.items():
        numbers = np.frombuffer(content, dtype, spooled.n_rows, place)
        of_column = levels[name] if values.kind == "text" else ()
        columns[name] = dataclasses.replace(values, numbers=numbers, levels=of_column)
        place += numbers.nbytes + -numbers.nbytes % _ALIGNED
    return dataclasses.replace(spooled.batch, columns=columns)
