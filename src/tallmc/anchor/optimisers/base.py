"""The interface of an optimiser: a search for the mode with counted passes over the rows."""

from __future__ import annotations

import abc
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from ..passes import CountedPasses


class SearchEnd(NamedTuple):
    """Where a search ended."""

    position: Float[np.ndarray, " d"]
    problem: str | None
    """Why the search did not reach the mode; None if it did."""
    definite: bool = True
    """False if the search saw a Hessian there that is not positive definite."""


class AbstractOptimiser(abc.ABC):
    """A search for the mode of a posterior.

    >>> from tallmc import Newton
    >>> isinstance(Newton(), AbstractOptimiser)
    True
    """

    @abc.abstractmethod
    def find(self, passes: CountedPasses) -> Float[Array, " d"]:
        """The mode, searched from `init` of the posterior."""
