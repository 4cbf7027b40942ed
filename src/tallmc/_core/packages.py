"""Packages that are imported when they are first needed, and the command that installs them."""

from __future__ import annotations

import importlib.util

_DEFAULT = "arviz_base arviz_stats formulaic netCDF4 pandas pyarrow rich typer xarray"
_EXTRAS = {
    "arviz_plots": "plots",
    "matplotlib": "plots",
    "blackjax": "reference",
    "cloudpickle": "executors",
    "dask": "dask",
    "distributed": "dask",
    "numpyro": "numpyro",
    "pymc": "pymc",
    "pytensor": "pymc",
    "sklearn": "sklearn",
    "zarr": "zarr",
}
INSTALLED_BY = {
    **dict.fromkeys(_DEFAULT.split(), "tallmc"),
    **{package: f"tallmc[{extra}]" for package, extra in _EXTRAS.items()},
}
"""What to install, for each package that is imported late."""


def check_installed(*packages: str, needed_by: str) -> None:
    """Check that packages can be imported, without importing them, before any work is done.

    **Raises:** `ModuleNotFoundError` that says how to install the first one that is missing.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise missing(package, needed_by)


def missing(package: str, needed_by: str) -> ModuleNotFoundError:
    what = INSTALLED_BY[package]
    return ModuleNotFoundError(
        f"{needed_by} needs {package}, which is not installed. "
        f'Run: pip install "{what}"; in a clone: pip install "{what.replace("tallmc", ".")}"',
        name=package,
    )
