"""Estimators of ∇f(θ) from a few rows.

Every estimator is a known part, which needs no rows, plus a weighted sum of *residuals*, one per
row:

    ∇f̂(θ) = known(θ) + Σ_{i∈S} w_i r_i(θ),        Σ_{all i} r_i(θ) = ∇f(θ) − known(θ)

The estimate is unbiased whenever E Σ_{i∈S} w_i φ_i = Σ φ_i. With n draws from p and
w_i = 1/(n p_i) its covariance is (1/n)(Σ r_i r_iᵀ/p_i − (Σ r_i)(Σ r_i)ᵀ). The trace of this
covariance is least for p_i ∝ ‖r_i(θ)‖ (putcha-2023, Lemmas 3.1 and 3.2).

An estimator may keep one *memory* per chain: what it has learned from the rows seen so far. The
statements above then hold at each step, given the memory. Some memories are renewed by a pass over
all rows (`renewal.py`).
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float, Int

from ..anchor.anchor import Anchor, AnchorLevel
from ..models.base import AbstractModel
from ..models.posterior import AbstractPosterior
from ..rows.base import RowAccess, RowBlock
from ..rows.batch import Batch
from .renewal import AbstractRenewable, AbstractUnrenewed


class AbstractGradient(AbstractRenewable):
    """An estimator that is prepared for one model.

    **Arguments:**

    - `model`: the model whose gradient is estimated.

    >>> import tallmc
    >>> X, y = [[1.0], [1.0]], [1.0, 2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> isinstance(tallmc.gradient.Simple().prepare(posterior, None), AbstractGradient)
    True
    """

    model: eqx.AbstractVar[AbstractModel]

    @abc.abstractmethod
    def known(self, position: Float[Array, " d"], memory: Any) -> Float[Array, " d"]:
        """The part of the estimate that needs no rows."""

    @abc.abstractmethod
    def residuals(
        self,
        position: Float[Array, " d"],
        rows: RowBlock,
        indices: Int[Array, " n"] | None,
        memory: Any,
    ) -> Float[Array, "n ..."]:
        """r_i(θ), in the model's compact form."""

    @abc.abstractmethod
    def residual_sum(
        self, position: Float[Array, " d"], batch: Batch, memory: Any
    ) -> Float[Array, " d"]:
        """Σ w_i r_i(θ) over a batch."""

    @abc.abstractmethod
    def learn(self, memory: Any, batch: Batch, residuals: Float[Array, "n ..."]) -> Any:
        """The memory after a batch whose rows had these residuals."""

    def __call__(
        self, position: Float[Array, " d"], batch: Batch, memory: Any = None
    ) -> Float[Array, " d"]:
        """The estimate from one batch."""
        return self.known(position, memory) + self.residual_sum(position, batch, memory)


class AbstractMemoryless(AbstractGradient, AbstractUnrenewed):
    """An estimator without memory: it is the same at every step.

    **Arguments:**

    - `model`: the model whose gradient is estimated.

    >>> import tallmc
    >>> issubclass(tallmc.gradient.SimpleGradient, AbstractMemoryless)
    True
    """

    def learn(self, memory: None, batch: Batch, residuals: Float[Array, "n ..."]) -> None:
        return None


def combined_residuals(
    gradient: AbstractGradient, position: Float[Array, " d"], batch: Batch, memory: Any
) -> Float[Array, " d"]:
    """`residual_sum` computed from the residuals, for estimators without a cheaper form."""
    residuals = gradient.residuals(position, batch.rows, batch.indices, memory)
    return gradient.model.combine(residuals, batch.rows, batch.weights)


class GradientChoice(abc.ABC):
    """The choice of an estimator in a method. `prepare` builds the estimator for one posterior.

    >>> import tallmc
    >>> isinstance(tallmc.gradient.Simple(), GradientChoice)
    True
    """

    has_memory: ClassVar[bool]
    """Whether the estimator keeps a memory."""
    row_access: ClassVar[RowAccess]
    """How the estimator reads rows while chains run."""

    @property
    @abc.abstractmethod
    def needs(self) -> AnchorLevel:
        """What must be known about the posterior before the first step."""

    @property
    @abc.abstractmethod
    def order(self) -> int | None:
        """Number of Taylor terms around the anchor that are subtracted from a row's gradient.

        None if the residual is not such a remainder.
        """

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractGradient:
        """Build the estimator for this posterior. `anchor` is given if `needs` asks for it."""
