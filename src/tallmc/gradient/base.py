"""Estimates of ∇f(θ) from a few rows.

Every estimator here is a part known without looking at the rows drawn, plus a weighted sum of *residuals*, one a row:

    ∇f̂(θ) = known(θ) + Σ_{i∈S} w_i r_i(θ),        Σ_{all i} r_i(θ) = ∇f(θ) − known(θ)

Unbiased whenever E Σ_{i∈S} w_i φ_i = Σ φ_i. With n draws from p and w_i = 1/(n p_i) its covariance is
(1/n)(Σ r_i r_iᵀ/p_i − (Σ r_i)(Σ r_i)ᵀ), whose trace is least for p_i ∝ ‖r_i(θ)‖ (putcha-2023, Lemmas 3.1 and 3.2).

An estimator may have a *memory*, one a chain: what it has learned from the rows seen so far. Everything above then holds at each
step given the memory.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior


class Batch(eqx.Module):
    """Rows a step looks at, their weights and, where an estimator keeps something for each row, their numbers."""

    rows: PyTree[Array]
    weights: Float[Array, " n"]
    indices: Int[Array, " n"] | None = None


class AbstractGradient(eqx.Module):
    posterior: eqx.AbstractVar[AbstractPosterior]

    @abc.abstractmethod
    def start(self, position: Float[Array, " d"]) -> Any:
        """The memory of a chain that starts at `position`."""

    @abc.abstractmethod
    def refresh(self, memory: Any, position: Float[Array, " d"], step: Int[Array, ""]) -> Any:
        """The memory after the pass over all rows that is due before this step, if one is."""

    @abc.abstractmethod
    def passes_before(self, step: np.ndarray) -> np.ndarray:
        """Passes over all rows made for the first `step` steps, that of `start` included."""

    @abc.abstractmethod
    def known(self, position: Float[Array, " d"], memory: Any) -> Float[Array, " d"]:
        """The part of the estimate that no row is needed for."""

    @abc.abstractmethod
    def residuals(
        self, position: Float[Array, " d"], rows: PyTree[Array], indices: Int[Array, " n"] | None, memory: Any
    ) -> Float[Array, "n ..."]:
        """r_i(θ), in the posterior's compact form."""

    @abc.abstractmethod
    def learn(self, memory: Any, batch: Batch, residuals: Float[Array, "n ..."]) -> Any:
        """The memory after these rows were seen with these residuals."""

    def residual_sum(self, position: Float[Array, " d"], batch: Batch, memory: Any) -> Float[Array, " d"]:
        """Σ w_i r_i(θ) over a batch."""
        residuals = self.residuals(position, batch.rows, batch.indices, memory)
        return self.posterior.combine(residuals, batch.rows, batch.weights)

    def __call__(self, position: Float[Array, " d"], batch: Batch, memory: Any = None) -> Float[Array, " d"]:
        """The estimate from one batch."""
        return self.known(position, memory) + self.residual_sum(position, batch, memory)


class AbstractMemoryless(AbstractGradient):
    """An estimator that is the same at every step."""

    def start(self, position: Float[Array, " d"]) -> None:
        return None

    def refresh(self, memory: None, position: Float[Array, " d"], step: Int[Array, ""]) -> None:
        return None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.zeros_like(step)

    def learn(self, memory: None, batch: Batch, residuals: Float[Array, "n ..."]) -> None:
        return None


class GradientChoice(abc.ABC):
    """What a method asks for; `prepare` makes it ready for one posterior."""

    has_memory: ClassVar[bool]
    """Whether it learns from the rows seen."""

    @property
    @abc.abstractmethod
    def needs(self) -> Needs:
        """What must be known about the posterior before the first step."""

    @property
    @abc.abstractmethod
    def order(self) -> int | None:
        """How many terms of a row's Taylor series around the anchor its residual leaves out; None where it is no such series."""

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractGradient:
        """The estimator for this posterior. `anchor` is there when `needs` says so."""
