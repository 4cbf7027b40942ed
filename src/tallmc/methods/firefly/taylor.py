"""A lower bound on any likelihood: its Taylor expansion at the anchor, less a bound on the rest.

With ℓ_i = log L_i and δ = θ − θ̂, Bardenet, Doucet and Holmes (2017) use

    log B_i(θ) = ℓ_i(θ̂) + ∇ℓ_i(θ̂)ᵀδ + ½ δᵀ∇²ℓ_i(θ̂)δ − c_iᵀφ(θ̂, θ),

where c_iᵀφ ≥ |ℓ_i − its expansion| is the bound of `expansion.py`. The sum over all rows then needs
only Σ∇ℓ_i(θ̂), Σ∇²ℓ_i(θ̂) and Σc_i. An example is c_i = sup ‖∇³ℓ_i‖ and φ = ‖δ‖³/6.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...anchor.anchor import Anchor
from ...core.errors import InvalidInput
from ...core.linear_maps import dot
from ...models.base import AbstractModel
from ...models.posterior import AbstractPosterior
from ...rows.base import RowBlock
from ...rows.batch import Batch
from ...rows.sums import Sum
from .bound import AbstractBound, BoundChoice
from .expansion import BoundedExpansion, Growth, RowConstants, check_near_anchor


class TaylorBound(AbstractBound):
    """A Taylor expansion of order 2 less a bound on its remainder."""

    model: AbstractModel
    anchor: Float[Array, " d"]
    expansion: BoundedExpansion
    gradient: Float[Array, " d"]
    """−Σ ∇ℓ_i(θ̂)."""
    hessian: Float[Array, "d d"]
    """−Σ ∇²ℓ_i(θ̂)."""
    total: Float[Array, " k"]
    """Σ c_i."""

    def known(self, position: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        return jax.value_and_grad(self._collapsed)(position)

    def _collapsed(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        delta = position - self.anchor
        expansion = dot(self.gradient + dot(self.hessian, delta) / 2, delta)
        remainder = dot(self.total, self.expansion.growth_at(position))
        return self.model.prior_potential(position) + expansion + remainder

    def gaps(self, position: Float[Array, " d"], rows: RowBlock) -> Float[Array, " n"]:
        # A row with no gap is never bright. The floor keeps its logarithm finite.
        return jnp.maximum(self.signed_gaps(position, rows)[0], jnp.finfo(position.dtype).eps ** 2)

    def sum_gap_gradients(
        self, position: Float[Array, " d"], rows: RowBlock, weights: Float[Array, " n"]
    ) -> Float[Array, " d"]:
        remainders = self.model.sum_remainders(2, position, self.anchor, Batch(rows, weights))
        constants = dot(weights, self.expansion.constants_of(rows))
        growth = self.expansion.growth_at
        return jax.grad(lambda at: dot(constants, growth(at)))(position) - remainders

    def signed_gaps(
        self, position: Float[Array, " d"], rows: RowBlock
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """ℓ_i − log B_i, which is negative where B_i is no bound, and its rounding error."""
        found = self.expansion.remainders(position, rows)
        return found.bounds - found.values, found.rounding


@dataclasses.dataclass(frozen=True)
class Taylor(BoundChoice):
    """A Taylor expansion of order 2 at the anchor, and a bound c_iᵀφ on its remainder.

    `FlyMC` and `SubsampledMH` are exact if |log L_i − expansion| ≤ c_iᵀφ for all rows and
    parameters. This is checked four posterior standard deviations from the anchor, along d
    directions; elsewhere it is up to you. Unless you have proved it (`is_proved`), draws are "not
    checked". The smaller c_iᵀφ, the fewer rows a step reads.

    **Arguments:**

    - `constants`: `constants(anchor, row)`, the vector c_i of one row, of non-negative numbers.
      `anchor` has the structure of the parameters.
    - `growth`: `growth(anchor, params)`, the vector φ of the same length.
    - `is_proved`: whether the inequality is known to hold for all rows and parameters.

    **Raises:** `InvalidInput` if an argument is not a function.

    The mean of a Laplace distribution smoothed to √(1 + u²), with third derivatives below 1:

    >>> import jax.numpy as jnp
    >>> bound = Taylor(
    ...     constants=lambda anchor, x: jnp.ones(1),
    ...     growth=lambda anchor, mean: jnp.abs(mean - anchor)[None] ** 3 / 6,
    ... )
    >>> import tallmc
    >>> tallmc.FlyMC(step_size=0.1, bound=bound).bound is bound
    True
    """

    constants: RowConstants
    growth: Growth
    is_proved: bool = False

    def __post_init__(self) -> None:
        for name in ("constants", "growth"):
            if not callable(getattr(self, name)):
                raise InvalidInput(name, "be a function", getattr(self, name))

    def check(self, posterior: AbstractPosterior) -> None:
        if posterior.dtype != np.float64:
            rule = "be in double precision for a Taylor bound, whose remainders are of third order"
            cure = 'Call jax.config.update("jax_enable_x64", True) first.'
            raise InvalidInput("posterior", rule, str(posterior.dtype), cure)
        anchor = jax.eval_shape(posterior.layout.unravel, posterior.init)
        row = posterior.rows.row_shapes
        found = jax.eval_shape(lambda at, row: jnp.asarray(self.constants(at, row)), anchor, row)
        growth = jax.eval_shape(lambda at: jnp.asarray(self.growth(at, at)), anchor)
        if growth.ndim != 1 or found.shape != growth.shape:
            rule = "return vectors of the same length from `constants` and `growth`"
            raise InvalidInput("bound", rule, f"shapes {found.shape} and {growth.shape}")

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor) -> tuple[TaylorBound, int]:
        model, centre = posterior.model, anchor.position
        empty = TaylorBound(
            model=model,
            anchor=centre,
            expansion=BoundedExpansion(model, centre, self.constants, self.growth),
            gradient=anchor.gradient - model.prior_gradient(centre),
            hessian=jnp.zeros((posterior.dim, posterior.dim), posterior.dtype),
            total=jnp.zeros(0, posterior.dtype),
        )
        hessian, total = posterior.rows.reduce(
            _hessian_and_constants, empty, width=posterior.width, finish=_rounded
        )
        bound = dataclasses.replace(empty, hessian=hessian, total=total)
        of_posterior = hessian + jax.hessian(model.prior_potential)(centre)
        checked = check_near_anchor(bound.expansion, posterior, of_posterior, both_sides=False)
        return bound, posterior.n_rows + checked


def _hessian_and_constants(
    rows: RowBlock, counted: Bool[Array, " n"], bound: TaylorBound
) -> tuple[Float[Array, "d d"], Float[Array, " k"]]:
    weights = counted.astype(bound.anchor.dtype)
    hessian = bound.model.block_hessian(bound.anchor, rows, weights)
    constants = bound.expansion.constants_of(rows)
    return hessian, jnp.sum(jnp.where(counted[:, None], constants, 0), axis=0)


def _rounded(total: Sum, bound: TaylorBound) -> Any:
    return total.rounded()
