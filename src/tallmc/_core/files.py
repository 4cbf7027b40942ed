"""Atomic writes: files are written under a temporary name, synced and renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

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
    try:
        import fcntl
    except ImportError:  # the system has no such locks
        yield True
        return
    with open(folder / "lock", "wb") as file:  # closing it releases the lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free


def sync_folder(folder: Path) -> None:
    """Flush renames in a folder to the disk. Windows does not support this."""
    if os.name == "nt":
        return
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
