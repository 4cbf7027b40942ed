"""Atomic writes and safe reads.

Files are written under a temporary name, synced and renamed. Names read from a store cannot lead
outside its folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..core.errors import InvalidInput

TEMPORARY = ".tmp"
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_BYTES_PER_READ = 2**22


class StoreError(InvalidInput):
    """A store cannot be used: it is damaged, unsafe, not a run, or belongs to other data.

    **Arguments:**

    - `folder`: the folder of the store.
    - `rule`: what the store must be or have.
    - `found`: what was found instead.
    - `cure`: what the user can do.

    >>> print(StoreError(Path("run"), "have one writer", "two writers"))
    store run must have one writer; got two writers
    """

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
        raise StoreError(
            folder, "be a folder that can be written", error.strerror or str(error)
        ) from None


class FileDigest(NamedTuple):
    """Size and checksum of a file as written."""

    bytes: int
    sha256: str


@contextlib.contextmanager
def replaced(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open the file `name` in `folder` for an atomic write.

    Afterwards the disk holds either the complete new file or the old one.
    """
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
    """Write a file atomically."""
    with replaced(folder, name) as file:
        file.write(content)
    return FileDigest(len(content), hashlib.sha256(content).hexdigest())


def sync_folder(folder: Path) -> None:
    """Flush renames in a folder to the disk. Windows does not support this."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    descriptor = os.open(
        path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    )
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(folder, "hold plain files", name)
        yield file


def is_intact(folder: Path, name: str, written: FileDigest) -> bool:
    """Whether the file exists and matches its digest."""
    try:
        with open_inside(folder, name) as file:
            return os.fstat(file.fileno()).st_size == written.bytes and sum_of(file) == written
    except OSError:
        return False


def sum_of(file: BinaryIO) -> FileDigest:
    """Digest the rest of an open file."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(_BYTES_PER_READ):
        digest.update(piece)
        size += len(piece)
    return FileDigest(size, digest.hexdigest())


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock the folder for one writer; refuse a second writer.

    The lock ends with the process, however the process ends.
    """
    try:
        import fcntl
    except ImportError:  # the system has no such locks
        yield
        return
    with writable(folder):
        file = open(folder / "lock", "wb")  # noqa: SIM115  (closed below, which releases the lock)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(folder, "have one writer", "a second writing process") from None
        yield
