"""Estimates of ∇f(θ) from a few rows.

Every estimator here is a part known without looking at the rows drawn, plus a weighted sum of *residuals*, one a row:

    ∇f̂(θ) = known(θ) + Σ_{i∈S} w_i r_i(θ),        Σ_{all i} r_i(θ) = ∇f(θ) − known(θ)

Unbiased whenever E Σ_{i∈S} w_i φ_i = Σ φ_i. With n draws from p and w_i = 1/(n p_i) its covariance is
(1/n)(Σ r_i r_iᵀ/p_i − (Σ r_i)(Σ r_i)ᵀ), whose trace is least for p_i ∝ ‖r_i(θ)‖ (putcha-2023, Lemmas 3.1 and 3.2).
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from .._anchor import Anchor, Needs
from .._posterior import AbstractPosterior


class Batch(eqx.Module):
    """Rows a step looks at, and their weights."""

    rows: PyTree[Array]
    weights: Float[Array, " n"]


class AbstractGradient(eqx.Module):
    posterior: eqx.AbstractVar[AbstractPosterior]

    @abc.abstractmethod
    def known(self, position: Float[Array, " d"]) -> Float[Array, " d"]:
        """The part of the estimate that no row is needed for."""

    @abc.abstractmethod
    def residuals(self, position: Float[Array, " d"], rows: PyTree[Array]) -> Float[Array, "n ..."]:
        """r_i(θ), in the posterior's compact form."""

    def __call__(self, position: Float[Array, " d"], batch: Batch) -> Float[Array, " d"]:
        """The estimate from one batch."""
        compact = self.residuals(position, batch.rows)
        return self.known(position) + self.posterior.combine(compact, batch.rows, batch.weights)


class GradientChoice(abc.ABC):
    """What a method asks for; `prepare` makes it ready for one posterior."""

    needs: ClassVar[Needs]

    @abc.abstractmethod
    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None) -> AbstractGradient:
        """The estimator for this posterior. `anchor` is there when `needs` says so."""
