"""The series behind the windows of a posterior, and positions of a run."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, PyTree

from ..core.errors import InvalidInput, check_int
from ..models.buffer_length import likelihood_of
from ..models.densities import DensityModel
from ..models.posterior import AbstractPosterior, check_in_memory, check_posterior
from ..models.series import SeriesLikelihood
from ..models.transforms import ConstrainedPrior, Constraints
from ..models.windows import series_of
from ..results.draws import Draws


class ObservedSeries(NamedTuple):
    """A model of a series with its observations."""

    model: DensityModel
    likelihood: SeriesLikelihood
    constraints: Constraints
    y: Float[np.ndarray, "T p"]

    def params(self, position: Float[np.ndarray, " d"]) -> PyTree:
        """The constrained parameters at a position."""
        free = self.model.layout.unravel(jnp.asarray(position, self.model.dtype))
        return self.constraints(free)


def observed_series(posterior: AbstractPosterior) -> ObservedSeries:
    """The model and the observations; raises unless the posterior is one of a series."""
    check_posterior(posterior)
    model = posterior.model
    likelihood = likelihood_of(model) if isinstance(model, DensityModel) else None
    if not isinstance(model, DensityModel) or likelihood is None:
        cure = "See tallmc.models.hidden_markov and tallmc.models.state_space."
        raise InvalidInput("posterior", "be one of a series", type(model).__name__, cure)
    check_in_memory(posterior, "the series is read in its order", "Use posterior.in_memory().")
    n_times = int(likelihood.n_times)
    y = series_of(posterior.data, n_times, likelihood.window, likelihood.before)
    assert isinstance(model.log_prior, ConstrainedPrior), "that of `series_posterior`"
    return ObservedSeries(model, likelihood, model.log_prior.constraints, y)


def some_positions(
    posterior: AbstractPosterior, draws: Draws | ArrayLike, count: int | None
) -> Float[np.ndarray, "k d"]:
    """At most `count` positions, spread over finite draws; all of them if None."""
    given = np.asarray(draws.positions if isinstance(draws, Draws) else draws, np.float64)
    listed = given.reshape(-1, given.shape[-1] if given.ndim else 1)
    listed = listed[np.isfinite(listed).all(axis=1)]
    if listed.shape[1] != posterior.dim or not len(listed):
        rule = f"be draws of this posterior, or positions of length {posterior.dim}"
        raise InvalidInput("draws", rule, f"shape {given.shape}")
    if count is None:
        return listed
    n = min(check_int("positions", count, 1), len(listed))
    return listed[np.linspace(0, len(listed) - 1, n).astype(int)]
