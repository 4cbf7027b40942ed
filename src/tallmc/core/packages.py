"""Packages that are imported when they are first needed, and the command that installs them.

A missing package must be noticed before any work is done: `check_installed` looks for it without
importing it.
"""

from __future__ import annotations

import importlib.util

_DEFAULT = (
    "arviz_base",
    "arviz_stats",
    "contourpy",
    "formulaic",
    "matplotlib",
    "narwhals",
    "netCDF4",
    "pandas",
    "pyarrow",
    "rich",
    "typer",
    "xarray",
    "zarr",
)
_EXTRAS = {
    "arviz_plots": "plots",
    "blackjax": "reference",
    "dask": "dask",
    "distributed": "dask",
    "numpyro": "numpyro",
    "pymc": "pymc",
    "pytensor": "pymc",
    "sklearn": "sklearn",
}
INSTALLED_BY = {
    **dict.fromkeys(_DEFAULT, "tallmc"),
    **{package: f"tallmc[{extra}]" for package, extra in _EXTRAS.items()},
}
"""What to install, for each package that is imported late."""


def check_installed(*packages: str, needed_by: str) -> None:
    """Check that packages can be imported, without importing them.

    **Arguments:**

    - `packages`: names as in an import statement.
    - `needed_by`: what needs them, as the subject of the message.

    **Raises:** `ModuleNotFoundError` that says how to install the first one that is missing.

    >>> check_installed("pandas", needed_by="Draws.summary")
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise missing(package, needed_by)


def missing(package: str, needed_by: str) -> ModuleNotFoundError:
    """The error about a missing package.

    >>> print(missing("blackjax", "nuts"))
    nuts needs blackjax, which is not installed. Run: pip install "tallmc[reference]"
    """
    return ModuleNotFoundError(
        f"{needed_by} needs {package}, which is not installed. "
        f'Run: pip install "{INSTALLED_BY[package]}"',
        name=package,
    )
