"""The noise threshold V₀ of an adaptive size, as in section 5.3.3 of putcha-2023.

Pilot chains run with a fixed size n₀. In each chain q is the 95th percentile of ‖θ − θ̂‖², and the
bound of eq. 18 at that distance is (1/n₀) q Σ L_i²/p_i. V₀ is the largest of these bounds. The
adaptive chain then uses about n₀ rows at the edge of the pilot's region and fewer inside.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..anchor.anchor import Anchor
from ..core.errors import InvalidInput, PreparationError, check_int
from ..core.outcome import Outcome
from ..core.supervision import stage
from ..engine.kernel import BoundKernel, Kernel
from ..engine.run import Run, chain_keys
from ..engine.sinks import MemorySink
from ..subsample.replacement import WithReplacement
from ..subsample.size import noise_bound

_STEPS_AT_ONCE = 1000
_PILOT_PURPOSE = 1  # separates the keys of pilot runs from the keys of the run


class Threshold(NamedTuple):
    """Result of `noise_threshold`."""

    threshold: float
    """V₀."""
    squared_distances: np.ndarray
    """95th percentile of ‖θ − θ̂‖² in each pilot chain."""
    n_row_evals: int
    """Rows touched by the pilot runs and by the bound."""


def noise_threshold(
    kernel: BoundKernel, anchor: Anchor, *, chains: int = 10, steps: int = 10_000, seed: int = 0
) -> Threshold:
    """Find the noise threshold V₀ by pilot runs that start at the anchor.

    **Arguments:**

    - `kernel`: the kernel of a prepared method with a fixed size, drawn with replacement.
    - `anchor`: the anchor θ̂.
    - `chains`: the number of pilot chains.
    - `steps`: the steps per pilot chain.
    - `seed`: the seed of the pilot runs.

    **Returns:** the threshold, the squared distances it comes from, and the rows touched.

    **Raises:** `InvalidInput` if `kernel` has no fixed size with replacement; `PreparationError` if
    a pilot chain reaches a position that is not finite.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> y = x @ [1.0, -1.0]
    >>> posterior = tallmc.models.linear_regression(x, y, prior_variance=10.0, noise_variance=1.0)
    >>> anchor = tallmc.laplace(posterior)
    >>> pilot = tallmc.sgld_cv(step_size=1e-4, size=10).prepare(posterior, anchor).kernel
    >>> noise_threshold(pilot, anchor, chains=2, steps=100).squared_distances.shape
    (2,)
    """
    selection = _selection_of(kernel)
    chains, steps = check_int("chains", chains, 1), check_int("steps", steps, 20)
    sink, start = MemorySink(), jnp.broadcast_to(anchor.position, (chains, *anchor.position.shape))
    keys = chain_keys(seed, chains, _PILOT_PURPOSE)
    run = Run(kernel, keys, start, burn_in=0, thin=1, draws=0, sink=sink)
    centre, distances = np.asarray(anchor.position, np.float64), []
    stage("running pilot chains for the adaptive size")
    while run.step < steps:  # in parts, so memory does not grow with the number of steps
        run.run_to(min(run.step + _STEPS_AT_ONCE, steps))
        distances.append(np.sum((run.positions() - centre) ** 2, axis=2))
        sink.forget()
    if any(outcome is not Outcome.OK for outcome in run.outcomes()):
        raise PreparationError(
            "a pilot run for the adaptive size failed: a chain reached a position that is not "
            "finite. Make the step size smaller, the pilot size larger, or pass "
            "Adaptive(noise_threshold=...)."
        )
    squared_distances = np.percentile(np.concatenate(distances, axis=1), 95, axis=1)
    bound_of_one_row = noise_bound(selection.stream, kernel.posterior)
    threshold = float(squared_distances.max() * bound_of_one_row / selection.size)
    n_row_evals = run.rows_touched() + kernel.posterior.n_rows
    return Threshold(threshold, squared_distances, n_row_evals)


def _selection_of(kernel: BoundKernel) -> WithReplacement:
    parts = kernel.kernel if isinstance(kernel, BoundKernel) else None
    if isinstance(parts, Kernel) and isinstance(parts.selection, WithReplacement):
        return parts.selection
    rule = "be a prepared method of fixed size with replacement"
    cure = "Pass tallmc.sgld_cv(...).prepare(posterior, anchor).kernel."
    raise InvalidInput("kernel", rule, type(kernel).__name__, cure)
