"""Rules that turn the rows drawn in a step into a factor of the acceptance ratio.

A step draws candidates from a Poisson process: row i at the rate b_i ≥ φ_i(D_i). A candidate is
kept with probability φ_i/b_i, and each kept row multiplies the acceptance ratio by
φ_i(−D_i)/φ_i(D_i). If

    φ_i(D) − φ_i(−D) = D   for all |D| ≤ cap_i,

the numbers of kept rows, Poisson with means φ_i(D_i), make the ratio of the joint laws of positions
and kept rows equal to exp(−ΣD_i): detailed balance holds for any cap_i ≥ |D_i|.

    Thinned       b = cap                φ = cap + min(0, D)       Prado, Nemeth and Sherlock (2024)
    Tuna          b = cap (1 + χ Σcap)   φ = b − cap/2 + D/2       Zhang, Cooper and De Sa (2020)
    Factorised    b = cap                φ = max(0, D)             Cornish et al. (2019)

Thinned accepts most for its number of rows. Tuna reads more rows to accept more. Factorised rejects
as soon as one row is kept: it accepts with probability Π min(1, exp(−D_i)).
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class AbstractRule(eqx.Module):
    """φ and the rate of candidates."""

    @abc.abstractmethod
    def rate(self, total: Float[Any, ""]) -> Float[Any, ""]:
        """Σ b_i, from Σ cap_i. b_i/cap_i is the same for all rows."""

    @abc.abstractmethod
    def intensity(
        self, change: Float[Array, " n"], cap: Float[Array, " n"], candidates: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        """φ_i(D_i), from D_i, cap_i and b_i."""


class Thinned(AbstractRule):
    """The rule of Metropolis–Hastings with scalable subsampling."""

    def rate(self, total: Float[Any, ""]) -> Float[Any, ""]:
        return total

    def intensity(
        self, change: Float[Array, " n"], cap: Float[Array, " n"], candidates: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        return cap + jnp.minimum(change, 0)


class Tuna(AbstractRule):
    """The rule of TunaMH."""

    chi: Float[Array, ""]
    """χ: the larger, the more rows and the higher the acceptance rate."""

    def rate(self, total: Float[Any, ""]) -> Float[Any, ""]:
        return total * (1 + self.chi * total)

    def intensity(
        self, change: Float[Array, " n"], cap: Float[Array, " n"], candidates: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        return candidates - (cap - change) / 2


class Factorised(AbstractRule):
    """The rule of scalable Metropolis–Hastings."""

    def rate(self, total: Float[Any, ""]) -> Float[Any, ""]:
        return total

    def intensity(
        self, change: Float[Array, " n"], cap: Float[Array, " n"], candidates: Float[Array, " n"]
    ) -> Float[Array, " n"]:
        return jnp.maximum(change, 0)
