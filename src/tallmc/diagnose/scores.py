"""How well draws predict rows that they have not seen.

p̄_i                       (1/K) Σ_k E(y_i | θ_k, x_i): the mean, or a probability per class
accuracy                  the share of rows whose most probable class is the right one
root mean squared error   √((1/n) Σ_i (y_i − p̄_i)²)
log predictive density    (1/n) Σ_i log (1/K) Σ_k p(y_i | θ_k, x_i), with all constants
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from ..core.errors import InvalidInput
from ..models.posterior import AbstractPosterior
from ..models.predictive import AbstractPredictive
from ..rows.base import RowBlock
from ..rows.resident import ResidentRows
from .predictive import checked_positions


class PredictedRows(NamedTuple):
    """Responses of new rows, and what the draws predict."""

    observed: Float[np.ndarray, " n"]
    """The responses; classes are numbered."""
    mean: Float[np.ndarray, "n ..."]
    """The predicted mean, or one probability per class."""

    @property
    def is_binary(self) -> bool:
        """Whether the response is 0 or 1, and its mean a probability."""
        return (
            self.mean.ndim == 1
            and bool(np.isin(self.observed, (0, 1)).all())
            and bool(((self.mean >= 0) & (self.mean <= 1)).all())
        )


def accuracy(
    positions: ArrayLike,
    posterior: AbstractPosterior,
    rows: Any,
    *,
    response: ArrayLike | None = None,
) -> float:
    """The share of rows whose most probable class is the right one.

    Probabilities are averaged over the draws before the most probable class is taken.

    **Arguments:**

    - `positions`: the draws, of shape (*k, d).
    - `posterior`: the posterior of the draws. Its response must have classes, or be 0 or 1.
    - `rows`: new rows; (X, y) for a regression.
    - `response`: the responses, if the rows of a `tallmc.Posterior` do not say which column it is.

    **Returns:** a number between 0 and 1.

    **Raises:** `InvalidInput` if the response has no classes, or shapes do not match.

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> accuracy([[0.5], [1.0]], posterior, ([[1.0], [-1.0], [2.0]], [1, 1, 1])).__round__(2)
    0.67
    """
    predicted = predicted_rows(positions, posterior, rows, response)
    if predicted.mean.ndim == 2:
        return float((predicted.mean.argmax(axis=1) == predicted.observed).mean())
    if not predicted.is_binary:
        raise InvalidInput("rows", "have a response with classes, or of 0 and 1", "numbers")
    return float(((predicted.mean > 0.5) == predicted.observed).mean())


def rmse(
    positions: ArrayLike,
    posterior: AbstractPosterior,
    rows: Any,
    *,
    response: ArrayLike | None = None,
) -> float:
    """Root mean squared error of the predicted mean.

    **Arguments:**

    - `positions`: the draws, of shape (*k, d).
    - `posterior`: the posterior of the draws. Its response must be a number.
    - `rows`: new rows; (X, y) for a regression.
    - `response`: the responses, if the rows of a `tallmc.Posterior` do not say which column it is.

    **Returns:** the error, in the units of the response.

    **Raises:** `InvalidInput` if the response has classes, or shapes do not match.

    >>> import tallmc
    >>> X, y = [[1.0], [2.0]], [1.0, 2.0]
    >>> fit = tallmc.models.linear_regression(X, y, prior_variance=9.0, noise_variance=1.0)
    >>> rmse([[0.5], [1.5]], fit, ([[1.0], [2.0]], [1.0, 4.0])).__round__(3)
    1.414
    """
    predicted = predicted_rows(positions, posterior, rows, response)
    if predicted.mean.ndim != 1:
        raise InvalidInput("rows", "have a number as response", "classes", "Use accuracy(...).")
    return float(np.sqrt(np.mean((predicted.observed - predicted.mean) ** 2)))


def log_predictive_density(positions: ArrayLike, posterior: AbstractPosterior, rows: Any) -> float:
    """Mean log density of new responses under the posterior predictive, with all constants.

    Higher is better. For a logistic regression it is minus `log_loss`, which omits constants.

    **Arguments:**

    - `positions`: the draws, of shape (*k, d).
    - `posterior`: the posterior of the draws.
    - `rows`: new rows; (X, y) for a regression.

    **Returns:** the mean over rows, in nats.

    **Raises:** `InvalidInput` if shapes do not match.

    >>> import tallmc
    >>> posterior = tallmc.models.logistic_regression([[1.0], [2.0]], [0, 1], prior_variance=10.0)
    >>> round(log_predictive_density([[0.0], [1.0]], posterior, ([[1.0], [-1.0]], [1, 1])), 3)
    -0.721
    """
    predictive, draws = _known(posterior), _flat(positions, posterior)
    return mean_log_density(predictive, draws, predictive.encode(rows, response=True))


def mean_log_density(
    predictive: AbstractPredictive, positions: Float[Array, "K d"], rows: RowBlock
) -> float:
    """(1/n) Σ_i log (1/K) Σ_k p(y_i | θ_k, x_i), of rows of the model."""
    held_out = ResidentRows(rows)
    found = held_out.map(_log_densities, predictive, positions, width=held_out.floats_per_row)
    return float(np.asarray(found, np.float64).mean())


def predicted_rows(
    positions: ArrayLike,
    posterior: AbstractPosterior,
    rows: Any,
    response: ArrayLike | None = None,
) -> PredictedRows:
    """Average the predicted mean of each row over the draws."""
    predictive, draws = _known(posterior), _flat(positions, posterior)
    held_out = ResidentRows(predictive.encode(rows, response=response is None))
    observed = predictive.observed(held_out.columns) if response is None else response
    if observed is None:
        cure = "Pass response=..., one number per row."
        raise InvalidInput("rows", "say which column is the response", "a log-likelihood", cure)
    values = np.asarray(observed, np.float64)
    if values.shape != (held_out.n_rows,):
        raise InvalidInput("response", f"have shape ({held_out.n_rows},)", f"{values.shape}")
    found = held_out.map(_means, predictive, draws, width=held_out.floats_per_row)
    return PredictedRows(values, np.asarray(found, np.float64))


def _known(posterior: AbstractPosterior) -> AbstractPredictive:
    if posterior.predictive is None:
        cure = "Pass Posterior(..., mean=function(params, row))."
        raise InvalidInput("posterior", "know the law of its response", "none", cure)
    return posterior.predictive


def _flat(positions: ArrayLike, posterior: AbstractPosterior) -> Float[Array, "K d"]:
    return checked_positions(positions, posterior).reshape(-1, posterior.dim)


def _means(
    rows: RowBlock, predictive: AbstractPredictive, positions: Float[Array, "K d"]
) -> Float[Array, "n ..."]:
    """The mean over draws, one draw at a time, so that memory does not grow with their number."""
    total = predictive.mean(positions[0], rows)
    total, _ = lax.scan(
        lambda sum_, position: (sum_ + predictive.mean(position, rows), None), total, positions[1:]
    )
    return total / len(positions)


def _log_densities(
    rows: RowBlock, predictive: AbstractPredictive, positions: Float[Array, "K d"]
) -> Float[Array, " n"]:
    first = predictive.log_likelihood(positions[0], rows)
    total, _ = lax.scan(
        lambda sum_, position: (
            jnp.logaddexp(sum_, predictive.log_likelihood(position, rows)),
            None,
        ),
        first,
        positions[1:],
    )
    return total - jnp.log(len(positions))
