"""The package's structure: one-way imports, abstract or final classes, one class per name."""

import ast
import functools
import importlib
import inspect
import pkgutil
from collections import defaultdict
from pathlib import Path

import pytest

import tallmc

PACKAGE = Path(tallmc.__file__).parent

LAYERS = [
    "core",
    "statistics",
    "rows",
    "ingestion",
    "models",
    "anchor",
    "geometry",
    "gradient",
    "subsample",
    "correction",
    "schedule",
    "dynamics",
    "engine",
    "methods",
    "results",
    "store",
    "api",
    "diagnose",
    "tuning",
    "reference",
    "report",
    "frontends",
    "sklearn",
    "experiments",
    "cli",
]
"""Folders from bottom to top. A file imports from its own folder and from folders below it."""


@functools.cache
def modules() -> dict[str, Path]:
    """The package's modules, keyed by their dotted name relative to the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports(name: str, path: Path) -> list[tuple[str, bool]]:
    """The package's own modules that a module imports, and whether it does so inside a function."""
    tree = ast.parse(path.read_text())
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    here = name.split(".") if name else []
    folder = here if path.name == "__init__.py" else here[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            stem = folder[: len(folder) - node.level + 1]
            module = ".".join([*stem, *([node.module] if node.module else [])])
            targets = [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
            found += [(t if t in modules() else module, id(node) in inside) for t in targets]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
            )
            assert not any(n == "tallmc" or n.startswith("tallmc.") for n in names), (
                f"{name}: import relatively"
            )
    return found


@functools.cache
def classes() -> list[type]:
    """Every class that the package defines."""
    found = {}
    for info in pkgutil.walk_packages([str(PACKAGE)], "tallmc."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return list(found.values())


def test_every_folder_has_its_layer():
    folders = {
        path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert folders == set(LAYERS)
    files = {path.name for path in PACKAGE.glob("*.py")}
    assert files == {"__init__.py", "__main__.py", "_version.py"}


@pytest.mark.parametrize(
    "name", [name for name in modules() if name not in ("", "__main__", "_version")]
)
def test_imports_run_downwards(name):
    layer = LAYERS.index(name.split(".")[0])
    for target, _ in imports(name, modules()[name]):
        if target in ("", "_version"):
            continue
        assert LAYERS.index(target.split(".")[0]) <= layer, (
            f"{name} imports {target}, which is above it"
        )


def test_no_circle_among_modules():
    files = modules()
    graph = {
        name: {t for t, _ in imports(name, path) if t in files and t != name}
        for name, path in files.items()
    }
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        state[name] = 1
        for target in graph[name]:
            assert state.get(target) != 1, " -> ".join([*trail, name, target])
            if target not in state:
                visit(target, (*trail, name))
        state[name] = 2

    for name in graph:
        if name and name not in state:
            visit(name, ())


def test_imports_inside_functions_load_optional_or_slow_parts_only():
    allowed = {"cli", "experiments", "frontends", "report", "tuning", "reference"}
    allowed.add("results.display.live")
    allowed.add("results.summary_table")  # imports pandas
    for name, path in modules().items():
        for target, inside in imports(name, path):
            if inside:
                assert {target, target.split(".")[0]} & allowed, (
                    f"{name} imports {target} inside a function"
                )


def test_classes_are_abstract_or_final():
    """No class overrides a method that a base class of the package implements."""
    own = set(classes())
    found = []
    for cls in own:
        for base in cls.__mro__[1:]:
            if base not in own:
                continue
            for name, value in vars(base).items():
                implemented = inspect.isfunction(value) or isinstance(
                    value, property | classmethod | staticmethod
                )
                abstract = getattr(value, "__isabstractmethod__", False)
                dunder = name.startswith("__")
                if name in vars(cls) and implemented and not abstract and not dunder:
                    found.append(f"{cls.__name__}.{name} overrides {base.__name__}.{name}")
    assert not found, "\n".join(sorted(found))


def test_a_name_means_one_class():
    by_name = defaultdict(list)
    for cls in classes():
        by_name[cls.__name__].append(cls.__module__)
    assert {name: where for name, where in by_name.items() if len(where) > 1} == {}


def test_files_are_short():
    long = {
        name: n
        for name, path in modules().items()
        if (n := len(path.read_text().splitlines())) > 400
    }
    assert long == {}
