"""What is known exactly on a Gaussian target N(m, H⁻¹), f = ½(θ − m)ᵀH(θ − m).

With gradient noise of a covariance V that does not depend on the position, a step of Langevin dynamics in coordinates u = C⁻¹θ is

    u' = u − (ε/2)(CᵀHC u + ν) + √ε η,      Cov ν = CᵀVC,

and its stationary covariance S solves the Lyapunov equation S = ASA + εI + (ε²/4)CᵀVC, A = I − (ε/2)CᵀHC. In the eigenvectors of
CᵀHC, with eigenvalues λ and a = 1 − ελ/2, it is read off entry by entry. With the averaged noise of Leimkuhler and Matthews the
discretisation makes no error:

    Langevin                S_ij = (ε δ_ij + (ε²/4) V_ij) / (1 − a_i a_j)
    Leimkuhler–Matthews     S_ij = δ_ij/λ_i + (ε²/4) V_ij / (1 − a_i a_j)

In one dimension, with variance σ² = 1/λ and noise variance v, Langevin's is σ²(1 + εv/4)/(1 − ε/4σ²). nemeth-2021, section 2.5,
prints 1 + hV there: true for V the variance of half the gradient's noise. For λ = 1 Leimkuhler–Matthews widens by 1 + εv/(4 − ε).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import ArrayLike, Float

from .._arrays import check_numeric
from .._errors import InvalidInput, check_number


def gaussian_kl(mean: ArrayLike, covariance: ArrayLike, reference_mean: ArrayLike, reference_covariance: ArrayLike) -> float:
    """KL(N(mean, covariance) ‖ N(reference_mean, reference_covariance)).

    putcha-2023 has the posterior first and, as the reference, the Gaussian fitted to the draws.

    >>> round(gaussian_kl([0.0], [[1.0]], [0.0], [[4.0]]), 4)               # log 2 − 3/8
    0.3181
    """
    location = _numbers("mean", mean)
    if location.ndim != 1 or not location.size:
        raise InvalidInput("mean", "be a vector", f"shape {location.shape}")
    d = len(location)
    shift = _numbers("reference_mean", reference_mean, (d,)) - location
    root = np.linalg.cholesky(_positive_definite("covariance", covariance, d))
    reference_root = np.linalg.cholesky(_positive_definite("reference_covariance", reference_covariance, d))
    squares = np.sum(np.linalg.solve(reference_root, np.column_stack([root, shift])) ** 2)
    log_ratio = 2 * np.sum(np.log(np.diag(reference_root)) - np.log(np.diag(root)))
    return float((squares - d + log_ratio) / 2)


def langevin_inflation(variance: ArrayLike, step_size: float, noise_variance: ArrayLike) -> Float[np.ndarray, "*k"]:
    """Stationary over true variance of Langevin dynamics in one dimension, (1 + εv/4)/(1 − ε/4σ²) with v = Var ∇f̂.

    >>> langevin_inflation([1.0, 2.0], step_size=0.4, noise_variance=0.5).round(4)
    array([1.1667, 1.1053])
    """
    true, noise = _numbers("variance", variance), _numbers("noise_variance", noise_variance)
    if not (true > 0).all():
        raise InvalidInput("variance", "be positive", variance)
    if not (noise >= 0).all():
        raise InvalidInput("noise_variance", "not be negative", noise_variance)
    _check_stable(step_size, 1 / true)
    return (1 + step_size * noise / 4) / (1 - step_size / (4 * true))


def langevin_covariance(
    hessian: ArrayLike, step_size: float, noise: ArrayLike, *, factor: ArrayLike | None = None
) -> Float[np.ndarray, "d d"]:
    """The stationary covariance of Langevin dynamics: H is `hessian`, V `noise`, and C `factor`, the identity unless given.

    >>> langevin_covariance([[1.0]], step_size=0.4, noise=[[0.5]]).round(4)
    array([[1.1667]])
    """
    curvature, vectors, widening = _whitened(hessian, step_size, noise, factor)
    decay = 1 - step_size / 2 * curvature
    return vectors @ (np.diag(step_size / (1 - decay**2)) + widening) @ vectors.T


def leimkuhler_matthews_covariance(
    hessian: ArrayLike, step_size: float, noise: ArrayLike, *, factor: ArrayLike | None = None
) -> Float[np.ndarray, "d d"]:
    """The same for the averaged noise of Leimkuhler and Matthews.

    >>> leimkuhler_matthews_covariance([[1.0]], step_size=0.4, noise=[[0.5]]).round(4)        # 1 + 0.4 · 0.5 / 3.6
    array([[1.0556]])
    """
    curvature, vectors, widening = _whitened(hessian, step_size, noise, factor)
    return vectors @ (np.diag(1 / curvature) + widening) @ vectors.T


def _whitened(
    hessian: ArrayLike, step_size: float, noise: ArrayLike, factor: ArrayLike | None
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"], Float[np.ndarray, "d d"]]:
    """λ; CQ, which takes coordinates along the eigenvectors Q of CᵀHC to positions; and what gradient noise adds in them."""
    d = len(np.atleast_1d(hessian))
    H, V = _positive_definite("hessian", hessian, d), _numbers("noise", noise, (d, d))
    C = np.eye(d) if factor is None else _numbers("factor", factor, (d, d))
    curvature, Q = np.linalg.eigh(C.T @ H @ C)
    if curvature[0] <= 0:
        raise InvalidInput("factor", "be invertible", factor)
    _check_stable(step_size, curvature)
    vectors, decay = C @ Q, 1 - step_size / 2 * curvature
    return curvature, vectors, step_size**2 / 4 * (vectors.T @ V @ vectors) / (1 - np.outer(decay, decay))


def _check_stable(step_size: float, curvature: Float[np.ndarray, "*k"]) -> None:
    check_number("step_size", step_size, 0, 4 / curvature.max(), low_open=True, high_open=True, cure="Beyond 4/λ it is unstable.")


def _numbers(name: str, values: ArrayLike, shape: tuple[int, ...] | None = None) -> np.ndarray:
    numbers = np.asarray(check_numeric(name, values), np.float64)
    if shape is not None and numbers.shape != shape:
        raise InvalidInput(name, f"have shape {shape}", f"shape {numbers.shape}")
    if not np.isfinite(numbers).all():
        raise InvalidInput(name, "be finite", "NaN or infinity")
    return numbers


def _positive_definite(name: str, values: ArrayLike, d: int) -> Float[np.ndarray, "d d"]:
    matrix = _numbers(name, values, (d, d))
    if not np.allclose(matrix, matrix.T, rtol=1e-6) or np.linalg.eigvalsh(matrix)[0] <= 0:
        raise InvalidInput(name, f"be a symmetric positive definite {d}×{d} matrix", values)
    return matrix
