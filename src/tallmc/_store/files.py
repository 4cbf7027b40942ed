"""Safe reads of a store, and its lock. Names read from a store cannot lead outside its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._core.errors import InvalidInput
from .._core.files import FileDigest, locked, replaced, sum_of

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


class StoreError(InvalidInput):
    """A store cannot be used: it is damaged, unsafe, not a run, or belongs to other data."""

    def __init__(self, folder: Path, rule: str, found: object, cure: str = ""):
        super().__init__(f"store {folder}", rule, found, cure)


@contextlib.contextmanager
def blaming(folder: Path, rule: str) -> Iterator[None]:
    """Turn errors in the handling of stored content into a `StoreError`."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise StoreError(folder, rule, f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an `OSError` before the start of a run into a `StoreError`."""
    try:
        yield
    except OSError as error:
        found = error.strerror or str(error)
        raise StoreError(folder, "be a folder that can be written", found) from None


@contextlib.contextmanager
def open_inside(folder: Path, name: str) -> Iterator[BufferedReader]:
    """Open a plain file inside `folder` for reading.

    Names and links that lead outside the folder, pipes and devices are refused.
    """
    if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name) or ".." in name.split("/"):
        raise StoreError(folder, "name files inside itself", name)
    path = folder / name
    for part in (path, *path.parents):
        if part == folder:
            break
        if part.is_symlink():
            raise StoreError(folder, "hold files, not links", str(part.name))
    # Not blocking: to open a pipe would wait for its other end.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(folder, "hold plain files", name)
        yield file


def is_intact(folder: Path, name: str, written: FileDigest) -> bool:
    try:
        with open_inside(folder, name) as file:
            return os.fstat(file.fileno()).st_size == written.bytes and sum_of(file) == written
    except OSError:
        return False


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder for one writer, until the process ends somehow; refuse a second writer."""
    with contextlib.ExitStack() as stack:
        with writable(folder):
            free = stack.enter_context(locked(folder))
        if not free:
            raise StoreError(folder, "have one writer", "a second writing process")
        yield


# The folder of a stored run, and the notes stored with it.


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder for `sample(..., store=...)`, with notes; `store="run"` means `Folder("run")`.

    **Arguments:**

    - `path`: a new or empty folder.
    - `about`: any JSON to store with the run, such as the origin of the data.
    """

    path: Path | str
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def as_folder(store: str | os.PathLike[str] | Folder) -> Folder:
    if isinstance(store, Folder):
        return dataclasses.replace(store, path=Path(store.path))
    if not isinstance(store, (str, os.PathLike)) or not str(store):
        raise InvalidInput("store", "be the name of a folder", store)
    return Folder(Path(store))


# Arrays in .npz files, uncompressed and without pickles.
#
# A file whose headers do not match its size is refused before any array is read.

_MOST_ARRAYS = 10_000
_DTYPE_KINDS = "biuf"
_LOCAL_HEADER = 30  # bytes of a ZIP entry before its name


def write_arrays(folder: Path, name: str, arrays: Mapping[str, np.ndarray]) -> FileDigest:
    """Write arrays under their names; a name may be any text without line breaks."""
    numbered = {f"{number}": np.asarray(values) for number, values in enumerate(arrays.values())}
    names = np.frombuffer("\n".join(arrays).encode(), np.uint8)
    kinds = {values.dtype.kind for values in numbered.values()}
    assert kinds <= set(_DTYPE_KINDS), "nothing is pickled"
    with replaced(folder, name) as file:
        np.savez(file, names=names, **numbered)  # type: ignore[arg-type]
        file.seek(0)  # digest at the end, because ZIP archives are not written sequentially
        return sum_of(file)


def read_arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    try:
        with open_inside(folder, name) as file, zipfile.ZipFile(file) as archive:
            entries = _checked_entries(folder, name, archive, os.fstat(file.fileno()).st_size)
            found = {
                entry.filename: _read_array(folder, f"{name}, {entry.filename}", file, entry)
                for entry in entries
            }
    except (OSError, zipfile.BadZipFile, EOFError, struct.error) as error:
        raise StoreError(folder, "hold readable files", f"{name}: {error}") from None
    names = found.pop("names.npy", np.zeros(0, np.uint8))
    try:
        text = names.astype(np.uint8).tobytes().decode()
    except UnicodeDecodeError:
        raise StoreError(folder, "name its arrays", name) from None
    labels = text.split("\n") if found else []
    numbered = {f"{number}.npy" for number in range(len(labels))}
    if len(set(labels)) != len(found) or set(found) != numbered:
        problem = f"{len(labels)} names for {len(found)} arrays in {name}"
        raise StoreError(folder, "name its arrays", problem)
    return {label: found[f"{number}.npy"] for number, label in enumerate(labels)}


def _checked_entries(
    folder: Path, name: str, archive: zipfile.ZipFile, file_size: int
) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    stored = all(
        entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
        for entry in entries
    )
    total = sum(entry.file_size for entry in entries)
    if len(entries) > _MOST_ARRAYS or not stored or total > file_size:
        problem = f"{name}: {len(entries)} entries, {total} bytes"
        raise StoreError(folder, "hold arrays that are not compressed", problem)
    return entries


def _read_array(folder: Path, name: str, file: BinaryIO, entry: zipfile.ZipInfo) -> np.ndarray:
    """Read one array. Its header must account for every byte of the entry.

    Reads directly from the file, because `zipfile` would copy and checksum every byte again.
    """
    file.seek(entry.header_offset)
    name_length, extra_length = struct.unpack("<26xHH", file.read(_LOCAL_HEADER))
    start = entry.header_offset + _LOCAL_HEADER + name_length + extra_length
    file.seek(start)
    try:
        headers = np.lib.format
        is_first_version = headers.read_magic(file) == (1, 0)
        read = headers.read_array_header_1_0 if is_first_version else headers.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except ValueError as error:
        raise StoreError(folder, "hold NumPy arrays", f"{name}: {error}") from None
    are_numbers = dtype.kind in _DTYPE_KINDS and not dtype.hasobject and dtype.isnative
    if not are_numbers or any(length < 0 for length in shape):
        raise StoreError(folder, "hold numbers", f"{name}: {dtype} {shape}")
    count = math.prod(shape)
    if count * dtype.itemsize != start + entry.file_size - file.tell():
        sizes = f"{count * dtype.itemsize} bytes in {entry.file_size}"
        raise StoreError(folder, "hold arrays that match their headers", f"{name}: {sizes}")
    values = np.fromfile(file, dtype, count)
    if len(values) != count:
        raise StoreError(folder, "hold whole arrays", name)
    return values.reshape(shape, order="F" if fortran else "C")
