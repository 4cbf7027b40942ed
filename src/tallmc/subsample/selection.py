"""Which rows a step sees, and with what weight: the prepared form of a subsampling scheme and a size.

A selection is either *static*: its picks do not depend on the state, so those of many steps are drawn in one call and their
rows gathered at once, here or elsewhere; or *dynamic*: it looks at the position and forms the gradient estimate itself.

For any selection and any fixed function φ of a row, E Σ_{i∈S} w_i φ(x_i) = Σ_i φ(x_i): that is all unbiasedness needs.
"""

from __future__ import annotations

import abc

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .._rows import Sum
from ..gradient.base import AbstractGradient


class Picks(eqx.Module):
    """Row numbers and their weights, w_i = 1/(n p_i) for n draws with replacement."""

    indices: Int[Array, "*k n"]
    weights: Float[Array, "*k n"]


class Estimate(eqx.Module):
    """A gradient of the potential, the rows it took, and the potential itself where all rows were seen."""

    gradient: Float[Array, " d"]
    n_rows: Int[Array, ""]
    potential: Sum | None = None


class AbstractStaticSelection(eqx.Module):
    size: eqx.AbstractVar[int]

    @abc.abstractmethod
    def picks(self, key: PRNGKeyArray, steps: int) -> Picks:
        """The picks of `steps` steps, drawn in one call."""


class AbstractDynamicSelection(eqx.Module):
    work_rows: eqx.AbstractVar[int]
    """Most rows that one step may touch."""

    @abc.abstractmethod
    def supply(self, key: PRNGKeyArray, steps: int) -> PyTree[Array]:
        """The randomness of `steps` steps, drawn in one call; the leading axis is the step."""

    @abc.abstractmethod
    def estimate(self, gradient: AbstractGradient, position: Float[Array, " d"], supply: PyTree[Array]) -> Estimate:
        """The gradient estimate at `position` from one step's randomness."""


AbstractSelection = AbstractStaticSelection | AbstractDynamicSelection
