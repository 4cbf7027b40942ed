"""What every part of a method has in common, whatever its axis."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

_PACKAGE = __package__.split(".")[0]
_CONTRIB = f"{_PACKAGE}.contrib."


class Part:
    """A part of a method, or a setting of a part.

    Stores hold the class name and the fields of a part; the table of methods and the citations of
    a run are made of the class variables.
    """

    paper: ClassVar[str | None] = None
    """Citation of the paper that the part comes from, as in `papers.bib`."""

    paper_by_setting: ClassVar[Mapping[str, str]] = {}
    """Papers between which a setting decides, by the setting as `repr` writes it."""

    bias: ClassVar[str] = ""
    """What the part does to the law of the chain, in one or two sentences."""

    cost: ClassVar[str] = ""
    """What a step costs, in one or two sentences."""

    def settings(self) -> dict[str, Any]:
        """The fields that a user writes. `prepare` fills the others, declared with `repr=False`."""
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields if field.repr}

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"{type(self).__name__}({settings})"

    def _with(self, **fields: Any) -> Self:
        """A copy with other fields, for `prepare`.

        It skips the constructor, whose checks are for what a user writes, not for traced arrays.
        """
        new = object.__new__(type(self))
        for name in (field.name for field in dataclasses.fields(self)):  # type: ignore[arg-type]
            object.__setattr__(new, name, fields.get(name, getattr(self, name)))
        return new


def parts_by_name(topic: str | None = None) -> dict[str, type[Part]]:
    """The library's own parts that have been imported, by class name.

    A topic of `contrib` is imported first. Names come from stores, so a topic must be one word.
    """
    if topic is not None and topic.isidentifier():
        importlib.import_module(f"{_CONTRIB}{topic}")
    return library_classes(Part)


def library_classes(base: type) -> dict[str, Any]:
    """The library's own classes below `base` that have been imported, by name."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [base]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith(f"{_PACKAGE}."):
                found[kind.__name__] = kind
    return found


def import_topics() -> None:
    """Import all topics of `contrib`, which registers their parts and named methods."""
    for topic in importlib.import_module(f"{_PACKAGE}.contrib").__all__:
        importlib.import_module(f"{_CONTRIB}{topic}")


def topic_of(part: Any) -> str | None:
    """The topic of `contrib` that a class or function belongs to; None for the product."""
    module: str = part.__module__
    return module.removeprefix(_CONTRIB).split(".")[0] if module.startswith(_CONTRIB) else None
