"""Counted passes over the rows of a posterior, for the search for the mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.supervision import checkpoint
from ..models.base import (
    AbstractModel,
    add_prior,
    add_prior_hessian,
    block_hessian_of,
    block_potential_and_gradient,
)
from ..models.posterior import AbstractPosterior
from ..rows.sums import Sum


class CountedPasses:
    """Potential, gradient and Hessian as float64 arrays on the host, with a count of the rows read.

    With `share < 1` a pass reads n of the N rows, chosen at random, and the potential is the
    estimate f₀ + (N/n) Σ f_i. `share` is traced; changing it does not recompile.
    """

    def __init__(self, posterior: AbstractPosterior, share: float = 1.0):
        self.posterior = posterior
        self.n_row_evals = 0
        self._subset = posterior.rows.subset(share, posterior.width)
        self.scale = posterior.n_rows / self._subset.n_rows

    def value_and_gradient(self, position: Any) -> tuple[float, np.ndarray]:
        """f and ∇f."""
        whole, prior = self._pass(block_potential_and_gradient, _total_and_prior, position)
        value, gradient = jax.tree.map(self._scaled, whole.float64(), prior)
        return float(value), gradient

    def hessian(self, position: Any) -> np.ndarray:
        """∇²f, symmetrised."""
        whole, prior = self._pass(block_hessian_of, _total_and_prior_hessian, position)
        matrix = self._scaled(whole.float64(), prior)
        return (matrix + matrix.T) / 2

    def _pass(self, block_sum: Any, finish: Any, position: Any) -> tuple[Sum, Any]:
        checkpoint()
        posterior = self.posterior
        self.n_row_evals += self._subset.n_rows
        at = jnp.asarray(position, posterior.dtype)
        return posterior.rows.reduce(
            block_sum,
            posterior.model,
            at,
            width=posterior.width,
            finish=finish,
            subset=self._subset,
        )

    def _scaled(self, whole: np.ndarray, prior: Array) -> np.ndarray:
        """f₀ + (N/n) Σ f_i from f₀ + Σ f_i."""
        prior_part = np.asarray(prior, np.float64)
        return prior_part + self.scale * (whole - prior_part)


def _total_and_prior(
    total: Sum, model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Sum, tuple[Array, Array]]:
    prior = model.prior_potential(position), model.prior_gradient(position)
    return add_prior(total, model, position), prior


def _total_and_prior_hessian(
    total: Sum, model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Sum, Float[Array, "d d"]]:
    return add_prior_hessian(total, model, position), jax.hessian(model.prior_potential)(position)
