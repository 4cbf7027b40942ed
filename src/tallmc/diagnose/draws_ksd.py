"""The kernel Stein discrepancy of a run: thinned draws of its chains, with gradients computed for them.

Gradients of the full data are a pass over the rows for each draw. From `size` rows each they are unbiased but noisy, which adds
E‖noise‖²/K to the square of the discrepancy: compare such values for one size and one number of draws only.

The kernel presumes coordinates of scale 1. In other units C, x = Cu, positions become C⁻¹x and gradients Cᵀ∇f. With C Cᵀ = Σ̂ from
the anchor the posterior is round, and the discrepancy sees all directions alike; in units of standard deviations, coordinate by
coordinate, those in which correlated parameters are well determined have large gradients and outweigh the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from .._arrays import check_numeric
from .._draws import Draws
from .._errors import InvalidInput, check_int
from .._posterior import AbstractPosterior
from ..gradient.simple import SimpleGradient
from ..subsample.law import UniformLaw
from ..subsample.replacement import WithReplacement
from .gradients import exact_gradients, stochastic_gradients
from .ksd import Form, ksd


class Discrepancy(NamedTuple):
    ksd: float
    n_draws: int
    """Draws it was computed from."""
    n_row_evals: int
    """Rows touched for their gradients."""


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
    """The kernel Stein discrepancy from `posterior` of `draws`, thinned to at most `most` of them in all.

    Chains that failed are left out. `size` takes stochastic gradients from so many rows in place of a pass over the rows for each
    draw. `units` are C: a matrix, best the `factor` of an anchor, or one number a coordinate, or one for all.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], prior_variance=10.0)
    >>> draws = tallmc.sample(posterior, tallmc.sgld(step_size=1e-2, size=10), chains=2, draws=2000)
    >>> found = draws_ksd(draws, posterior, most=500, units=tallmc.laplace(posterior).factor)
    >>> found.n_draws, found.n_row_evals
    (500, 50000)
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
        raise InvalidInput("draws", "have a chain that completed", f"outcomes {[o.name for o in draws.outcomes]}")
    if size is None:
        gradients = exact_gradients(posterior, positions)
    else:
        selection = WithReplacement(law=UniformLaw(posterior.n_rows, posterior.dtype), size=size)
        gradients = stochastic_gradients(SimpleGradient(posterior), selection, positions, seed)
    rows = len(positions) * (posterior.n_rows if size is None else size)
    return Discrepancy(ksd(*in_units(C, positions, gradients), form=form), len(positions), rows)


def thinned(positions: Float[np.ndarray, "chains draws d"], most: int) -> Float[np.ndarray, "K d"]:
    """At most `most` draws, evenly spaced along the chains laid end to end."""
    end_to_end = positions.reshape(-1, positions.shape[-1])
    count = min(most, len(end_to_end))
    return end_to_end[np.arange(1, count + 1) * len(end_to_end) // max(count, 1) - 1]


def in_units(
    C: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"],
    positions: Float[np.ndarray, "K d"],
    gradients: Float[np.ndarray, "K d"],
) -> tuple[Float[np.ndarray, "K d"], Float[np.ndarray, "K d"]]:
    """C⁻¹x and Cᵀ∇f of each draw; a vector stands for a diagonal matrix."""
    if C.ndim < 2:
        return positions / C, gradients * C
    return np.linalg.solve(C, positions.T).T, gradients @ C


def _checked_units(units: ArrayLike, dim: int) -> np.ndarray:
    C = np.asarray(check_numeric("units", units), np.float64)
    if C.shape not in ((), (dim,), (dim, dim)) or not np.isfinite(C).all():
        raise InvalidInput("units", f"be finite, a number, one a coordinate ({dim}) or a {dim}×{dim} matrix", units)
    if not (C > 0).all() if C.ndim < 2 else np.linalg.matrix_rank(C) < dim:
        raise InvalidInput("units", "be positive, or an invertible matrix", units)
    return C
