"""Methods: compositions of parts, the named methods of the papers, and the automatic choice."""

from .abstract import AbstractMethod, PreparedMethod
from .automatic import Automatic
from .firefly import Tangent, Taylor
from .method import Method
from .named import *  # noqa: F403  every named method
from .registry import METHODS, Named, named
from .suggestions import Suggested, suggest

__all__ = [
    "METHODS",
    "AbstractMethod",
    "Automatic",
    "Method",
    "Named",
    "PreparedMethod",
    "Suggested",
    "Tangent",
    "Taylor",
    "named",
    "suggest",
]
__all__ += list(METHODS)


def __dir__() -> list[str]:
    return sorted(__all__)
