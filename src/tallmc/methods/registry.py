"""The registry of named methods: one decorated function per method.

`tallmc.methods`, the command, citations, the tables of the docs, the store and the parametrised
tests read `METHODS`. A topic of `tallmc.contrib` registers its methods when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .._core.errors import InvalidInput
from .._core.part import import_topics, topic_of
from .abstract import AbstractMethod

Make = TypeVar("Make", bound=Callable[..., AbstractMethod])


class Named(NamedTuple):
    """A named method."""

    make: Callable[..., AbstractMethod]
    """Function of the step size and further settings that returns the method."""
    reference: str
    """Citation of a paper in `papers.bib`, and the place in the paper."""
    example: dict[str, Any]
    """Example values of the settings other than the step size."""

    @property
    def summary(self) -> str:
        """What the method is: the first line of the documentation of `make`."""
        return (self.make.__doc__ or "").partition("\n")[0]

    @property
    def path(self) -> str:
        """Where users find the function."""
        topic = topic_of(self.make)
        place = "methods" if topic is None else f"contrib.{topic}"
        return f"tallmc.{place}.{self.make.__name__}"

    def build(self, step_size: float = 1.0) -> AbstractMethod:
        """The method with the example settings."""
        return self.make(step_size, **self.example)

    @property
    def axes(self) -> dict[str, str]:
        """Labels of the parts: dynamics, gradient, subsample, size."""
        return self.build().axes


METHODS: dict[str, Named] = {}  # All named methods that have been imported, by name


def named(reference: str, example: dict[str, Any] | None = None) -> Callable[[Make], Make]:
    """Register a function of the step size as the named method of a paper."""

    def register(make: Make) -> Make:
        METHODS[make.__name__] = Named(make, reference, example or {})
        return make

    return register


def all_methods() -> dict[str, Named]:
    """All named methods, those of the topics of `tallmc.contrib` included."""
    import_topics()
    return METHODS


def method_named(name: str) -> Named:
    """The named method, also of a topic that is not imported yet."""
    if name not in METHODS and name not in all_methods():
        raise InvalidInput("name", f"be one of {', '.join(METHODS)}", name)
    return METHODS[name]
