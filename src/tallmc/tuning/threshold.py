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
from .._errors import InvalidInput, PreparationError, check_int
from .._kernel import Kernel
from .._loop import advance, start_run
from .._outcome import Outcome
from .._random import new_key
from ..subsample.replacement import WithReplacement
from ..subsample.size import noise_bound

_STEPS_PER_CALL = 1000


class Threshold(NamedTuple):
    threshold: float
    squared_distances: np.ndarray
    """The 95th percentile of ‖θ − θ̂‖² in each pilot chain."""
    n_row_evals: int


def noise_threshold(kernel: Kernel, anchor: Anchor, *, chains: int = 10, steps: int = 10_000, seed: int = 0) -> Threshold:
    """V₀ from pilot runs of `kernel`, a prepared method of fixed size with replacement, that start at the anchor.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], prior_variance=10.0)
    >>> anchor = tallmc.laplace(posterior)
    >>> pilot = tallmc.sgld_cv(step_size=1e-4, size=10).prepare(posterior, anchor).kernel
    >>> noise_threshold(pilot, anchor, chains=2, steps=100).squared_distances.shape
    (2,)
    """
    selection = kernel.selection if isinstance(kernel, Kernel) else None
    if not isinstance(selection, WithReplacement):
        rule = "be a prepared method of fixed size with replacement"
        raise InvalidInput("kernel", rule, type(kernel).__name__, "As in tallmc.sgld_cv(...).prepare(posterior, anchor).kernel.")
    chains, steps = check_int("chains", chains, 1), check_int("steps", steps, 20)
    root = jax.random.fold_in(new_key(seed), 1)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(root, jnp.arange(chains))
    state = start_run(kernel, keys, jnp.broadcast_to(anchor.position, (chains, *anchor.position.shape)))
    distances = []
    for first in range(0, steps, _STEPS_PER_CALL):  # in calls, so that Ctrl-C is heard and memory stays flat
        stop = min(first + _STEPS_PER_CALL, steps)
        zero, one = jnp.int32(0), jnp.int32(1)
        state, recorded = advance(kernel, keys, state, jnp.int32(first), jnp.int32(stop), zero, one, _STEPS_PER_CALL)
        distance = jnp.sum((recorded.positions - anchor.position) ** 2, axis=2)
        distances.append(np.array(distance, np.float64)[: stop - first])
    if not bool(jnp.all(state.outcome == Outcome.OK)):
        raise PreparationError(
            "a pilot run for the adaptive size failed: a chain reached a position that is not finite. "
            "Make the step size smaller, the pilot size larger, or pass Adaptive(noise_threshold=...)."
        )
    largest = np.percentile(np.concatenate(distances), 95, axis=0)
    posterior = kernel.gradient.posterior
    bound = noise_bound(selection.law, posterior)
    return Threshold(float(largest.max() * bound / selection.size), largest, chains * steps * selection.size + posterior.n_rows)
