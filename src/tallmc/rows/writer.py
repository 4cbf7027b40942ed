"""Write a row store, shard by shard. A writer that was killed goes on after its last shard."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files import replaced, sum_of, write_file
from .manifest import MANIFEST, Column, Manifest, RowStoreError, ShardFile

PROGRESS = "progress.json"
_SHARD_BYTES = 2**26


def rows_per_shard(n_columns: int, dtype: str) -> int:
    """A power of two that gives shards of at most 64 MiB.

    >>> rows_per_shard(21, "float32")
    524288
    """
    fitting = _SHARD_BYTES // (n_columns * np.dtype(dtype).itemsize)
    return 1 << max(fitting.bit_length() - 1, 0)


class RowStoreWriter:
    """Writes rows into a new folder, or goes on with an unfinished one.

    **Arguments:**

    - `folder`: the folder. It must not hold a finished row store, or anything else.
    - `columns`: the columns.
    - `dtype`: "float32" or "float64".
    - `response`: the name of the response, if there is one.
    - `source`: JSON that identifies what is written. An unfinished store is continued only if it
      was begun with the same columns and source.
    - `shard_rows`: rows of each shard but the last; by default as many as 64 MiB hold.

    **Raises:** `RowStoreError` if the folder holds anything else.

    >>> import tempfile
    >>> writer = RowStoreWriter(Path(tempfile.mkdtemp()) / "rows", (Column("x", "x"),))
    >>> writer.append(np.ones((5, 1)))
    >>> writer.finish().n_rows
    5
    """

    def __init__(
        self,
        folder: Path,
        columns: Iterable[Column],
        dtype: str = "float32",
        response: str | None = None,
        source: Any = None,
        shard_rows: int | None = None,
    ):
        self.folder, self.columns, self.dtype = folder, tuple(columns), dtype
        self.response, self._shards = response, list[ShardFile]()
        self._begun = _as_json([self.to_manifest().to_json(), source])
        self._size = shard_rows or rows_per_shard(len(self.columns), dtype)
        self._waiting = np.empty((self._size, len(self.columns)), dtype)
        self._filled = 0
        if folder.exists() and any(folder.iterdir()):
            self._shards = self._continued()
        folder.mkdir(parents=True, exist_ok=True)
        self._note_progress()

    @property
    def n_rows(self) -> int:
        """The number of rows in finished shards: those that need not be written again."""
        return sum(shard.n_rows for shard in self._shards)

    def append(self, rows: np.ndarray) -> None:
        """Add rows, an array with one column per number of a row."""
        begin = 0
        while begin < len(rows):
            count = min(self._size - self._filled, len(rows) - begin)
            self._waiting[self._filled : self._filled + count] = rows[begin : begin + count]
            self._filled, begin = self._filled + count, begin + count
            if self._filled == self._size:
                self._write_shard()

    def finish(self) -> Manifest:
        """Write the last shard and the manifest."""
        if self._filled:
            self._write_shard()
        manifest = self.to_manifest()
        manifest.write(self.folder)
        (self.folder / PROGRESS).unlink(missing_ok=True)
        return manifest

    def to_manifest(self) -> Manifest:
        """The manifest of the shards so far."""
        return Manifest(self.dtype, self.columns, tuple(self._shards), self.response)

    def _write_shard(self) -> None:
        name, rows = f"{len(self._shards):06d}.npy", self._waiting[: self._filled]
        with replaced(self.folder, name) as file:
            np.lib.format.write_array(file, rows, allow_pickle=False)
            file.seek(0)
            written = sum_of(file)
        self._shards.append(ShardFile(name, self._filled, written.sha256))
        self._filled = 0
        self._note_progress()

    def _note_progress(self) -> None:
        shards = [[shard.name, shard.n_rows, shard.sha256] for shard in self._shards]
        write_file(self.folder, PROGRESS, _as_json({"begun": self._begun, "shards": shards}))

    def _continued(self) -> list[ShardFile]:
        path = self.folder / PROGRESS
        if (self.folder / MANIFEST).exists():
            raise RowStoreError(self.folder, "be a new folder", "a finished row store")
        if not path.is_file():
            raise RowStoreError(self.folder, "be a new or empty folder", "other files")
        progress = json.loads(path.read_text())
        if progress["begun"].encode() != self._begun:
            cure = "Delete the folder, or name another."
            raise RowStoreError(self.folder, "hold the same rows", "the beginning of others", cure)
        return [ShardFile(*shard) for shard in progress["shards"]]


def _as_json(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, default=lambda b: b.decode()).encode()
