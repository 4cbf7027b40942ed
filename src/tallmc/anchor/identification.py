"""Directions in which the rows do not determine the parameters, so that the prior decides alone.

Let H = L + P at the anchor, with L the Hessian of the rows and P that of the prior. The eigenvalues
of Cᵀ P C, with C Cᵀ = H⁻¹, are the prior's shares of the precision along their directions. A share
of almost 1 means that the rows say nothing there, as with collinear columns.

Separable rows are different: the likelihood bounds a coefficient on one side and never falls on the
other, so the curvature at the mode does not show it. There the likelihood itself is evaluated, far
out.

A hierarchy is left alone. Its hyperparameters do not occur in the likelihood, and are integrated
out of P. In a non-centred one, the rows do not determine the mean and the effects apart, but each
of them is known far better than from its prior.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ..core.errors import InvalidInput
from ..models.posterior import AbstractPosterior
from .advice import has_columns
from .anchor import Anchor
from .passes import CountedPasses, prior_hessian

_PRIOR_ALONE = 0.99
"""The rows are said to leave a direction to the prior if the prior's share exceeds this."""
_PRIOR_MATTERS = 0.05
"""Separable rows are looked for if the prior's share exceeds this in some direction."""
_KNOWN_FROM_PRIOR = 0.25
"""Without columns, a direction matters if it gives a parameter this share of its prior variance."""
_ZERO_CURVATURE = 1e-5
_FAR = 10.0
_MOST_MESSAGES = 4


def prior_directions(posterior: AbstractPosterior, anchor: Anchor) -> list[str]:
    """Describe the directions in which the answer is the prior's.

    This costs no pass over the rows, or up to six where the prior has a part in the precision of a
    regression.

    **Arguments:**

    - `posterior`: the posterior.
    - `anchor`: the result of `laplace(posterior)`, with its Hessian.

    **Returns:** one message per direction, with its cure. Empty if the rows determine everything.

    **Raises:** `InvalidInput` if the anchor has no Hessian.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(500, 1))
    >>> posterior = tallmc.models.linear_regression(  # the same column twice
    ...     np.hstack([x, x]), x[:, 0], prior_variance=10.0, noise_variance=1.0
    ... )
    >>> print(prior_directions(posterior, tallmc.laplace(posterior))[0])
    the rows do not determine beta[0] - beta[1]: in this direction the posterior is the prior. \
Drop or combine such columns, or use an informative prior.
    """
    if anchor.covariance is None or anchor.hessian is None:
        cure = "Use laplace(posterior, hessian=True)."
        raise InvalidInput("anchor", "have a Hessian to compare with the prior's", "none", cure)
    prior = np.asarray(prior_hessian(posterior.model, anchor.position), np.float64)
    prior = np.where(np.isfinite(prior), prior, 0.0)
    hyper = _hyperparameters(np.asarray(anchor.hessian, np.float64), prior)
    names = np.array(posterior.layout.coordinate_names())[~hyper]
    covariance = np.asarray(anchor.covariance, np.float64)[np.ix_(~hyper, ~hyper)]
    prior = _without(prior, hyper)
    factor = np.linalg.cholesky(covariance)
    shares, vectors = np.linalg.eigh(factor.T @ prior @ factor)
    alone = factor @ vectors[:, shares > _PRIOR_ALONE]
    messages = _undetermined(alone, prior, names, has_columns(posterior))
    if has_columns(posterior) and shares[-1] > _PRIOR_MATTERS:
        weak = np.diag(prior) * np.diag(covariance) > _PRIOR_MATTERS
        settled = np.any(np.abs(alone) > 1e-3 * np.abs(alone).max(initial=1e-300), axis=1)
        messages += _one_sided(posterior, anchor, np.flatnonzero(weak & ~settled), prior)
    return messages[:_MOST_MESSAGES]


def _hyperparameters(
    hessian: Float[np.ndarray, "d d"], prior: Float[np.ndarray, "d d"]
) -> np.ndarray:
    """Parameters that the rows do not depend on, but other parameters do through the prior."""
    of_rows = np.abs(np.diag(hessian) - np.diag(prior))
    unused = of_rows <= _ZERO_CURVATURE * np.abs(np.diag(hessian))
    coupled = np.any((prior != 0) & ~np.eye(len(prior), dtype=bool), axis=1)
    return unused & coupled


def _without(matrix: Float[np.ndarray, "d d"], left_out: np.ndarray) -> np.ndarray:
    """The precision of the other parameters, with these integrated out (Schur complement)."""
    kept = ~left_out
    cross = matrix[np.ix_(kept, left_out)]
    inner = matrix[np.ix_(left_out, left_out)]
    return matrix[np.ix_(kept, kept)] - cross @ np.linalg.pinv(inner) @ cross.T


def _undetermined(
    directions: Float[np.ndarray, "d k"],
    prior: Float[np.ndarray, "d d"],
    names: np.ndarray,
    columns: bool,
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


def _formula(direction: Float[np.ndarray, " d"], names: np.ndarray) -> str:
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
    """Messages on separable rows: the likelihood does not fall far out from the anchor."""
    passes, at = CountedPasses(posterior), np.asarray(anchor.position, np.float64)
    here = passes.likelihood(at)
    if passes.likelihood(_FAR * at) < here:
        return [
            "the rows are separable: they fit ever better as the coefficients grow, and only the "
            "prior keeps the coefficients finite. Use a prior that you believe, or fewer columns."
        ]
    names, messages = posterior.layout.coordinate_names(), []
    order = weak[np.argsort(-np.abs(at[weak]))]
    for j in order[:_MOST_MESSAGES]:
        far = at.copy()
        far[j] += np.sign(at[j]) * _FAR / np.sqrt(prior[j, j])
        if passes.likelihood(far) < here:
            messages.append(
                f"the rows bound {names[j]} on one side only: they fit no worse as it "
                f"{'grows' if at[j] > 0 else 'falls'}, and only the prior keeps it finite. "
                "Use a prior that you believe, or drop the column."
            )
    return messages
