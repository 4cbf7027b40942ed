"""A number of rows that keeps a bound on the noise under a threshold.

The pseudo-variance of the control-variate estimator is at most (1/n) ‖θ − θ̂‖² Σ L_i²/p_i
(putcha-2023, eq. 18). The number of rows that keeps this bound under a threshold V₀ is

    n(θ) = ⌈ ‖θ − θ̂‖² Σ_i L_i²/p_i / V₀ ⌉,   at least 1 and at most N   (eq. 19)

These are few rows near the anchor and many in the tails. The draws are with replacement. A
different n does not recompile.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Int, PRNGKeyArray, UInt32

from .._anchor.anchor import AnchorLevel
from .._core.arrays import Scalar, Vector
from .._core.errors import check_int, check_number
from .._core.random import key_of, random_words
from .._rows.access import RowAccess
from .._rows.law import AbstractStream
from ..models.posterior import AbstractPosterior
from .selection import AbstractSelection, Estimate, Fixed, GradientAt, SizeChoice, SubsampleContext


class AdaptiveSelection(AbstractSelection):
    """n(θ) independent draws from one law (eq. 19)."""

    stream: AbstractStream
    anchor: Vector
    rows_per_squared_distance: Scalar
    largest: int = eqx.field(static=True)

    @property
    def most_rows(self) -> int:
        return self.largest

    def draw(self, key: PRNGKeyArray, steps: int) -> UInt32[Array, "steps 2"]:
        return random_words(key, (steps,))

    def size_at(self, position: Vector) -> Int[Array, ""]:
        """n(θ) of eq. 19."""
        wanted = self.rows_per_squared_distance * jnp.sum((position - self.anchor) ** 2)
        return jnp.clip(jnp.ceil(wanted), 1, self.largest).astype(jnp.int32)

    def estimate(self, at: GradientAt, gathered: UInt32[Array, " 2"]) -> Estimate:
        size = self.size_at(at.position)
        parts = self.stream, at._replace(transition=None)
        arrays, static = eqx.partition(parts, eqx.is_array)

        # Under vmap the chains run one after the other, so each chain pays for its own n and not
        # for the largest n.
        @sequential_vmap
        def residual_sum(arrays, size, words):  # type: ignore[no-untyped-def]
            stream, at = eqx.combine(arrays, static)
            return at.sum_of_draws(stream, key_of(words), size, size)

        return Estimate(at.known + residual_sum(arrays, size, gathered), size, at.carried)


@dataclasses.dataclass(frozen=True)
class BoundedNoise(SizeChoice):
    """A number of rows that keeps the bound on the pseudo-variance under a threshold (eq. 19).

    Without a threshold, pilot runs find one as in section 5.3.3 of putcha-2023. See
    `tallmc.methods.method.noise_threshold`.

    **Arguments:**

    - `noise_threshold`: V₀ in eq. 19; None to find it by pilot runs.
    - `max_size`: the largest number of rows per step; the number of rows of the data by default.
    - `pilot_size`: rows per step of the pilot runs; 0.1 % of the rows by default.
    - `pilot_steps`: steps of each pilot run.
    - `pilot_chains`: the number of pilot runs.
    """

    paper = "Putcha, Nemeth and Fearnhead (2023)"
    bias = "Unbiased at any n, because n is a function of the state before the draw."
    cost = "The cost is proportional to n once n fills a few chunks of draws, each of 16 or 64."
    needs = AnchorLevel.MODE
    row_access = RowAccess.TAKE
    size = None

    noise_threshold: float | None = None
    max_size: int | None = None
    pilot_size: int | None = None
    pilot_steps: int = 10_000
    pilot_chains: int = 10

    def __post_init__(self) -> None:
        if self.noise_threshold is not None:
            check_number("noise_threshold", self.noise_threshold, 0, low_open=True)
        check_int("pilot_steps", self.pilot_steps, 20)
        check_int("pilot_chains", self.pilot_chains, 1)

    def select(
        self, stream: AbstractStream, context: SubsampleContext, certain: np.ndarray
    ) -> AdaptiveSelection:
        posterior, anchor = context.posterior, context.anchor
        assert anchor is not None and self.noise_threshold is not None, (
            "an adaptive size is prepared after the anchor and the threshold are known"
        )
        largest = posterior.n_rows
        if self.max_size is not None:
            largest = check_int("max_size", self.max_size, 1, largest, high_name="n_rows")
        scale = noise_bound(stream, posterior) / self.noise_threshold
        return AdaptiveSelection(
            stream=stream,
            anchor=anchor.position,
            rows_per_squared_distance=jnp.asarray(scale, posterior.dtype),
            largest=largest,
        )

    def pilot(self, posterior: AbstractPosterior) -> Fixed:
        """The fixed size of the pilot runs."""
        default = max(1, posterior.n_rows // 1000)
        return Fixed(default if self.pilot_size is None else self.pilot_size)


def noise_bound(stream: AbstractStream, posterior: AbstractPosterior) -> float:
    """Σ_i L_i²/p_i, the bound on the pseudo-variance at n = 1 and distance 1 (eq. 18)."""
    lipschitz = np.asarray(posterior.lipschitz(), np.float64)
    return float(np.sum(lipschitz**2 / stream.probabilities()))
