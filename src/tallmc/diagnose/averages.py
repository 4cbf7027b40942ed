"""How the error of the average of a chain depends on the number of draws.

For a function φ of the position with expectation φ̄ under the posterior,

    φ̂_T = (1/T) Σ_{t≤T} φ(θ_t),    bias E φ̂_T − φ̄,    mean squared error E (φ̂_T − φ̄)².

Expectations are means over independent chains. For SGLD and its kin the bias does not vanish as T
grows: it tends to a multiple of a power of the step size h, and the mean squared error to its
square, while the variance falls as 1/T. Runs at several h show the power.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from ..core.arrays import check_numeric
from ..core.errors import InvalidInput, check_number


class AverageErrors(NamedTuple):
    """Errors of averages over the first T draws, one entry per T.

    >>> AverageErrors(np.array([10]), np.array([0.1]), np.array([0.01]), np.array([0.2])).bias
    array([0.1])
    """

    lengths: Int[np.ndarray, " k"]
    """T, the number of draws in the average."""
    bias: Float[np.ndarray, " k"]
    """Mean over chains of the average minus the true value."""
    bias_error: Float[np.ndarray, " k"]
    """Standard error of the bias."""
    mean_square: Float[np.ndarray, " k"]
    """Mean over chains of the squared error."""


def average_errors(
    values: ArrayLike, truth: float, at: Sequence[int] | None = None
) -> AverageErrors:
    """Bias and mean squared error of averages over chains, against their length.

    **Arguments:**

    - `values`: φ of each draw, of shape (chains, draws), with at least two independent chains.
    - `truth`: the expectation of φ under the posterior.
    - `at`: the lengths T; 20 lengths with equal ratios by default.

    **Returns:** an `AverageErrors`.

    **Raises:** `InvalidInput` if the shape is wrong, a value is not finite or a length is not
    between 1 and the number of draws.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0).normal(size=(2000, 400))
    >>> errors = average_errors(draws, 0.0, at=[1, 100, 400])
    >>> (errors.lengths * errors.mean_square).round(1)
    array([1., 1., 1.])
    """
    checked = np.asarray(check_numeric("values", values), np.float64)
    if checked.ndim != 2 or checked.shape[0] < 2 or not checked.shape[1]:
        rule = "have shape (chains, draws) with at least two chains"
        raise InvalidInput("values", rule, f"shape {checked.shape}")
    if not np.isfinite(checked).all():
        raise InvalidInput("values", "be finite", "NaN or infinity")
    truth, n = check_number("truth", truth), checked.shape[1]
    lengths = np.unique(np.geomspace(1, n, 20).round() if at is None else at).astype(int)
    if not len(lengths) or lengths[0] < 1 or lengths[-1] > n:
        raise InvalidInput("at", f"have lengths from 1 to {n}", str(list(lengths)))
    errors = np.cumsum(checked - truth, axis=1)[:, lengths - 1] / lengths
    return AverageErrors(
        lengths,
        errors.mean(axis=0),
        errors.std(axis=0, ddof=1) / np.sqrt(len(errors)),
        (errors**2).mean(axis=0),
    )
