"""Read .npz archives in pieces, without pickles: arrays by name, or a matrix X with a response."""

from __future__ import annotations

import contextlib
import dataclasses
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from .errors import TableError, check_names, some, unreadable
from .values import check_lengths, rows_per_batch

MATRIX, NAMES = "X", "feature_names"
_PICKLES = "Pickles can run code; save numbers, not arrays of dtype object."


@dataclasses.dataclass(frozen=True)
class _Member:
    """An array of an archive: what its header says."""

    name: str
    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype


def npz_pieces(path: Path, response: str | None) -> Iterator[dict[str, np.ndarray]]:
    """The columns of the table at `path`, some rows at a time.

    The archive has one 1-D array per column, or a matrix X, the response and at most feature_names.
    """
    if not zipfile.is_zipfile(path):
        raise unreadable(path, ".npz", "not an archive of arrays", "Write it with numpy.savez.")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: _member(archive, name) for name in _array_names(archive)}
            columns = _columns(path, archive, members, response)
            lengths = {name: member.shape[0] for name, (member, _) in columns.items()}
            check_lengths(lengths)
            n_rows = next(iter(lengths.values()), 0)
            size = rows_per_batch(sum(member.dtype.itemsize for member, _ in columns.values()))
            with contextlib.ExitStack() as stack:
                readers = _readers(archive, columns, stack)
                for first in range(0, max(n_rows, 1), size):
                    count = min(size, n_rows - first)
                    pieces: dict[str, np.ndarray] = {}
                    for read in readers:
                        pieces |= read(count)
                    yield {name: pieces[name] for name in columns}
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise unreadable(path, ".npz", error) from None
    except ValueError as error:
        if isinstance(error, TableError):
            raise
        raise unreadable(path, ".npz", error, _PICKLES) from None


def _array_names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _member(archive: zipfile.ZipFile, name: str) -> _Member:
    with archive.open(f"{name}.npy") as file:
        return _header(file, name)


def _header(file: IO[bytes], name: str) -> _Member:
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, by_column, dtype = read(file)
    if dtype.hasobject:
        raise ValueError(f"{name} is an array of Python objects")
    return _Member(name, shape, by_column, dtype)


Columns = Mapping[str, tuple[_Member, int | None]]
"""Where each column is: the array, and its column if the array is a matrix."""


def _columns(
    path: Path, archive: zipfile.ZipFile, members: dict[str, _Member], response: str | None
) -> Columns:
    if MATRIX in members and len(members[MATRIX].shape) == 2:
        return _matrix_columns(path, archive, members, response)
    wrong = {name: member.shape for name, member in members.items() if len(member.shape) != 1}
    if wrong:
        found = some(f"{name} of shape {shape}" for name, shape in wrong.items())
        raise TableError("TABLE", "hold one 1-D array per column, or a 2-D X with y", found)
    check_names(path.name, members)
    return {name: (member, None) for name, member in members.items()}


def _matrix_columns(
    path: Path, archive: zipfile.ZipFile, members: dict[str, _Member], response: str | None
) -> Columns:
    vectors = [name for name, member in members.items() if len(member.shape) == 1]
    if response is not None and response not in vectors:
        others = some(name for name in vectors if name != NAMES)
        raise TableError(
            "--response",
            f"name a 1-D array of {path.name}",
            response,
            f"The 1-D arrays are: {others or 'none'}.",
        )
    extra = sorted(set(members) - {MATRIX, NAMES} - {response})
    if extra:
        rule = f"hold X, {response or 'no response'} and at most feature_names when X is a matrix"
        cure = "Remove them, or name the response with --response."
        raise TableError("TABLE", rule, f"also {some(extra)}", cure)
    d = members[MATRIX].shape[1]
    names = [f"x{j}" for j in range(1, d + 1)]
    if NAMES in members:
        with archive.open(f"{NAMES}.npy") as file:
            names = [str(name) for name in np.lib.format.read_array(file, allow_pickle=False)]
    if len(names) != d:
        found = f"{len(names)} names"
        raise TableError(NAMES, f"name each of the {d} columns of X", found)
    after = [] if response is None else [response]
    check_names(path.name, [*names, *after])
    columns: dict[str, tuple[_Member, int | None]] = {
        name: (members[MATRIX], j) for j, name in enumerate(names)
    }
    return columns | {name: (members[name], None) for name in after}


def _readers(
    archive: zipfile.ZipFile, columns: Columns, stack: contextlib.ExitStack
) -> list[Callable[[int], dict[str, np.ndarray]]]:
    """Functions that read the next rows of one or more columns."""
    by_row = {name: j for name, (m, j) in columns.items() if j is not None and not m.by_column}
    readers: list[Callable[[int], dict[str, np.ndarray]]] = []
    if by_row:
        matrix = columns[next(iter(by_row))][0]
        file = _opened(archive, matrix, stack)

        def read_matrix(count: int) -> dict[str, np.ndarray]:
            numbers = _numbers(file, matrix.dtype, count * matrix.shape[1])
            rows = numbers.reshape(count, matrix.shape[1])
            return {name: rows[:, j] for name, j in by_row.items()}

        readers.append(read_matrix)
    readers += [
        _column_reader(name, member, _opened(archive, member, stack, member.shape[0] * (j or 0)))
        for name, (member, j) in columns.items()
        if name not in by_row
    ]
    return readers


def _column_reader(
    name: str, member: _Member, file: IO[bytes]
) -> Callable[[int], dict[str, np.ndarray]]:
    return lambda count: {name: _numbers(file, member.dtype, count)}


def _opened(
    archive: zipfile.ZipFile, member: _Member, stack: contextlib.ExitStack, skipped: int = 0
) -> IO[bytes]:
    file = stack.enter_context(archive.open(f"{member.name}.npy"))
    _header(file, member.name)
    file.seek(file.tell() + skipped * member.dtype.itemsize)
    return file


def _numbers(file: IO[bytes], dtype: np.dtype, count: int) -> np.ndarray:
    content = file.read(count * dtype.itemsize)
    if len(content) != count * dtype.itemsize:
        raise EOFError("the file ends too early")
    return np.frombuffer(content, dtype)
