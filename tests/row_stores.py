"""Row stores of few rows in many shards, and what a fit makes of them."""

import shutil
from pathlib import Path

import numpy as np

import tallmc
from tallmc._rows.manifest import Column
from tallmc._rows.values import PartFiles
from tallmc._rows.writer import RowStoreWriter
from tallmc.rows import ShardedRows


def read_values(rows, values):
    """The values of all rows of a row store, as one array."""
    return sum(
        part.factor
        * np.concatenate(
            [
                PartFiles(rows.shards, rows.view, part).of_shard(number).astype(np.float64)
                for number in range(rows.n_shards)
            ]
        )
        for part in values.parts
    )


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


def write_logistic(folder: Path) -> Path:
    """A logistic regression with three columns in twelve shards."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6000, 3))  # fewer rows would be read into memory
    y = rng.random(6000) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))
    return write_store(folder, x, y, shard_rows=500)


def fit(rows: ShardedRows, executor=None) -> dict[str, np.ndarray]:
    """The mode, the Hessian, weights of the rows, and draws. `executor` is for the draws only."""
    shutil.rmtree(rows.shards.folder / "numbers", ignore_errors=True)  # weights of other fits
    posterior = tallmc.models.logistic_regression(rows, prior_variance=10.0)
    assert isinstance(posterior.rows, ShardedRows)
    anchor = tallmc.anchor.find_anchor(posterior)
    method = tallmc.methods.sgld_cv_ps(step_size=1e-4, batch_size=8)
    draws = tallmc.sample(
        posterior, method, chains=5, n_draws=60, executor=executor, progress=False
    )
    return {
        "mode": np.asarray(anchor.position),
        "Hessian": np.asarray(anchor.hessian),
        "weights": read_values(posterior.rows, posterior.lipschitz()),
        "draws": draws.positions,
    }


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        assert np.isfinite(values).all(), name
        np.testing.assert_array_equal(found[name], values, err_msg=name, strict=True)
