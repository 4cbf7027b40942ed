"""Pages with the documentation of every public name, one per module."""

from __future__ import annotations

import functools
import importlib
import inspect
from pathlib import Path
from typing import Any, NamedTuple

_MEMBERS = (property, functools.cached_property, classmethod, staticmethod)


class ReferencePage(NamedTuple):
    """A page on the public names of a module."""

    module: str
    title: str
    text: str
    """What the names are for."""


PAGES = (
    ReferencePage("tallmc", "tallmc", "What most programs need."),
    ReferencePage("tallmc.models", "Models", "Posteriors that are ready to be sampled."),
    ReferencePage("tallmc.priors", "Priors", "Priors of coefficients for `tallmc.fit`."),
    ReferencePage("tallmc.results", "Results", "Draws and the verdict on them."),
    ReferencePage("tallmc.diagnose", "Diagnostics", "How wrong draws are, and why."),
    ReferencePage("tallmc.methods", "Methods", "Methods and what they share."),
    ReferencePage("tallmc.dynamics", "Dynamics", "How a gradient estimate moves a chain."),
    ReferencePage("tallmc.gradient", "Gradients", "Estimates of the gradient from drawn rows."),
    ReferencePage("tallmc.subsample", "Subsamples", "Which rows a step sees, and how many."),
    ReferencePage("tallmc.schedule", "Step sizes", "Step sizes as functions of the step number."),
    ReferencePage("tallmc.geometry", "Geometry", "The coordinates in which the dynamics move."),
    ReferencePage("tallmc.correction", "Noise correction", "Gradient noise taken out of a step."),
    ReferencePage("tallmc.anchor", "Anchors", "The mode and the curvature there."),
    ReferencePage("tallmc.rows", "Rows", "Where the data are, in memory or in a row store."),
    ReferencePage("tallmc.tuning", "Tuning", "Step sizes and sizes found by short runs."),
    ReferencePage("tallmc.report", "Reports", "A page on a stored run."),
    ReferencePage("tallmc.reference", "Reference sampler", "NUTS on all rows, for comparison."),
    ReferencePage("tallmc.interop.sklearn", "scikit-learn", "Estimators for scikit-learn."),
    ReferencePage("tallmc.contrib", "Contrib", "Topics that few need, each complete in itself."),
)


def public_objects(module: str) -> dict[str, Any]:
    """The public functions and classes of a module, by `module.name`.

    >>> list(public_objects("tallmc.report"))
    ['tallmc.report.write_report']
    """
    found = importlib.import_module(module)
    if module == "tallmc.contrib":
        topics = [public_objects(f"{module}.{topic}") for topic in found.__all__]
        return {name: value for topic in topics for name, value in topic.items()}
    return {
        f"{module}.{name}": value
        for name in getattr(found, "__all__", sorted(vars(found)))
        if (inspect.isclass(value := getattr(found, name)) or inspect.isfunction(value))
        and (hasattr(found, "__all__") or value.__module__ == module)
        and value.__module__.startswith("tallmc")
        and not name.startswith("_")
    }


def public_members(value: Any) -> list[str]:
    """The methods and properties that a class defines itself, with a docstring.

    >>> import tallmc
    >>> public_members(tallmc.results.RunReport)
    ['verdict', 'trusted', 'meaning']
    """
    return [
        name
        for name, member in (vars(value).items() if inspect.isclass(value) else ())
        if not name.startswith("_")
        and (callable(member) or isinstance(member, _MEMBERS))
        and getattr(member, "__doc__", None)
    ]


def write_pages(folder: Path) -> None:
    """Write one page per module, and an index.

    A name is documented on the first page that has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = ["# Reference", "", "Every public name, by module.", ""]
    documented: set[str] = set()
    for page in PAGES:
        text = [f"# {page.title}", "", f"`{page.module}`: {page.text}", ""]
        file, shown = f"{page.module}.md", []
        for name, value in public_objects(page.module).items():
            # griffe reads files, and does not follow lazy imports.
            place = f"{value.__module__}.{value.__qualname__}"
            if place not in documented:
                text += [f"::: {place}", "    options:", f"      heading: {name}"]
                text += [f"      members: {public_members(value)}", ""]
                shown.append(f"[`{name.removeprefix(page.module + '.')}`]({file}#{place})")
                documented.add(place)
        (folder / file).write_text("\n".join(text), encoding="utf-8")
        index += [f"**[{page.title}]({file})**. {page.text}", "", ", ".join(shown), ""]
    index += [
        "**[Named methods](named-methods.md)**. Equations, bias, cost and papers of each.",
        "",
        "**[Command line](command-line.md)**. Every command of `tallmc`.",
        "",
    ]
    (folder / "index.md").write_text("\n".join(index), encoding="utf-8")
