"""Parameters that occur in the prior only, such as the scales of group effects.

    θ = (ψ, η):   f(θ) = f₀(ψ, η) + Σ f_i(ψ)

The rows do not depend on the hyper-parameters η. So a model of ψ becomes a model of θ whose row
gradients are zero in η. The effects are *centred*: they lie in a position themselves, not divided
by their scale. With many rows per group the rows determine the effects, and the centred form then
has the weaker dependence between effects and scales. The joint density has a spike without mass
where a scale and its effects are zero. Next to it there is a mode, unless the effects are too small
to be seen in the rows.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.layout import Layout
from ..core.linear_maps import AbstractLinearMap
from ..rows.base import RowBlock
from ..rows.batch import Batch
from .base import AbstractModel

_SPIKE = 3.0
"""In logs: a scale 20 times smaller than its estimate."""


class AbstractHyperprior(eqx.Module):
    """The prior of hyper-parameters, and of the parameters given them."""

    @property
    @abc.abstractmethod
    def n_hyper(self) -> int:
        """The number of hyper-parameters."""

    @abc.abstractmethod
    def potential(
        self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]
    ) -> Float[Array, ""]:
        """−log p(ψ | η) − log p(η), up to a constant; not the prior that the model of ψ has."""


class SeveralHyperpriors(AbstractHyperprior):
    """Independent hyper-priors; their hyper-parameters follow each other."""

    parts: tuple[AbstractHyperprior, ...]

    @property
    def n_hyper(self) -> int:
        return sum(part.n_hyper for part in self.parts)

    def potential(
        self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]
    ) -> Float[Array, ""]:
        total, start = jnp.zeros((), hyper.dtype), 0
        for part in self.parts:
            total += part.potential(parameters, hyper[start : start + part.n_hyper])
            start += part.n_hyper
        return total


class Hierarchical(AbstractModel):
    """A model with hyper-parameters. They follow the parameters of the inner model."""

    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)
    inner: AbstractModel
    hyperprior: AbstractHyperprior

    @property
    def log_concave(self) -> bool:
        return False

    @property
    def bounded(self) -> bool:
        # If a scale and all its effects go to zero, the density goes to infinity.
        return False

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        parameters = self._inner(position)
        hyper = self.hyperprior.potential(parameters, position[self.inner.dim :])
        return self.inner.prior_potential(parameters) + hyper

    def row_potentials(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, " n"]:
        return self.inner.row_potentials(self._inner(position), rows)

    def row_gradients(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, "n ..."]:
        return self.inner.row_gradients(self._inner(position), rows)

    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: RowBlock
    ) -> Float[Array, "n ..."]:
        return self.inner.linear_row_gradients(self._inner(centre), self._inner(move), rows)

    def remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], rows: RowBlock
    ) -> Float[Array, "n ..."]:
        return self.inner.remainders(order, self._inner(position), self._inner(centre), rows)

    def sum_remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], batch: Batch
    ) -> Float[Array, " d"]:
        at, around = self._inner(position), self._inner(centre)
        return self._outer(self.inner.sum_remainders(order, at, around, batch))

    def mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        positions: Float[Array, "k d"],
        metric: AbstractLinearMap,
        rows: RowBlock,
    ) -> Float[Array, " n"]:
        around, at = self._inner(centre), self._inner(positions)
        return self.inner.mean_square_remainders(order, around, at, self._leading(metric), rows)

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractLinearMap,
        width: Float[Array, ""],
        metric: AbstractLinearMap,
        rows: RowBlock,
    ) -> Float[Array, " n"]:
        return self.inner.gaussian_mean_square_remainders(
            order,
            self._inner(centre),
            self._leading(spread),
            width,
            self._leading(metric),
            rows,
        )

    def combine(
        self, compact: Float[Array, "n ..."], rows: RowBlock, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        return self._outer(self.inner.combine(compact, rows, weights))

    def expand(self, compact: Float[Array, "n ..."], rows: RowBlock) -> Float[Array, "n d"]:
        return self._outer(self.inner.expand(compact, rows))

    def norms(self, compact: Float[Array, "n ..."], rows: RowBlock) -> Float[Array, " n"]:
        return self.inner.norms(compact, rows)

    def block_hessian(
        self, position: Float[Array, " d"], rows: RowBlock, weights: Float[Array, " n"]
    ) -> Float[Array, "d d"]:
        inner = self.inner.block_hessian(self._inner(position), rows, weights)
        return jnp.pad(inner, (0, self.hyperprior.n_hyper))

    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d k"], rows: RowBlock
    ) -> Float[Array, " n"]:
        return self.inner.curvature_norms(self._inner(position), factor[: self.inner.dim], rows)

    def row_lipschitz(self, rows: RowBlock) -> Float[Array, " n"]:
        return self.inner.row_lipschitz(rows)

    def is_in_spike(self, position: Float[Any, " d"]) -> bool:
        """Whether a scale is far below its estimate at the start, where there is no bound."""
        fall = np.asarray(self.init - position, np.float64)[self.inner.dim :]
        return bool((fall > _SPIKE).any())

    def _inner(self, positions: Float[Array, "*k d"]) -> Float[Array, "*k c"]:
        return positions[..., : self.inner.dim]

    def _outer(self, gradients: Float[Array, "*k c"]) -> Float[Array, "*k d"]:
        return _padded(gradients, self.hyperprior.n_hyper)

    def _leading(self, whole: AbstractLinearMap) -> LeadingRows:
        return LeadingRows(whole, self.hyperprior.n_hyper)


class LeadingRows(AbstractLinearMap):
    """The first rows of C: a move of all parameters, seen by those of the inner model."""

    whole: AbstractLinearMap
    n_left_out: int = eqx.field(static=True)

    def n_columns(self, n_rows: int) -> int:
        return self.whole.n_columns(n_rows + self.n_left_out)

    def pull(self, gradient: Float[Array, "*k c"]) -> Float[Array, "*k d"]:
        return self.whole.pull(_padded(gradient, self.n_left_out))

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k c"]:
        pushed = self.whole.push(move)
        return pushed[..., : pushed.shape[-1] - self.n_left_out]

    def solve(self, move: Float[Array, "*k c"]) -> Float[Array, "*k d"]:
        raise NotImplementedError("the first rows of a matrix have no inverse")


def _padded(values: Float[Array, "*k c"], count: int) -> Float[Array, "*k d"]:
    return jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, count)])
