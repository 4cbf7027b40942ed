"""Searches for further modes, from several dispersed starts.

A start counts only if it ends at a true minimum of the potential: the gradient is small and the
Hessian is positive definite on all rows. Searches that fail, or end at a saddle, say nothing.
Finding no other mode is no proof that there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from .._core.arrays import HostMatrix, HostVector
from .._core.errors import InvalidInput, PreparationError, check_int
from .._core.supervision import stage
from .._rows.workers import WorkerError
from ..models.posterior import AbstractPosterior
from .anchor import Anchor
from .optimisers import CountedPasses, Newton, descent_direction, has_columns, prior_derivatives

# Directions in which the rows do not determine the parameters, so that the prior decides alone.
#
# Let H = L + P at the anchor, with L the Hessian of the rows and P that of the prior. The
# eigenvalues of Cᵀ P C, with C Cᵀ = H⁻¹, are the prior's shares of the precision along their
# directions. A share of almost 1 means that the rows say nothing there, as with collinear columns.
#
# Separable rows are different: the likelihood bounds a coefficient on one side and never falls on
# the other, so the curvature at the mode does not show it. There the likelihood itself is
# evaluated, far out.
#
# A hierarchy is left alone. Its hyperparameters do not occur in the likelihood, and are integrated
# out of P. In a non-centred one, the rows do not determine the mean and the effects apart, but each
# of them is known far better than from its prior.

_PRIOR_ALONE = 0.99
"""The rows are said to leave a direction to the prior if the prior's share exceeds this."""
_PRIOR_MATTERS = 0.05
"""Separable rows are looked for if the prior's share exceeds this in some direction."""
_KNOWN_FROM_PRIOR = 0.25
"""Without columns, a direction matters if it gives a parameter this share of its prior variance."""
_ZERO_CURVATURE = 1e-5
_FAR, _PERFECT = (10.0, 30.0), 0.05
"""Multiples of the anchor at which separable rows fit nearly perfectly: their potential is so small
a part of that at zero."""
_ROUNDING = 1e-6
"""Far out, a potential that stays as it is differs by its rounding errors. Without this share of
it, ten of 24 levels with one response went unnamed in float32, and four in float64."""
_SINGULAR = 1e-6
_MOST_MESSAGES = 4


def prior_directions(posterior: AbstractPosterior, anchor: Anchor) -> list[str]:
    """Describe the directions in which the answer is the prior's.

    This costs no pass over the rows, or up to fifteen where the prior has a part in the precision
    of a regression.

    **Arguments:**

    - `anchor`: the result of `find_anchor(posterior)`, with its Hessian.

    **Returns:** one message per direction, with its cure. Empty if the rows determine everything.
    """
    if anchor.covariance is None or anchor.hessian is None:
        cure = "Use find_anchor(posterior, hessian=True)."
        raise InvalidInput("anchor", "have a Hessian to compare with the prior's", "none", cure)
    prior = np.asarray(prior_derivatives(posterior.model, anchor.position)[2], np.float64)
    prior = np.where(np.isfinite(prior), prior, 0.0)
    hyper = _hyperparameters(np.asarray(anchor.hessian, np.float64), prior)
    for places, _ in posterior.model.scale_mixtures():  # left to their prior in part, by intention
        hyper[places] = True
    names = np.array(posterior.quantities.coordinate_names(posterior.layout))[~hyper]
    covariance = np.asarray(anchor.covariance, np.float64)[np.ix_(~hyper, ~hyper)]
    whole, prior = prior, _without(prior, hyper)
    factor = np.linalg.cholesky(covariance)
    shares, vectors = np.linalg.eigh(factor.T @ prior @ factor)
    alone = factor @ vectors[:, shares > _PRIOR_ALONE]
    messages = _undetermined(alone, prior, names, has_columns(posterior))
    if has_columns(posterior) and shares[-1] > _PRIOR_MATTERS:
        weak = np.diag(prior) * np.diag(covariance) > _PRIOR_MATTERS
        settled = np.any(np.abs(alone) > 1e-3 * np.abs(alone).max(initial=1e-300), axis=1)
        doubtful = np.flatnonzero(~hyper)[weak & ~settled]
        messages += _one_sided(posterior, anchor, doubtful, whole)
    return messages[:_MOST_MESSAGES]


def _hyperparameters(hessian: HostMatrix, prior: HostMatrix) -> np.ndarray:
    """Parameters that the rows do not depend on, but other parameters do through the prior."""
    of_rows = np.abs(np.diag(hessian) - np.diag(prior))
    unused = of_rows <= _ZERO_CURVATURE * np.abs(np.diag(hessian))
    coupled = np.any((prior != 0) & ~np.eye(len(prior), dtype=bool), axis=1)
    return unused & coupled


def _without(matrix: HostMatrix, left_out: np.ndarray) -> np.ndarray:
    """The precision of the other parameters, with these integrated out (Schur complement)."""
    kept = ~left_out
    cross, inner = matrix[np.ix_(kept, left_out)], matrix[np.ix_(left_out, left_out)]
    return matrix[np.ix_(kept, kept)] - cross @ np.linalg.pinv(inner) @ cross.T


def _undetermined(
    directions: Float[np.ndarray, "d k"], prior: HostMatrix, names: np.ndarray, columns: bool
) -> list[str]:
    """Messages on directions whose posterior is the prior. Each has length 1 in posterior sds."""
    if directions.shape[1] == 0:
        return []
    prior_sd = 1 / np.sqrt(np.maximum(np.diag(prior), 1e-300))
    scaled = directions / prior_sd[:, None]
    if not columns and np.max(np.sum(scaled**2, axis=1)) < _KNOWN_FROM_PRIOR:
        return []
    cure = (
        "Drop or combine such columns, or use an informative prior."
        if columns
        else "Fix one of these parameters, or use an informative prior."
    )
    return [
        f"the rows do not determine {_formula(direction, names)}: in this direction the posterior "
        f"is the prior. {cure}"
        for direction in _sparse_basis(scaled).T
    ]


def _sparse_basis(vectors: Float[np.ndarray, "d k"]) -> Float[np.ndarray, "d k"]:
    """Another basis of the same space: each vector has its own coordinate, absent in the others."""
    basis = vectors.copy()
    for k in range(basis.shape[1]):
        pivot = np.argmax(np.abs(basis[:, k]))
        basis[:, k] /= basis[pivot, k]
        for other in range(basis.shape[1]):
            if other != k:
                basis[:, other] -= basis[pivot, other] * basis[:, k]
    return basis


def _formula(direction: HostVector, names: np.ndarray) -> str:
    """The direction as a sum of its largest coordinates, such as `beta[0] - beta[1]`."""
    largest = np.abs(direction).max()
    large = np.flatnonzero(np.abs(direction) > 0.1 * largest)
    shown = np.sort(large[np.argsort(-np.abs(direction[large]).round(6), kind="stable")][:4])
    direction = direction / (largest * np.sign(direction[shown[0]]))
    text = ""
    for j in shown:
        size = abs(direction[j])
        sign = ("" if not text else " + ") if direction[j] > 0 else " - "
        text += sign + ("" if abs(size - 1) < 0.01 else f"{size:.2g} ") + names[j]
    return text + (" and more" if len(large) > len(shown) else "")


def _one_sided(
    posterior: AbstractPosterior, anchor: Anchor, weak: np.ndarray, prior: np.ndarray
) -> list[str]:
    """Messages on separable rows: the likelihood does not fall far out from the anchor.

    A better fit alone is no sign of it: a prior may keep the mode far below the maximum likelihood.
    """
    passes, at = CountedPasses(posterior), np.asarray(anchor.position, np.float64)
    here, far = passes.likelihood(at), passes.likelihood(_FAR[0] * at)
    # Potentials of densities may be negative, and then there is no perfect fit.
    if 0 <= far < here / 2:
        least = min(far, passes.likelihood(_FAR[1] * at))
        if least < _PERFECT * passes.likelihood(0 * at):
            return [
                "the rows are separable, or nearly so: they fit ever better as the coefficients "
                "grow, and only the prior keeps the coefficients small. Use a prior that you "
                "believe, or fewer columns."
            ]
    names, messages = posterior.quantities.coordinate_names(posterior.layout), []
    order = weak[np.argsort(-np.abs(at[weak]))]
    for j in order[:_MOST_MESSAGES]:
        # Far out the likelihood stays as it is, or falls with the distance.
        along = np.zeros_like(at)
        along[j] = np.sign(at[j]) / np.sqrt(prior[j, j])
        along = _compensated(passes, at + 10 * along, along)
        near, farther = (passes.likelihood(at + 10 * distance * along) for distance in _FAR)
        if farther <= near + _ROUNDING * abs(near) and near < here:
            messages.append(
                f"the rows bound {names[j]} on one side only: they fit no worse as it "
                f"{'grows' if at[j] > 0 else 'falls'}, and only the prior keeps it finite. "
                "Use a prior that you believe, or drop the column."
            )
    return messages


def _compensated(passes: CountedPasses, far: HostVector, along: HostVector) -> HostVector:
    """A move of one coordinate with what the others do about it, by the Hessian far out.

    Where columns are centred, rows of all levels would feel a change of one level alone. Where the
    likelihood overflows, the others stay where they are.
    """
    others, found = along == 0, along.copy()
    hessian, _ = passes.hessian_parts(far)  # with the prior's, the others would follow too little
    if not np.isfinite(hessian).all():
        return found
    felt = (hessian @ along)[others]
    found[others] = -np.linalg.lstsq(hessian[np.ix_(others, others)], felt, rcond=_SINGULAR)[0]
    return found


_ROWS_OF_A_SEARCH, _FEWEST_OF_A_SEARCH = 20_000, 1_024
_MAX_STEPS, _MAX_STEPS_ON_ALL = 50, 10
_NO_MASS = 50.0  # Difference of potentials from which on a mode has no mass
_NEAR = 1.0  # Minima closer than this, in posterior standard deviations, are the same
_PRIOR_WIDTH = 1.5
_PER_MODE, _MOST_STARTS = 3, 64
"""Starts without a new mode, per known mode, after which a search that found one ends."""


class OtherMode(NamedTuple):
    """A mode of the posterior other than the anchor."""

    position: HostVector
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
    Once another mode is found, the search goes on until three starts per known mode found no new
    one, with at most 64 starts.
    With many rows, a search first descends on random ones. It goes on with all rows only if it ends
    far from the anchor, where the potential of all rows leaves hope of a mode with some mass.
    Log-concave models have one mode, and nothing is searched; nor is it for smooth terms.

    **Arguments:**

    - `anchor`: the result of `find_anchor(posterior)`, with its Hessian.
    - `starts`: how many searches to make if they find no other mode.
    - `passes`: counts the rows that the searches evaluate.

    **Returns:** the distinct modes found, the one with the largest mass first. Empty if every
    search that reached a mode reached the anchor.
    """
    check_int("starts", starts, 1)
    if anchor.covariance is None:
        cure = "Use find_anchor(posterior, hessian=True)."
        raise InvalidInput("anchor", "have a Hessian for this search", "none", cure)
    # The chains of a scale mixture move through all of its scales.
    if posterior.model.log_concave or posterior.model.scale_mixtures():
        return []
    counted = CountedPasses(posterior) if passes is None else passes
    at_anchor = _Gaussian(*(np.asarray(a, np.float64) for a in (anchor.position, anchor.factor)))
    found: list[OtherMode] = []
    stage("searching for other modes")
    part = None
    n_part = max(_ROWS_OF_A_SEARCH // posterior.model.row_cost, _FEWEST_OF_A_SEARCH)
    if posterior.n_rows > 2 * n_part:
        part = CountedPasses(posterior, n_part / posterior.n_rows)
    without_new = 0
    for number, start in enumerate(_starts(posterior, at_anchor, seed)):
        # Where there are two modes there may be many, such as all orders of equal components.
        patience = _PER_MODE * (1 + len(found)) if found else 0
        if number >= max(starts, _MOST_STARTS) or (number >= starts and without_new >= patience):
            break
        without_new += 1
        end = _search(counted, part, start, at_anchor, anchor.potential)
        if end is None:
            continue
        mode = _mode_at(counted, end, anchor.potential, at_anchor)
        if mode is not None and all(
            at_anchor.distance(mode.position, other.position) > _NEAR for other in found
        ):
            found.append(mode)
            without_new = 0
    return sorted(found, key=lambda mode: -mode.mass_ratio)


class _Gaussian(NamedTuple):
    """The anchor's Gaussian in float64 on the host."""

    mean: HostVector
    factor: HostMatrix

    def distance(self, one: HostVector, other: HostVector) -> float:
        """‖C⁻¹(one − other)‖."""
        return float(np.linalg.norm(np.linalg.solve(self.factor, one - other)))


def _starts(posterior: AbstractPosterior, at_anchor: _Gaussian, seed: int) -> Iterator[HostVector]:
    """Starts without end."""
    prior = _normal_prior(posterior, at_anchor)
    if prior is None:
        sd = np.linalg.norm(at_anchor.factor, axis=1)
        centre, spread = np.asarray(posterior.init, np.float64), np.diag(np.maximum(1, 10 * sd))
    else:
        centre, spread = prior
    yield -at_anchor.mean
    if at_anchor.distance(2 * centre, 0 * centre) > _NEAR:
        yield 2 * centre - at_anchor.mean
    random = np.random.default_rng(seed)
    while True:
        move = spread @ random.normal(size=posterior.dim)
        yield centre + move
        yield centre - move


def _normal_prior(
    posterior: AbstractPosterior, at_anchor: _Gaussian
) -> tuple[HostVector, HostMatrix] | None:
    """Mean and widened factor of the prior if it is normal: its Hessian is the same everywhere."""
    model, at = posterior.model, at_anchor.mean

    def derivatives(position: np.ndarray) -> list[np.ndarray]:
        found = prior_derivatives(model, np.asarray(position, posterior.dtype))
        return [np.asarray(part, np.float64) for part in found]

    (_, gradient, here), (*_, elsewhere) = derivatives(at), derivatives(at + 1 + np.abs(at))
    if not np.isfinite(here).all() or not np.allclose(here, elsewhere, rtol=1e-4, atol=0):
        return None
    try:
        inverse_root = np.linalg.inv(np.linalg.cholesky(here))
    except np.linalg.LinAlgError:
        return None
    mean = at - inverse_root.T @ (inverse_root @ gradient)
    return mean, _PRIOR_WIDTH * inverse_root.T


def _search(
    passes: CountedPasses,
    part: CountedPasses | None,
    start: HostVector,
    at_anchor: _Gaussian,
    anchor_potential: float,
) -> HostVector | None:
    """Where a search from `start` ends; None if it fails, or leads to the anchor or to no mass.

    `part` is some of the rows, on which the search begins.
    """
    try:
        if part is None:
            end = Newton(max_steps=_MAX_STEPS).descend(passes, start)
            return None if end.problem is not None else end.position
        position = _descended(part, start)
        passes.n_row_evals, part.n_row_evals = passes.n_row_evals + part.n_row_evals, 0
        if position is None:
            return None
        # The mode of these rows is about √(scale d) posterior sds from that of all rows, so the
        # search on all rows would lower the potential by about that squared.
        off = part.scale * len(start)
        if at_anchor.distance(position, at_anchor.mean) < 3 * np.sqrt(off):
            return None
        there, _ = passes.value_and_gradient(position)
        if not there - anchor_potential < _NO_MASS + 10 * off:
            return None
        end = Newton(max_steps=_MAX_STEPS_ON_ALL).descend(passes, position)
    except WorkerError:
        raise
    except PreparationError:  # the potential is not finite at the start
        return None
    return None if end.problem is not None else end.position


def _descended(part: CountedPasses, start: HostVector) -> HostVector | None:
    """Where a search on some of the rows ends; None if rows are costly and it is no minimum."""
    if part.posterior.model.row_cost > 1:  # the program of the search for the anchor serves it
        end = Newton().search_part(part.derivatives, start, _NEAR, part.posterior.model)
        there = part.derivatives(end)
        direction, definite = descent_direction(there.hessian, there.gradient)
        return end if definite and direction @ there.gradient < _NEAR**2 else None
    return Newton(max_steps=_MAX_STEPS).descend(part, start).position


def _mode_at(
    passes: CountedPasses, position: HostVector, anchor_potential: float, at_anchor: _Gaussian
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
