"""The package's structure: one-way imports, no circles, nothing of contrib in the product."""

import ast
import functools
import importlib
import inspect
import pkgutil
from pathlib import Path

import tallmc
from problems import in_a_new_process

PACKAGE = Path(tallmc.__file__).parent

LAYERS = [
    "_version",
    "_core",
    "_rows",
    "rows",
    "_ingestion",
    "models",
    "priors",
    "_anchor",
    "anchor",
    "geometry",
    "schedule",
    "gradient",
    "subsample",
    "correction",
    "dynamics",
    "_engine",
    "methods",
    "results",
    "_store",
    "_api",
    "_fit",
    "diagnose",
    "tuning",
    "reference",
    "interop",
    "report",
    "cli",
    "__main__",
    "contrib",
]
"""Folders and files of the package from bottom to top, contrib above all of the product.

A file imports from its own folder and from those below it.
"""

LAZY = {"_fit", "priors", "results.display", "results.summary"}
"""What may be imported inside a function, because it needs pandas, pyarrow or rich.

Commands import what they need when they run, so that `tallmc --help` stays fast.
"""

CONCRETE_BASES = {
    "DrawSink",
    "HMC",
    "Langevin",
    "MeasuredSelection",
    "Part",
    "Reflected",
    "Simple",
    "ZigZagRates",
}
"""Classes with subclasses that say no `Abstract` and have no abstract method."""

OUTSIDE = {"tallmc", "experiments", "benchmarks", "website"}
"""Packages that the package must not import: itself absolutely, and what is not installed."""


@functools.cache
def modules() -> dict[str, Path]:
    """The package's modules, keyed by their dotted name relative to the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str) -> list[tuple[str, bool]]:
    """The package's own modules that a module imports, and whether it does so inside a function."""
    path = modules()[name]
    tree = ast.parse(path.read_text(encoding="utf-8"))
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
            found += [(n, id(node) in inside) for n in names if n.split(".")[0] in OUTSIDE]
    return found


@functools.cache
def arrows() -> list[tuple[str, str, bool]]:
    """All imports of the package: from, to, and whether inside a function."""
    return [(name, *found) for name in modules() for found in imports(name)]


@functools.cache
def classes() -> list[type]:
    """Every class that the package defines."""
    found = {}
    for info in pkgutil.walk_packages([str(PACKAGE)], "tallmc."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return list(found.values())


def layer(name: str) -> int:
    return LAYERS.index(name.split(".")[0])


def test_every_folder_and_every_file_has_its_layer():
    assert {name.split(".")[0] for name in modules()} - {""} == set(LAYERS)


def test_imports_are_relative_and_stay_inside_the_package():
    assert [arrow for arrow in arrows() if arrow[1].split(".")[0] in OUTSIDE] == []


def test_imports_run_downwards():
    upwards = [
        f"{name} imports {target}"
        for name, target, _ in arrows()
        if name and target.split(".")[0] in LAYERS and layer(target) > layer(name)
    ]
    assert upwards == []


def test_the_product_imports_no_contrib():
    """Only `tallmc/__init__.py` names contrib, for type checkers; at run time it is lazy."""
    importers = {name for name, target, _ in arrows() if target.split(".")[0] == "contrib"}
    assert {name for name in importers if name.split(".")[0] != "contrib"} <= {""}


def test_topics_of_contrib_are_told_in_one_list():
    folder = PACKAGE / "contrib"
    topics = {path.stem for path in folder.iterdir() if path.name[0] not in "_."}
    assert topics == set(tallmc.contrib.__all__)


def test_no_circle_among_modules():
    """Imports inside functions count too: they would only hide a circle."""
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for name, target, _ in arrows():
        if target in graph and target != name:
            graph[name].add(target)
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
    found = [
        f"{name} imports {target}"
        for name, target, inside in arrows()
        if inside
        and not name.startswith("cli")
        and not {target, target.split(".")[0]} & (LAZY | OUTSIDE)
    ]
    assert found == []


def test_classes_are_abstract_or_final():
    """A class from which others inherit is abstract. The few exceptions are listed."""
    own = set(classes())
    bases = {base for cls in own for base in cls.__mro__[1:] if base in own}
    concrete = {
        base.__qualname__
        for base in bases
        if not inspect.isabstract(base)
        and not base.__name__.startswith("Abstract")
        and not issubclass(base, Exception)
    }
    assert concrete <= CONCRETE_BASES


def test_importing_the_package_loads_no_contrib_and_nothing_heavy():
    heavy = (
        "tallmc.contrib blackjax xarray arviz_base arviz_stats typer rich pyarrow matplotlib "
        "pandas zarr netCDF4 scipy.special optax sklearn numpyro pymc"
    )
    found = in_a_new_process()
    assert set(heavy.split()) & set(found["modules"]) == set()
    assert found["collects garbage"]
