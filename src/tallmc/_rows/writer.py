"""Write a row store, shard by shard. A writer that was killed goes on after its last shard."""

from __future__ import annotations

import dataclasses
import json
import zlib
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

    A thread hashes and writes a full shard while the next one is filled, so writing needs as much
    memory as two shards. At the end of a `with` block, the thread has ended. `source` is JSON that
    identifies what is written: an unfinished store is continued only if it was begun with the same
    columns and source.

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
        n_columns = len(self._schema.columns)
        shape = shard_rows or rows_per_shard(n_columns, dtype), n_columns
        self._filling, self._spare = np.empty(shape, dtype), np.empty(shape, dtype)
        self._filled, self._thread = 0, ThreadPoolExecutor(1)
        self._being_written: Future[None] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._note_progress()

    def __enter__(self) -> RowStoreWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    @property
    def n_rows(self) -> int:
        """The number of rows in finished shards: those that need not be written again."""
        return sum(shard.n_rows for shard in self._shards)

    def append(self, rows: np.ndarray) -> None:
        """Add rows, an array with one column per number of a row."""
        begin = 0
        while begin < len(rows):
            space = self.space(len(rows) - begin)
            space[:] = rows[begin : begin + len(space)]
            begin += len(space)
            self.advance(len(space))

    def space(self, n_rows: int) -> np.ndarray:
        """Room for the next rows, at most `n_rows`, to be written to directly; then `advance`."""
        return self._filling[self._filled : self._filled + n_rows]

    def advance(self, n_rows: int) -> None:
        """Add the rows that were written into `space`."""
        self._filled += n_rows
        if self._filled == len(self._filling):
            self._write_filled()

    def finish(self) -> RowManifest:
        if self._filled:
            self._write_filled()
        self._wait()
        self._thread.shutdown()
        manifest = self._manifest()
        manifest.write(self.folder)
        (self.folder / PROGRESS).unlink(missing_ok=True)
        return manifest

    def _manifest(self) -> RowManifest:
        return dataclasses.replace(self._schema, shards=tuple(self._shards))

    def _write_filled(self) -> None:
        self._wait()
        rows = self._filling[: self._filled]
        self._being_written = self._thread.submit(self._write_shard, rows)
        self._filling, self._spare = self._spare, self._filling
        self._filled = 0

    def _wait(self) -> None:
        if self._being_written is not None:
            self._being_written.result()

    def _write_shard(self, rows: np.ndarray) -> None:
        name = f"{len(self._shards):06d}.npy"
        content = rows.reshape(-1).view(np.uint8).data
        header = npy_header(rows.shape, rows.dtype)
        with replaced(self.folder, name) as file:
            file.write(header)
            file.write(content)
        # Processors compute it at the speed of memory; sha256 took as long as reading the table.
        checksum = f"crc32:{zlib.crc32(content, zlib.crc32(header)):08x}"
        self._shards.append(ShardFile(name, len(rows), checksum))
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
