"""Write a row store, shard by shard. A writer that was killed goes on after its last shard."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._core.files import TEMPORARY, replaced, write_file
from .manifest import MANIFEST, Category, Column, RowManifest, RowStoreError, ShardFile
from .shards import npy_header

PROGRESS = "progress.json"
_SHARD_BYTES = 2**26
_WRITTEN_AT_ONCE = 2


def rows_per_shard(n_columns: int, dtype: str) -> int:
    """A power of two that gives shards of at most 64 MiB."""
    fitting = _SHARD_BYTES // (n_columns * np.dtype(dtype).itemsize)
    return 1 << max(fitting.bit_length() - 1, 0)


class UnfinishedStore(NamedTuple):
    """What a writer that was interrupted has noted."""

    manifest: RowManifest  # with the shards that are finished
    source: Any


def unfinished_store(folder: Path) -> UnfinishedStore | None:
    """The unfinished store in `folder`; None if the folder is empty or does not exist."""
    if folder.exists() and not folder.is_dir():
        raise RowStoreError(folder, "be a new folder", "a file")
    if not folder.exists() or all(f.name == PROGRESS + TEMPORARY for f in folder.iterdir()):
        return None
    cure = "Name another folder, or delete this one."
    if (folder / MANIFEST).exists():
        raise RowStoreError(folder, "be a new folder", "a finished row store", cure)
    path = folder / PROGRESS
    if not path.is_file():
        raise RowStoreError(folder, "be a new or empty folder", "other files", cure)
    try:
        noted = json.loads(path.read_text())
        return UnfinishedStore(RowManifest.from_json(noted["manifest"]), noted["source"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RowStoreError(folder, f"have a readable {PROGRESS}", str(error), cure) from None


class RowStoreWriter:
    """Writes rows into a new folder, or goes on with an unfinished one.

    Two threads write shards at the same time, so that one computes while the other waits for the
    disk. Shards get their names in order. At the end of a `with` block, the threads have ended.
    `source` is JSON that identifies what is written: an unfinished store is continued only if it
    was begun with the same columns and source.

    With the manifest of a finished store, `grows`, rows are added to it: their shards follow its
    own, and the new manifest comes last. Rows of an append that was interrupted are not in the
    store, and the next append replaces them.
    """

    def __init__(
        self,
        folder: Path,
        columns: Iterable[Column],
        dtype: str = "float32",
        response: str | None = None,
        source: Any = None,
        categories: Iterable[Category] = (),
        shard_rows: int | None = None,
        grows: RowManifest | None = None,
    ):
        self.folder, self._source = folder, source
        self._schema = RowManifest(dtype, tuple(columns), (), response, tuple(categories))
        self._grows = grows is not None
        self._shards = self._continued() if grows is None else list(grows.shards)
        self.shard_rows = shard_rows or rows_per_shard(len(self._schema.columns), dtype)
        self._next = len(self._shards)
        self._appended: list[np.ndarray] = []
        self._threads = ThreadPoolExecutor(_WRITTEN_AT_ONCE)
        self._being_written: deque[Future[None]] = deque()
        folder.mkdir(parents=True, exist_ok=True)
        self._note_progress()

    def __enter__(self) -> RowStoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    @property
    def n_rows(self) -> int:
        """The number of rows in finished shards: those that need not be written again."""
        return sum(shard.n_rows for shard in self._shards)

    def append(self, rows: np.ndarray) -> None:
        """Add rows, an array with one column per number of a row."""
        while len(rows):
            room = self.shard_rows - sum(map(len, self._appended))
            self._appended.append(np.array(rows[:room], self._schema.dtype, order="C"))
            rows = rows[room:]
            if sum(map(len, self._appended)) == self.shard_rows:
                self._write_appended()

    def add_shard(self, n_rows: int, pieces: Iterable[np.ndarray]) -> None:
        """Add a shard of `shard_rows` rows; the last one may have fewer.

        Its rows come in pieces. They are made in a thread, and each is written before the next.
        """
        self._wait(_WRITTEN_AT_ONCE - 1)
        before = self._being_written[-1] if self._being_written else None
        name, self._next = f"{self._next:06d}.npy", self._next + 1
        writing = self._threads.submit(self._write_shard, name, n_rows, pieces, before)
        self._being_written.append(writing)

    def finish(self) -> RowManifest:
        if self._appended:
            self._write_appended()
        self._wait(0)
        self._threads.shutdown()
        manifest = self._manifest()
        manifest.write(self.folder)
        (self.folder / PROGRESS).unlink(missing_ok=True)
        return manifest

    def _manifest(self) -> RowManifest:
        return dataclasses.replace(self._schema, shards=tuple(self._shards))

    def _write_appended(self) -> None:
        self.add_shard(sum(map(len, self._appended)), self._appended)
        self._appended = []

    def _wait(self, most: int) -> None:
        """Wait until at most this many shards are being written."""
        while len(self._being_written) > most:
            self._being_written.popleft().result()

    def _write_shard(
        self, name: str, n_rows: int, pieces: Iterable[np.ndarray], before: Future[None] | None
    ) -> None:
        header = npy_header((n_rows, len(self._schema.columns)), np.dtype(self._schema.dtype))
        checksum = zlib.crc32(header)
        with replaced(self.folder, name) as file:
            file.write(header)
            for rows in pieces:
                content = rows.reshape(-1).view(np.uint8).data
                # A piece is still in the cache. sha256 took as long as reading the table.
                checksum = zlib.crc32(content, checksum)
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if before is not None:  # a store that is continued has all shards up to its last one
                before.result()
        self._shards.append(ShardFile(name, n_rows, f"crc32:{checksum:08x}"))
        self._note_progress()

    def _note_progress(self) -> None:
        if self._grows:
            return
        noted = {"manifest": self._manifest().to_json(), "source": self._source}
        write_file(self.folder, PROGRESS, json.dumps(noted, ensure_ascii=False).encode())

    def _continued(self) -> list[ShardFile]:
        found = unfinished_store(self.folder)
        if found is None:
            return []
        begun = dataclasses.replace(found.manifest, shards=()), found.source
        if begun != (self._schema, self._source):
            raise other_rows(self.folder)
        return list(found.manifest.shards)


def other_rows(folder: Path) -> RowStoreError:
    """The error about an unfinished store that was begun with other rows."""
    cure = "Delete the folder, or name another."
    return RowStoreError(folder, "hold the same rows", "the beginning of others", cure)
