"""Row stores of few rows in many shards, and what a fit makes of them."""

import shutil
from pathlib import Path

import numpy as np

import tallmc
from tallmc.rows import ShardedRows
from tallmc.rows.manifest import Column
from tallmc.rows.writer import RowStoreWriter

N_ROWS, N_SHARDS = 6000, 12  # fewer rows would be read into memory


def write_logistic(folder: Path) -> Path:
    """A logistic regression with three columns."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N_ROWS, 3))
    y = rng.random(N_ROWS) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))
    response = Column("y", "y", low=0.0, high=1.0, whole=True)
    columns = [*(Column(f"x{k}", f"x{k}") for k in range(3)), response]
    store = RowStoreWriter(folder, columns, response="y", shard_rows=N_ROWS // N_SHARDS)
    store.append(np.column_stack([x, y]))
    store.finish()
    return folder


def fit(rows: ShardedRows, executor=None) -> dict[str, np.ndarray]:
    """The mode, the Hessian, weights of the rows, and draws. `executor` is for the draws only."""
    shutil.rmtree(rows.shards.folder / "numbers", ignore_errors=True)  # weights of other fits
    posterior = tallmc.models.logistic_regression(rows, prior_variance=10.0)
    assert isinstance(posterior.rows, ShardedRows)
    anchor = tallmc.laplace(posterior)
    method = tallmc.sgld_cv_ps(step_size=1e-4, size=8)
    draws = tallmc.sample(posterior, method, chains=5, draws=60, executor=executor, progress=False)
    return {
        "mode": np.asarray(anchor.position),
        "Hessian": np.asarray(anchor.hessian),
        "weights": posterior.rows.read_values(posterior.lipschitz()),
        "draws": draws.positions,
    }


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        assert np.isfinite(values).all(), name
        np.testing.assert_array_equal(found[name], values, err_msg=name, strict=True)
