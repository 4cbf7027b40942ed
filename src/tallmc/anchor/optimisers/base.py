"""The interface of an optimiser: a search for the mode with counted passes over the rows."""

from __future__ import annotations

import abc

from jaxtyping import Array, Float

from ..passes import CountedPasses


class AbstractOptimiser(abc.ABC):
    """A search for the mode of a posterior.

    >>> from tallmc import Newton
    >>> isinstance(Newton(), AbstractOptimiser)
    True
    """

    @abc.abstractmethod
    def find(self, passes: CountedPasses) -> Float[Array, " d"]:
        """The mode, searched from `init` of the posterior."""
