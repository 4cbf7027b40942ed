"""Weights learned during the run: rows seen with a large residual are drawn more often.

    p_i = (1 − δ) s_i/Σ_j s_j + δ/N,   w_i = 1/(n p_i),
    then s_i ← s_i^(1−ρ) (‖r_i(θ)‖/r̄)^ρ for the rows drawn

r_i is the estimator's residual. r̄ is a running mean of N⁻¹ Σ_{i∈S} w_i ‖r_i‖, which is unbiased
for the mean norm over all rows. The noise is least for p_i ∝ ‖r_i(θ)‖ (putcha-2023, Lemmas 3.1 and
3.2), and the weights move towards this law. They need no mode, and work with any estimator.
putcha-2023, section 6, leaves learned weights open. For optimisation see Salehi et al. (2017) and
Liu et al. (2020). Norms are Euclidean for every geometry.

A weight is an integer number u_i of units, and the floor adds c units to each row, so
p_i = (u_i + c)/(Σ u_j + N c). Draws and importance weights both use these integers. No importance
weight 1/(N p_i) exceeds 1/δ.

The units are the leaves of a tree of sums with eight children per node.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._core.arrays import Scalar
from .._core.errors import InvalidInput, check_number
from .._core.random import random_words
from .._rows.law import RowDraws, first_of_each, uniform_index
from .selection import (
    AbstractSelection,
    Estimate,
    GradientAt,
    SizeChoice,
    SubsampleChoice,
    SubsampleContext,
    centred,
    fixed_rows,
)

_CHILDREN = 8  # takes half the time of two children: fewer, wider look-ups
# The sum of all units is used as a signed index. The margin exceeds the rounding error of float32.
_ALL_UNITS = 0.999 * 2**31
_MOST_UNITS_PER_ROW = 2**24  # float32 represents every integer up to this one
_MEAN_UNITS_PER_ROW = 2**12
_HEADROOM = 8  # factor by which the sum of units may exceed its start value
_FEWEST_MEAN_UNITS = 8
_DRAWS_IN_MEAN = 128  # number of draws that the running mean remembers


class SumTree(eqx.Module):
    """Integers and their sums in groups of eight.

    `levels[0]` holds the integers, padded with zeros.
    """

    levels: tuple[UInt32[Array, " _"], ...]

    @classmethod
    def of(cls, values: UInt32[Array, " N"]) -> SumTree:
        levels = [_padded(values)]
        while levels[-1].shape[0] > _CHILDREN:
            levels.append(
                _padded(jnp.sum(levels[-1].reshape(-1, _CHILDREN), axis=1, dtype=jnp.uint32))
            )
        return cls(tuple(levels))

    def total(self) -> UInt32[Array, ""]:
        return jnp.sum(self.levels[-1], dtype=jnp.uint32)

    def at(self, indices: Int[Array, " n"]) -> UInt32[Array, " n"]:
        return self.levels[0].at[indices].get(mode="promise_in_bounds")

    def find(self, places: UInt32[Array, " n"]) -> Int[Array, " n"]:
        """The entry that contains each place. Entries lie end to end, each as long as its value."""
        node = jnp.zeros(places.shape, jnp.int32)
        for level in reversed(self.levels):
            children = level.reshape(-1, _CHILDREN).at[node].get(mode="promise_in_bounds")
            begins = jnp.cumsum(children, axis=1, dtype=jnp.uint32) - children
            begun = begins <= places[:, None]
            node = node * _CHILDREN + jnp.sum(begun, axis=1, dtype=jnp.int32) - 1
            places = places - jnp.max(jnp.where(begun, begins, 0), axis=1)
        return node

    def plus(self, indices: Int[Array, " n"], changes: UInt32[Array, " n"]) -> SumTree:
        """Add these changes, modulo 2³², to the entries and to every sum that contains them."""
        levels = []
        for level in self.levels:
            levels.append(level.at[indices].add(changes, mode="promise_in_bounds"))
            indices = indices // _CHILDREN
        return SumTree(tuple(levels))


def _padded(values: UInt32[Array, " k"]) -> UInt32[Array, " m"]:
    return jnp.pad(values, (0, -values.shape[0] % _CHILDREN))


class LearnedWeights(eqx.Module):
    """The weights that one chain has learned."""

    units: SumTree
    mean_norm: Scalar  # r̄. It is zero until a row with a nonzero residual was seen.


class BanditSelection(AbstractSelection):
    """Draws with replacement from the learned weights."""

    size: int = eqx.field(static=True)
    n_rows: int = eqx.field(static=True)
    floor: float = eqx.field(static=True)
    rate: float = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    @property
    def rows_per_step(self) -> int:
        return self.size

    @property
    def most_units(self) -> int:
        """Largest sum of all units that leaves space for the units of the floor."""
        return int((1 - self.floor) * (_ALL_UNITS - self.n_rows))

    @property
    def mean_units(self) -> int:
        """Units of a row whose norm is the mean norm."""
        return min(_MEAN_UNITS_PER_ROW, self.most_units // (_HEADROOM * self.n_rows))

    def draw(self, key: PRNGKeyArray, steps: int) -> UInt32[Array, "steps n 2"]:
        return random_words(key, (steps, self.size))

    def start(self, gathered: UInt32[Array, "n 2"]) -> LearnedWeights:
        units = SumTree.of(jnp.full(self.n_rows, self.mean_units, jnp.uint32))
        return LearnedWeights(units, jnp.zeros((), self.dtype))

    def floor_units(self, learned: LearnedWeights) -> UInt32[Array, ""]:
        """c, at least one."""
        odds = self.floor / (1 - self.floor)
        units = learned.units.total().astype(self.dtype) * (odds / self.n_rows)
        return jnp.ceil(units).astype(jnp.uint32)

    def draw_rows(self, learned: LearnedWeights, words: UInt32[Array, "n 2"]) -> Int[Array, " n"]:
        """Row numbers from random bits.

        Each draw is a place among the learned units, which come first, or the units of the floor.
        """
        total, floor = learned.units.total(), self.floor_units(learned)
        place = uniform_index(words, total + floor * jnp.uint32(self.n_rows)).astype(jnp.uint32)
        by_floor = ((place - total) // floor).astype(jnp.int32)
        return jnp.where(place < total, learned.units.find(jnp.minimum(place, total - 1)), by_floor)

    def draws_at(self, learned: LearnedWeights, indices: Int[Array, " n"]) -> RowDraws:
        """These rows with their importance weights under the learned law."""
        floor = self.floor_units(learned)
        total = learned.units.total() + floor * jnp.uint32(self.n_rows)
        units = learned.units.at(indices) + floor
        return RowDraws(indices, total.astype(self.dtype) / (self.size * units.astype(self.dtype)))

    def probabilities(self, learned: LearnedWeights) -> np.ndarray:
        """p_i of every row, in float64 on the host."""
        units = np.asarray(learned.units.levels[0][: self.n_rows], np.float64)
        units = units + float(self.floor_units(learned))
        return units / units.sum()

    def estimate(self, at: GradientAt, gathered: UInt32[Array, "n 2"]) -> Estimate:
        learned = at.carried.selection
        drawn = self.draws_at(learned, self.draw_rows(learned, gathered))
        batch = at.rows.complete(at.rows.gather(drawn))
        # For a GLM the estimate uses the same residuals, and XLA computes them once.
        norms = at.gradient.model.norms(at.residuals(batch), batch.rows)
        estimate, selection = at.estimate_from(batch, centred), self.learn(learned, drawn, norms)
        carried = dataclasses.replace(estimate.carried, selection=selection)
        return dataclasses.replace(estimate, carried=carried)

    def learn(
        self, learned: LearnedWeights, drawn: RowDraws, norms: Float[Array, " n"]
    ) -> LearnedWeights:
        """The learned weights after a step that saw these rows with these residual norms."""
        mean_now = jnp.sum(drawn.weights * norms) / self.n_rows
        share = min(1.0, self.size / _DRAWS_IN_MEAN)
        mean = jnp.where(
            learned.mean_norm > 0, (1 - share) * learned.mean_norm + share * mean_now, mean_now
        )

        units = learned.units.at(drawn.indices).astype(self.dtype)
        # Below the floor a weight has no effect, so norms are clipped there.
        target = self.mean_units * jnp.maximum(norms / mean, self.floor)
        wanted = jnp.clip(units ** (1 - self.rate) * target**self.rate, 1, _MOST_UNITS_PER_ROW)
        # A batch whose residuals are all zero, such as the first batch around a new centre, carries
        # no information about proportions.
        informative = (mean_now > 0) & jnp.isfinite(wanted) & first_of_each(drawn.indices)
        change = jnp.where(informative, wanted - units, 0)
        # Round away from zero; otherwise small weights would never move.
        change = jnp.sign(change) * jnp.ceil(jnp.abs(change))
        room = jnp.maximum(self.most_units - learned.units.total().astype(self.dtype), 0)
        fitting = jnp.minimum(1, room / jnp.maximum(jnp.sum(jnp.maximum(change, 0)), 1))
        change = jnp.where(change > 0, jnp.floor(change * fitting), change)
        added = change.astype(jnp.int32).astype(jnp.uint32)
        return LearnedWeights(learned.units.plus(drawn.indices, added), mean)


@dataclasses.dataclass(frozen=True)
class Bandit(SubsampleChoice):
    """Weights learned during the run from the residual norms seen (‖r_i‖, as in eqs. 10 and 14).

    Memory per chain: 8N/7 integers of 32 bits.

    **Arguments:**

    - `floor`: δ, the share of uniform weights. Every row can be drawn, and no importance weight
      1/(N p_i) exceeds 1/floor.
    - `rate`: ρ, the share of a weight, on the log scale, that is renewed when its row is seen.
    """

    bias = (
        "Unbiased at every step given the past: p depends on earlier steps only and is known "
        "exactly."
    )
    cost = (
        "No pass over the rows. A draw and an update take log₈ N look-ups, so the cost per step "
        "hardly grows with N."
    )

    floor: float = 0.1
    rate: float = 0.5

    def __post_init__(self) -> None:
        check_number("floor", self.floor, 0, 1, low_open=True, high_open=True)
        check_number("rate", self.rate, 0, 1, low_open=True)

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> BanditSelection:
        posterior = context.posterior
        why = (
            "with weights learned during the run: "
            "the bound of eq. 19 is for one law, and these weights change at every step"
        )
        cure = "Use Preferential(...) with BoundedNoise(...)."
        selection = BanditSelection(
            size=fixed_rows(size, posterior, why, cure),
            n_rows=posterior.n_rows,
            floor=float(self.floor),
            rate=float(self.rate),
            dtype=posterior.dtype,
        )
        if selection.mean_units < _FEWEST_MEAN_UNITS:
            most = int((1 - self.floor) * _ALL_UNITS / (_FEWEST_MEAN_UNITS * _HEADROOM))
            rule = (
                f"have at most about {most} rows for learned weights: "
                f"with 31 bits, a mean weight would be fewer than {_FEWEST_MEAN_UNITS} units"
            )
            cure = "Use Preferential(...), or a lower floor."
            raise InvalidInput("posterior", rule, f"{posterior.n_rows} rows", cure)
        return selection
