"""The step of the zig-zag process: a fixed time along its path.

The position moves with velocity v ∈ {−1, 1}ᵈ in the coordinates u. Until a horizon, the rate of
candidate rows is bounded by its value at the farther end: the norm is convex along a line. One pass
of the loop draws the first switch of the known terms, in closed form, and a chunk of candidates. It
moves to the first event, or to the horizon or the last candidate if there is none. The process has
no memory, so the next pass draws everything anew.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ...core.outcome import Outcome
from ...core.random import derived_keys, key_of, random_words, uniform_of
from ...dynamics.base import AbstractDynamicsState
from ...engine.kernel import AbstractReadingKernel, ChainState, Drawn, Gathered, KernelStep
from ...models.base import AbstractModel
from ...rows.base import AbstractRows
from ...schedule import AbstractSchedule
from .path import PathIntegrals
from .rates import Rates
from .switching import first_arrivals

HORIZON = 0.3
"""The longest time with one bound, in which a coordinate moves by 0.3 standard deviations."""
_MOST_ROWS = 2**22
"""A step that would read more rows ends early. This is counted, and ends the claim of exactness."""


class ZigZagState(AbstractDynamicsState):
    """Position θ = θ̂ + Cu."""

    position: Float[Array, " d"]
    whitened: Float[Array, " d"]
    """u."""
    velocity: Float[Array, " d"]
    """v."""


class RateBreaches(eqx.Module):
    """How often the steps of a chain left the bounds of the rates."""

    exceeded: Int[Array, "*chains"]
    """Candidates whose rate was above its bound."""
    worst: Float[Array, "*chains"]
    """The largest rate, relative to its bound."""
    unfinished: Int[Array, "*chains"]
    """Steps that ended before their time."""


class _Flight(eqx.Module):
    """A path in the making."""

    u: Float[Array, " d"]
    velocity: Float[Array, " d"]
    left: Float[Array, ""]
    """The time left in the step."""
    passes: Int[Array, ""]
    """Passes of the loop."""
    n_rows: Int[Array, ""]
    n_switches: Int[Array, ""]
    exceeded: Int[Array, ""]
    worst: Float[Array, ""]
    integrals: PathIntegrals


class ZigZagKernel(AbstractReadingKernel):
    """Follows the path of the zig-zag process for a fixed time."""

    rates: Rates
    schedule: AbstractSchedule
    rest: Float[Array, " d"]
    chunk: int = eqx.field(static=True)
    """Candidates that are drawn at once."""

    @property
    def model(self) -> AbstractModel:
        return self.rates.remainders.model

    @property
    def rows_per_step(self) -> None:
        return None

    @property
    def most_rows(self) -> int:
        return _MOST_ROWS

    def rows_at_start(self) -> int:
        return 0

    def broken_claim(self, chains: ChainState) -> str | None:
        exceeded, unfinished = (
            int(np.asarray(counts, np.int64).sum())
            for counts in (chains.memory.exceeded, chains.memory.unfinished)
        )
        if exceeded:
            worst = float(np.max(chains.memory.worst))
            return (
                f"the rates of {exceeded:,} rows were above their bounds, at most by {worst:.2g} "
                "times: the draws are not exact."
            )
        if unfinished:
            return (
                f"{unfinished:,} steps would have read more than {_MOST_ROWS:,} rows and ended "
                "early: the draws are not exact. Make the step size smaller."
            )
        return None

    def start_memory(
        self, positions: Float[Array, "chains d"], source: AbstractRows
    ) -> RateBreaches:
        none = jnp.zeros(len(positions), jnp.int32)
        return RateBreaches(none, jnp.zeros(len(positions), positions.dtype), none)

    def init(
        self,
        key: PRNGKeyArray,
        position: Float[Array, " d"],
        memory: RateBreaches,
        gathered: Gathered,
        source: AbstractRows,
    ) -> ChainState:
        u = self.rates.metric.solve(position - self.rates.remainders.anchor)
        velocity = jax.random.rademacher(key, u.shape, u.dtype)
        return ChainState(ZigZagState(position, u, velocity), memory)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        return Drawn(key_of(random_words(key, (steps,))), None)

    def step(
        self,
        state: ChainState,
        gathered: Gathered,
        step: Int[Array, ""],
        source: AbstractRows,
    ) -> KernelStep:
        motion, memory = state.motion, state.memory
        time = self.schedule(step).astype(motion.position.dtype)
        keys = derived_keys(gathered.selection, 4)
        none, zero = jnp.int32(0), jnp.zeros_like(time)
        flown = lax.while_loop(
            lambda flight: (flight.left > 0) & (flight.n_rows < _MOST_ROWS),
            lambda flight: self._advance(flight, keys, source),
            _Flight(
                u=motion.whitened,
                velocity=motion.velocity,
                left=time,
                passes=none,
                n_rows=none,
                n_switches=none,
                exceeded=none,
                worst=zero,
                integrals=PathIntegrals.zero(motion.whitened),
            ),
        )
        anchor = self.rates.remainders.anchor
        stats = {
            "batch_size": flown.n_rows,
            "n_switches": flown.n_switches,
            "path_mean": anchor + flown.integrals.mean(time),
            "path_variance": flown.integrals.variance(time),
        }
        position = anchor + self.rates.metric.push(flown.u)
        breaches = RateBreaches(
            memory.exceeded + flown.exceeded,
            jnp.maximum(memory.worst, flown.worst),
            memory.unfinished + (flown.left > 0).astype(jnp.int32),
        )
        return KernelStep(
            ChainState(ZigZagState(position, flown.u, flown.velocity), breaches),
            stats,
            jnp.int32(Outcome.OK),
            jnp.zeros_like(position),
        )

    def _advance(self, flight: _Flight, keys: Array, source: AbstractRows) -> _Flight:
        """Move to the first event, or as far as the draws of one pass reach."""
        rates, u, velocity, chunk = self.rates, flight.u, flight.velocity, self.chunk
        known_key, rows_key, coins_key, coordinates_key = keys
        dim, dtype, first = len(u), u.dtype, flight.passes * chunk
        exponentials = -jnp.log(
            uniform_of(random_words(known_key, (dim,), flight.passes * dim)[:, 0], dtype)
        )
        switches = first_arrivals(*rates.known(u, velocity), exponentials)
        # The bound must not depend on the switches: a pass that ends at its last candidate draws
        # them anew, and would do so more often for late ones.
        horizon = jnp.minimum(flight.left, HORIZON)
        farthest = jnp.maximum(jnp.linalg.norm(u), jnp.linalg.norm(u + velocity * horizon))
        bound = rates.bound(farthest)
        horizon = jnp.minimum(horizon, jnp.min(switches))

        coins = random_words(coins_key, (chunk,), first)
        arrivals = jnp.cumsum(-jnp.log(uniform_of(coins[:, 0], dtype))) / bound
        before = arrivals < horizon
        draws = rates.stream.draw(rows_key, (chunk,), first)
        at = u + velocity * jnp.where(before, arrivals, 0)[:, None]
        of_rows = rates.of_rows(at, source.take(draws.indices))
        words = random_words(coordinates_key, (chunk,), first)
        coordinates = of_rows.coordinates(uniform_of(words[:, 0], dtype))
        caps = bound / draws.weights
        switching = of_rows.switching(velocity, coordinates)
        kept = before & (uniform_of(coins[:, 1], dtype) * caps < switching)
        row_switches, chosen = jnp.any(kept), jnp.argmax(kept)

        # Without a kept candidate the path is known up to the last one, or up to the horizon.
        reached = jnp.minimum(arrivals[-1], horizon)
        time = jnp.where(row_switches, arrivals[chosen], reached)
        known_switches = ~row_switches & (time == jnp.min(switches))
        coordinate = jnp.where(row_switches, coordinates[chosen], jnp.argmin(switches))
        switched = row_switches | known_switches
        reverse = switched & (jnp.arange(dim) == coordinate)
        used = before & (arrivals <= time)
        move, move_velocity = rates.metric.push(jnp.stack([u, velocity]))
        ratio = jnp.where(used, of_rows.largest / caps, 0)
        return _Flight(
            u=u + velocity * time,
            velocity=jnp.where(reverse, -velocity, velocity),
            left=flight.left - time,
            passes=flight.passes + 1,
            n_rows=flight.n_rows + jnp.sum(used, dtype=jnp.int32),
            n_switches=flight.n_switches + switched.astype(jnp.int32),
            exceeded=flight.exceeded + jnp.sum(ratio > 1, dtype=jnp.int32),
            worst=jnp.maximum(flight.worst, jnp.max(ratio)),
            integrals=flight.integrals.extended(move, move_velocity, time),
        )
