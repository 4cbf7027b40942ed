"""What gradient estimators have in common, and the simple and the exact one.

One estimator is one class, as one dynamics is: its fields are the settings that a user writes, and
`prepare` returns a copy for one posterior, which holds the model and what is known at the anchor.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._anchor.anchor import Anchor, AnchorLevel
from .._core.arrays import Vector
from .._core.part import Part
from .._rows.access import AbstractRows, RowAccess, RowBlock
from .._rows.law import Batch
from ..models.model import AbstractModel, Compact, rounded_sum
from ..models.posterior import AbstractPosterior

Positions = Float[Array, "chains d"]  # One position, or one sum of gradients, per chain
Indices = Int[Array, " n"]  # The row numbers of a batch
Residuals = Compact  # r_i(θ) of the rows of a batch

# Σ ∇f_i over all rows at the positions of several chains, in one shared pass.


def row_gradient_sums(model: AbstractModel, positions: Positions, rows: AbstractRows) -> Positions:
    """Σ ∇f_i(θ) at each position, without the prior."""
    return rows.reduce(
        block_gradient_sums, model, positions, width=model.width(rows), finish=rounded_sum
    )


def block_gradient_sums(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, positions: Positions
) -> Positions:
    """Σ ∇f_i(θ) over a block of rows, at each position."""
    batch = Batch(block, counted.astype(model.dtype))
    return jax.vmap(lambda position: model.sum_remainders(0, position, position, batch))(positions)


class AbstractRenewable(eqx.Module):
    """A part of a chain's estimator that may keep a memory, here none.

    A memory may need Σ ∇f_i over all rows from time to time. The run ends a call of the compiled
    loop before each step for which the kernel's `due` is true. The kernel then makes the pass on
    the host, and passes its result to `renew`. The memories of all chains are stacked.
    """

    @property
    def renewed_every(self) -> int | None:
        """A pass is due before each step t > 0 that is a multiple of this; None if never."""
        return None

    def start(self, positions: Positions, rows: AbstractRows) -> Any:
        """The memories of chains that start at these positions. Called on the host."""
        return None

    def renew(self, carried: Any, positions: Positions, row_sums: Positions) -> Any:
        """The memories after a pass that computed Σ ∇f_i at the chains' positions."""
        return carried

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        """Number of passes made for the first `step` steps, including the pass of `start`."""
        if self.renewed_every is None:
            return np.zeros_like(step)
        return np.maximum(1, -(-step // self.renewed_every))


class AbstractGradient(Part, AbstractRenewable):
    """A gradient estimator. One of your own needs `known` and `residuals`."""

    model: Any = eqx.field(default=None, repr=False, kw_only=True)
    """The model whose gradient is estimated."""

    has_memory: ClassVar[bool] = False
    """Whether the estimator keeps a memory."""
    row_access: ClassVar[RowAccess] = RowAccess.STREAM
    """How the estimator reads rows while chains run."""

    @property
    def needs(self) -> AnchorLevel:
        """What must be known about the posterior before the first step."""
        return AnchorLevel.NOTHING

    @property
    @abc.abstractmethod
    def order(self) -> int | None:
        """Number of Taylor terms around the anchor that are subtracted from a row's gradient.

        None if the residual is not such a remainder.
        """

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None = None) -> Self:
        """The estimator for this posterior. `anchor` is given if `needs` asks for it."""
        return self._with(model=posterior.model)

    @abc.abstractmethod
    def known(self, position: Vector, carried: Any = None) -> Vector:
        """The part of the estimate that needs no rows."""

    @abc.abstractmethod
    def residuals(
        self, position: Vector, block: RowBlock, indices: Indices | None = None, carried: Any = None
    ) -> Residuals:
        """r_i(θ), in the model's compact form."""

    def residual_sum(self, position: Vector, batch: Batch, carried: Any = None) -> Vector:
        """Σ w_i r_i(θ) over a batch; override it if there is a cheaper form than this one."""
        residuals = self.residuals(position, batch.rows, batch.indices, carried)
        return self.model.combine(residuals, batch.rows, batch.weights)

    def learn(self, carried: Any, batch: Batch, residuals: Residuals) -> Any:
        """The memory after a batch whose rows had these residuals."""
        return carried

    def __call__(self, position: Vector, batch: Batch, carried: Any = None) -> Vector:
        """The estimate from one batch."""
        return self.known(position, carried) + self.residual_sum(position, batch, carried)


class Simple(AbstractGradient):
    """The simple estimator (Welling and Teh): the prior's gradient plus weighted row gradients.

        ∇f̂(θ) = ∇f₀(θ) + Σ_{i∈S} w_i ∇f_i(θ),   w_i = 1/(n p_i)

    Putcha et al. (2023), eqs. 3 and 8. The best weights are p_i ∝ ‖∇f_i(θ)‖ (eq. 10).

    >>> import jax.numpy as jnp, tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> Simple().prepare(posterior)(jnp.zeros(1), Batch(posterior.data, jnp.ones(2)))
    Array([-3.], dtype=float32)
    """

    bias = "Unbiased for any p > 0. The noise is of order N²/n everywhere, including at the mode."
    order = 0

    def known(self, position: Vector, carried: None = None) -> Vector:
        return self.model.prior_gradient(position)

    def residuals(
        self, position: Vector, block: RowBlock, indices: Indices | None = None, carried: Any = None
    ) -> Residuals:
        return self.model.row_gradients(position, block)

    def residual_sum(self, position: Vector, batch: Batch, carried: None = None) -> Vector:
        return self.model.sum_remainders(0, position, position, batch)


class Full(Simple):
    """The exact gradient, for `subsample.AllRows`: the simple estimator over all rows.

        ∇f(θ) = ∇f₀(θ) + Σ_i ∇f_i(θ)

    The unadjusted Langevin algorithm and MALA use it.
    """

    bias = "No noise."
    cost = "Every step is a pass over the data."
    row_access = RowAccess.TAKE

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None = None) -> Any:
        # As `Simple`, so that both run the same compiled program.
        return Simple().prepare(posterior)
