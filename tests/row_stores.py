"""Row stores for tests: the rows of a posterior in memory, written in several shards."""

from pathlib import Path

import numpy as np

import tallmc
from tallmc.rows.manifest import Column
from tallmc.rows.writer import RowStoreWriter


def write_store(folder: Path, x, y, shard_rows=None, dtype="float32"):
    """Write a design matrix and responses as a row store; return its folder."""
    names = [f"x{j}" for j in range(x.shape[1])]
    lines = np.column_stack([x, y])
    columns = [
        Column(
            name,
            name,
            mean=float(values.mean()),
            sd=float(values.std()),
            low=float(values.min()),
            high=float(values.max()),
            whole=bool((values == np.floor(values)).all()),
        )
        for name, values in zip([*names, "y"], lines.T, strict=True)
    ]
    made = RowStoreWriter(folder, columns, dtype, response="y", shard_rows=shard_rows)
    made.append(lines)
    made.finish()
    return folder


def stored_logistic(folder: Path, n_rows=400, dim=2, shard_rows=64, seed=0):
    """A logistic regression in a row store, and the same in memory."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, dim)).astype(np.float32)
    x[:, 0] = 1
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, dim)))).astype(np.float32)
    rows = tallmc.rows.open(write_store(folder, x, y, shard_rows))
    regression = tallmc.models.logistic_regression
    return regression(rows, prior_variance=10.0), regression(x, y, prior_variance=10.0)
