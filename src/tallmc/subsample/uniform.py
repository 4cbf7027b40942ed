"""Uniform subsampling, p_i = 1/N, with or without replacement.

Without replacement the weights are N/n and the estimator's covariance is (N²/n)(1 − n/N) S², S² the rows' sample covariance:
smaller than with replacement, and zero at n = N; for n ≪ N there is no difference to speak of (putcha-2023, section 5.3.1).

A set without repetition is drawn by rejection: draw n row numbers, redraw those that repeat an earlier one, until none does.
Each round treats all rows alike, so every n-subset is equally likely. Its cost depends on n, not on N; beyond N/2 rows a
permutation is cheaper.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._anchor import Needs
from .._errors import InvalidInput
from .._random import random_words
from .base import Setting, SizeChoice, SubsampleChoice
from .law import UniformLaw
from .replacement import NO_ROWS
from .selection import AbstractSelection, AbstractStaticSelection, Picks, centred
from .size import Fixed


class WithoutReplacement(AbstractStaticSelection):
    """n different rows, every set of them equally likely: w_i = N/n. The row numbers come sorted or in random order."""

    law: UniformLaw
    size: int = eqx.field(static=True)

    def supply(self, key: PRNGKeyArray, steps: int) -> Picks:
        if 2 * self.size > self.law.n_rows:
            permute = jax.vmap(lambda key: jax.random.permutation(key, self.law.n_rows)[: self.size])
            return self.picks_at(permute(jax.random.split(key, steps)))
        return self.picks_at(self._distinct(key, steps))

    def picks_at(self, indices: Int[Array, "*k n"]) -> Picks:
        """These rows with the weights they have when drawn."""
        return Picks(indices, self.law.inverse_probability(indices) / self.size)

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return jnp.sqrt(1 - self.size / self.law.n_rows) * centred(terms)

    def _distinct(self, key: PRNGKeyArray, steps: int) -> Int[Array, "steps n"]:
        def fresh(round_: Array) -> Int[Array, "steps n"]:
            return self.law.draw(random_words(jax.random.fold_in(key, round_), (steps, self.size)))

        def redraw(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            round_, indices = carry
            return round_ + 1, jnp.sort(jnp.where(_repeats(indices), fresh(round_), indices), axis=1)

        first = jnp.sort(fresh(jnp.int32(0)), axis=1)
        return lax.while_loop(lambda carry: jnp.any(_repeats(carry[1])), redraw, (jnp.int32(1), first))[1]


def _repeats(ordered: Int[Array, "steps n"]) -> Bool[Array, "steps n"]:
    same = ordered[:, 1:] == ordered[:, :-1]
    return jnp.concatenate([jnp.zeros((ordered.shape[0], 1), bool), same], axis=1)


@dataclasses.dataclass(frozen=True)
class Uniform(SubsampleChoice):
    """Choose rows uniformly, with replacement unless told otherwise."""

    replace: bool = True
    needs = Needs.NOTHING
    passes = 0
    knows_its_spread = True

    def __post_init__(self) -> None:
        if not isinstance(self.replace, bool):
            raise InvalidInput("replace", "be True or False", self.replace)

    def prepare(self, setting: Setting, size: SizeChoice | None) -> AbstractSelection:
        assert size is not None, "a method with a uniform subsample has a size"
        law = UniformLaw(setting.posterior.n_rows, setting.posterior.dtype)
        if self.replace:
            return size.select(law, setting, NO_ROWS)
        if not isinstance(size, Fixed):
            raise InvalidInput(
                "size",
                "be fixed without replacement: a set without repetition is drawn whole, before its size is known",
                size,
                "Use Uniform(replace=True).",
            )
        return WithoutReplacement(law=law, size=size.checked(setting.posterior))
