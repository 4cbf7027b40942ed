"""How many rows a step sees: fixed, or as many as a bound on the noise asks for.

The control-variate estimator has pseudo-variance at most (1/n) ‖θ − θ̂‖² Σ L_i²/p_i (putcha-2023, eq. 18). Keeping that under
a threshold V₀ takes

    n(θ) = ⌈ ‖θ − θ̂‖² Σ_i L_i²/p_i / V₀ ⌉,   at least 1 and at most N                                     (eq. 19)

rows: few near the anchor, many in the tails. The draws are with replacement and unbiased at any n, since n is a function of
the state before the draw. The rows are taken a chunk of 64 at a time in a loop that stops after n of them: one compilation, and a
cost in proportion to n once it is a few chunks.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from .._anchor import Anchor, Needs
from .._errors import check_int, check_number
from .._posterior import AbstractPosterior
from .._random import random_words
from .._rows import take_rows
from ..gradient.base import AbstractGradient
from .base import SizeChoice
from .law import AbstractLaw
from .selection import AbstractDynamicSelection, AbstractStaticSelection, Estimate, Memory, Picks, Transition, centred
from .weights import lipschitz_weights

_CHUNK = 64


class WithReplacement(AbstractStaticSelection):
    """n independent draws from one law: w_i = 1/(n p_i)."""

    law: AbstractLaw
    size: int = eqx.field(static=True)

    def supply(self, key: PRNGKeyArray, steps: int) -> Picks:
        return self.picks_at(self.law.draw(random_words(key, (steps, self.size))))

    def picks_at(self, indices: Int[Array, "*k n"]) -> Picks:
        """These rows with the weights they have when drawn."""
        return Picks(indices, self.law.inverse_probability(indices) / self.size)

    def spread(self, terms: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return centred(terms)


class AdaptiveSelection(AbstractDynamicSelection):
    """n(θ) independent draws from one law (eq. 19)."""

    law: AbstractLaw
    anchor: Float[Array, " d"]
    rows_per_squared_distance: Float[Array, ""]
    largest: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.largest

    def supply(self, key: PRNGKeyArray, steps: int) -> Key[Array, " steps"]:
        return jax.random.split(key, steps)

    def size_at(self, position: Float[Array, " d"]) -> Int[Array, ""]:
        """n(θ), eq. 19."""
        wanted = self.rows_per_squared_distance * jnp.sum((position - self.anchor) ** 2)
        return jnp.clip(jnp.ceil(wanted), 1, self.largest).astype(jnp.int32)

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: Key[Array, ""],
        transition: Transition | None,
    ) -> Estimate:
        size = self.size_at(position)
        arrays, static = eqx.partition((self.law, gradient, memory.gradient), eqx.is_array)

        # Under vmap the chains go one after the other, so that each costs its own n and not the largest.
        @sequential_vmap
        def residual_sum(arrays, position, size, key):  # type: ignore[no-untyped-def]
            law, gradient, learned = eqx.combine(arrays, static)
            posterior = gradient.posterior

            def add_chunk(chunk: Array, total: Float[Array, " d"]) -> Float[Array, " d"]:
                indices = law.draw(random_words(jax.random.fold_in(key, chunk), (_CHUNK,)))
                used = chunk * _CHUNK + jnp.arange(_CHUNK) < size
                weights = jnp.where(used, law.inverse_probability(indices) / size, 0)
                rows = take_rows(posterior.data, indices)
                return total + posterior.combine(gradient.residuals(position, rows, indices, learned), rows, weights)

            return lax.fori_loop(0, (size + _CHUNK - 1) // _CHUNK, add_chunk, jnp.zeros_like(position))

        residual = residual_sum(arrays, position, size, supply)
        return Estimate(gradient.known(position, memory.gradient) + residual, size, memory)


@dataclasses.dataclass(frozen=True)
class Fixed(SizeChoice):
    """The same number of rows in every step."""

    size: int
    needs = Needs.NOTHING

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)

    def select(self, law: AbstractLaw, posterior: AbstractPosterior, anchor: Anchor | None) -> WithReplacement:
        return WithReplacement(law=law, size=self.checked(posterior))

    def checked(self, posterior: AbstractPosterior) -> int:
        return check_int("size", self.size, 1, posterior.n_rows, high_name="n_rows")


@dataclasses.dataclass(frozen=True)
class Adaptive(SizeChoice):
    """As many rows as keep the bound on the pseudo-variance under `noise_threshold` (V₀ in eq. 19), at most `max_size`.

    Without a threshold it is found as in section 5.3.3 of putcha-2023, by `pilot_chains` pilot runs of `pilot_steps` steps with
    `pilot_size` rows each (0.1 % of the rows by default); see `tallmc.tune.noise_threshold`.
    """

    noise_threshold: float | None = None
    max_size: int | None = None
    pilot_size: int | None = None
    pilot_steps: int = 10_000
    pilot_chains: int = 10
    needs = Needs.MODE

    def __post_init__(self) -> None:
        if self.noise_threshold is not None:
            check_number("noise_threshold", self.noise_threshold, 0, low_open=True)
        check_int("pilot_steps", self.pilot_steps, 20)
        check_int("pilot_chains", self.pilot_chains, 1)

    def select(self, law: AbstractLaw, posterior: AbstractPosterior, anchor: Anchor | None) -> AdaptiveSelection:
        assert anchor is not None and self.noise_threshold is not None, "prepared after the anchor and the threshold are known"
        largest = posterior.n_rows
        if self.max_size is not None:
            largest = check_int("max_size", self.max_size, 1, largest, high_name="n_rows")
        scale = noise_bound(law, posterior) / self.noise_threshold
        return AdaptiveSelection(
            law=law,
            anchor=anchor.position,
            rows_per_squared_distance=jnp.asarray(scale, posterior.dtype),
            largest=largest,
        )

    def pilot(self, posterior: AbstractPosterior) -> Fixed:
        """The fixed size of the pilot runs."""
        return Fixed(max(1, posterior.n_rows // 1000) if self.pilot_size is None else self.pilot_size)


def noise_bound(law: AbstractLaw, posterior: AbstractPosterior) -> float:
    """Σ_i L_i²/p_i, the pseudo-variance's bound at n = 1 and distance 1 (eq. 18)."""
    return float(np.sum(np.asarray(lipschitz_weights(posterior), np.float64) ** 2 / law.probabilities()))


def as_size(size: int | SizeChoice | None) -> SizeChoice | None:
    return size if size is None or isinstance(size, SizeChoice) else Fixed(size)
