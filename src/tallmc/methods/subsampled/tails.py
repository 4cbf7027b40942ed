"""How much of the posterior is where Gaussian proposals never go.

In the coordinates u of the anchor's Gaussian, proposals are beyond 4.5 sds along a direction seven
times in a million. Chains miss what a posterior with heavier tails has there, and nothing in their
draws shows it. So the density along some lines through the mode is computed from all rows,

    share of the variance along v that is beyond = ∫ t² p(tv)/p(0) dt / √(2π) over |t| > 4.5,

with log p linear between the distances below, and p falling as t⁻⁴ beyond the last of them. The
lines have the directions in which rows skew the posterior, Cᵀ∇f_i with probability ∝ c_i, and those
in which a single parameter varies most, Cᵀe_j, along which a heavy prior shows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._anchor.anchor import Anchor
from ..._core.arrays import Vector, on_device
from ..._core.programs import quickly_compiled
from ..._core.supervision import stage
from ..._rows.access import RowBlock
from ..._rows.law import Batch
from ..._rows.passes import Sum
from ...models.model import AbstractModel
from ...models.posterior import AbstractPosterior

_DISTANCES = (4.5, 6.5, 9.0)
_ROWS, _MOST_PARAMETERS = 16, 64
LARGEST_SHARE = 0.005
"""Of a variance; its sd is then off by 0.25 %."""


class Tails(NamedTuple):
    """What lies beyond the reach of Gaussian proposals, along the worst of some directions."""

    share: float
    """The share of a variance beyond 4.5 sds."""
    outside: float | None
    """The part of the posterior outside the radius within which rows have bounds."""
    n_row_evals: int

    @property
    def missed(self) -> str | None:
        """Why the draws cannot be trusted, with the cure; None if the tails are light."""
        if self.share <= LARGEST_SHARE:
            return None
        share = "most" if self.share > 0.5 else f"about {self.share:.1%}"
        return (
            f"{share} of a variance is more than {_DISTANCES[0]} sds from the mode, where Gaussian "
            "proposals hardly ever go: the draws lack this tail. Use the default method, or "
            "proposal='random-walk'."
        )


def measure_tails(
    posterior: AbstractPosterior,
    anchor: Anchor,
    constants: Float[np.ndarray, " N"],
    radius: float | None,
) -> Tails:
    """The tails of the posterior, from one pass over the rows.

    `constants` are c_i; `radius` is that outside of which rows have no bounds, if there is one.
    """
    stage("looking for heavy tails")
    factor = np.asarray(anchor.factor, np.float64)
    directions = _directions(posterior, anchor, constants, factor)
    distances = np.array(_DISTANCES if radius is None else (*_DISTANCES, radius))
    signed = np.concatenate([distances, -distances])
    u = signed[:, None, None] * directions
    moves = on_device(u.reshape(-1, u.shape[2]) @ factor.T, posterior.dtype)
    width = len(moves) + posterior.width
    rises = posterior.rows.reduce(
        _changes, posterior.model, anchor.position, moves, width=width, finish=_with_prior
    )
    rises = np.asarray(rises, np.float64).reshape(2, len(distances), -1)
    log_density = np.where(np.isfinite(rises), -rises, -np.inf)
    share = _share_beyond(log_density[:, : len(_DISTANCES)]).sum(axis=0).max()
    outside = None
    if radius is not None:
        from scipy.special import chdtrc  # a slow import

        excess = max(0.0, float(np.max(log_density[:, -1])) + radius**2 / 2)
        outside = min(1.0, chdtrc(posterior.dim, radius**2) * math.exp(min(excess, 700.0)))
    return Tails(float(share), outside, posterior.n_rows + min(_ROWS, posterior.n_rows))


def _share_beyond(log_density: Float[np.ndarray, "side t k"]) -> Float[np.ndarray, "side k"]:
    """∫ t² p dt/√(2π) beyond the first distance, of each line and side."""
    t = np.array(_DISTANCES)[:, None]
    log_terms = np.clip(log_density + 2 * np.log(t), -700, 100)
    terms, steps = np.exp(log_terms), np.diff(np.array(_DISTANCES))[:, None]
    slopes = np.diff(log_terms, axis=1)
    nearly_equal = np.abs(slopes) < 1e-6
    means = np.where(
        nearly_equal,
        terms[:, 1:],
        np.diff(terms, axis=1) / np.where(nearly_equal, 1, slopes),
    )
    beyond = t[-1] * terms[:, -1]  # ∫ t² p dt of p ∝ t⁻⁴
    return (np.sum(means * steps, axis=1) + beyond) / math.sqrt(2 * math.pi)


def _directions(
    posterior: AbstractPosterior,
    anchor: Anchor,
    constants: Float[np.ndarray, " N"],
    factor: Float[np.ndarray, "d d"],
) -> Float[np.ndarray, "k d"]:
    """Unit vectors in the coordinates u."""
    rng = np.random.default_rng(0)
    cumulated = np.cumsum(constants, dtype=np.float64)
    drawn = np.searchsorted(cumulated, rng.random(_ROWS) * cumulated[-1])
    numbers = np.minimum(drawn, len(constants) - 1)
    gradients = _row_gradients(posterior.model, anchor.position, posterior.rows.read(numbers))
    parameters = np.arange(len(factor))
    if len(factor) > _MOST_PARAMETERS:
        parameters = rng.choice(len(factor), _MOST_PARAMETERS, replace=False)
    found = np.concatenate([np.asarray(gradients, np.float64) @ factor, factor[parameters]])
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    return found / np.where(norms > 0, norms, np.inf)


@quickly_compiled
def _row_gradients(model: AbstractModel, at: Vector, block: RowBlock) -> Float[Array, "n d"]:
    return model.expand(model.row_gradients(at, block), block)


def _changes(
    block: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    at: Vector,
    moves: Float[Array, "k d"],
) -> Float[Array, " k"]:
    return model.sum_of_changes(at, moves, Batch(block, counted.astype(model.dtype)))


def _with_prior(
    total: Sum, model: AbstractModel, at: Vector, moves: Float[Array, "k d"]
) -> Float[Array, " k"]:
    prior = jax.vmap(model.prior_potential)(at + moves) - model.prior_potential(at)
    return total.rounded() + prior
