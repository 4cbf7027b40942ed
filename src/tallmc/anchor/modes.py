"""Searches for further modes, from several dispersed starts.

A start counts only if it ends at a true minimum of the potential: the gradient is small and the
Hessian is positive definite on all rows. Searches that fail, or end at a saddle, say nothing.
Finding no other mode is no proof that there is none.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.errors import InvalidInput, PreparationError, check_int
from ..models.posterior import AbstractPosterior
from .anchor import Anchor
from .optimisers import Newton
from .optimisers.newton import descent_direction
from .passes import CountedPasses, prior_hessian

_ROWS_OF_A_SEARCH = 20_000
_MAX_STEPS = 50
_NEAR = 1.0
"""Minima closer than this, in posterior standard deviations, are the same."""
_PRIOR_WIDTH = 1.5


class OtherMode(NamedTuple):
    """A mode of the posterior other than the anchor.

    >>> OtherMode(np.array([-2.0]), 0.4, 12.0, 0.67).mass_ratio
    0.67
    """

    position: Float[np.ndarray, " d"]
    potential_difference: float
    """f there minus f at the anchor."""
    distance: float
    """How far it is from the anchor, in posterior standard deviations at the anchor."""
    mass_ratio: float
    """Its posterior mass relative to the anchor's, with a Gaussian around each."""


def other_modes(
    posterior: AbstractPosterior,
    anchor: Anchor,
    starts: int = 4,
    seed: int = 0,
    passes: CountedPasses | None = None,
) -> list[OtherMode]:
    """Search for modes other than the anchor.

    The first starts are the anchor's mirror images in zero and in the prior mean. The others come
    in opposite pairs from a widened normal prior, or from around `init` if the prior is not normal.
    With many rows, a search first descends on some of them and goes on only if it does not end near
    the anchor. Log-concave models have one mode, and nothing is searched.

    **Arguments:**

    - `posterior`: the posterior.
    - `anchor`: the result of `laplace(posterior)`, with its Hessian.
    - `starts`: how many searches to make.
    - `seed`: the seed of the starts.
    - `passes`: counts the rows that the searches evaluate.

    **Returns:** the distinct modes found, the one with the largest mass first. Empty if every
    search that reached a mode reached the anchor.

    **Raises:** `InvalidInput` if the anchor has no Hessian or an argument is out of range.

    >>> import jax.numpy as jnp, tallmc
    >>> posterior = tallmc.Posterior(  # x ~ N(θ², 3) does not depend on the sign of θ
    ...     log_likelihood=lambda theta, x: -((x - theta**2) ** 2) / 6,
    ...     log_prior=lambda theta: -(theta**2) / 200,
    ...     data=jnp.array([3.0, 4.0, 5.0]),
    ...     init=1.0,
    ... )
    >>> (mode,) = other_modes(posterior, tallmc.laplace(posterior))
    >>> mode.position.round(2), round(mode.mass_ratio, 2)
    (array([-2.]), 1.0)
    """
    check_int("starts", starts, 1)
    if anchor.covariance is None:
        cure = "Use laplace(posterior, hessian=True)."
        raise InvalidInput("anchor", "have a Hessian for this search", "none", cure)
    if posterior.model.log_concave:
        return []
    counted = CountedPasses(posterior) if passes is None else passes
    at_anchor = _Gaussian.of(anchor)
    found: list[OtherMode] = []
    for start in _starts(posterior, at_anchor, starts, seed):
        end = _search(posterior, counted, start, at_anchor)
        if end is None:
            continue
        mode = _mode_at(counted, end, anchor.potential, at_anchor)
        if mode is not None and all(
            at_anchor.distance(mode.position, other.position) > _NEAR for other in found
        ):
            found.append(mode)
    return sorted(found, key=lambda mode: -mode.mass_ratio)


class _Gaussian(NamedTuple):
    """The anchor's Gaussian in float64 on the host."""

    mean: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d d"]

    @classmethod
    def of(cls, anchor: Anchor) -> _Gaussian:
        return cls(np.asarray(anchor.position, np.float64), np.asarray(anchor.factor, np.float64))

    def distance(self, one: Float[np.ndarray, " d"], other: Float[np.ndarray, " d"]) -> float:
        """‖C⁻¹(one − other)‖."""
        return float(np.linalg.norm(np.linalg.solve(self.factor, one - other)))


def _starts(
    posterior: AbstractPosterior, at_anchor: _Gaussian, starts: int, seed: int
) -> list[Float[np.ndarray, " d"]]:
    prior = _normal_prior(posterior, at_anchor)
    if prior is None:
        sd = np.linalg.norm(at_anchor.factor, axis=1)
        centre, spread = np.asarray(posterior.init, np.float64), np.diag(np.maximum(1, 10 * sd))
    else:
        centre, spread = prior
    mirrored = [-at_anchor.mean]
    if centre.any():
        mirrored.append(2 * centre - at_anchor.mean)
    noise = np.random.default_rng(seed).normal(size=(starts, posterior.dim)) @ spread.T
    pairs = [centre + sign * move for move in noise for sign in (1, -1)]
    return [*mirrored, *pairs][:starts]


def _normal_prior(
    posterior: AbstractPosterior, at_anchor: _Gaussian
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]] | None:
    """Mean and widened factor of the prior if it is normal: its Hessian is the same everywhere."""
    model, at = posterior.model, at_anchor.mean

    def precision(position: np.ndarray) -> np.ndarray:
        there = _to_device(position, posterior)
        return np.asarray(prior_hessian(model, there), np.float64)

    here, elsewhere = precision(at), precision(at + 1 + np.abs(at))
    if not np.isfinite(here).all() or not np.allclose(here, elsewhere, rtol=1e-4, atol=0):
        return None
    try:
        inverse_root = np.linalg.inv(np.linalg.cholesky(here))
    except np.linalg.LinAlgError:
        return None
    gradient = np.asarray(model.prior_gradient(_to_device(at, posterior)), np.float64)
    mean = at - inverse_root.T @ (inverse_root @ gradient)
    return mean, _PRIOR_WIDTH * inverse_root.T


def _to_device(position: np.ndarray, posterior: AbstractPosterior) -> Float[Array, " d"]:
    return jnp.asarray(position, posterior.dtype)


def _search(
    posterior: AbstractPosterior,
    passes: CountedPasses,
    start: Float[np.ndarray, " d"],
    at_anchor: _Gaussian,
) -> Float[np.ndarray, " d"] | None:
    """Where a search from `start` ends; None if it fails or some rows lead it to the anchor."""
    newton = Newton(max_steps=_MAX_STEPS)
    position = start
    try:
        if posterior.n_rows > _ROWS_OF_A_SEARCH:
            part = CountedPasses(posterior, _ROWS_OF_A_SEARCH / posterior.n_rows)
            end = newton.descend(part, position)
            passes.n_row_evals += part.n_row_evals
            # The mode of these rows is about √(scale d) posterior sds from that of all rows.
            near = 3 * np.sqrt(part.scale * posterior.dim)
            if end.problem is None and at_anchor.distance(end.position, at_anchor.mean) < near:
                return None
            position = end.position
        end = newton.descend(passes, position)
    except PreparationError:  # the potential is not finite at the start
        return None
    return None if end.problem is not None else end.position


def _mode_at(
    passes: CountedPasses,
    position: Float[np.ndarray, " d"],
    anchor_potential: float,
    at_anchor: _Gaussian,
) -> OtherMode | None:
    """The mode at `position`, or None if this is the anchor or not a minimum."""
    distance = at_anchor.distance(position, at_anchor.mean)
    if distance <= _NEAR:
        return None
    potential, gradient = passes.value_and_gradient(position)
    hessian = passes.hessian(position)
    direction, definite = descent_direction(hessian, gradient)
    if not definite or np.sqrt(direction @ gradient) > _NEAR:
        return None
    difference = potential - anchor_potential
    # log det Σ of the two Gaussians
    log_det_there = -np.linalg.slogdet(hessian)[1]
    log_det_anchor = 2 * np.sum(np.log(np.abs(np.diag(at_anchor.factor))))
    log_mass = -difference + (log_det_there - log_det_anchor) / 2
    return OtherMode(position, difference, distance, float(np.exp(min(log_mass, 700.0))))
