"""How well draws predict rows that they have not seen.

p̄_i                       (1/K) Σ_k E(y_i | θ_k, x_i): the mean, or a probability per class
accuracy                  the share of rows whose most probable class is the right one
root mean squared error   √((1/n) Σ_i (y_i − p̄_i)²)
log predictive density    (1/n) Σ_i log (1/K) Σ_k p(y_i | θ_k, x_i), with all constants
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from .._core.arrays import check_numeric
from .._core.errors import InvalidInput, check_int
from .._rows.access import RowBlock
from .._rows.passes import Sum, split_sum
from .._rows.resident import ResidentRows
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..models.predictive import rows_like
from ..results.prediction import DrawnLaw, UsedDraws

# Log-loss of draws on held-out rows: the negative log likelihood per row, in nats.
#
#     of each draw        ℓ(θ_k) = −(1/|T|) Σ_{i∈T} log p(y_i | x_i, θ_k)
#     of their mixture    −(1/|T|) Σ_{i∈T} log[(1/K) Σ_k p(y_i | x_i, θ_k)]
#
# The mixture is the posterior predictive. Its log-loss is at most the mean log-loss of the draws.
# The figures and tables of the papers show the log-loss of each draw (nemeth-2021, section 6.1;
# putcha-2023, section 5.2.2).
#
# A model may omit terms of its likelihood that do not depend on θ, as linear and Poisson regression
# do here. The log-loss then lacks a constant, which is the same for all draws and methods.

_DRAWS_PER_PASS = 64


def log_losses(
    positions: ArrayLike, posterior: AbstractPosterior, rows: PyTree[ArrayLike]
) -> Float[np.ndarray, "*k"]:
    """Log-loss of each draw on held-out rows.

    **Arguments:**

    - `positions`: the draws, of shape (*k, d).
    - `posterior`: the posterior whose model defines the likelihood.
    - `rows`: held-out rows with the structure of the posterior's `data`; (X, y) for a regression.

    **Returns:** one log-loss per draw, of shape (*k).
    """
    draws = checked_positions(positions, posterior)
    held_out = ResidentRows(rows_like(posterior.rows.row_shapes, rows))
    totals = _loss_sums(posterior.model, draws.reshape(-1, posterior.dim), held_out).float64()
    return totals.reshape(draws.shape[:-1]) / held_out.n_rows


def log_loss(positions: ArrayLike, posterior: AbstractPosterior, rows: PyTree[ArrayLike]) -> float:
    """Log-loss of the posterior predictive, the mixture of all draws, on held-out rows.

    **Arguments:** as in `log_losses`.
    """
    draws = checked_positions(positions, posterior).reshape(-1, posterior.dim)
    held_out = ResidentRows(rows_like(posterior.rows.row_shapes, rows))
    width = max(posterior.model.width(held_out), len(draws))
    losses = held_out.map(_mixture_losses, posterior.model, draws, width=width)
    return float(np.asarray(losses, np.float64).mean())


@eqx.filter_jit
def _loss_sums(model: AbstractModel, positions: Float[Array, "K d"], rows: ResidentRows) -> Sum:
    def loss_of_draw(position: Float[Array, " d"]) -> Sum:
        return rows.reduce(
            _block_loss, model, position, width=model.width(rows), finish=_merge_parts
        )

    return lax.map(loss_of_draw, positions, batch_size=_DRAWS_PER_PASS)


def _block_loss(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Float[Array, " d"]
) -> tuple[Array, Array]:
    return split_sum(jnp.where(counted, model.row_potentials(position, block), 0))


def _merge_parts(total: Sum, model: AbstractModel, position: Float[Array, " d"]) -> Sum:
    """One `Sum` from the compensated sums of the two parts of `split_sum`."""
    (high, remainder), (low, remainder_low) = total.high, total.low
    return Sum(high, low + (remainder + remainder_low))


def _mixture_losses(
    block: RowBlock, model: AbstractModel, positions: Float[Array, "K d"]
) -> Float[Array, " n"]:
    potentials = jax.vmap(model.row_potentials, in_axes=(0, None))(positions, block)
    return jnp.log(positions.shape[0]) - logsumexp(-potentials, axis=0)


def checked_positions(positions: ArrayLike, posterior: AbstractPosterior) -> Float[Array, "*k d"]:
    """Draws in the precision of the posterior; raises unless they are finite and of its size."""
    values = check_numeric("positions", positions)
    if not values.ndim or values.shape[-1] != posterior.dim or not values.size:
        rule = f"have {posterior.dim} coordinates along the last axis"
        raise InvalidInput("positions", rule, f"shape {values.shape}")
    if not np.isfinite(np.asarray(values)).all():
        cure = "Leave out chains that failed: draws.positions[draws.ok]."
        raise InvalidInput("positions", "be finite", "NaN or infinity", cure)
    return jnp.asarray(values, posterior.dtype)


class PredictedRows(NamedTuple):
    """Responses of new rows, and what the draws predict."""

    observed: Float[np.ndarray, " n"]  # the responses; classes are numbered
    mean: Float[np.ndarray, "n ..."]  # the predicted mean, or one probability per class

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

    **Arguments:** as in `accuracy`, for a response that is a number.
    """
    predicted = predicted_rows(positions, posterior, rows, response)
    if predicted.mean.ndim != 1:
        raise InvalidInput("rows", "have a number as response", "classes", "Use accuracy(...).")
    return float(np.sqrt(np.mean((predicted.observed - predicted.mean) ** 2)))


def log_predictive_density(positions: ArrayLike, posterior: AbstractPosterior, rows: Any) -> float:
    """Mean log density of new responses in nats, with all constants: the posterior predictive.

    Higher is better. For a logistic regression it is minus `log_loss`, which omits constants.

    **Arguments:** as in `accuracy`.
    """
    return float(_law(positions, posterior, rows, response=True).log_densities().mean())


def predicted_rows(
    positions: ArrayLike, posterior: AbstractPosterior, rows: Any, response: ArrayLike | None = None
) -> PredictedRows:
    """Average the predicted mean of each row over the draws."""
    law = _law(positions, posterior, rows, response=response is None)
    assert isinstance(law.rows, ResidentRows)
    observed = law.predictive.observed(law.rows.columns) if response is None else response
    if observed is None:
        cure = "Pass response=..., one number per row."
        raise InvalidInput("rows", "say which column is the response", "a log-likelihood", cure)
    values = np.asarray(observed, np.float64)
    if values.shape != (law.rows.n_rows,):
        raise InvalidInput("response", f"have shape ({law.rows.n_rows},)", f"{values.shape}")
    return PredictedRows(values, law.means())


def _law(
    positions: ArrayLike, posterior: AbstractPosterior, rows: Any, *, response: bool
) -> DrawnLaw:
    """The law of new rows in each draw."""
    predictive = posterior.predictive
    if predictive is None:
        cure = "Pass Posterior(..., mean=function(params, row))."
        raise InvalidInput("posterior", "know the law of its response", "none", cure)
    draws = checked_positions(positions, posterior).reshape(-1, posterior.dim)
    block = predictive.encode(rows, response=response)
    return DrawnLaw(predictive, UsedDraws.of(np.asarray(draws)), ResidentRows(block))


# Calibration: whether events that are predicted with probability p happen in a share p of cases.
#
# For a response of 0 and 1 the event is 1. For several classes it is the most probable class.
class Calibration(NamedTuple):
    """Predicted probabilities and observed shares, in bins of equally many rows."""

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

    **Arguments:** as in `accuracy`, and the number of `bins`.
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
