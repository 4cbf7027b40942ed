"""Runs, saved fits and row stores that earlier versions wrote are read by this one."""

import shutil

import numpy as np
import pytest

import tallmc
from stores_of_versions import FOLDER, TABLE

VERSIONS = sorted(folder.name for folder in FOLDER.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_version_wrote_is_read(version, tmp_path):
    folder = tmp_path / version  # a store that is opened gets a lock
    shutil.copytree(FOLDER / version, folder)
    run = tallmc.load(folder / "run")
    np.testing.assert_array_equal(run.positions, np.load(folder / "run.npy"))
    fitted = tallmc.load(folder / "fit.nc")
    values = np.stack([np.ravel(fitted.values[name]) for name in fitted.values])
    np.testing.assert_allclose(values, np.load(folder / "fit.npy"), rtol=1e-6)
    predicted = fitted.predict(TABLE).mean
    np.testing.assert_allclose(predicted, np.load(folder / "predicted.npy"), rtol=1e-5)
    rows = tallmc.rows.open(folder / "rows")
    assert rows.n_rows == len(TABLE["y"])
