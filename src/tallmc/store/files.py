"""Files that are whole or not there: written under a temporary name, synced, renamed. Names from a store stay inside it."""

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

from .._errors import InvalidInput

TEMPORARY = ".tmp"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_PIECE = 2**22


class StoreError(InvalidInput):
    """A store that cannot be used: damaged, foreign, of other data, or not to be trusted."""

    def __init__(self, folder: Path, rule: str, found: object, cure: str = ""):
        super().__init__(f"store {folder}", rule, found, cure)


@contextlib.contextmanager
def blaming(folder: Path, rule: str) -> Iterator[None]:
    """Whatever goes wrong with what was read from a store is a fault of the store."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise StoreError(folder, rule, f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def writable(folder: Path) -> Iterator[None]:
    """A disk that refuses before the run has begun is a fault of the choice of folder."""
    try:
        yield
    except OSError as error:
        raise StoreError(folder, "be a folder that can be written", error.strerror or str(error)) from None


class Written(NamedTuple):
    """A file as it was written, by which it is known again."""

    bytes: int
    sha256: str


@contextlib.contextmanager
def replaced(folder: Path, name: str) -> Iterator[BinaryIO]:
    """The file `name` in `folder`, to be written: then all of it is on the disk, or what was there before is."""
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


def write_file(folder: Path, name: str, content: bytes | memoryview) -> Written:
    with replaced(folder, name) as file:
        file.write(content)
    return Written(len(content), hashlib.sha256(content).hexdigest())


def sync_folder(folder: Path) -> None:
    """Renames in a folder are on the disk when the folder is. Windows cannot be asked for that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_inside(folder: Path, name: str) -> Iterator[BufferedReader]:
    """A plain file inside `folder`. A name or a link that leads out of it is refused, as are pipes and devices."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name.split("/"):
        raise StoreError(folder, "name files inside itself", name)
    path = folder / name
    for part in (path, *path.parents):
        if part == folder:
            break
        if part.is_symlink():
            raise StoreError(folder, "hold files, not links", str(part.name))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StoreError(folder, "hold plain files", name)
        yield file


def is_intact(folder: Path, name: str, written: Written) -> bool:
    """Whether the file is there, and the one that was written."""
    try:
        with open_inside(folder, name) as file:
            return os.fstat(file.fileno()).st_size == written.bytes and sum_of(file) == written
    except OSError:
        return False


def sum_of(file: BinaryIO) -> Written:
    """Of what is left to read."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(_PIECE):
        digest.update(piece)
        size += len(piece)
    return Written(size, digest.hexdigest())


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One writer at a time; a second is refused. The lock goes with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with writable(folder):
        file = open(folder / "lock", "wb")  # noqa: SIM115  (it is closed below, and with it the lock)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(folder, "have one writer", "a process that writes to it now") from None
        yield
