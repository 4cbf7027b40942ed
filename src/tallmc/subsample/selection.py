"""Which rows a step sees, and with what weight: the prepared form of a subsampling scheme and a size.

The randomness of many steps is drawn in one call. Where the choice of rows does not depend on the state (a *static* selection)
that call gives the picks themselves, and their rows can be gathered ahead, here or elsewhere.

For any selection and any fixed function φ of a row, E Σ_{i∈S} w_i φ(x_i) = Σ_i φ(x_i): that is all unbiasedness needs.
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from .._rows import Sum
from ..gradient.base import AbstractGradient, Batch


class Picks(eqx.Module):
    """Row numbers and their weights, w_i = 1/(n p_i) for n draws with replacement."""

    indices: Int[Array, "*k n"]
    weights: Float[Array, "*k n"]


class Estimate(eqx.Module):
    """A gradient of the potential, the rows it took, and the potential itself where all rows were seen."""

    gradient: Float[Array, " d"]
    n_rows: Int[Array, ""]
    potential: Sum | None = None


class AbstractSelection(eqx.Module):
    @property
    @abc.abstractmethod
    def rows_per_step(self) -> int | None:
        """Rows that each step touches; None when that is not known ahead."""

    @property
    @abc.abstractmethod
    def most_rows(self) -> int:
        """Most rows that one step may touch."""

    @abc.abstractmethod
    def supply(self, key: PRNGKeyArray, steps: int) -> PyTree[Array]:
        """The randomness of `steps` steps, drawn in one call; the leading axis is the step."""

    @abc.abstractmethod
    def estimate(self, gradient: AbstractGradient, position: Float[Array, " d"], supply: PyTree[Array]) -> Estimate:
        """The gradient estimate at `position` from one step's randomness."""


class AbstractStaticSelection(AbstractSelection):
    """A fixed number of rows, chosen without looking at the state: what is drawn ahead are the picks themselves."""

    size: eqx.AbstractVar[int]

    @property
    def rows_per_step(self) -> int:
        return self.size

    @property
    def most_rows(self) -> int:
        return self.size

    def estimate(self, gradient: AbstractGradient, position: Float[Array, " d"], supply: Batch) -> Estimate:
        return Estimate(gradient(position, supply), jnp.int32(self.size))


class AbstractDynamicSelection(AbstractSelection):
    """Rows chosen, or counted, by looking at the state."""

    @property
    def rows_per_step(self) -> None:
        return None
