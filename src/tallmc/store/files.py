"""Safe reads of a store, and its lock. Names read from a store cannot lead outside its folder."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from ..core.errors import InvalidInput
from ..core.files import FileDigest, sum_of

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


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
