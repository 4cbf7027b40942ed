"""A lower bound on the likelihood of each row, as Firefly Monte Carlo uses it.

A bound B_i ≤ L_i is useful if Σ log B_i costs nothing per row. Then the step needs the rows only
through the gaps g_i = log L_i − log B_i ≥ 0 of some rows:

    P(z_i = 1 | θ) = 1 − e^−g_i,   −log((L_i − B_i)/B_i) = −g_i − log(1 − e^−g_i).
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...anchor.anchor import Anchor
from ...models.base import AbstractModel
from ...models.posterior import AbstractPosterior
from ...rows.base import RowBlock


class AbstractBound(eqx.Module):
    """The prior times Π B_i, and the gaps between likelihoods and bounds."""

    model: eqx.AbstractVar[AbstractModel]
    anchor: eqx.AbstractVar[Float[Array, " d"]]
    """θ̂, where the bound is tight."""

    @abc.abstractmethod
    def known(self, position: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """−log p(θ) − Σ log B_i(θ), up to a constant, and its gradient. Reads no rows."""

    @abc.abstractmethod
    def gaps(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, " n"]:
        """g_i = log L_i − log B_i, positive."""

    @abc.abstractmethod
    def sum_gap_gradients(
        self, position: Float[Array, " d"], rows: RowBlock, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        """Σ w_i ∇g_i(θ)."""

    def chance_bright(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, " n"]:
        """P(z_i = 1 | θ) = 1 − B_i/L_i."""
        return -jnp.expm1(-self.gaps(position, rows))

    def bright_sum(
        self, position: Float[Array, " d"], rows: RowBlock, used: Bool[Array, " n"]
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """−Σ log((L_i − B_i)/B_i) over the used rows, and its gradient."""
        gaps = self.gaps(position, rows)
        chance = -jnp.expm1(-gaps)
        terms = jnp.where(used, -gaps - jnp.log(chance), 0)
        weights = jnp.where(used, -1 / chance, 0)
        return jnp.sum(terms), self.sum_gap_gradients(position, rows, weights)


class BoundChoice(abc.ABC):
    """A bound as chosen by the user; `prepare` computes it for a posterior.

    >>> from tallmc.methods.firefly import Tangent
    >>> isinstance(Tangent(), BoundChoice)
    True
    """

    @property
    @abc.abstractmethod
    def is_proved(self) -> bool:
        """Whether it is below the likelihood everywhere. FlyMC is then known to be exact."""

    @abc.abstractmethod
    def check(self, posterior: AbstractPosterior) -> None:
        """Raise `InvalidInput` if there is no such bound for this posterior."""

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor) -> tuple[AbstractBound, int]:
        """The bound that is tight at the anchor, and how many rows were evaluated to find it."""
