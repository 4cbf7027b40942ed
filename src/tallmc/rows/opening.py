"""Open a row store."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from pathlib import Path

from .manifest import RowManifest, RowStoreError
from .sharded import ShardedRows
from .shards import NpyShards
from .view import ByName
from .workers import Workers

_MOST_ROWS = 2**31 - 1  # row numbers have 32 bits


def open_rows(
    path: str | os.PathLike[str], *, executor: Executor | None = None, time_limit: float = 600.0
) -> ShardedRows:
    """The rows of a row store, a folder that `tallmc ingest` or `tallmc.ingest` has made.

    Nothing is read yet but the manifest. In a `tallmc.Posterior` a row is a dictionary of its
    numbers by column name. Regressions take the rows with the name of the response.

    **Arguments:**

    - `path`: the folder.
    - `executor`: any `concurrent.futures.Executor` whose workers can read the folder under the
      same path. None reads with the threads of this process. The draws do not depend on it.
    - `time_limit`: seconds after which a worker that does not answer is named in a warning, and
      its task given to another one.

    **Returns:** the rows.

    **Raises:** `RowStoreError` if there is no finished row store.

    >>> import tempfile, numpy as np, tallmc
    >>> from tallmc.rows.manifest import Column
    >>> from tallmc.rows.writer import RowStoreWriter
    >>> folder = Path(tempfile.mkdtemp()) / "heights"
    >>> writer = RowStoreWriter(folder, [Column("height", "height")])
    >>> writer.append(np.array([[1.62], [1.75], [1.80]]))
    >>> _ = writer.finish()
    >>> rows = tallmc.rows.open(folder)
    >>> rows.n_rows, rows.row_shapes
    (3, {'height': ShapeDtypeStruct(shape=(), dtype=float32)})
    """
    folder = Path(path).resolve()
    manifest = RowManifest.read(folder)
    if manifest.n_rows > _MOST_ROWS:
        raise RowStoreError(folder, f"have at most {_MOST_ROWS:,} rows", f"{manifest.n_rows:,}")
    workers = Workers(executor, time_limit, folder)
    return ShardedRows(NpyShards(str(folder)), ByName(manifest.names), workers)
