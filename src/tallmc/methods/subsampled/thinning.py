"""An exact accept step from a Poisson number of rows.

Candidates are the arrivals of a Poisson process: exponential gaps are added until they exceed the
rate Σb_i. Each arrival is row i with probability p_i = c_i/Σc, from an alias table. No random
number depends on the move, so a step draws chunks of a fixed size until it has enough.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ...core.random import derived_keys, random_words, uniform_of
from ...rows.base import AbstractRows
from ...rows.stream import AbstractStream
from .decision import AbstractDecision, Decided, Move
from .remainders import AbstractRemainders
from .rules import AbstractRule

_MOST_ROWS = 2**22
"""A step that would read more is an overflow: it is rejected and counted as outside."""
_BELOW_CAP = 1 - 1e-6


class PoissonDecision(AbstractDecision):
    """Thinned candidates of a Poisson process."""

    rule: AbstractRule
    stream: AbstractStream
    """Rows in proportion to c_i."""
    total: Float[Array, ""]
    """Σc over the rows left to chance, times the fraction of the bound that is used as a cap."""
    chunk: int = eqx.field(static=True)
    """Candidates that are drawn at once."""

    @property
    def most_rows(self) -> int:
        return _MOST_ROWS

    def decide(
        self,
        remainders: AbstractRemainders,
        move: Move,
        key: PRNGKeyArray,
        source: AbstractRows,
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
            before, after = remainders.values(move.moves, source.take(draws.indices))
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
            lambda carry: carry.arrived < rate,
            look,
            _Looked(none, none, zero, zero, none, zero),
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
    arrived: Float[Array, ""]
    """The last arrival."""
    log_ratio: Float[Array, ""]
    exceeded: Int[Array, ""]
    worst: Float[Array, ""]
