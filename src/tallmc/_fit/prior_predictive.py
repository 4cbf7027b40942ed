"""Responses that the priors imply, before any response is seen.

    θ ~ prior,   y_i ~ p(· | θ, x_i)

Parameters are independent draws by the laws of the priors: hyper-parameters first, then what has
them as its scale. No chain is run. A default prior that depends on sd(y) is that of the fit.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._core.errors import InvalidInput, check_int, speaking_python
from .._core.statistics import evenly
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from ..models.posterior import ModelPosterior
from ..priors import PriorChoice
from ..results.prediction import DrawnLaw, UsedDraws
from .fit import fit, regression_model, regression_problem
from .model import RegressionModel

N_DRAWS, N_ROWS = 200, 1000


@dataclasses.dataclass(frozen=True)
class PriorPredictive:
    """Draws of parameters from their priors, and a simulated response per draw and row.

    **Arguments:**

    - `values`: the parameters by name, as `Draws.values` has them, (draws, ...).
    - `simulated`: responses, (draws, rows). Classes are numbered.
    - `observed`: the responses of the same rows; None for survival times, which may be censored.
    - `response`: the name of the response.
    - `classes`: the names of its classes; None if it is a number.
    - `prior`: the priors in words.
    """

    values: dict[str, np.ndarray]
    simulated: Float[np.ndarray, "draws n"]
    observed: Float[np.ndarray, " n"] | None
    response: str
    classes: tuple[str, ...] | None
    prior: str

    def __repr__(self) -> str:
        n_draws, n_rows = self.simulated.shape
        return f"PriorPredictive({n_draws:,} draws of {self.response} for {n_rows:,} rows)"


def prior_predictive(
    formula: str,
    data: Any,
    *,
    family: str,
    prior: PriorChoice | str | Mapping[str, PriorChoice | str] | None = None,
    n_draws: int = N_DRAWS,
    n_rows: int = N_ROWS,
    seed: int = 0,
    **options: Any,
) -> PriorPredictive:
    """Simulate responses from the priors of a regression, to see what they imply.

    `tallmc.report.write_prior_predictive` draws the picture.

    **Arguments:**

    - `formula`, `data`, `family`, `prior`: as in `tallmc.fit`.
    - `n_draws`: how many draws of the parameters.
    - `n_rows`: how many rows get responses at most; they are evenly spaced.
    - `seed`: seed of the draws.
    - `options`: options of `tallmc.fit` that describe the model, such as `exposure` or `missing`.
    """
    n_draws, n_rows = check_int("n_draws", n_draws, 1), check_int("n_rows", n_rows, 1)
    seed = check_int("seed", seed, 0, 2**32 - 1)
    known = {field.name for field in dataclasses.fields(RegressionModel)}
    known &= set(inspect.signature(fit).parameters)
    for name in options:
        if name not in known:
            rule = "be left out: only options of tallmc.fit that describe the model count"
            raise InvalidInput(name, rule, options[name], f"These are {', '.join(sorted(known))}.")
    with speaking_python("data"):
        model = regression_model(formula, family=family, prior=prior, **options)
        posterior = regression_problem(data, model, integrate=False).posterior
    return simulated_from_priors(posterior, n_draws, n_rows, seed)


def simulated_from_priors(
    posterior: ModelPosterior, n_draws: int = N_DRAWS, n_rows: int = N_ROWS, seed: int = 0
) -> PriorPredictive:
    """The draws for a posterior that was made without `integrate`."""
    random, predictive = np.random.default_rng(seed), posterior.predictive
    drawn = posterior.model.sample_prior(random, n_draws)
    assert drawn is not None and predictive is not None, "every prior of a fit has its draws"
    positions = drawn.astype(posterior.init.dtype)[None]
    rows, chosen = posterior.rows, evenly(posterior.n_rows, n_rows)
    if isinstance(rows, ShardedRows):
        some = ResidentRows(jax.tree.map(jnp.asarray, rows.view(rows.lines(chosen))))
    else:
        some = ResidentRows(rows.take(jnp.asarray(chosen)))
    law = DrawnLaw(predictive, UsedDraws.of(positions[0]), some)
    observed = predictive.observed(some.columns)
    return PriorPredictive(
        {name: of[0] for name, of in posterior.quantities.of(positions).items()},
        law.gathered(law.simulations(seed), np.ones(1, bool))[0],
        None if observed is None else np.asarray(observed, np.float64),
        predictive.response_name,
        predictive.classes,
        posterior.description["prior"],
    )
