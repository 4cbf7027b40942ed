"""Open a row store."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from .manifest import MANIFEST, RowManifest, RowStoreError
from .sharded import ShardedRows
from .shards import ByName, NpyShards
from .workers import Workers

_MOST_ROWS = 2**31 - 1  # row numbers have 32 bits


def is_row_store(data: Any) -> bool:
    """Whether this is the path of a row store."""
    return isinstance(data, str | os.PathLike) and (Path(data) / MANIFEST).is_file()


def open_rows(
    path: str | os.PathLike[str], *, executor: Executor | None = None, time_limit: float = 600.0
) -> ShardedRows:
    """The rows of a row store, a folder that `tallmc ingest` or `tallmc.ingest` has made.

    Nothing is read yet but the manifest. In a `tallmc.Posterior` a row is a dictionary of its
    numbers by column name; that of a category is the place of its level. Regressions take the rows
    with the name of the response.

    **Arguments:**

    - `path`: the folder.
    - `executor`: any `concurrent.futures.Executor` whose workers can read the folder under the
      same path. None reads with the threads of this process. The draws do not depend on it.
    - `time_limit`: seconds after which a worker that does not answer is named in a warning, and
      its task given to another one.

    **Raises:** `RowStoreError` if there is no finished row store.
    """
    folder = Path(path).resolve()
    manifest = RowManifest.read(folder)
    if manifest.n_rows > _MOST_ROWS:
        raise RowStoreError(folder, f"have at most {_MOST_ROWS:,} rows", f"{manifest.n_rows:,}")
    workers = Workers(executor, time_limit, folder)
    shards = NpyShards(str(folder), tuple(range(len(manifest.shards))))
    return ShardedRows(shards, ByName(manifest.names), workers)
