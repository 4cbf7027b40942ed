"""Checks of the design matrix, responses and prior variances of a regression."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from ..core.arrays import check_numeric, to_floats
from ..core.errors import InvalidInput


class Observations(NamedTuple):
    """Rows of a regression: rows of the design matrix, and responses."""

    x: Float[Array, "n d"]
    y: Float[Array, " n"]


def check_design(X: ArrayLike, y: ArrayLike) -> tuple[Float[Array, "n d"], Float[np.ndarray, " n"]]:
    """X on the device and y on the host; raises unless their shapes fit and all are finite."""
    x, responses = to_floats("X", X), np.asarray(check_numeric("y", y), np.float64)
    if x.ndim != 2 or 0 in x.shape:
        rule = "be a matrix with at least one row and one column"
        raise InvalidInput("X", rule, f"shape {x.shape}")
    if responses.shape != x.shape[:1]:
        raise InvalidInput(
            "y", f"have one value per row of X ({x.shape[0]})", f"shape {responses.shape}"
        )
    finite = np.asarray(jnp.all(jnp.isfinite(x), axis=1)) & np.isfinite(responses)
    if not finite.all():
        found = f"NaN or infinity in row {np.argmin(finite)}"
        raise InvalidInput("X and y", "be finite", found, "Drop or impute such rows.")
    return x, responses


def check_prior_variance(prior_variance: ArrayLike, d: int, dtype: Any) -> Float[Array, ...]:
    """Prior variances on the device: one number, or one per column."""
    variance = to_floats("prior_variance", prior_variance, dtype)
    positive = bool(jnp.all((variance > 0) & jnp.isfinite(variance)))
    if variance.shape not in ((), (d,)) or not positive:
        rule = f"be positive and finite, a number or one per column ({d})"
        raise InvalidInput("prior_variance", rule, prior_variance)
    return variance


def first_bad(values: np.ndarray, bad: np.ndarray) -> str:
    """The first value marked in `bad`, with its row number."""
    return f"{values[np.argmax(bad)]:g} in row {np.argmax(bad)}"
