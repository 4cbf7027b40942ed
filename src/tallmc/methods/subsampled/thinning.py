"""An exact accept step from a Poisson number of rows.

Candidates are the arrivals of a Poisson process: exponential gaps are added until they exceed the
rate Σb_i. Each arrival is row i with probability p_i = c_i/Σc, from an alias table. No random
number depends on the move, so a step draws chunks of a fixed size until it has enough.
"""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..._anchor.anchor import Anchor
from ..._core.arrays import Scalar, Vector, on_device
from ..._core.programs import quickly_compiled
from ..._core.random import derived_keys, random_words, uniform_of
from ..._core.supervision import stage
from ..._rows.access import AbstractRows, PerRow
from ..._rows.law import AbstractStream
from ...geometry import Dense
from ...models.posterior import AbstractPosterior
from ..firefly import Taylor
from .remainders import AbstractRemainders, prepare_remainders
from .surrogate import Proposal, Surrogate, prepare_surrogate

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
    moves: Float[Array, "2 d"]  # Cu and Cu', the moves of θ away from the anchor
    log_known: Scalar  # The logarithm of the acceptance ratio without the rows left to chance
    log_uniform: Scalar


class Decided(NamedTuple):
    """The result of an accept step."""

    accept: Bool[Array, ""]
    rate: Scalar  # The probability of accepting, given the rows
    n_rows: Int[Array, ""]  # Rows evaluated
    exceeded: Int[Array, ""]
    """Rows whose change was above their cap: each of them breaks detailed balance."""
    worst: Scalar  # The largest |D_i|/cap_i
    outside: Bool[Array, ""]  # Whether the move was rejected because there is no bound for it


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
    stream: AbstractStream  # Rows in proportion to c_i
    total: Scalar
    """Σc over the rows left to chance, times the fraction of the bound that is used as a cap."""
    chunk: int = eqx.field(static=True)  # Candidates that are drawn at once

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
    arrived: Scalar  # The last arrival
    log_ratio: Scalar
    exceeded: Int[Array, ""]
    worst: Scalar


# The table that draws candidates, and how many a step is expected to draw.
#
# Row i is a candidate with probability p_i ∝ c_i. The table rounds p_i; with S = max c_i/p_i, every
# row has S p_i ≥ c_i. A row that would be expected at least once a step is certain: every step
# evaluates it, and none leaves it to chance.


_TYPICAL_MOVES = 512
_LEAST_CHUNK, _MOST_CHUNK = 8, 512
_ROUNDING = 1 + 1e-6


class BoundedRows(NamedTuple):
    """The surrogate and the bounds of all rows, at an anchor."""

    surrogate: Surrogate
    constants: Float[np.ndarray, " N"]  # c_i
    n_row_evals: int  # Rows evaluated to find them


def bound_rows(
    posterior: AbstractPosterior, anchor: Anchor, order: int, bound: Taylor | None = None
) -> BoundedRows:
    """The surrogate of this order and c_i of every row, in a few passes."""
    stage("bounding the rows")
    metric = Dense().prepare(posterior, anchor)
    remainders, of_bound = prepare_remainders(posterior, anchor, metric, order, bound)
    surrogate, of_surrogate = prepare_surrogate(posterior, anchor, metric, remainders)
    constants = np.asarray(remainders.constants_of_all(posterior.rows), np.float64)
    return BoundedRows(surrogate, constants, of_bound + of_surrogate + posterior.n_rows)


def typical_growth(surrogate: Surrogate, proposal: Proposal, step: Scalar) -> float:
    """The mean of M over moves from positions of the anchor's Gaussian."""
    shape, dtype = (_TYPICAL_MOVES, *surrogate.anchor.shape), surrogate.anchor.dtype
    here, normals = (
        on_device(of, dtype) for of in np.random.default_rng(0).normal(size=(2, *shape))
    )
    return float(_mean_growth(surrogate, proposal, step, here, normals))


@quickly_compiled
def _mean_growth(
    surrogate: Surrogate,
    proposal: Proposal,
    step: Scalar,
    here: Float[Array, "m d"],
    normals: Float[Array, "m d"],
) -> Scalar:
    def of_move(u: Vector, normal: Vector) -> Scalar:
        return surrogate.remainders.growth(u, proposal.propose(surrogate, u, step, normal))

    found = jax.vmap(of_move)(here, normals)
    return jnp.mean(found, where=jnp.isfinite(found))


def poisson_decision(
    posterior: AbstractPosterior,
    constants: Float[np.ndarray, " N"],
    rule: Rule,
    typical: float,
    dtype: Any,
) -> tuple[PoissonDecision, Int[Array, " a"]]:
    """The accept step for these caps, and the certain rows."""
    # A row of zeros has c_i = 0 and D_i = 0; the table needs a positive weight.
    positive = np.maximum(constants, np.finfo(np.float32).tiny)
    positive = np.maximum(positive, 1e-9 * positive.mean())
    expected = float(rule.rate(on_device(positive.sum() * typical, dtype)))
    found = posterior.rows.preferential_stream(
        positive, floor=0.0, certain_of=math.ceil(expected), dtype=dtype
    )
    left = np.ones(len(positive), bool)
    left[found.certain] = False
    probability = found.stream.probabilities()
    total = _ROUNDING * np.max(positive[left] / probability[left])
    mean = float(rule.rate(on_device(total * typical, dtype)))
    enough = 8 * math.ceil((mean + 2 * math.sqrt(mean)) / 8)
    chunk = min(max(enough, _LEAST_CHUNK), _MOST_CHUNK)
    decision = PoissonDecision(rule, found.stream, on_device(total, dtype), chunk)
    return decision, on_device(found.certain, np.int32)
