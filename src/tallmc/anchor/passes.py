"""Counted passes over the rows of a posterior, for the search for the mode."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import equinox as eqx
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
    estimate f₀ + (N/n) Σ f_i.

    With `double`, the passes run in float64 on a copy of the posterior, whatever its precision and
    JAX's setting.
    """

    def __init__(self, posterior: AbstractPosterior, share: float = 1.0, double: bool = False):
        self._double = double
        with self._precision():
            self.posterior = _in_double(posterior) if double else posterior
            self._subset = posterior.rows.subset(share, posterior.width)
        self.n_row_evals = 0
        self.scale = posterior.n_rows / self._subset.n_rows

    def value_and_gradient(self, position: Any) -> tuple[float, np.ndarray]:
        """f and ∇f."""
        whole, prior = self._pass(block_potential_and_gradient, _total_and_prior, position)
        value, gradient = jax.tree.map(self._scaled, whole.float64(), prior)
        return float(value), gradient

    def likelihood(self, position: Any) -> float:
        """Σ f_i, without the prior."""
        whole, prior = self._pass(block_potential_and_gradient, _total_and_prior, position)
        return self.scale * (float(whole.float64()[0]) - float(prior[0]))

    def hessian(self, position: Any) -> np.ndarray:
        """∇²f, symmetrised."""
        whole, prior = self._pass(block_hessian_of, _total_and_prior_hessian, position)
        matrix = self._scaled(whole.float64(), prior)
        return (matrix + matrix.T) / 2

    def hessian_parts(self, position: Any) -> tuple[np.ndarray, np.ndarray]:
        """Σ ∇²f_i and ∇²f₀, each symmetrised."""
        rows, prior = self._pass(block_hessian_of, _rows_and_prior_hessian, position)
        parts = self.scale * rows.float64(), np.asarray(prior, np.float64)
        return (parts[0] + parts[0].T) / 2, (parts[1] + parts[1].T) / 2

    def _pass(self, block_sum: Any, finish: Any, position: Any) -> tuple[Sum, Any]:
        checkpoint()
        posterior = self.posterior
        self.n_row_evals += self._subset.n_rows
        with self._precision():
            return posterior.rows.reduce(
                block_sum,
                posterior.model,
                np.asarray(position, posterior.dtype),
                width=posterior.width,
                finish=finish,
                subset=self._subset,
            )

    def _precision(self) -> AbstractContextManager[Any]:
        return jax.enable_x64(True) if self._double else nullcontext()

    def _scaled(self, whole: np.ndarray, prior: Array) -> np.ndarray:
        """f₀ + (N/n) Σ f_i from f₀ + Σ f_i."""
        prior_part = np.asarray(prior, np.float64)
        return prior_part + self.scale * (whole - prior_part)


def double_passes(posterior: AbstractPosterior) -> CountedPasses | None:
    """Passes in double precision; None if the user's functions do not work in it."""
    passes = CountedPasses(posterior, double=True)
    copy = passes.posterior
    two_rows = jax.tree.map(
        lambda row: jax.ShapeDtypeStruct((2, *row.shape), row.dtype), copy.rows.row_shapes
    )
    weights = jax.ShapeDtypeStruct((2,), np.float64)
    try:
        with jax.enable_x64(True):
            jax.eval_shape(copy.model.block_hessian, copy.init, two_rows, weights)
    except TypeError:
        return None
    return passes


@eqx.filter_jit
def prior_hessian(model: AbstractModel, position: Float[Array, " d"]) -> Float[Array, "d d"]:
    """∇²f₀."""
    return jax.hessian(model.prior_potential)(position)


def _total_and_prior(
    total: Sum, model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Sum, tuple[Array, Array]]:
    prior = model.prior_potential(position), model.prior_gradient(position)
    return add_prior(total, model, position), prior


def _total_and_prior_hessian(
    total: Sum, model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Sum, Float[Array, "d d"]]:
    return add_prior_hessian(total, model, position), jax.hessian(model.prior_potential)(position)


def _rows_and_prior_hessian(
    total: Sum, model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Sum, Float[Array, "d d"]]:
    return total, jax.hessian(model.prior_potential)(position)


def _in_double(posterior: AbstractPosterior) -> AbstractPosterior:
    """A copy whose floating-point arrays are float64; needs `jax.enable_x64(True)`."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float64) if eqx.is_inexact_array(leaf) else leaf,
        posterior,
    )
