"""Exact results for a Gaussian target N(m, H⁻¹), f = ½(θ − m)ᵀH(θ − m).

If the gradient noise has a covariance V that does not depend on the position, one step of Langevin
dynamics in coordinates u = C⁻¹θ is

    u' = u − (ε/2)(CᵀHC u + ν) + √ε η,      Cov ν = CᵀVC.

Its stationary covariance S solves the Lyapunov equation S = ASA + εI + (ε²/4)CᵀVC with
A = I − (ε/2)CᵀHC. In the eigenbasis of CᵀHC, with eigenvalues λ and a = 1 − ελ/2, each entry of S
has a closed form. The averaged noise of Leimkuhler and Matthews has no discretisation error:

    Langevin                S_ij = (ε δ_ij + (ε²/4) V_ij) / (1 − a_i a_j)
    Leimkuhler–Matthews     S_ij = δ_ij/λ_i + (ε²/4) V_ij / (1 − a_i a_j)

In one dimension, with variance σ² = 1/λ and noise variance v, the stationary variance of Langevin
dynamics is σ²(1 + εv/4)/(1 − ε/4σ²). Section 2.5 of nemeth-2021 prints 1 + hV in its place, which
is correct if V is the variance of half the gradient noise. For λ = 1, Leimkuhler–Matthews inflates
the variance by the factor 1 + εv/(4 − ε).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike, Float

from .._core.arrays import check_numeric
from .._core.errors import InvalidInput, check_number
from ..models.gaussian import check_positive_definite


def gaussian_kl(
    mean: ArrayLike,
    covariance: ArrayLike,
    reference_mean: ArrayLike,
    reference_covariance: ArrayLike,
) -> float:
    """KL(N(mean, covariance) ‖ N(reference_mean, reference_covariance)).

    In putcha-2023 the first Gaussian is the posterior and the reference is the Gaussian fitted to
    the draws.

    **Arguments:**

    - `mean`, `covariance`: the first Gaussian.
    - `reference_mean`, `reference_covariance`: the second Gaussian.

    **Returns:** the divergence in nats.
    """
    location = _checked_array("mean", mean)
    if location.ndim != 1 or not location.size:
        raise InvalidInput("mean", "be a vector", f"shape {location.shape}")
    d = len(location)
    shift = _checked_array("reference_mean", reference_mean, (d,)) - location
    root = np.linalg.cholesky(_positive_definite("covariance", covariance, d))
    reference_root = np.linalg.cholesky(
        _positive_definite("reference_covariance", reference_covariance, d)
    )
    squares = np.sum(np.linalg.solve(reference_root, np.column_stack([root, shift])) ** 2)
    log_ratio = 2 * np.sum(np.log(np.diag(reference_root)) - np.log(np.diag(root)))
    return float((squares - d + log_ratio) / 2)


def langevin_inflation(
    variance: ArrayLike, step_size: float, noise_variance: ArrayLike
) -> np.floating | Float[np.ndarray, "*k"]:
    """Ratio of the stationary variance of Langevin dynamics to the true variance, in one dimension.

    The ratio is (1 + εv/4)/(1 − ε/4σ²) with v = Var ∇f̂.

    **Arguments:**

    - `variance`: the true variance σ².
    - `step_size`: the step size ε.
    - `noise_variance`: the variance v of the gradient noise.

    **Returns:** the ratio; `variance` and `noise_variance` are broadcast.
    """
    true = _checked_array("variance", variance)
    noise = _checked_array("noise_variance", noise_variance)
    if not (true > 0).all():
        raise InvalidInput("variance", "be positive", variance)
    if not (noise >= 0).all():
        raise InvalidInput("noise_variance", "not be negative", noise_variance)
    _check_stable(step_size, 1 / true)
    return (1 + step_size * noise / 4) / (1 - step_size / (4 * true))


def langevin_covariance(
    hessian: ArrayLike, step_size: float, noise: ArrayLike, *, factor: ArrayLike | None = None
) -> Float[np.ndarray, "d d"]:
    """Stationary covariance of Langevin dynamics on a Gaussian target.

    **Arguments:**

    - `hessian`: the Hessian H of the potential.
    - `step_size`: the step size ε.
    - `noise`: the covariance V of the gradient noise.
    - `factor`: the matrix C of the geometry. Defaults to the identity.
    """
    curvature, basis, noise_part = _in_eigenbasis(hessian, step_size, noise, factor)
    decay = 1 - step_size / 2 * curvature
    return basis @ (np.diag(step_size / (1 - decay**2)) + noise_part) @ basis.T


def leimkuhler_matthews_covariance(
    hessian: ArrayLike, step_size: float, noise: ArrayLike, *, factor: ArrayLike | None = None
) -> Float[np.ndarray, "d d"]:
    """Stationary covariance of Leimkuhler–Matthews dynamics on a Gaussian target.

    **Arguments:** as in `langevin_covariance`.
    """
    curvature, basis, noise_part = _in_eigenbasis(hessian, step_size, noise, factor)
    return basis @ (np.diag(1 / curvature) + noise_part) @ basis.T


def _in_eigenbasis(
    hessian: ArrayLike, step_size: float, noise: ArrayLike, factor: ArrayLike | None
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"], Float[np.ndarray, "d d"]]:
    """λ, CQ, which maps to positions, and the covariance due to noise; Q: eigenbasis of CᵀHC."""
    d = len(np.atleast_1d(hessian))
    H, V = _positive_definite("hessian", hessian, d), _checked_array("noise", noise, (d, d))
    C = np.eye(d) if factor is None else _checked_array("factor", factor, (d, d))
    curvature, Q = np.linalg.eigh(C.T @ H @ C)
    if curvature[0] <= 0:
        raise InvalidInput("factor", "be invertible", factor)
    _check_stable(step_size, curvature)
    basis, decay = C @ Q, 1 - step_size / 2 * curvature
    noise_part = step_size**2 / 4 * (basis.T @ V @ basis) / (1 - np.outer(decay, decay))
    return curvature, basis, noise_part


def _check_stable(step_size: float, curvature: np.floating | Float[np.ndarray, "*k"]) -> None:
    most, cure = 4 / curvature.max(), "Beyond 4/λ the dynamics are unstable."
    check_number("step_size", step_size, 0, most, low_open=True, high_open=True, cure=cure)


def _checked_array(
    name: str, values: ArrayLike, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    array = np.asarray(check_numeric(name, values), np.float64)
    if shape is not None and array.shape != shape:
        raise InvalidInput(name, f"have shape {shape}", f"shape {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidInput(name, "be finite", "NaN or infinity")
    return array


def _positive_definite(name: str, values: ArrayLike, d: int) -> Float[np.ndarray, "d d"]:
    _checked_array(name, values, (d, d))
    return check_positive_definite(name, values, d)
