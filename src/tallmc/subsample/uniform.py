"""Uniform subsampling, p_i = 1/N, with or without replacement; and all rows in every step.

Without replacement the weights are N/n, and the covariance of the estimator is (N²/n)(1 − n/N) S²,
S² the covariance of the residuals r_i over all rows, with divisor N − 1. This is smaller than with
replacement, and zero at n = N. For n ≪ N the difference is negligible (putcha-2023, section 5.3.1).

A set without repetition is drawn by rejection: draw n row numbers, and redraw repeated numbers
until none is left. Each round treats all rows alike, so every n-subset is equally likely. Above
N/2 rows a permutation is cheaper.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._core.errors import InvalidInput
from .._core.random import random_words
from .._rows.access import RowAccess
from .._rows.law import RowDraws, UniformLaw
from .._rows.passes import Sum
from .selection import (
    NO_ROWS,
    AbstractSelection,
    AbstractStaticSelection,
    Estimate,
    GradientAt,
    SizeChoice,
    SubsampleChoice,
    SubsampleContext,
    centred,
    fixed_rows,
)


class WithoutReplacement(AbstractStaticSelection):
    """n distinct rows, every set equally likely: w_i = N/n. The order of rows is arbitrary."""

    law: UniformLaw
    size: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, steps: int) -> RowDraws:
        if 2 * self.size > self.law.n_rows:
            permute = jax.vmap(
                lambda key: jax.random.permutation(key, self.law.n_rows)[: self.size]
            )
            return self.draws_at(permute(jax.random.split(key, steps)))
        return self.draws_at(self._distinct(key, steps))

    def draws_at(self, indices: Int[Array, "*k n"]) -> RowDraws:
        """These rows with their importance weights."""
        return RowDraws(indices, self.law.inverse_probability(indices) / self.size)

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return jnp.sqrt(1 - self.size / self.law.n_rows) * centred(terms)

    def _distinct(self, key: PRNGKeyArray, steps: int) -> Int[Array, "steps n"]:
        def fresh(round_: Array) -> Int[Array, "steps n"]:
            return self.law.draw(random_words(jax.random.fold_in(key, round_), (steps, self.size)))

        def redraw(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            round_, indices = carry
            renewed = jnp.where(_repeats(indices), fresh(round_), indices)
            return round_ + 1, jnp.sort(renewed, axis=1)

        first = jnp.sort(fresh(jnp.int32(0)), axis=1)
        return lax.while_loop(
            lambda carry: jnp.any(_repeats(carry[1])), redraw, (jnp.int32(1), first)
        )[1]


def _repeats(ordered: Int[Array, "steps n"]) -> Bool[Array, "steps n"]:
    """True where a sorted row number equals the one before it."""
    same = ordered[:, 1:] == ordered[:, :-1]
    return jnp.concatenate([jnp.zeros((ordered.shape[0], 1), bool), same], axis=1)


@dataclasses.dataclass(frozen=True)
class Uniform(SubsampleChoice):
    """Uniform draws, with replacement unless `replace` is False."""

    bias = "Unbiased."
    cost = "The cost of a step depends on n, not on N."

    replace: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.replace, bool):
            raise InvalidInput("replace", "be True or False", self.replace)

    @property
    def row_access(self) -> RowAccess:
        return RowAccess.STREAM if self.replace else RowAccess.TAKE

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> AbstractSelection:
        assert size is not None, "a uniform subsample requires a size"
        posterior = context.posterior
        if self.replace:
            return size.select(posterior.rows.stream(None, posterior.dtype), context, NO_ROWS)
        why = "without replacement: the set is drawn before a variable size is known"
        n = fixed_rows(size, posterior, why, "Use Uniform(replace=True).")
        return WithoutReplacement(law=UniformLaw(posterior.n_rows, posterior.dtype), size=n)


class AllRowsSelection(AbstractSelection):
    """Every row, with weight one: no subsampling and no noise."""

    n_rows: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.n_rows

    def draw(self, key: PRNGKeyArray, steps: int) -> None:
        return None

    def estimate(self, at: GradientAt, gathered: None) -> Estimate:
        # For every estimator, the known part plus the residuals of all rows is the exact gradient.
        total = at.gradient.model.potential_and_gradient(at.position, at.rows)
        potential, n_rows = Sum(total.high[0], total.low[0]), jnp.int32(self.n_rows)
        return Estimate(total.rounded()[1], n_rows, at.carried, potential=potential)


@dataclasses.dataclass(frozen=True)
class AllRows(SubsampleChoice):
    """Every row in every step."""

    bias = "No gradient noise."
    cost = "Every step is a pass over the data."
    knows_its_spread = False

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> AllRowsSelection:
        return AllRowsSelection(n_rows=context.posterior.n_rows)
