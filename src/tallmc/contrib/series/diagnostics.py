"""What a series tells about its hidden states, averaged over draws.

    E[s(x_t) | y] = E_θ[ ∂/∂δ_t log p(y; δ) at δ = 0 ],   p(x_t; δ) ∝ p(x_t) exp(δ_tᵀ s(x_t))

s(x) is the indicator of each state of a hidden Markov model, and x itself in a state-space
model. One reverse pass through the filter is the smoother. Observations further than the context
from the stretch are left out. Their influence decays as that of a buffer. The cost is one pass
over the stretch per position.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ..._anchor.anchor import Anchor
from ..._core.arrays import Scalar
from ..._core.errors import InvalidInput, check_int
from ..._core.programs import quickly_compiled
from ...models.model import DensityModel
from ...models.posterior import AbstractPosterior, check_in_memory, check_posterior
from ...models.transforms import ConstrainedPrior
from ...results.draws import Draws
from .windows import WANTED_ERROR, AbstractSeries, SeriesLikelihood, buffer_errors, likelihood_of

# The series behind the windows of a posterior, and positions of a run.


def observed_series(
    posterior: AbstractPosterior,
) -> tuple[DensityModel, SeriesLikelihood, Float[np.ndarray, "T p"]]:
    """The model and the observations; raises unless the posterior is one of a series."""
    check_posterior(posterior)
    model = posterior.model
    likelihood = likelihood_of(model) if isinstance(model, DensityModel) else None
    if not isinstance(model, DensityModel) or likelihood is None:
        cure = "See tallmc.contrib.series.hidden_markov and tallmc.contrib.series.state_space."
        raise InvalidInput("posterior", "be one of a series", type(model).__name__, cure)
    check_in_memory(posterior, "the series is read in its order", "Use posterior.in_memory().")
    before = likelihood.before
    windows = np.asarray(posterior.data.y)[:, before : before + likelihood.window]
    y = windows.reshape(-1, windows.shape[-1])[: int(likelihood.n_times)]
    return model, likelihood, y


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


# The error that the buffers of a series cause, at positions of a run: see `buffer_errors` for the
# measure. The cost is two passes over at most 256 windows per position.

_LEAST_REFERENCE, _LEAST_CONTEXT, _TIMES_LONGER = 64, 64, 4


@dataclasses.dataclass(frozen=True)
class BufferError:
    """How far the posterior mean is moved by the buffers, in posterior standard deviations.

    **Attributes:**

    - `errors`: one per position.
    - `buffer`: the buffer of the rows.
    - `reference`: the longer buffer that it was compared with.
    """

    errors: np.ndarray
    buffer: int
    reference: int

    @property
    def largest(self) -> float:
        """The error at the worst position."""
        return float(self.errors.max())

    def __repr__(self) -> str:
        verdict = "good" if self.largest <= WANTED_ERROR else "too large: use a longer buffer"
        return (
            f"buffer {self.buffer}: error {self.largest:.2g} posterior sds at the worst of "
            f"{len(self.errors)} positions (against buffer {self.reference}), {verdict}"
        )


def buffer_error(
    posterior: AbstractPosterior,
    draws: Draws | ArrayLike,
    *,
    reference: int | None = None,
    positions: int = 8,
    anchor: Anchor | None = None,
) -> BufferError:
    """Measure the error that the buffers of a series cause, at draws.

    **Arguments:**

    - `posterior`: a posterior of `hidden_markov` or `state_space`.
    - `draws`: the draws, or positions of shape (k, d).
    - `reference`: the longer buffer to compare with; by default 4 times the buffer of the rows, and
      at least 64 more.
    - `positions`: how many draws to use, spread over the run.
    - `anchor`: from `find_anchor(posterior)`. Its covariance is the unit of the error. Default: the
      covariance of the draws is.
    """
    model, likelihood, y = observed_series(posterior)
    buffer = likelihood.before
    longer = max(_TIMES_LONGER * buffer, buffer + _LEAST_REFERENCE)
    chosen = longer if reference is None else check_int("reference", reference, buffer + 1)
    errors = buffer_errors(
        model,
        y,
        some_positions(posterior, draws, positions),
        _unit(some_positions(posterior, draws, None), anchor),
        window=likelihood.window,
        buffers=[buffer],
        reference=min(chosen, len(y)),
    )
    return BufferError(errors[:, 0], buffer, chosen)


def _unit(positions: Float[np.ndarray, "k d"], anchor: Anchor | None) -> Float[np.ndarray, "d d"]:
    """C with C Cᵀ the posterior covariance."""
    if anchor is not None:
        if anchor.factor is None:
            cure = "Use find_anchor(posterior, hessian=True)."
            raise InvalidInput("anchor", "have a Hessian", "none", cure)
        return np.asarray(anchor.factor, np.float64)
    n, d = positions.shape
    if n <= 2 * d:
        cure = "Pass anchor=find_anchor(posterior)."
        raise InvalidInput("draws", f"be more than {2 * d} for their covariance", n, cure)
    return np.linalg.cholesky(np.cov(positions.T).reshape(d, d))


def hidden_states(
    posterior: AbstractPosterior,
    draws: Draws | ArrayLike,
    start: int = 0,
    stop: int | None = None,
    *,
    positions: int = 100,
) -> Float[np.ndarray, "t k"]:
    """The hidden states of a stretch of a series, given all of the series and the draws.

    **Arguments:**

    - `posterior`: a posterior of `hidden_markov` or `state_space`.
    - `draws`: the draws, or positions of shape (k, d).
    - `start`, `stop`: the stretch, as for a slice; by default the whole series.
    - `positions`: how many draws to average over, spread over the run.

    **Returns:** one line per time: the probabilities of the states of a hidden Markov model, or the
    expected state of a state-space model.
    """
    model, likelihood, series = observed_series(posterior)
    assert isinstance(model.log_prior, ConstrainedPrior), "that of `series_posterior`"
    n_times, constraints = len(series), model.log_prior.constraints
    first = check_int("start", start, 0, n_times - 1)
    end = n_times if stop is None else check_int("stop", stop, first + 1, n_times)
    context = max(_TIMES_LONGER * likelihood.before, _LEAST_CONTEXT)
    begin = max(0, first - context)
    y = jnp.asarray(series[begin : min(n_times, end + context)])
    at_origin = jnp.asarray(begin == 0)
    chosen = some_positions(posterior, draws, positions)
    total: Any = 0.0
    for position in chosen:
        params = constraints(model.layout.unravel(jnp.asarray(position, model.dtype)))
        states = _smoothed(likelihood.series, params, y, at_origin)
        total = total + np.asarray(states, np.float64)
    return total[first - begin : end - begin] / len(chosen)


@quickly_compiled
def _smoothed(
    series: AbstractSeries, params: PyTree, y: Float[Array, "t p"], at_origin: Bool[Array, ""]
) -> Float[Array, "t k"]:
    """E[s(x_t) | y, θ] for each time."""
    factors = series.factors(params)
    state = series.start(factors, at_origin)

    def log_density(tilts: Float[Array, "t k"]) -> Scalar:
        def advance(state: Any, at: Any) -> tuple[Any, Array]:
            y, tilt = at
            tilted, log_normaliser = series.tilt(state, tilt)
            observed, log_density = series.observe(factors, tilted, y)
            return series.move(factors, observed), log_normaliser + log_density

        return jnp.sum(lax.scan(advance, state, (y, tilts))[1])

    size = jax.tree.leaves(state)[0].shape[0]
    return jax.grad(log_density)(jnp.zeros((len(y), size), y.dtype))
