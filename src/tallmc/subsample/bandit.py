"""Weights learned on the run: a row that was seen with a large residual is drawn more often from then on.

    p_i = (1 − δ) s_i/Σ_j s_j + δ/N,   w_i = 1/(n p_i),   then   s_i ← s_i^(1−ρ) (‖r_i(θ)‖/r̄)^ρ   for the rows drawn

r_i is the estimator's residual and r̄ a running mean of N⁻¹ Σ_{i∈S} w_i ‖r_i‖, which is unbiased for the mean norm over all rows.
The noise is least for p_i ∝ ‖r_i(θ)‖ (putcha-2023, Lemmas 3.1 and 3.2), and that is where the weights go: no mode, no pass over
the rows, and any estimator. putcha-2023, section 6, leaves it open; for optimisation, Salehi et al. (2017) and Liu et al. (2020).
Norms are those of the plain metric, whatever the geometry.

Unbiased at every step given the past: p depends on the steps before and is known exactly. A weight is an integer number u_i of
units, and the floor adds c units to each row, so that p_i = (u_i + c)/(Σ u_j + N c); draws and importance weights both use these
integers. No importance weight 1/(N p_i) exceeds 1/δ.

The units are the leaves of a tree of sums with eight children a node: a draw and an update take log₈ N look-ups, and no step
costs more because N grew. Memory: 8N/7 words of 32 bits for each chain.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._anchor import Needs
from .._errors import InvalidInput, check_number
from .._random import random_words
from .._rows import first_of_each, take_rows
from ..gradient.base import AbstractGradient, Batch
from .base import Setting, SizeChoice, SubsampleChoice
from .bits import uniform_index
from .selection import AbstractSelection, Estimate, Memory, Picks, Transition, centred, estimate_from
from .size import Fixed

_CHILDREN = 8  # half the time of two: fewer, wider look-ups
_ALL_UNITS = 0.999 * 2**31  # the sum is a signed index; what is left out is more than float32 can lose of it
_MOST_OF_A_ROW = 2**24  # float32 counts so far without a gap
_MEAN_ROW = 2**12
_HEADROOM = 8  # how far the sum may rise above its start
_COARSEST = 8
_DRAWS_IN_MEAN = 128  # how many draws the running mean remembers


class SumTree(eqx.Module):
    """Integers and their sums, eight by eight: `levels[0]` are the integers, padded with zeros."""

    levels: tuple[UInt32[Array, " _"], ...]

    @classmethod
    def of(cls, values: UInt32[Array, " N"]) -> SumTree:
        levels = [_padded(values)]
        while levels[-1].shape[0] > _CHILDREN:
            levels.append(_padded(jnp.sum(levels[-1].reshape(-1, _CHILDREN), axis=1, dtype=jnp.uint32)))
        return cls(tuple(levels))

    def total(self) -> UInt32[Array, ""]:
        return jnp.sum(self.levels[-1], dtype=jnp.uint32)

    def at(self, indices: Int[Array, " n"]) -> UInt32[Array, " n"]:
        return self.levels[0].at[indices].get(mode="promise_in_bounds")

    def find(self, places: UInt32[Array, " n"]) -> Int[Array, " n"]:
        """The entry that holds each place, when entries lie end to end and each is as long as its value."""
        node = jnp.zeros(places.shape, jnp.int32)
        for level in reversed(self.levels):
            children = level.reshape(-1, _CHILDREN).at[node].get(mode="promise_in_bounds")
            begins = jnp.cumsum(children, axis=1, dtype=jnp.uint32) - children
            begun = begins <= places[:, None]
            node = node * _CHILDREN + jnp.sum(begun, axis=1, dtype=jnp.int32) - 1
            places = places - jnp.max(jnp.where(begun, begins, 0), axis=1)
        return node

    def plus(self, indices: Int[Array, " n"], changes: UInt32[Array, " n"]) -> SumTree:
        """The tree with these changes, modulo 2³², to its entries and to every sum they are part of."""
        levels = []
        for level in self.levels:
            levels.append(level.at[indices].add(changes, mode="promise_in_bounds"))
            indices = indices // _CHILDREN
        return SumTree(tuple(levels))


def _padded(values: UInt32[Array, " k"]) -> UInt32[Array, " m"]:
    return jnp.pad(values, (0, -values.shape[0] % _CHILDREN))


class Learned(eqx.Module):
    units: SumTree
    mean_norm: Float[Array, ""]
    """r̄; zero as long as no row had a residual."""


class BanditSelection(AbstractSelection):
    size: int = eqx.field(static=True)
    n_rows: int = eqx.field(static=True)
    floor: float = eqx.field(static=True)
    rate: float = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    @property
    def rows_per_step(self) -> int:
        return self.size

    @property
    def rows_ahead(self) -> int:
        return 0

    @property
    def most_rows(self) -> int:
        return self.size

    @property
    def most_units(self) -> int:
        """Most units of all rows together, so that with those of the floor they fit."""
        return int((1 - self.floor) * (_ALL_UNITS - self.n_rows))

    @property
    def mean_units(self) -> int:
        """Units of a row whose norm is the mean."""
        return min(_MEAN_ROW, self.most_units // (_HEADROOM * self.n_rows))

    def supply(self, key: PRNGKeyArray, steps: int) -> UInt32[Array, "steps n 2"]:
        return random_words(key, (steps, self.size))

    def start(self, supply: UInt32[Array, "n 2"]) -> Learned:
        return Learned(SumTree.of(jnp.full(self.n_rows, self.mean_units, jnp.uint32)), jnp.zeros((), self.dtype))

    def floor_units(self, learned: Learned) -> UInt32[Array, ""]:
        """c, at least one."""
        odds = self.floor / (1 - self.floor)
        return jnp.ceil(learned.units.total().astype(self.dtype) * (odds / self.n_rows)).astype(jnp.uint32)

    def draw(self, learned: Learned, words: UInt32[Array, "n 2"]) -> Int[Array, " n"]:
        """Row numbers from random bits: a place among the units that were learned, or among those of the floor behind them."""
        own, each = learned.units.total(), self.floor_units(learned)
        place = uniform_index(words, own + each * jnp.uint32(self.n_rows)).astype(jnp.uint32)
        by_floor = ((place - own) // each).astype(jnp.int32)
        return jnp.where(place < own, learned.units.find(jnp.minimum(place, own - 1)), by_floor)

    def picks_at(self, learned: Learned, indices: Int[Array, " n"]) -> Picks:
        """These rows with the weights they have when drawn from what was learned."""
        each = self.floor_units(learned)
        total = learned.units.total() + each * jnp.uint32(self.n_rows)
        units = learned.units.at(indices) + each
        return Picks(indices, total.astype(self.dtype) / (self.size * units.astype(self.dtype)))

    def probabilities(self, learned: Learned) -> np.ndarray:
        """p_i of every row, in float64 on the host."""
        units = np.asarray(learned.units.levels[0][: self.n_rows], np.float64) + float(self.floor_units(learned))
        return units / units.sum()

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: UInt32[Array, "n 2"],
        transition: Transition | None,
    ) -> Estimate:
        learned, posterior = memory.selection, gradient.posterior
        picks = self.picks_at(learned, self.draw(learned, supply))
        batch = Batch(take_rows(posterior.data, picks.indices), picks.weights, picks.indices)
        estimate = estimate_from(gradient, position, memory, batch, centred)
        # For a GLM the same residuals as in the estimate: compiled, they are computed once.
        residuals = gradient.residuals(position, batch.rows, batch.indices, memory.gradient)
        selection = self.learn(learned, picks, posterior.norms(residuals, batch.rows))
        return dataclasses.replace(estimate, memory=dataclasses.replace(estimate.memory, selection=selection))

    def learn(self, learned: Learned, picks: Picks, norms: Float[Array, " n"]) -> Learned:
        """What is known after these rows were seen with these norms."""
        mean_now = jnp.sum(picks.weights * norms) / self.n_rows
        share = min(1.0, self.size / _DRAWS_IN_MEAN)
        mean = jnp.where(learned.mean_norm > 0, (1 - share) * learned.mean_norm + share * mean_now, mean_now)

        units = learned.units.at(picks.indices).astype(self.dtype)
        aim = self.mean_units * jnp.maximum(norms / mean, self.floor)  # below the floor, how far no longer matters
        wanted = jnp.clip(units ** (1 - self.rate) * aim**self.rate, 1, _MOST_OF_A_ROW)
        # A batch without any residual, as the first around a new centre, tells nothing about proportions.
        told = (mean_now > 0) & jnp.isfinite(wanted) & first_of_each(picks.indices)
        change = jnp.where(told, wanted - units, 0)
        change = jnp.sign(change) * jnp.ceil(jnp.abs(change))  # a whole unit at least, else small weights would never move
        room = jnp.maximum(self.most_units - learned.units.total().astype(self.dtype), 0)
        fitting = jnp.minimum(1, room / jnp.maximum(jnp.sum(jnp.maximum(change, 0)), 1))
        change = jnp.where(change > 0, jnp.floor(change * fitting), change)
        return Learned(learned.units.plus(picks.indices, change.astype(jnp.int32).astype(jnp.uint32)), mean)


@dataclasses.dataclass(frozen=True)
class Bandit(SubsampleChoice):
    """Choose rows by weights learned on the run from the residuals seen (‖r_i‖, as eqs. 10 and 14 ask for).

    `rate` (ρ) is how much of a weight, on the log scale, is renewed when its row is seen. `floor` (δ) mixes in uniform weights,
    so that no row is forgotten and no importance weight exceeds 1/floor. Memory a chain: 8N/7 integers.
    """

    floor: float = 0.1
    rate: float = 0.5
    needs = Needs.NOTHING
    passes = 0
    knows_its_spread = True

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1, low_open=True, high_open=True)
        check_number("rate", self.rate, 0, 1, low_open=True)

    def prepare(self, setting: Setting, size: SizeChoice | None) -> BanditSelection:
        if not isinstance(size, Fixed):
            raise InvalidInput(
                "size",
                "be fixed with weights learned on the run: the bound of eq. 19 is for one law, and theirs changes in every step",
                size,
                "Use Preferential(...) with Adaptive(...).",
            )
        posterior = setting.posterior
        selection = BanditSelection(
            size=size.checked(posterior),
            n_rows=posterior.n_rows,
            floor=float(self.floor),
            rate=float(self.rate),
            dtype=posterior.dtype,
        )
        if selection.mean_units < _COARSEST:
            most = int((1 - self.floor) * _ALL_UNITS / (_COARSEST * _HEADROOM))
            rule = f"have at most about {most} rows: a weight would be fewer than {_COARSEST} units of all that 31 bits count"
            raise InvalidInput("posterior", rule, f"{posterior.n_rows} rows", "Use Preferential(...), or a lower floor.")
        return selection
