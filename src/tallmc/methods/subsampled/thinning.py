"""An exact accept step from a Poisson number of rows.

Candidates are the arrivals of a Poisson process: exponential gaps are added until they exceed the
rate Σb_i. Each arrival is row i with probability p_i = c_i/Σc, from an alias table. No random
number depends on the move, so a step draws chunks of a fixed size until it has enough.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..._core.arrays import Scalar, Vector
from ..._core.random import derived_keys, random_words, uniform_of
from ..._rows.access import AbstractRows, PerRow
from ..._rows.law import AbstractStream
from .remainders import AbstractRemainders

# Rules that turn the rows drawn in a step into a factor of the acceptance ratio.
#
# A step draws candidates from a Poisson process: row i at the rate b_i ≥ φ_i(D_i). A candidate is
# kept with probability φ_i/b_i, and each kept row multiplies the acceptance ratio by
# φ_i(−D_i)/φ_i(D_i). If
#
#     φ_i(D) − φ_i(−D) = D   for all |D| ≤ cap_i,
#
# the numbers of kept rows, Poisson with means φ_i(D_i), make the ratio of the joint laws of
# positions and kept rows equal to exp(−ΣD_i): detailed balance holds for any cap_i ≥ |D_i|.
#
#     Thinned       b = cap                φ = cap + min(0, D)     Prado, Nemeth and Sherlock (2024)
#     Tuna          b = cap (1 + χ Σcap)   φ = b − cap/2 + D/2       Zhang, Cooper and De Sa (2020)
#     Factorised    b = cap                φ = max(0, D)             Cornish et al. (2019)
#
# Thinned accepts most for its number of rows. Tuna reads more rows to accept more. Factorised
# rejects as soon as one row is kept: it accepts with probability Π min(1, exp(−D_i)).


class Rule(eqx.Module):
    """φ and the rate of candidates, for "thinned", "tuna" or "factorised"."""

    name: str = eqx.field(static=True)
    chi: Scalar | None = None
    """χ of "tuna": the larger, the more rows and the higher the acceptance rate."""

    def rate(self, total: Float[Any, ""]) -> Float[Any, ""]:
        """Σ b_i, from Σ cap_i. b_i/cap_i is the same for all rows."""
        return total if self.chi is None else total * (1 + self.chi * total)

    def intensity(self, change: PerRow, cap: PerRow, candidates: PerRow) -> PerRow:
        """φ_i(D_i), from D_i, cap_i and b_i."""
        match self.name:
            case "thinned":
                return cap + jnp.minimum(change, 0)
            case "tuna":
                return candidates - (cap - change) / 2
            case _:
                return jnp.maximum(change, 0)


# The accept step as an interface: what is known, what the rows add, and the verdict.


class Move(NamedTuple):
    """A proposed move from u to u'."""

    here: Vector
    there: Vector
    moves: Float[Array, "2 d"]
    """Cu and Cu', the moves of θ away from the anchor."""
    log_known: Scalar
    """The logarithm of the acceptance ratio without the rows left to chance."""
    log_uniform: Scalar


class Decided(NamedTuple):
    """The result of an accept step."""

    accept: Bool[Array, ""]
    rate: Scalar
    """The probability of accepting, given the rows."""
    n_rows: Int[Array, ""]
    """Rows evaluated."""
    exceeded: Int[Array, ""]
    """Rows whose change was above their cap: each of them breaks detailed balance."""
    worst: Scalar
    """The largest |D_i|/cap_i."""
    outside: Bool[Array, ""]
    """Whether the move was rejected because there is no bound for it."""


class AbstractDecision(eqx.Module):
    """Decides about a move from some rows."""

    @property
    @abc.abstractmethod
    def most_rows(self) -> int:
        """The largest number of rows of a step, as far as it is known."""

    @abc.abstractmethod
    def decide(
        self, remainders: AbstractRemainders, move: Move, key: PRNGKeyArray, rows: AbstractRows
    ) -> Decided:
        """Whether the move is accepted."""


_MOST_ROWS = 2**22
"""A step that would read more is an overflow: it is rejected and counted as outside."""
_BELOW_CAP = 1 - 1e-6


class PoissonDecision(AbstractDecision):
    """Thinned candidates of a Poisson process."""

    rule: Rule
    stream: AbstractStream
    """Rows in proportion to c_i."""
    total: Scalar
    """Σc over the rows left to chance, times the fraction of the bound that is used as a cap."""
    chunk: int = eqx.field(static=True)
    """Candidates that are drawn at once."""

    @property
    def most_rows(self) -> int:
        return _MOST_ROWS

    def decide(
        self, remainders: AbstractRemainders, move: Move, key: PRNGKeyArray, rows: AbstractRows
    ) -> Decided:
        total = self.total * remainders.growth(move.here, move.there)
        rate = self.rule.rate(total)
        outside = ~(rate < _MOST_ROWS)
        rate = jnp.where(outside, 0, rate)
        share = total / jnp.maximum(rate, jnp.finfo(rate.dtype).tiny)
        rows_key, coins_key = derived_keys(key, 2)

        def look(carry: _Looked) -> _Looked:
            first = carry.n_drawn
            words = random_words(coins_key, (self.chunk,), first)
            arrivals = carry.arrived + jnp.cumsum(-jnp.log(uniform_of(words[:, 0], rate.dtype)))
            used = arrivals < rate
            draws = self.stream.draw(rows_key, (self.chunk,), first)
            before, after = remainders.values(move.moves, rows.take(draws.indices))
            candidates = rate / draws.weights
            cap = share * candidates
            change = after - before
            # A change that is not a number exceeds its cap.
            ratio = jnp.where(used, jnp.abs(change) / cap, 0)
            change = jnp.clip(change, -_BELOW_CAP * cap, _BELOW_CAP * cap)
            forth = self.rule.intensity(change, cap, candidates)
            back = self.rule.intensity(-change, cap, candidates)
            kept = used & (uniform_of(words[:, 1], rate.dtype) * candidates < forth)
            factors = jnp.where(kept, jnp.log(back) - jnp.log(forth), 0)
            return _Looked(
                n_drawn=first + self.chunk,
                n_rows=carry.n_rows + jnp.sum(used, dtype=jnp.int32),
                arrived=arrivals[-1],
                log_ratio=carry.log_ratio + jnp.sum(factors),
                exceeded=carry.exceeded + jnp.sum(~(ratio <= 1), dtype=jnp.int32),
                worst=jnp.maximum(carry.worst, jnp.max(ratio)),
            )

        none, zero = jnp.int32(0), jnp.zeros_like(rate)
        looked = lax.while_loop(
            lambda carry: carry.arrived < rate, look, _Looked(none, none, zero, zero, none, zero)
        )
        log_ratio = jnp.where(outside, -jnp.inf, move.log_known + looked.log_ratio)
        return Decided(
            accept=move.log_uniform < log_ratio,
            rate=jnp.exp(jnp.minimum(log_ratio, 0)),
            n_rows=looked.n_rows,
            exceeded=looked.exceeded,
            worst=looked.worst,
            outside=outside,
        )


class _Looked(eqx.Module):
    """What the candidates of a step have shown so far."""

    n_drawn: Int[Array, ""]
    n_rows: Int[Array, ""]
    arrived: Scalar
    """The last arrival."""
    log_ratio: Scalar
    exceeded: Int[Array, ""]
    worst: Scalar
