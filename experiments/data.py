"""Find and read the real datasets.

The data folder has one `.npz` file per dataset. It is the folder that the user gives, else the
folder in the environment variable TALLMC_DATA, else `../shared/data`. Nothing is downloaded.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tallmc._core.errors import InvalidInput

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
        about="protein tertiary structure, 45,730 × 9",
        arrays="X (45730×9) float64, y (45730) float64",
        source="UCI Machine Learning Repository, dataset 265, CASP.csv",
        convert='t = pandas.read_csv("CASP.csv"); '
        'numpy.savez_compressed("casp.npz", X=t.iloc[:, 1:10], y=t["RMSD"])',
    ),
    "covertype": Dataset(
        about="forest cover type, 581,012 × 54, classes 1 to 7",
        arrays="X (581012×54) int16, y (581012) uint8",
        source="UCI Machine Learning Repository, dataset 31, covtype.data.gz",
        convert='t = numpy.loadtxt("covtype.data.gz", delimiter=",", dtype="int16"); '
        'numpy.savez_compressed("covertype.npz", X=t[:, :54], y=t[:, 54].astype("uint8"))',
    ),
    "mnist": Dataset(
        about="handwritten digits, 60,000 + 10,000 images of 28 × 28",
        arrays="x_train (60000×28×28) uint8, y_train (60000) uint8, "
        "x_test (10000×28×28) uint8, y_test (10000) uint8",
        source="LeCun, Cortes and Burges, The MNIST database; npz as Keras distributes it",
        convert="none needed: mnist.npz of Keras has these arrays",
    ),
    "movielens": Dataset(
        about="MovieLens-100k, 943 users × 1,682 films, 80,000 + 20,000 ratings",
        arrays="train (80000×3) int32, test (20000×3) int32",
        source="GroupLens, grouplens.org/datasets/movielens/100k, ml-100k.zip (its licence does "
        "not allow to pass it on)",
        convert="none needed: --data ml-100k, the unpacked folder; or "
        'numpy.savez_compressed("movielens.npz", '
        'train=numpy.loadtxt("u1.base", dtype="int32")[:, :3], '
        'test=numpy.loadtxt("u1.test", dtype="int32")[:, :3])',
    ),
    "parkinsons": Dataset(
        about="voices with and without Parkinson's disease, 195 × 22",
        arrays="X (195×22) float64, y (195) uint8",
        source="UCI Machine Learning Repository, dataset 174, parkinsons.data",
        convert='t = pandas.read_csv("parkinsons.data"); '
        'numpy.savez_compressed("parkinsons.npz", X=t.drop(columns=["name", "status"]), '
        'y=t["status"].astype("uint8"))',
    ),
    "pima": Dataset(
        about="Pima Indians diabetes, 768 × 8",
        arrays="X (768×8) float64, y (768) uint8",
        source="R package mlbench, PimaIndiansDiabetes, or UCI's pima-indians-diabetes.data",
        convert='t = numpy.loadtxt("pima-indians-diabetes.data", delimiter=","); '
        'numpy.savez_compressed("pima.npz", X=t[:, :8], y=t[:, 8].astype("uint8"))',
    ),
}


class Split(NamedTuple):
    """Training rows and held-out rows. Regressions have the intercept as first column."""

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


def mnist(folder: Path | None) -> Split:
    """Return the digits as rows of 784 pixels between 0 and 1, in the published split."""
    arrays = load("mnist", folder)
    train, test = (
        arrays[name].reshape(len(arrays[name]), -1).astype(np.float32) / 255
        for name in ("x_train", "x_test")
    )
    return Split(train, arrays["y_train"].astype(int), test, arrays["y_test"].astype(int))


def two_classes(
    name: str, folder: Path | None
) -> tuple[Float[np.ndarray, "N d"], Int[np.ndarray, " N"]]:
    """Return pima or parkinsons with standardised columns, intercept first."""
    arrays = load(name, folder)
    x = arrays["X"].astype(float)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return np.column_stack([np.ones(len(x)), x]), arrays["y"].astype(int)


class Ratings(NamedTuple):
    """Users, items (counted from 0) and ratings, for training and held out, and where from."""

    train: Int[np.ndarray, "N 3"]
    held_out: Int[np.ndarray, "M 3"]
    n_users: int
    n_items: int
    source: str


def movielens(folder: Path | None) -> Ratings | None:
    """Return MovieLens-100k, or None if the user has no copy.

    The folder may be the unpacked ml-100k itself, or hold movielens.npz.
    """
    if folder is not None and (folder / "u1.base").is_file():
        files = {"train": folder / "u1.base", "test": folder / "u1.test"}
        arrays = {
            name: np.loadtxt(file, dtype=np.int32, ndmin=2)[:, :3] for name, file in files.items()
        }
    elif find("movielens", folder) is None:
        return None
    else:
        arrays = load("movielens", folder)
    train, held_out = (arrays[name] - np.array([1, 1, 0]) for name in ("train", "test"))
    users, items, _ = np.maximum(train.max(axis=0), held_out.max(axis=0)) + 1
    return Ratings(train, held_out, int(users), int(items), "MovieLens-100k, u1")
