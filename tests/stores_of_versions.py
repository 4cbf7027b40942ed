"""`python tests/stores_of_versions.py`: keep what this version writes, for later ones to read.

Run once per release. `tests/test_stores_of_versions.py` reads the folders of all versions.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

import tallmc

FOLDER = Path(__file__).with_name("stores")
TABLE = {"x": np.linspace(-1, 1, 40), "g": ["a", "b"] * 20, "y": np.arange(40) % 3}


def posterior():
    """The posterior of the stored run."""
    X = np.column_stack([np.ones(40), TABLE["x"]])
    return tallmc.models.poisson_regression(X, TABLE["y"], prior_variance=1.0)


def main() -> None:
    folder = FOLDER / tallmc.__version__
    folder.mkdir(parents=True)
    warnings.simplefilter("ignore")
    method = tallmc.methods.sgld(1e-3, batch_size=4)
    options: dict[str, Any] = {"chains": 2, "n_draws": 6, "seed": 0, "progress": False}
    run = tallmc.sample(posterior(), method, store=str(folder / "run"), **options)
    np.save(folder / "run.npy", run.positions)
    fitted = tallmc.fit("y ~ x + g", TABLE, family="poisson", method=method, **options)
    fitted.save(str(folder / "fit.nc"))
    np.save(folder / "fit.npy", np.stack([np.ravel(fitted.values[name]) for name in fitted.values]))
    np.save(folder / "predicted.npy", fitted.predict(TABLE).mean)
    tallmc.ingest(TABLE, str(folder / "rows"))


if __name__ == "__main__":
    main()
