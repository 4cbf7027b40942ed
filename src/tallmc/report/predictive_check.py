"""What a posterior predictive check compares: responses of the data, and simulated ones."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..models.posterior import AbstractPosterior
from ..results.draws import Draws
from ..rows.resident import ResidentRows
from ..statistics.thinned_history import evenly

_MOST_ROWS = 20_000
_SIMULATIONS = 100


@dataclasses.dataclass(frozen=True)
class PredictiveCheck:
    """Responses of some rows, and what the draws say about them.

    **Arguments:**

    - `observed`: the responses; classes are numbered.
    - `simulated`: responses simulated from k draws.
    - `probability`: P(y = 1) per row for a response of 0 and 1; None for others.
    - `response`: the name of the response.
    - `classes`: the names of the classes, if it has classes.
    """

    observed: Float[np.ndarray, " n"]
    simulated: Float[np.ndarray, "k n"]
    probability: Float[np.ndarray, " n"] | None
    response: str
    classes: tuple[str, ...] | None


def predictive_check(draws: Draws, posterior: AbstractPosterior) -> PredictiveCheck | None:
    """The check on evenly spaced rows; None if rows are on disk, or the law is unknown."""
    rows, predictive = posterior.rows, posterior.predictive
    if predictive is None or not isinstance(rows, ResidentRows):
        return None
    some = rows.take(jnp.asarray(evenly(rows.n_rows, _MOST_ROWS)))
    responses = predictive.observed(some)
    if responses is None:
        return None
    observed, known = np.asarray(responses, np.float64), draws.with_posterior(posterior)
    simulated = known.posterior_predictive(some, draws=_SIMULATIONS)[draws.ok]
    is_binary = bool(np.isin(observed, (0, 1)).all()) and bool(np.isin(simulated, (0, 1)).all())
    return PredictiveCheck(
        observed,
        simulated.reshape(-1, len(observed)).astype(np.float64),
        known.predict(some).mean if is_binary and predictive.classes is None else None,
        predictive.response_name,
        predictive.classes,
    )
