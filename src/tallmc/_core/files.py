"""Atomic writes: files are written under a temporary name, synced and renamed; JSON as records."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import numbers
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

TEMPORARY = ".tmp"
_BYTES_PER_READ = 2**22


class FileDigest(NamedTuple):
    """Size and checksum of a file as written."""

    bytes: int
    sha256: str


@contextlib.contextmanager
def replaced(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a file for an atomic write: the disk then holds all of the new file, or the old one."""
    path = folder / name
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb+") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_file(folder: Path, name: str, content: bytes | memoryview) -> FileDigest:
    with replaced(folder, name) as file:
        file.write(content)
    return FileDigest(len(content), hashlib.sha256(content).hexdigest())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a folder until the process ends somehow; false if another process has locked it."""
    with open(folder / "lock", "wb") as file:  # closing it releases the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free


def sync_folder(folder: Path) -> None:
    """Flush renames in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def crc32_of(file: BinaryIO) -> str:
    value = 0
    while piece := file.read(_BYTES_PER_READ):
        value = zlib.crc32(piece, value)
    return f"{value:08x}"


def sum_of(file: BinaryIO) -> FileDigest:
    digest, size = hashlib.sha256(), 0
    while piece := file.read(_BYTES_PER_READ):
        digest.update(piece)
        size += len(piece)
    return FileDigest(size, digest.hexdigest())


_NUMBERS: dict[Any, type] = {float: numbers.Real, int: numbers.Integral}
_hints = functools.cache(get_type_hints)


def from_json(kind: Any, content: Any) -> Any:
    """A value of type `kind`, such as a dataclass, from what `dataclasses.asdict` made JSON of.

    Fields that the type does not have are ignored. Other content raises TypeError or ValueError.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any or (kind in (str, bool, NoneType) and isinstance(content, kind)):
        return content
    # Numbers stay as they are: an int in place of a float is written as it was.
    if kind in _NUMBERS and isinstance(content, _NUMBERS[kind]) and not isinstance(content, bool):
        return content
    if origin is Literal and content in args:
        return content
    if origin in (Union, UnionType):
        for each in args:
            with contextlib.suppress(TypeError):
                return from_json(each, content)
    is_list = isinstance(content, list | tuple)
    if origin is tuple and is_list:
        if args[-1] is not Ellipsis:
            return tuple(from_json(*pair) for pair in zip(args, content, strict=True))
        # A column of text may have a million levels.
        are_plain = args[0] in (str, float) and all(type(value) is args[0] for value in content)
        return tuple(content if are_plain else (from_json(args[0], value) for value in content))
    if isinstance(content, Mapping) and isinstance(origin, type) and issubclass(origin, Mapping):
        return {str(key): from_json(args[1], value) for key, value in content.items()}
    fields = getattr(kind, "_fields", None)  # of a named tuple
    if fields and is_list:
        content = dict(zip(fields, content, strict=True))
    if isinstance(content, Mapping) and (fields or dataclasses.is_dataclass(kind)):
        hints = _hints(kind).items()
        return kind(**{name: from_json(of, content[name]) for name, of in hints if name in content})
    if getattr(kind, "array_type", None) is np.ndarray and isinstance(content, list | np.ndarray):
        return np.asarray(content)
    raise TypeError(f"{str(content)[:100]!r} is not a {getattr(kind, '__name__', kind)}")
