"""The anchor: the mode θ̂, ∇f(θ̂), the Hessian H = ∇²f(θ̂) and Σ̂ = H⁻¹, computed once and shared.

f is a negative log density, so H and Σ̂ must be positive definite; `laplace` checks this. (In
appendix A.4 of putcha-2023, H is the Hessian of the *log* density, hence the minus sign there.)
Passes over the rows run on the device, in the posterior's precision and with compensated sums.
Computations with d×d matrices run in float64 on the host.
"""

from __future__ import annotations

import enum
import warnings

import equinox as eqx
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from ..core.arrays import on_device
from ..core.errors import InvalidInput, PreparationError
from ..core.supervision import stage
from ..models.posterior import AbstractPosterior, check_posterior
from .advice import how_to_help_a_search, not_finite
from .curvature import anchor_curvature
from .optimisers import AbstractOptimiser
from .passes import CountedPasses
from .search import first_search, further_search

_NEAR_THE_MODE = 0.1
"""An anchor within this many posterior standard deviations of the mode counts as the mode."""


class AnchorLevel(enum.IntEnum):
    """What must be known about the posterior before the first step. Levels are ordered.

    >>> AnchorLevel.HESSIAN > AnchorLevel.MODE
    True
    """

    NOTHING = 0
    MODE = 1
    HESSIAN = 2


class Anchor(eqx.Module):
    """A mode and, if requested, the Gaussian N(θ̂, Σ̂) around it. `laplace` computes it.

    An anchor need not be the mode. Where the Hessian is not positive definite, Σ̂ is the inverse of
    its smooth part, Σ ∇²f_i plus the positive part of the prior's curvature.

    **Attributes:**

    - `position`: θ̂.
    - `potential`: f(θ̂), which identifies the posterior: `check_anchor` computes it again.
    - `gradient`: ∇f(θ̂), small but not assumed to be zero.
    - `hessian`: H, or None.
    - `covariance`: Σ̂ = H⁻¹, or None. See above for an H that is not positive definite.
    - `factor`: lower triangular C with C Cᵀ = Σ̂, or None.
    - `decrement`: √(∇fᵀ H⁻¹ ∇f), the distance to the mode in posterior standard deviations, or
      None.
    - `n_row_evals`: how many rows were evaluated to find the anchor.
    - `converged`: whether the anchor is the mode, to within 0.1 posterior standard deviations.
      False for the best point of a search that did not reach the mode. None if this is not known,
      because there is no Hessian.

    >>> import tallmc
    >>> X, y = [[1.0]], [2.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1.0, noise_variance=1.0)
    >>> laplace(posterior).hessian
    Array([[2.]], dtype=float32)
    """

    position: Float[Array, " d"]
    potential: float
    gradient: Float[Array, " d"]
    hessian: Float[Array, "d d"] | None
    covariance: Float[Array, "d d"] | None
    factor: Float[Array, "d d"] | None
    decrement: float | None
    n_row_evals: int
    converged: bool | None = None


def laplace(
    posterior: AbstractPosterior,
    *,
    hessian: bool = True,
    optimiser: AbstractOptimiser | None = None,
    at: PyTree | None = None,
) -> Anchor:
    """Find the mode of a posterior and the curvature at the mode.

    **Arguments:**

    - `posterior`: the posterior.
    - `hessian`: whether to compute the Hessian and its inverse, which need d² memory.
    - `optimiser`: by default `tallmc.Newton()` in up to 500 dimensions and `tallmc.LBFGS()` above.
      If they do not reach the mode, L-BFGS and Adam search from several starts, and the best point
      found is taken. An optimiser given here is not replaced. The papers used `tallmc.Adam(...)`
      and `tallmc.SGD(...)`.
    - `at`: parameters to anchor at; skips the search.

    **Returns:** an `Anchor`.

    **Raises:** `InvalidInput` if an argument is not valid. `PreparationError` if the potential is
    not finite at init or at the anchor, if the Hessian there and its smooth part are not positive
    definite, or if a search with a given `optimiser` fails.

    >>> import tallmc
    >>> X = [[1.0], [1.0], [1.0]]
    >>> y = [1.0, 2.0, 3.0]
    >>> posterior = tallmc.models.linear_regression(X, y, prior_variance=1e6, noise_variance=1.0)
    >>> anchor = laplace(posterior)
    >>> anchor.position.round(3), anchor.covariance.round(3)
    (Array([2.], dtype=float32), Array([[0.333]], dtype=float32))
    """
    check_posterior(posterior)
    passes = CountedPasses(posterior)
    if optimiser is not None and not isinstance(optimiser, AbstractOptimiser):
        raise InvalidInput(
            "optimiser",
            "be Newton(), LBFGS(), Adam() or SGD(...)",
            optimiser,
            "Pass an instance: write the brackets.",
        )
    if at is not None:
        position = posterior.layout.ravel(at, "at")
        anchor, notes = _anchor_at(passes, position, hessian, None)
    elif optimiser is not None:
        stage("finding the mode")
        anchor, notes = _anchor_at(passes, optimiser.find(passes), hessian, None)
        if anchor.converged is False:
            notes.append(
                f"the anchor is {anchor.decrement:.2g} posterior standard deviations from the "
                "mode; control variates stay unbiased but are noisier. "
                "Give the optimiser more steps."
            )
    else:
        stage("finding the mode")
        anchor, notes = _default_anchor(passes, hessian)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return anchor


def _default_anchor(passes: CountedPasses, hessian: bool) -> tuple[Anchor, list[str]]:
    """The anchor of the default search, and what the user should know about it."""
    posterior, first = passes.posterior, first_search(passes)
    if first.problem is None:
        try:
            anchor, notes = _anchor_at(passes, first.position, hessian, first.definite)
        except PreparationError:
            pass
        else:
            if anchor.converged:
                return anchor, notes
    stage("searching for the mode from other starts")
    best = further_search(passes, first.position)
    anchor, notes = _anchor_at(passes, best.position, hessian, best.reached)
    if not anchor.converged:
        distance = (
            ""
            if anchor.decrement is None
            else f", {anchor.decrement:.2g} posterior standard deviations from the mode"
        )
        notes.append(
            f"no search reached the mode: the anchor is the best point found{distance}. "
            "Control variates stay unbiased but are noisier. Kinks in the density need no cure. "
            f"Otherwise: {how_to_help_a_search(posterior)}."
        )
    return anchor, notes


def _anchor_at(
    passes: CountedPasses, at: ArrayLike, hessian: bool, reached: bool | None
) -> tuple[Anchor, list[str]]:
    """The anchor at a position, and what the user should know about its curvature.

    `reached` tells whether the position is the mode when there is no Hessian to tell.
    """

    def to_device(values: ArrayLike) -> Array:
        return on_device(values, passes.posterior.dtype)

    position = to_device(at)
    potential, gradient = passes.value_and_gradient(position)
    if not np.isfinite(potential) or not np.isfinite(gradient).all():
        raise not_finite(passes, position, f"at the anchor: f = {potential}")
    if not hessian:
        anchor = Anchor(
            position,
            potential,
            gradient=to_device(gradient),
            hessian=None,
            covariance=None,
            factor=None,
            decrement=None,
            n_row_evals=passes.n_row_evals,
            converged=reached,
        )
        return anchor, []
    stage("computing the Hessian at the mode")
    curvature = anchor_curvature(passes, np.asarray(at, np.float64), gradient)
    try:
        factor = np.linalg.cholesky(curvature.covariance)
    except np.linalg.LinAlgError:
        raise PreparationError(
            "the covariance at the mode must be positive definite; its directions differ too much "
            "in scale. Use another init, or a method that needs no Hessian."
        ) from None
    anchor = Anchor(
        position,
        potential,
        gradient=to_device(curvature.gradient),
        hessian=to_device(curvature.hessian),
        covariance=to_device(curvature.covariance),
        factor=to_device(factor),
        decrement=curvature.decrement,
        n_row_evals=passes.n_row_evals,
        converged=curvature.definite and curvature.decrement <= _NEAR_THE_MODE,
    )
    return anchor, [] if curvature.warning is None else [curvature.warning]


def check_anchor(anchor: Anchor, posterior: AbstractPosterior, needs: AnchorLevel) -> int:
    """Raise unless the anchor belongs to this posterior and has the level `needs`.

    **Returns:** how many rows the check evaluated.
    """
    if not isinstance(anchor, Anchor) or anchor.position.shape != (posterior.dim,):
        raise InvalidInput(
            "anchor", "come from laplace(posterior) of the same posterior", type(anchor).__name__
        )
    if anchor.position.dtype != posterior.dtype:
        raise InvalidInput(
            "anchor",
            f"have the posterior's precision, {posterior.dtype}",
            str(anchor.position.dtype),
        )
    passes = CountedPasses(posterior)
    potential, _ = passes.value_and_gradient(anchor.position)
    if not np.isclose(potential, anchor.potential, rtol=1e-5):
        rule = "come from laplace(posterior) of the same posterior"
        found = f"one whose potential is {anchor.potential:.7g}; this posterior has {potential:.7g}"
        raise InvalidInput("anchor", rule, found)
    if needs >= AnchorLevel.HESSIAN and anchor.hessian is None:
        raise InvalidInput(
            "anchor",
            "have a Hessian for this method",
            "none",
            "Use laplace(posterior, hessian=True).",
        )
    return passes.n_row_evals
