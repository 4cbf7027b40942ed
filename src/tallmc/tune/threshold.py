"""The noise threshold V₀ of an adaptive size, as in section 5.3.3 of putcha-2023.

Run pilot chains with a fixed size n₀. In each take the 95th percentile q of ‖θ − θ̂‖²; the bound of eq. 18 at that distance is
(1/n₀) q Σ L_i²/p_i. V₀ is the largest of these: the adaptive chain then uses about n₀ rows at the pilot's outskirts and fewer
inside.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._anchor import Anchor
from .._errors import AnchorError
from .._kernel import Kernel
from .._loop import advance, start_run
from .._outcome import Outcome
from .._random import new_key
from ..subsample.size import WithReplacement, noise_bound


class Threshold(NamedTuple):
    threshold: float
    squared_distances: np.ndarray
    """The 95th percentile of ‖θ − θ̂‖² in each pilot chain."""
    n_row_evals: int


def noise_threshold(kernel: Kernel, anchor: Anchor, *, chains: int = 10, steps: int = 10_000, seed: int = 0) -> Threshold:
    """V₀ from pilot runs of `kernel`, which has a fixed size and starts at the anchor."""
    selection = kernel.selection
    assert isinstance(selection, WithReplacement), "the pilot of an adaptive size draws with replacement"
    root = jax.random.fold_in(new_key(seed), 1)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(chains))
    state = start_run(kernel, keys, jnp.broadcast_to(anchor.position, (chains, *anchor.position.shape)))
    state, recorded = advance(kernel, keys, state, jnp.int32(0), jnp.int32(steps), jnp.int32(0), jnp.int32(1), steps)
    if not bool(jnp.all(state.outcome == Outcome.OK)):
        raise AnchorError(
            "a pilot run for the adaptive size failed: a chain reached a position that is not finite. "
            "Make the step size smaller, the pilot size larger, or pass Adaptive(noise_threshold=...)."
        )
    distances = np.asarray(jnp.sum((recorded.positions - anchor.position) ** 2, axis=2), np.float64)
    largest = np.percentile(distances, 95, axis=0)
    bound = noise_bound(selection.law, kernel.gradient.posterior)
    return Threshold(float(largest.max() * bound / selection.size), largest, chains * steps * selection.size)
