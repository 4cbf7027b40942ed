"""The anchor: the mode θ̂, ∇f(θ̂), the Hessian H = ∇²f(θ̂) and Σ̂ = H⁻¹, computed once and shared by all that need it.

Σ̂ is positive, since f is a negative log density (appendix A.4 of putcha-2023 has H of the *log* density and so a minus sign).
Passes over the rows run on the device in its precision with compensated sums; what is d×d is done in float64 on the host.
"""

from __future__ import annotations

import enum
import warnings

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ._errors import InvalidInput, PreparationError
from ._modes import AbstractOptimiser, Passes, default_optimiser
from ._posterior import AbstractPosterior


class Needs(enum.IntEnum):
    """What a part must know about the posterior before the first step."""

    NOTHING = 0
    MODE = 1
    HESSIAN = 2


class Anchor(eqx.Module):
    """A mode and, where asked for, the Gaussian N(θ̂, Σ̂) around it."""

    position: Float[Array, " d"]
    potential: float
    """f(θ̂), by which an anchor of another posterior is known."""
    gradient: Float[Array, " d"]
    """∇f(θ̂): small, but not assumed to be zero."""
    hessian: Float[Array, "d d"] | None
    covariance: Float[Array, "d d"] | None
    factor: Float[Array, "d d"] | None
    """C with C Cᵀ = Σ̂, lower triangular."""
    decrement: float | None
    """√(∇fᵀ H⁻¹ ∇f): how far the mode still is, in posterior standard deviations."""
    n_row_evals: int
    """Rows touched to find it."""


def laplace(
    posterior: AbstractPosterior,
    *,
    hessian: bool = True,
    optimiser: AbstractOptimiser | None = None,
    at: PyTree | None = None,
) -> Anchor:
    """Find the mode and the curvature there.

    `optimiser` is `tallmc.Newton()` in up to 500 dimensions and `tallmc.LBFGS()` above unless given; `tallmc.Adam(...)` is what
    the papers used. `at` skips the search and anchors at these parameters. `hessian=False` leaves out what takes d² memory.

    >>> import jax.numpy as jnp, tallmc
    >>> posterior = tallmc.models.linear_regression([[1.0], [1.0], [1.0]], [1.0, 2.0, 3.0], prior_variance=1e6)
    >>> anchor = laplace(posterior)
    >>> anchor.position.round(3), anchor.covariance.round(3)
    (Array([2.], dtype=float32), Array([[0.333]], dtype=float32))
    """
    if not isinstance(posterior, AbstractPosterior):
        raise InvalidInput("posterior", "be a tallmc posterior", type(posterior).__name__, "See tallmc.Posterior, tallmc.models.")
    passes = Passes(posterior)
    if optimiser is not None and not isinstance(optimiser, AbstractOptimiser):
        raise InvalidInput("optimiser", "be Newton(), LBFGS() or Adam()", optimiser, "It is an instance: write the brackets.")
    if at is not None:
        position = jnp.asarray(posterior.layout.ravel(at, "at"), posterior.dtype)
    else:
        position = (optimiser or default_optimiser(posterior)).find(passes)
    potential, gradient = passes.value_and_gradient(position)
    if not np.isfinite(potential) or not np.isfinite(gradient).all():
        raise PreparationError(f"the potential or its gradient is not finite at the anchor: f = {potential}. Anchor elsewhere.")
    gradient_there = jnp.asarray(gradient, posterior.dtype)
    if not hessian:
        return Anchor(position, potential, gradient_there, None, None, None, None, passes.n_row_evals)

    curvature = passes.hessian(position)
    try:
        root = np.linalg.cholesky(curvature)
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(curvature)[0]
        raise PreparationError(
            f"the Hessian at the mode must be positive definite; its smallest eigenvalue is {smallest:.3g}. "
            "Give a proper prior or another start, or use a method that needs no Hessian."
        ) from None
    inverse_root = np.linalg.inv(root)
    covariance = inverse_root.T @ inverse_root
    decrement = float(np.linalg.norm(inverse_root @ gradient))
    if at is None and decrement > 0.1:
        warnings.warn(
            f"the anchor is {decrement:.2g} posterior standard deviations from the mode; "
            "control variates stay unbiased but are noisier. Give the optimiser more steps.",
            stacklevel=2,
        )

    def device(values: np.ndarray) -> Array:
        return jnp.asarray(values, posterior.dtype)

    return Anchor(
        position,
        potential,
        gradient_there,
        device(curvature),
        device(covariance),
        device(np.linalg.cholesky(covariance)),
        decrement,
        passes.n_row_evals,
    )


def check_anchor(anchor: Anchor, posterior: AbstractPosterior, needs: Needs) -> int:
    """Raise unless the anchor is one of this posterior and has what is needed; returns the rows touched to find out."""
    if not isinstance(anchor, Anchor) or anchor.position.shape != (posterior.dim,):
        raise InvalidInput("anchor", "come from laplace(posterior) of the same posterior", type(anchor).__name__)
    if anchor.position.dtype != posterior.dtype:
        raise InvalidInput("anchor", f"have the posterior's precision, {posterior.dtype}", str(anchor.position.dtype))
    passes = Passes(posterior)
    potential, _ = passes.value_and_gradient(anchor.position)
    if not np.isclose(potential, anchor.potential, rtol=1e-5):
        found = f"one whose potential at the mode is {anchor.potential:.7g}, where this posterior has {potential:.7g}"
        raise InvalidInput("anchor", "come from laplace(posterior) of the same posterior", found)
    if needs >= Needs.HESSIAN and anchor.hessian is None:
        raise InvalidInput("anchor", "have a Hessian for this method", "none", "Use laplace(posterior, hessian=True).")
    return passes.n_row_evals
