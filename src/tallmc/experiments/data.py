"""Find and read the real datasets.

The data folder has one `.npz` file per dataset. It is the folder that the user gives, else the
folder in the environment variable TALLMC_DATA, else `../shared/data`. Nothing is downloaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..core.errors import InvalidInput
from .synthetic import stratified_split

_FOLDER_VARIABLE = "TALLMC_DATA"
_DEFAULT_FOLDER = Path("..", "shared", "data")
_N_QUANTITATIVE = 10  # leading columns of covertype; the others are dummies
_N_HELD_OUT = 145_253


class Dataset(NamedTuple):
    """A description of a file: its content, its arrays, its source and how to convert it."""

    about: str
    arrays: str
    source: str
    convert: str

    @property
    def keys(self) -> list[str]:
        return [part.split()[0] for part in self.arrays.split(", ")]


DATASETS = {
    "casp": Dataset(
        about="protein tertiary structure, 45,730 × 9 (figures 2a, 5)",
        arrays="X (45730×9) float64, y (45730) float64",
        source="UCI Machine Learning Repository, dataset 265, CASP.csv",
        convert='t = pandas.read_csv("CASP.csv"); '
        'numpy.savez_compressed("casp.npz", X=t.iloc[:, 1:10], y=t["RMSD"])',
    ),
    "covertype": Dataset(
        about="forest cover type, 581,012 × 54, classes 1 to 7 (figures 2b, 4b)",
        arrays="X (581012×54) int16, y (581012) uint8",
        source="UCI Machine Learning Repository, dataset 31, covtype.data.gz",
        convert='t = numpy.loadtxt("covtype.data.gz", delimiter=",", dtype="int16"); '
        'numpy.savez_compressed("covertype.npz", X=t[:, :54], y=t[:, 54].astype("uint8"))',
    ),
}


class Split(NamedTuple):
    """Training rows and held-out rows of a regression, with the intercept as first column."""

    X: Float[np.ndarray, "N d"]
    y: np.ndarray
    X_held_out: Float[np.ndarray, "M d"]
    y_held_out: np.ndarray


def data_folder(given: Path | None = None) -> Path | None:
    """Return the data folder, or None if there is none.

    A folder that the option or the environment variable names must exist.
    """
    variable = os.environ.get(_FOLDER_VARIABLE)
    named = given if given is not None else Path(variable) if variable else None
    if named is None:
        return _DEFAULT_FOLDER if _DEFAULT_FOLDER.is_dir() else None
    if not named.is_dir():
        raise InvalidInput(
            "--data" if given is not None else _FOLDER_VARIABLE, "name a folder", str(named)
        )
    return named


def find(name: str, folder: Path | None) -> Path | None:
    path = None if folder is None else folder / f"{name}.npz"
    return path if path is not None and path.is_file() else None


def load(name: str, folder: Path | None) -> dict[str, np.ndarray]:
    """Read the arrays of a known dataset."""
    known, path = DATASETS[name], find(name, folder)
    if path is None:
        search_result = "no data folder" if folder is None else f"no {name}.npz in {folder}"
        cure = (
            f"Get it from: {known.source}. Convert: {known.convert}. "
            f"Then pass --data DIR or set {_FOLDER_VARIABLE}."
        )
        raise InvalidInput("data", f"include {name}.npz, with {known.arrays}", search_result, cure)
    with np.load(path, allow_pickle=False) as file:
        missing = [key for key in known.keys if key not in file]
        if missing:
            raise InvalidInput(
                path.name,
                f"hold {known.arrays}",
                f"no {', '.join(missing)}",
                f"Convert: {known.convert}.",
            )
        return {key: file[key] for key in known.keys}


def casp(folder: Path | None) -> tuple[Float[np.ndarray, "N 10"], Float[np.ndarray, " N"]]:
    """Return CASP with all columns and the response standardised, intercept first."""
    arrays = load("casp", folder)
    table = np.column_stack([arrays["y"], arrays["X"]]).astype(float)
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    return np.column_stack([np.ones(len(table)), table[:, 1:]]), table[:, 0]


def covertype(folder: Path | None) -> Split:
    """Return covertype as class 2 against the rest.

    Median and quartiles of all rows scale the quantitative columns. A quarter of the rows is held
    out, stratified by class.
    """
    arrays = load("covertype", folder)
    x, y = arrays["X"].astype(float), (arrays["y"] == 2).astype(int)
    low, middle, high = np.percentile(x[:, :_N_QUANTITATIVE], [25, 50, 75], axis=0)
    x[:, :_N_QUANTITATIVE] = (x[:, :_N_QUANTITATIVE] - middle) / (high - low)
    x = np.column_stack([np.ones(len(x)), x]).astype(np.float32)
    kept, held_out = stratified_split(y, _N_HELD_OUT, seed=0)
    return Split(x[kept], y[kept], x[held_out], y[held_out])
