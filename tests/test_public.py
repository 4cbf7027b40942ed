"""Public names are frozen and documented."""

import importlib
import inspect

import tallmc
from problems import in_a_new_process
from tallmc.methods.registry import METHODS, all_methods

NAMES = [
    # Verbs.
    "cache",
    "check",
    "cite",
    "compare",
    "fit",
    "from_numpyro",
    "from_pymc",
    "ingest",
    "load",
    "resume",
    "sample",
    "suggest",
    "tune",
    # Classes.
    "Automatic",
    "Draws",
    "InvalidInput",
    "Method",
    "Posterior",
    "PreparationError",
    "SamplingWarning",
    # Namespaces.
    "contrib",
    "diagnose",
    "dynamics",
    "geometry",
    "gradient",
    "methods",
    "models",
    "priors",
    "reference",
    "rows",
    "schedule",
    "subsample",
    "__version__",
]

NAMESPACES = [
    "tallmc",
    "tallmc.anchor",
    "tallmc.correction",
    "tallmc.diagnose",
    "tallmc.dynamics",
    "tallmc.geometry",
    "tallmc.gradient",
    "tallmc.interop.sklearn",
    "tallmc.methods",
    "tallmc.models",
    "tallmc.priors",
    "tallmc.reference",
    "tallmc.report",
    "tallmc.results",
    "tallmc.rows",
    "tallmc.schedule",
    "tallmc.subsample",
    "tallmc.tuning",
    *(f"tallmc.contrib.{topic}" for topic in tallmc.contrib.__all__),
]
"""Modules without an underscore that users import from."""


def test_public_names_are_frozen():
    assert sorted(tallmc.__all__) == sorted(NAMES)
    assert dir(tallmc) == sorted(NAMES)
    assert all(hasattr(tallmc, name) for name in NAMES)


def test_lazy_names_are_listed_and_importable():
    """The process ends well only if it finds the names that it uses."""
    assert "diagnose" in in_a_new_process()["dir"]


def test_every_named_method_is_public_and_says_what_it_is():
    for name, named in all_methods().items():
        assert named.make is eval(named.path, {"tallmc": tallmc})
        assert named.make.__name__ == name and named.summary.endswith(".")
        assert set(named.axes) == {"dynamics", "gradient", "subsample", "size"}


def test_names_of_methods_mean_what_they_say():
    for name, named in all_methods().items():
        axes = named.axes
        assert (axes["size"] == "adaptive") == name.startswith("asgld")
        assert name.endswith("_ps") == axes["subsample"].startswith("Preferential")
        assert ("_cv" in name) == (axes["gradient"] == "ControlVariate")
        assert ("ewsg" in name) == axes["subsample"].startswith("ExponentiallyWeighted")
        assert name.startswith("sgnht") == (axes["dynamics"] == "NoseHoover")


def own_objects(module):
    """The functions and classes that a module offers: its `__all__`, or those that it defines."""
    here = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in here if name[0] != "_"])
    values = {name: getattr(module, name) for name in names}
    return {
        name: value
        for name, value in values.items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith("tallmc")
    }


def test_public_functions_and_classes_are_documented():
    missing = [
        f"{module}.{name}"
        for module in NAMESPACES
        for name, value in own_objects(importlib.import_module(module)).items()
        if not inspect.getdoc(value)
    ]
    assert missing == []


def test_verbs_document_their_arguments():
    missing = [
        name
        for name, value in own_objects(tallmc).items()
        if inspect.isfunction(value)
        and inspect.signature(value).parameters
        and "**Arguments:**" not in (inspect.getdoc(value) or "")
    ]
    assert missing == []


def test_methods_are_the_registry_and_no_class_stands_beside_its_function():
    public = set(tallmc.methods.__all__)
    of_library = {
        name for name, named in METHODS.items() if named.path.startswith("tallmc.methods")
    }
    assert of_library <= public and set(dir(tallmc.methods)) == public
    for named in all_methods().values():
        place = importlib.import_module(named.path.rpartition(".")[0])
        kind = type(named.build()).__name__
        exported = getattr(place, "__all__", [named.make.__name__])
        assert kind == "Method" or kind not in exported
