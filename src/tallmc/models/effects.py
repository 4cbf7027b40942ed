"""Group effects: coefficients that differ between groups, with unknown spread.

u_gj ~ N(0, σ_j²) for group g and column j,   σ_j ~ half-t₄(0, scale_j),   η_j = log σ_j
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .hierarchy import AbstractHyperprior
from .priors import LogHalfStudentTPrior


class GroupEffects(AbstractHyperprior):
    """The prior of the effects of several group terms and of their standard deviations."""

    starts: tuple[int, ...] = eqx.field(static=True)
    """Where the effects of each term begin among the parameters."""
    shapes: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """Groups and columns of each term."""
    sd_prior: LogHalfStudentTPrior
    """The prior of all log standard deviations, term after term."""

    @property
    def n_hyper(self) -> int:
        return sum(columns for _, columns in self.shapes)

    def potential(
        self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]
    ) -> Float[Array, ""]:
        total, at = self.sd_prior.potential(hyper), 0
        for start, (groups, columns) in zip(self.starts, self.shapes, strict=True):
            effects = parameters[start : start + groups * columns].reshape(groups, columns)
            log_sd = hyper[at : at + columns]
            squares = jnp.sum(effects**2, axis=0) * jnp.exp(-2 * log_sd)
            total += jnp.sum(0.5 * squares + groups * log_sd)
            at += columns
        return total
