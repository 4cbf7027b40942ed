"""Calibration: whether events that are predicted with probability p happen in a share p of cases.

For a response of 0 and 1 the event is 1. For several classes it is the most probable class.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float, Int

from ..core.errors import InvalidInput, check_int
from ..models.posterior import AbstractPosterior
from .scores import predicted_rows


class Calibration(NamedTuple):
    """Predicted probabilities and observed shares, in bins of equally many rows.

    >>> Calibration(np.array([0.2, 0.7]), np.array([0.1, 0.7]), np.array([50, 50])).error
    0.05
    """

    predicted: Float[np.ndarray, " bins"]
    """Mean predicted probability."""
    observed: Float[np.ndarray, " bins"]
    """Share of rows in which the event happened."""
    counts: Int[np.ndarray, " bins"]
    """Rows in the bin."""

    @property
    def error(self) -> float:
        """Mean distance of predicted and observed (expected calibration error)."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.counts))


def calibration(
    positions: ArrayLike,
    posterior: AbstractPosterior,
    rows: Any,
    *,
    bins: int = 10,
    response: ArrayLike | None = None,
) -> Calibration:
    """Compare predicted probabilities with observed shares on new rows.

    Probabilities are averaged over the draws. Rows are sorted by the predicted probability of the
    event and divided into bins of equally many rows.

    **Arguments:**

    - `positions`: the draws, of shape (*k, d).
    - `posterior`: the posterior of the draws. Its response must have classes, or be 0 or 1.
    - `rows`: new rows; (X, y) for a regression.
    - `bins`: the number of bins.
    - `response`: the responses, if the rows of a `tallmc.Posterior` do not say which column it is.

    **Returns:** a `Calibration`.

    **Raises:** `InvalidInput` if the response has no classes, or shapes do not match.

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> calibration([[0.0]], posterior, ([[1.0]] * 4, [0, 1, 1, 1]), bins=1).error
    0.25
    """
    bins = check_int("bins", bins, 1)
    predicted = predicted_rows(positions, posterior, rows, response)
    if predicted.mean.ndim == 2:
        right = predicted.mean.argmax(axis=1) == predicted.observed
        return binned(predicted.mean.max(axis=1), right.astype(float), bins)
    if not predicted.is_binary:
        cure = "For numbers, compare draws.predict(rows, kind='response') with the responses."
        raise InvalidInput("rows", "have a response with classes, or of 0 and 1", "numbers", cure)
    return binned(predicted.mean, predicted.observed, bins)


def binned(
    probability: Float[np.ndarray, " n"], happened: Float[np.ndarray, " n"], bins: int
) -> Calibration:
    """Sort rows by probability and divide them into bins of equally many rows."""
    order = np.argsort(probability, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return Calibration(
        np.array([probability[part].mean() for part in parts]),
        np.array([happened[part].mean() for part in parts]),
        np.array([len(part) for part in parts]),
    )
