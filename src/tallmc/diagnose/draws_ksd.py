"""Kernel Stein discrepancy of a run, computed from thinned draws of its chains.

Exact gradients cost one pass over the rows per draw. Gradients from `size` rows are unbiased but
noisy. Their noise adds E‖noise‖²/K to the squared discrepancy, so such values are comparable only
for the same `size` and the same number of draws K.

The kernel assumes coordinates of scale 1. In units C, with x = Cu, positions become C⁻¹x and
gradients become Cᵀ∇f. With C Cᵀ = Σ̂ from the anchor, the posterior is round and the discrepancy
weights all directions equally. With one standard deviation per coordinate, the directions in which
correlated parameters are well determined have large gradients and outweigh the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput, check_int
from ..gradient.simple import SimpleGradient
from ..models.posterior import AbstractPosterior, check_in_memory
from ..results.draws import Draws
from ..subsample.replacement import WithReplacement
from .gradients import exact_gradients, stochastic_gradients
from .ksd import Form, ksd


class Discrepancy(NamedTuple):
    """Result of `draws_ksd`.

    **Arguments:**

    - `ksd`: the kernel Stein discrepancy.
    - `n_draws`: the number of draws used.
    - `n_row_evals`: the number of rows touched to compute the gradients.

    >>> Discrepancy(ksd=0.1, n_draws=500, n_row_evals=50_000).ksd
    0.1
    """

    ksd: float
    n_draws: int
    n_row_evals: int


def draws_ksd(
    draws: Draws,
    posterior: AbstractPosterior,
    *,
    most: int = 2000,
    size: int | None = None,
    units: ArrayLike | None = None,
    form: Form = "one_root",
    seed: int = 0,
) -> Discrepancy:
    """Kernel Stein discrepancy between `draws` and `posterior`.

    Chains that failed are left out.

    **Arguments:**

    - `draws`: the result of `tallmc.sample`.
    - `posterior`: the posterior that was sampled.
    - `most`: the largest number of draws to use, over all chains. Longer runs are thinned.
    - `size`: rows per stochastic gradient. None uses exact gradients, one pass per draw.
    - `units`: C, as a matrix, one number per coordinate, or one number for all. The best choice is
      the `factor` of an anchor. Defaults to 1.
    - `form`: `"one_root"` or `"sum_of_roots"`, as in `ksd`.
    - `seed`: seed of the rows of the stochastic gradients.

    **Returns:** a `Discrepancy`.

    **Raises:** `InvalidInput` if an argument is invalid, or if no chain completed.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [0.0, 1.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=10.0, noise_variance=1.0)
    >>> draws = tallmc.sample(posterior, tallmc.sgld(step_size=0.01, size=1), draws=500)
    >>> draws_ksd(draws, posterior, most=100).n_row_evals
    200
    """
    if not isinstance(draws, Draws):
        raise InvalidInput("draws", "be the Draws of tallmc.sample", type(draws).__name__)
    if not isinstance(posterior, AbstractPosterior) or posterior.layout != draws.layout:
        raise InvalidInput("posterior", "be the one that was sampled", type(posterior).__name__)
    if size is not None:
        size = check_int("size", size, 1, posterior.n_rows, high_name="n_rows")
    C = _checked_units(1.0 if units is None else units, posterior.dim)
    positions = thinned(draws.positions[draws.ok], check_int("most", most, 1))
    if not len(positions):
        raise InvalidInput(
            "draws", "have a chain that completed", f"outcomes {[o.name for o in draws.outcomes]}"
        )
    if size is None:
        gradients = exact_gradients(posterior, positions)
    else:
        check_in_memory(posterior, "estimated gradients read rows by number", "Leave size out.")
        selection = WithReplacement(stream=posterior.rows.stream(None, posterior.dtype), size=size)
        gradient = SimpleGradient(posterior.model)
        gradients = stochastic_gradients(gradient, selection, posterior.rows, positions, seed)
    n_row_evals = len(positions) * (posterior.n_rows if size is None else size)
    value = ksd(*in_units(C, positions, gradients), form=form)
    return Discrepancy(value, len(positions), n_row_evals)


def thinned(positions: Float[np.ndarray, "chains draws d"], most: int) -> Float[np.ndarray, "K d"]:
    """At most `most` draws, evenly spaced along the concatenated chains."""
    concatenated = positions.reshape(-1, positions.shape[-1])
    count = min(most, len(concatenated))
    return concatenated[np.arange(1, count + 1) * len(concatenated) // max(count, 1) - 1]


def in_units(
    C: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"] | Float[np.ndarray, ""],
    positions: Float[np.ndarray, "K d"],
    gradients: Float[np.ndarray, "K d"],
) -> tuple[Float[np.ndarray, "K d"], Float[np.ndarray, "K d"]]:
    """C⁻¹x and Cᵀ∇f of each draw. A vector or a number C means a diagonal matrix."""
    if C.ndim < 2:
        return positions / C, gradients * C
    return np.linalg.solve(C, positions.T).T, gradients @ C


def _checked_units(units: ArrayLike, dim: int) -> np.ndarray:
    C = np.asarray(check_numeric("units", units), np.float64)
    if C.shape not in ((), (dim,), (dim, dim)) or not np.isfinite(C).all():
        rule = f"be a finite number, one number per coordinate ({dim}) or a {dim}×{dim} matrix"
        raise InvalidInput("units", rule, units)
    if not (C > 0).all() if C.ndim < 2 else np.linalg.matrix_rank(C) < dim:
        raise InvalidInput("units", "be positive, or an invertible matrix", units)
    return C
