"""What the code imports is declared, and what is missing is named before any work is done."""

import ast
import itertools
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import tallmc
from problems import linear
from tallmc.cli.readers import Readers
from tallmc.core.packages import INSTALLED_BY

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

OTHER_NAMES = {"arviz_base": "arviz-base", "arviz_stats": "arviz-stats", "netCDF4": "netcdf4"}
OTHER_NAMES |= {"arviz_plots": "arviz-plots", "sklearn": "scikit-learn"}
COMES_WITH = {"jaxlib": "jax", "distributed": "dask", "pytensor": "pymc"}
ONLY_IF_LOADED = {"IPython"}  # the progress display asks whether it runs in a notebook


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


def requirement_of(imported: str) -> str:
    return OTHER_NAMES.get(imported, COMES_WITH.get(imported, imported))


def imported_packages() -> dict[str, set[str]]:
    """The files that import each third-party package, inside of functions too."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src" / "tallmc").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(path.name)
    own = {"tallmc", *sys.stdlib_module_names, *ONLY_IF_LOADED}
    return {name: files for name, files in found.items() if name not in own}


@pytest.mark.parametrize("imported", sorted(imported_packages()))
def test_what_is_imported_is_installed_by_default_or_by_the_extra_that_the_error_names(imported):
    requirement, default = requirement_of(imported), packages(PROJECT["dependencies"])
    named = INSTALLED_BY.get(imported, "tallmc")
    if named == "tallmc":
        assert requirement in default, imported_packages()[imported]
    else:
        assert requirement in packages(EXTRAS[named.removeprefix("tallmc[").rstrip("]")])
        assert requirement not in default


def test_errors_name_extras_that_install_the_package():
    for imported, named in INSTALLED_BY.items():
        extra = re.fullmatch(r"tallmc(?:\[(\w+)\])?", named)[1]
        declared = PROJECT["dependencies"] if extra is None else EXTRAS[extra]
        assert requirement_of(imported) in packages(declared), imported


def test_old_extras_still_install():
    assert EXTRAS["arviz"] == EXTRAS["cli"] == []


def test_constraints_pin_every_declared_package_and_nothing_local():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line) for line in lines)
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    declared = [*PROJECT["dependencies"], *itertools.chain(*EXTRAS.values())]
    assert packages(declared) - {"tallmc"} <= pinned


@pytest.fixture(scope="module")
def draws():
    return tallmc.sample(linear(n_rows=50), tallmc.sgld(1e-3, size=5), chains=2, draws=20)


@pytest.mark.parametrize("package", ["arviz_base", "arviz_stats"])
def test_a_summary_without_arviz_says_what_to_install(draws, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    message = f'needs {package}, which is not installed. Run: pip install "tallmc"'
    with pytest.raises(ModuleNotFoundError, match=re.escape(message)):
        draws.summary()


def test_sampling_needs_no_package_that_is_imported_late(monkeypatch):
    for package in INSTALLED_BY:
        monkeypatch.setitem(sys.modules, package, None)
    method = tallmc.sgld(1e-3, size=5)
    found = tallmc.sample(linear(n_rows=50), method, chains=2, draws=20, progress=False)
    assert np.isfinite(found.positions).all() and found.health.verdict


def test_a_missing_dask_is_noticed_before_the_rows_are_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "tallmc\[dask\]"'):
        Readers(scheduler="tcp://127.0.0.1:1")
