"""What the rows contribute to the accept step: the remainders of their Taylor expansions.

In coordinates u with θ = θ̂ + Cu, CCᵀ = Σ̂, row i has the potential f_i = T_i + R_i, with its Taylor
expansion T_i of order k at the anchor. The sum of all T_i is known without reading rows. Between
two positions,

    D_i = R_i(u') − R_i(u),   |D_i| ≤ c_i M(u, u').

c_i is computed for every row before the first step. M is symmetric and the same for all rows. The
smaller Σc_i · M, the fewer rows a step reads. Σc_i falls as N^((1−k)/2): a whitened row has a
length of the order of N^(−1/2).
"""

from __future__ import annotations

import abc

import equinox as eqx
from jaxtyping import Array, Float

from ...models.base import AbstractModel
from ...rows.base import AbstractRows, RowBlock


class AbstractRemainders(eqx.Module):
    """Remainders R_i, and a bound on their changes."""

    model: eqx.AbstractVar[AbstractModel]
    order: eqx.AbstractVar[int]
    """k, the order of the expansion."""

    @abc.abstractmethod
    def values(self, moves: Float[Array, "m d"], rows: RowBlock) -> Float[Array, "m n"]:
        """R_i at θ̂ + move, for some moves."""

    @abc.abstractmethod
    def constants(self, rows: RowBlock) -> Float[Array, " n"]:
        """c_i."""

    @abc.abstractmethod
    def growth(self, here: Float[Array, " d"], there: Float[Array, " d"]) -> Float[Array, ""]:
        """M(u, u'); infinite where there is no bound."""

    @abc.abstractmethod
    def width(self, source: AbstractRows) -> int:
        """Floats that a pass over the rows for c_i needs per row."""
