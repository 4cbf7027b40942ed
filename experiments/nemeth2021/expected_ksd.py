"""The expected squared discrepancy of a stationary Langevin chain on a Gaussian target.

Along the axes of the target N(0, diag σ²), the chain is two independent AR(1) processes with
coefficients ρⱼ = 1 − h/(2σⱼ²) and variances sⱼ. For draws x, y at lag l, u = x − y and v = x + y
are independent with variances 2sⱼ(1 ∓ ρⱼˡ). The Stein kernel with c = 1, β = −½ has the mean

    c(l) = E_u[ b^(−½) Σⱼ (2sⱼ(1 + ρⱼˡ) − uⱼ²)/(4σⱼ⁴) + b^(−3/2) (2 − Σⱼ uⱼ²/σⱼ²)
                − 3 b^(−5/2) ‖u‖² ],

b = 1 + ‖u‖², and E KSD² = Σ_{|l|<K} (K − |l|) c(l)/K². Powers of b are mixtures of exponentials,

    b^(−½) = (2/√π) ∫ exp(−w²b) dw,   b^(−3/2) = (4/√π) ∫ w² exp(−w²b) dw,   and so on,

so c(l) is one integral over w, of Gaussian expectations. The kernel does not depend on the choice
of axes, so the rotation of the target does not matter.
"""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float

_NODES, _LARGEST_NODE, _LAGS = 200, 6.5, 400


def expected_squared_ksd(
    target_variances: Float[np.ndarray, " 2"],
    chain_variances: Float[np.ndarray, " 2"],
    step_size: float,
    n_draws: int,
) -> float:
    """Return E KSD² of `n_draws` consecutive draws of the stationary chain."""
    coefficients = 1 - step_size / (2 * target_variances)
    lags = np.unique(np.round(np.geomspace(1, n_draws, _LAGS)).astype(int) - 1)
    at_lags = [
        mean_stein_kernel(target_variances, chain_variances, coefficients**lag) for lag in lags
    ]
    every_lag = np.arange(n_draws)
    values = np.interp(every_lag, lags, at_lags)
    pairs = np.where(every_lag == 0, 1, 2) * (n_draws - every_lag)
    return float(pairs @ values) / n_draws**2


@functools.cache
def _quadrature() -> tuple[Float[np.ndarray, "n 1"], Float[np.ndarray, " n"]]:
    """Return the nodes w, as a column, and weights of (2/√π) ∫ dw."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    w = _LARGEST_NODE * (nodes[:, None] + 1) / 2
    return w, weights * _LARGEST_NODE / np.sqrt(np.pi)


def mean_stein_kernel(
    target_variances: Float[np.ndarray, " 2"],
    chain_variances: Float[np.ndarray, " 2"],
    correlations: Float[np.ndarray, " 2"],
) -> float:
    """Return E k₀(x, y) for x, y with variances of the chain and given correlations."""
    w, weights = _quadrature()
    variances = 2 * chain_variances * (1 - correlations)
    widths = 1 + 2 * w**2 * variances
    # E exp(−w²b), and the mean of u² under the law with this weight.
    exponential = np.exp(-(w[:, 0] ** 2)) / np.sqrt(widths.prod(axis=1))
    squares = variances / widths
    products = (2 * chain_variances * (1 + correlations) - squares) / 4
    terms = (
        (products / target_variances**2).sum(axis=1)
        + 2 * w[:, 0] ** 2 * (2 - (squares / target_variances).sum(axis=1))
        - 4 * w[:, 0] ** 4 * squares.sum(axis=1)
    )
    return float(weights @ (exponential * terms))
