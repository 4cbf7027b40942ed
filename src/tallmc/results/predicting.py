"""What draws tell about new rows: predictions, simulated responses, log-likelihoods."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from jaxtyping import ArrayLike, Float

from ..core.errors import InvalidInput
from ..core.layout import Layout
from ..models.posterior import AbstractPosterior, check_posterior
from ..models.predictive import AbstractPredictive
from ..rows.resident import ResidentRows
from .prediction import (
    MOST_DRAWS,
    Prediction,
    UsedDraws,
    average_response,
    gathered,
    log_likelihoods,
    predict,
    simulations,
    used_draws,
)

if TYPE_CHECKING:
    import xarray as xr


class AbstractPredictingDraws(abc.ABC):
    """Draws with the law of the response, so that they predict new rows."""

    positions: Float[np.ndarray, "chains draws d"]
    layout: Layout
    predictive: AbstractPredictive | None

    @property
    @abc.abstractmethod
    def ok(self) -> np.ndarray:
        """Which chains completed."""

    @property
    @abc.abstractmethod
    def weights(self) -> Float[np.ndarray, "chains draws"] | None:
        """The weight of each draw; None if all draws count the same."""

    def with_posterior(self, posterior: AbstractPosterior) -> Self:
        """The same draws with what the posterior knows about new rows.

        Draws that `tallmc.load` returns need it before they predict.

        **Arguments:**

        - `posterior`: the posterior of these draws. Its rows may be others.

        **Returns:** the draws.

        **Raises:** `InvalidInput` if the posterior has other parameters.
        """
        check_posterior(posterior)
        here, there = self.layout, posterior.layout
        if (here.names, here.shapes) != (there.names, there.shapes):
            rule = f"have the parameters of the draws ({', '.join(here.names)})"
            found = ", ".join(f"{a} {b}" for a, b in zip(there.names, there.shapes, strict=True))
            raise InvalidInput("posterior", rule, found)
        return dataclasses.replace(self, predictive=posterior.predictive)  # type: ignore[type-var]

    def predict(
        self,
        new_rows: Any,
        *,
        interval: float = 0.9,
        kind: str = "mean",
        draws: int | None = MOST_DRAWS,
        seed: int = 0,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Prediction:
        """Predict the response of new rows, averaged over draws.

        Failed chains are left out, and draws of decreasing steps are weighted (`weights`).

        **Arguments:**

        - `new_rows`: a design matrix with the columns of the fit, or a data frame with their
          names. Rows in the structure of the data for a `tallmc.Posterior` with `mean`. The table
          for draws from a formula.
        - `interval`: the probability of the central interval.
        - `kind`: "mean" for E(y | θ, x), whose interval shows the uncertainty of the parameters;
          "response" for y itself, with its noise.
        - `draws`: how many draws are used at most, evenly thinned, from all chains together; None
          for all. 1,000 draws have a Monte-Carlo error of 3 % of the sd of a prediction.
        - `seed`: seed of the simulated responses.
        - `offset`: a number per row that is added to its predictor.
        - `trials`: the number of trials per row of a binomial response; 1 by default.

        **Returns:** a `Prediction` with mean, sd and interval per row, and per class if there are
        several.

        **Raises:** `InvalidInput` if the rows do not fit the model, or the law is unknown.

        >>> import tallmc
        >>> X, y = [[1.0], [2.0], [3.0]], [1.1, 1.9, 3.0]
        >>> fit = tallmc.models.linear_regression(X, y, prior_variance=9.0, noise_variance=0.01)
        >>> draws = tallmc.sample(fit, tallmc.mala(0.001), draws=200, burn_in=100)
        >>> prediction = draws.predict([[2.0], [4.0]])
        >>> [round(value) for value in prediction.mean.tolist()]
        [2, 4]
        >>> prediction.to_frame().columns.tolist()
        ['mean', 'sd', 'low', 'high']
        """
        return predict(
            self._predictive,
            self._used(draws),
            new_rows,
            interval=interval,
            kind=kind,
            seed=seed,
            offset=offset,
            trials=trials,
        )

    def posterior_predictive(
        self,
        new_rows: Any,
        *,
        draws: int | None = MOST_DRAWS,
        seed: int = 0,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Float[np.ndarray, "chains draws n"]:
        """Simulate the response of new rows.

        **Arguments:** as in `predict`.

        **Returns:** one response per chain, draw and row; NaN for failed chains. Classes are
        numbered.

        **Raises:** `InvalidInput` if the rows do not fit the model, or the law is unknown.
        """
        used, predictive = self._used(draws), self._predictive
        rows = ResidentRows(predictive.encode(new_rows, offset=offset, trials=trials))
        found = simulations(predictive, used, rows, seed)
        return gathered(found, used, self.ok, rows.n_rows)

    def average_response(
        self, new_rows: Any, *, draws: int | None = MOST_DRAWS
    ) -> Float[np.ndarray, "k ..."]:
        """E(y | θ, x) averaged over rows, in each draw.

        **Arguments:** as in `predict`.

        **Returns:** one number per draw, or one per draw and class.

        **Raises:** `InvalidInput` if the rows do not fit the model, or the law is unknown.
        """
        return average_response(self._predictive, self._used(draws), new_rows)

    def log_likelihood(
        self,
        rows: Any,
        *,
        draws: int | None = None,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Float[np.ndarray, "chains draws n"]:
        """log p(y | θ, x) of rows with responses, with all constants.

        **Arguments:**

        - `rows`: (X, y) with X as in `predict`, or rows of the posterior (`posterior.data`).
        - `draws`, `offset`, `trials`: as in `predict`; all draws by default.

        **Returns:** one number per chain, draw and row; NaN for failed chains.

        **Raises:** `InvalidInput` if the rows do not fit the model.
        """
        used, predictive = self._used(draws), self._predictive
        encoded = ResidentRows(predictive.encode(rows, response=True, offset=offset, trials=trials))
        found = log_likelihoods(predictive, used, encoded)
        return gathered(found, used, self.ok, encoded.n_rows)

    def _add_predictive_groups(self, tree: xr.DataTree, simulated: Any, evaluated: Any) -> None:
        """Add the groups `posterior_predictive`, `log_likelihood` and `observed_data`."""
        import arviz_base

        groups: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
        name, observed = self._predictive.response_name, None
        if evaluated is not None:
            every = np.arange(self.positions.shape[1])
            groups["log_likelihood"] = self.log_likelihood(evaluated), every
            observed = self._observed(evaluated)
        if simulated is not None:
            kept = self._used(MOST_DRAWS).kept
            groups["posterior_predictive"] = self.posterior_predictive(simulated), kept
            seen = self._observed(simulated)
            observed = observed if seen is None else seen
        if observed is not None:
            groups["observed_data"] = observed, None
        for group, (values, kept_draws) in groups.items():
            coords = {} if kept_draws is None else {"draw": kept_draws}
            made = arviz_base.from_dict(
                {group: {name: values}}, coords=coords, dims={name: ["row"]}
            )
            tree[group] = made[group]

    def _observed(self, rows: Any) -> np.ndarray | None:
        """The responses of these rows; None if there are none."""
        predictive = self._predictive
        found = predictive.observed(predictive.encode(rows))
        return None if found is None or np.isnan(found).any() else np.asarray(found)

    @property
    def _predictive(self) -> AbstractPredictive:
        if self.predictive is None:
            cure = "Attach the posterior: draws.with_posterior(posterior)."
            raise InvalidInput("draws", "know the law of the response", "none", cure)
        return self.predictive

    def _used(self, most: int | None) -> UsedDraws:
        return used_draws(self.positions, self.ok, self.weights, most)
