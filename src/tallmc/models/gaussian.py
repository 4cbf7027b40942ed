"""The mean of a Gaussian with known covariance and a conjugate prior (putcha-2023, appendix C.1).

    x_i ~ N(θ, S),   θ ~ N(μ₀, Λ₀):   ∇f_i = S⁻¹(θ − x_i),   ∇²f_i = S⁻¹,   L_i = λ_max(S⁻¹)

The posterior is N(μ₁, Λ₁) with Λ₁⁻¹ = Λ₀⁻¹ + N S⁻¹.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._core.arrays import Matrix, Scalar, Vector, check_numeric, to_floats
from .._core.errors import InvalidInput
from .posterior import Posterior


class _Quadratic(eqx.Module):
    """−½ (x − mean)ᵀ precision (x − mean)."""

    precision: Matrix

    def __call__(self, mean: Vector, x: Vector) -> Scalar:
        return -0.5 * (x - mean) @ self.precision @ (x - mean)


def gaussian(
    X: ArrayLike, covariance: ArrayLike, prior_mean: ArrayLike, prior_covariance: ArrayLike
) -> Posterior:
    """The unknown mean of x_i ~ N(θ, covariance), with θ ~ N(prior_mean, prior_covariance).

    **Arguments:**

    - `X`: the rows x_i, a matrix.
    - `covariance`: the known covariance S.
    - `prior_mean`: μ₀.
    - `prior_covariance`: Λ₀.

    **Returns:** a posterior with the parameter `theta`.
    """
    x = to_floats("X", X)
    if x.ndim != 2 or 0 in x.shape:
        rule = "be a matrix with at least one row and one column"
        raise InvalidInput("X", rule, f"shape {x.shape}")
    if not bool(jnp.all(jnp.isfinite(x))):
        raise InvalidInput("X", "be finite", "NaN or infinity", "Drop or impute such rows.")
    mean = np.asarray(check_numeric("prior_mean", prior_mean), np.float64)
    if mean.shape != x.shape[1:] or not np.isfinite(mean).all():
        raise InvalidInput("prior_mean", f"be a finite vector of length {x.shape[1]}", prior_mean)
    precision = _inverse("covariance", covariance, x.shape[1])
    prior_precision = _inverse("prior_covariance", prior_covariance, x.shape[1])
    centre = jnp.asarray(mean, x.dtype)
    return Posterior(
        log_likelihood=_Quadratic(jnp.asarray(precision, x.dtype)),
        log_prior=eqx.Partial(_Quadratic(jnp.asarray(prior_precision, x.dtype)), centre),
        data=x,
        init=centre,
        lipschitz=np.linalg.eigvalsh(precision)[-1],
    )


def check_positive_definite(parameter: str, matrix: ArrayLike, d: int) -> np.ndarray:
    """`matrix` in float64; raises unless it is symmetric positive definite of size d."""
    values = np.asarray(check_numeric(parameter, matrix), np.float64)
    well_formed = values.shape == (d, d) and np.isfinite(values).all()
    is_symmetric = well_formed and np.allclose(values, values.T, rtol=1e-6)
    if not is_symmetric or np.linalg.eigvalsh(values)[0] <= 0:
        raise InvalidInput(parameter, f"be a symmetric positive definite {d}×{d} matrix", matrix)
    return values


def _inverse(parameter: str, matrix: ArrayLike, d: int) -> np.ndarray:
    inverse = np.linalg.inv(check_positive_definite(parameter, matrix, d))
    return (inverse + inverse.T) / 2
