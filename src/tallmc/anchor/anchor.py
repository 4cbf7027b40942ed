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
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..core.errors import InvalidInput, PreparationError
from ..models.posterior import AbstractPosterior, check_posterior
from .optimisers import LBFGS, AbstractOptimiser, Newton
from .passes import CountedPasses

_NEWTON_MAX_DIM = 500


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

    **Attributes:**

    - `position`: θ̂.
    - `potential`: f(θ̂), which identifies the posterior: `check_anchor` computes it again.
    - `gradient`: ∇f(θ̂), small but not assumed to be zero.
    - `hessian`: H, or None.
    - `covariance`: Σ̂ = H⁻¹, or None.
    - `factor`: lower triangular C with C Cᵀ = Σ̂, or None.
    - `decrement`: √(∇fᵀ H⁻¹ ∇f), the distance to the mode in posterior standard deviations, or
      None.
    - `n_row_evals`: how many rows were evaluated to find the anchor.

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
      The papers used `tallmc.Adam(...)`.
    - `at`: parameters to anchor at; skips the search.

    **Returns:** an `Anchor`.

    **Raises:** `InvalidInput` if an argument is not valid. `PreparationError` if the search fails,
    the potential is not finite at the anchor, or the Hessian there is not positive definite.

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
            "be Newton(), LBFGS() or Adam()",
            optimiser,
            "Pass an instance: write the brackets.",
        )
    if at is not None:
        position = jnp.asarray(posterior.layout.ravel(at, "at"), posterior.dtype)
    else:
        position = (optimiser or _default_optimiser(posterior)).find(passes)
    potential, gradient = passes.value_and_gradient(position)
    if not np.isfinite(potential) or not np.isfinite(gradient).all():
        raise PreparationError(
            f"the potential or its gradient is not finite at the anchor: f = {potential}. "
            "Anchor at another position."
        )
    gradient_there = jnp.asarray(gradient, posterior.dtype)
    if not hessian:
        return Anchor(
            position, potential, gradient_there, None, None, None, None, passes.n_row_evals
        )

    curvature = passes.hessian(position)
    try:
        root = np.linalg.cholesky(curvature)
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(curvature)[0]
        raise PreparationError(
            "the Hessian at the mode must be positive definite; "
            f"its smallest eigenvalue is {smallest:.3g}. "
            "Use a proper prior, another init, or a method that needs no Hessian."
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

    def to_device(values: np.ndarray) -> Array:
        return jnp.asarray(values, posterior.dtype)

    return Anchor(
        position,
        potential,
        gradient_there,
        to_device(curvature),
        to_device(covariance),
        to_device(np.linalg.cholesky(covariance)),
        decrement,
        passes.n_row_evals,
    )


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


def _default_optimiser(posterior: AbstractPosterior) -> AbstractOptimiser:
    return Newton() if posterior.dim <= _NEWTON_MAX_DIM else LBFGS()
