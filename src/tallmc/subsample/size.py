"""How many rows a step sees: fixed, or as many as a bound on the noise asks for.

The control-variate estimator has pseudo-variance at most (1/n) ‖θ − θ̂‖² Σ L_i²/p_i (putcha-2023, eq. 18). Keeping that under
a threshold V₀ takes

    n(θ) = ⌈ ‖θ − θ̂‖² Σ_i L_i²/p_i / V₀ ⌉,   at least 1 and at most N                                     (eq. 19)

rows: few near the anchor, many in the tails. The draws are with replacement and unbiased at any n, since n is a function of
the state before the draw. One compilation, and a cost in proportion to n once it is a few chunks of 64.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from .._anchor import Needs
from .._errors import check_int, check_number
from .._posterior import AbstractPosterior
from .._random import key_of, random_words
from ..gradient.base import AbstractGradient
from .base import Setting, SizeChoice
from .law import AbstractLaw
from .replacement import WithReplacement, sum_of_draws
from .selection import AbstractDynamicSelection, Estimate, Memory, Transition
from .weights import lipschitz_weights


class AdaptiveSelection(AbstractDynamicSelection):
    """n(θ) independent draws from one law (eq. 19)."""

    law: AbstractLaw
    anchor: Float[Array, " d"]
    rows_per_squared_distance: Float[Array, ""]
    largest: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.largest

    def supply(self, key: PRNGKeyArray, steps: int) -> UInt32[Array, "steps 2"]:
        return random_words(key, (steps,))

    def size_at(self, position: Float[Array, " d"]) -> Int[Array, ""]:
        """n(θ), eq. 19."""
        wanted = self.rows_per_squared_distance * jnp.sum((position - self.anchor) ** 2)
        return jnp.clip(jnp.ceil(wanted), 1, self.largest).astype(jnp.int32)

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: UInt32[Array, " 2"],
        transition: Transition | None,
    ) -> Estimate:
        size = self.size_at(position)
        arrays, static = eqx.partition((self.law, gradient, memory.gradient), eqx.is_array)

        # Under vmap the chains go one after the other, so that each costs its own n and not the largest.
        @sequential_vmap
        def residual_sum(arrays, position, size, words):  # type: ignore[no-untyped-def]
            law, gradient, learned = eqx.combine(arrays, static)
            return sum_of_draws(law, gradient, learned, position, size, size, key_of(words))

        residual = residual_sum(arrays, position, size, supply)
        return Estimate(gradient.known(position, memory.gradient) + residual, size, memory)


@dataclasses.dataclass(frozen=True)
class Fixed(SizeChoice):
    """The same number of rows in every step."""

    size: int
    needs = Needs.NOTHING

    def __post_init__(self) -> None:
        check_int("size", self.size, 1)

    def select(self, law: AbstractLaw, setting: Setting, certain: np.ndarray) -> WithReplacement:
        return WithReplacement(law=law, size=self.checked(setting.posterior), certain=jnp.asarray(certain, jnp.int32))

    def checked(self, posterior: AbstractPosterior) -> int:
        return check_int("size", self.size, 1, posterior.n_rows, high_name="n_rows")


@dataclasses.dataclass(frozen=True)
class Adaptive(SizeChoice):
    """As many rows as keep the bound on the pseudo-variance under `noise_threshold` (V₀ in eq. 19), at most `max_size`.

    Without a threshold it is found as in section 5.3.3 of putcha-2023, by `pilot_chains` pilot runs of `pilot_steps` steps with
    `pilot_size` rows each (0.1 % of the rows by default); see `tallmc.tuning.noise_threshold`.
    """

    noise_threshold: float | None = None
    max_size: int | None = None
    pilot_size: int | None = None
    pilot_steps: int = 10_000
    pilot_chains: int = 10
    needs = Needs.MODE
    size = None

    def __post_init__(self) -> None:
        if self.noise_threshold is not None:
            check_number("noise_threshold", self.noise_threshold, 0, low_open=True)
        check_int("pilot_steps", self.pilot_steps, 20)
        check_int("pilot_chains", self.pilot_chains, 1)

    def select(self, law: AbstractLaw, setting: Setting, certain: np.ndarray) -> AdaptiveSelection:
        posterior, anchor = setting.posterior, setting.anchor
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
