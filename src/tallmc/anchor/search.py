"""The default search for the mode: Newton, then L-BFGS, then Adam from several starts.

Newton finds the mode of a well-behaved posterior, and nothing else runs. When Newton fails, the
further searches start from the best point so far and from init, and Newton polishes what improves
on the best point. If no search reaches the mode, for example because the density has kinks, the
point with the lowest potential is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..models.posterior import AbstractPosterior
from ..rows.base import RowAccess
from .advice import not_finite
from .optimisers import LBFGS, Adam, Newton
from .optimisers.base import SearchEnd
from .optimisers.newton import descent_direction
from .passes import CountedPasses, double_passes

NEWTON_MAX_DIM = 500
_PERTURBED_STARTS = 3
_WORTH_A_POLISH = 0.01
"""How much lower than at the last polish the potential must be for another one."""
_LARGEST_SHIFT = 0.01
"""How far from the mode a polish may end, in posterior standard deviations."""
_POLISHED = 1e-5
_ROUNDS = 10


class BestPoint(NamedTuple):
    """The lowest point that the searches found, and whether it is known to be the mode."""

    position: Float[np.ndarray, " d"]
    reached: bool


def first_search(passes: CountedPasses) -> SearchEnd:
    """Search from `init` of the posterior, by Newton unless there are too many parameters."""
    optimiser = Newton() if passes.posterior.dim <= NEWTON_MAX_DIM else LBFGS()
    return optimiser.search(passes, np.asarray(passes.posterior.init, np.float64))


def further_search(passes: CountedPasses, first: Float[np.ndarray, " d"]) -> BestPoint:
    """Search on after the first search ended at `first`, which is not the mode.

    **Raises:** `PreparationError` if the potential is not finite at init.
    """
    init = np.asarray(passes.posterior.init, np.float64)
    best, lowest = init, _potential(passes, init)
    if not np.isfinite(lowest):
        raise not_finite(passes, init, "at init")
    polished_from = np.inf
    for position in _further_ends(passes, first):
        potential = _potential(passes, position)
        if potential < lowest:
            best, lowest = position, potential
        if passes.posterior.dim <= NEWTON_MAX_DIM and lowest < polished_from - _WORTH_A_POLISH:
            polished_from = lowest
            mode = _polish(passes, best)
            if mode is not None:
                return BestPoint(mode, True)
    return BestPoint(best, False)


def is_single(posterior: AbstractPosterior) -> bool:
    """Whether positions are in single precision or less."""
    return jnp.finfo(posterior.dtype).bits < 64


def _further_ends(
    passes: CountedPasses, first: Float[np.ndarray, " d"]
) -> Iterator[Float[np.ndarray, " d"]]:
    """The end of the first search, then of others, each made when it is asked for."""
    posterior = passes.posterior
    init = np.asarray(posterior.init, np.float64)
    yield first
    for start in (first, init):
        if np.isfinite(start).all():
            yield LBFGS().search(passes, start).position
    spread = np.maximum(np.abs(init), 1.0)
    noise = np.random.default_rng(0).normal(size=(_PERTURBED_STARTS, posterior.dim))
    starts = [init, *(init + spread * noise)]
    in_memory = posterior.rows.access >= RowAccess.TAKE
    ends = [
        np.asarray(Adam(seed=seed).search(passes, jnp.asarray(start, posterior.dtype)), np.float64)
        if in_memory
        else LBFGS().search(passes, start).position
        for seed, start in enumerate(starts)
    ]
    best = min(ends, key=lambda end: _potential(passes, end))
    yield best
    if np.isfinite(best).all():
        yield LBFGS().search(passes, best).position


def _potential(passes: CountedPasses, position: Float[np.ndarray, " d"]) -> float:
    """f, or infinity where f or its gradient is not finite."""
    value, gradient = passes.value_and_gradient(position)
    return value if np.isfinite(value) and np.isfinite(gradient).all() else np.inf


def _polish(
    passes: CountedPasses, position: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"] | None:
    """The mode that Newton reaches from here in double precision, or None.

    Newton updates its Hessian with BFGS. In a curved valley, the updates may hide that the true
    Hessian is not positive definite, so Newton starts again from there.
    """
    double = double_passes(passes.posterior) or CountedPasses(passes.posterior)
    found = None
    for _ in range(_ROUNDS):
        end = Newton(tolerance=_POLISHED).descend(double, position)
        if end.problem is not None or np.array_equal(end.position, position):
            break
        position = end.position
        _, gradient = double.value_and_gradient(position)
        direction, definite = descent_direction(double.hessian(position), gradient)
        if definite and np.sqrt(direction @ gradient) < _LARGEST_SHIFT:
            found = position
            break
    passes.n_row_evals += double.n_row_evals
    return found
