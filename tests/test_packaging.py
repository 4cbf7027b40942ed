"""What the code imports is declared, and what is missing is named before any work is done."""

import ast
import functools
import itertools
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import tallmc
from problems import linear
from tallmc._core.packages import INSTALLED_BY
from tallmc._rows.pickled import pickled
from tallmc.cli.demo import run_demo
from tallmc.cli.fit import Readers
from tallmc.cli.run import Settings

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

OTHER_NAMES = {"arviz_stats": "arviz-stats", "netCDF4": "netcdf4"}
OTHER_NAMES |= {"arviz_plots": "arviz-plots", "sklearn": "scikit-learn"}
COMES_WITH = {"jaxlib": "jax", "distributed": "dask", "pytensor": "pymc"}
COMES_WITH |= {"arviz_base": "arviz-stats"}  # by its extra `xarray`
ONLY_IF_LOADED = {"IPython"}  # the progress display asks whether it runs in a notebook


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower() for requirement in requirements}


def requirement_of(imported: str) -> str:
    return OTHER_NAMES.get(imported, COMES_WITH.get(imported, imported))


@functools.cache
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


def test_what_is_imported_is_installed_by_default_or_by_the_extra_that_the_error_names():
    default = packages(PROJECT["dependencies"])
    for imported, files in imported_packages().items():
        requirement, named = requirement_of(imported), INSTALLED_BY.get(imported, "tallmc")
        if named == "tallmc":
            assert requirement in default, (imported, files)
        else:
            extra = packages(EXTRAS[named.removeprefix("tallmc[").rstrip("]")])
            assert requirement in extra - default, (imported, files)


def test_errors_name_extras_that_install_the_package():
    for imported, named in INSTALLED_BY.items():
        extra = re.fullmatch(r"tallmc(?:\[(\w+)\])?", named)[1]
        declared = PROJECT["dependencies"] if extra is None else EXTRAS[extra]
        assert requirement_of(imported) in packages(declared), imported


@pytest.mark.slow
def test_a_plain_install_is_small_and_has_no_upper_bounds():
    required = PROJECT["dependencies"]
    assert len(packages(required)) <= 15
    assert not [requirement for requirement in required if "<" in requirement]
    imported = {requirement_of(name) for name in imported_packages()}
    assert packages(required) <= imported | {"netcdf4"}, "xarray writes files of draws with netcdf4"
    assert all(EXTRAS.values())


def test_constraints_pin_every_declared_package_and_nothing_local():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", line) for line in lines)
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    declared = [*PROJECT["dependencies"], *itertools.chain(*EXTRAS.values())]
    assert packages(declared) - {"tallmc"} <= pinned


@pytest.fixture(scope="module")
def draws():
    return tallmc.sample(
        linear(n_rows=50), tallmc.methods.sgld(1e-3, batch_size=5), chains=2, n_draws=20
    )


def test_a_data_tree_without_arviz_says_what_to_install(draws, monkeypatch):
    for package in ("arviz_base", "arviz_stats"):
        monkeypatch.setitem(sys.modules, package, None)
    message = (
        "needs arviz_base, which is not installed. "
        'Run: pip install "tallmc"; in a clone: pip install "."'
    )
    with pytest.raises(ModuleNotFoundError, match=re.escape(message)):
        draws.to_datatree()
    assert len(draws.summary()) == 2  # needs pandas only


def test_sampling_needs_no_package_that_is_imported_late(monkeypatch):
    for package in INSTALLED_BY:
        monkeypatch.setitem(sys.modules, package, None)
    method = tallmc.methods.sgld(1e-3, batch_size=5)
    found = tallmc.sample(linear(n_rows=50), method, chains=2, n_draws=20, progress=False)
    assert np.isfinite(found.positions).all() and found.report.verdict


def test_a_missing_dask_is_noticed_before_the_rows_are_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "tallmc\[dask\]"'):
        Readers(scheduler="tcp://127.0.0.1:1")


def test_workers_without_cloudpickle_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "tallmc\[executors\]"'):
        pickled(1)


@pytest.mark.slow
def test_the_demo_without_matplotlib_says_that_there_is_no_plot(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    settings = Settings(method="sgld", n_draws=20)
    run_demo(rows=500, columns=2, settings=settings, out=tmp_path / "demo")
    assert 'pip install "tallmc[plots]"' in capsys.readouterr().out.replace("\n", " ")
    assert not (tmp_path / "demo" / "posterior.png").exists()


def test_the_version_is_the_same_everywhere():
    for name, line in (("CITATION.cff", "version: {}"), ("docs/citing.md", "  version = {{{}}},")):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert line.format(tallmc.__version__) in text.splitlines(), name
