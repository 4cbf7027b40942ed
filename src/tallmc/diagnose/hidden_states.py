"""What a series tells about its hidden states, averaged over draws.

    E[s(x_t) | y] = E_θ[ ∂/∂δ_t log p(y; δ) at δ = 0 ],   p(x_t; δ) ∝ p(x_t) exp(δ_tᵀ s(x_t))

s(x) is the indicator of each state of a hidden Markov model, and x itself in a state-space
model. One reverse pass through the filter is the smoother. Observations further than the context
from the stretch are left out. Their influence decays as that of a buffer. The cost is one pass
over the stretch per position.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ..core.compiler import quickly_compiled
from ..core.errors import check_int
from ..models.posterior import AbstractPosterior
from ..models.series import AbstractSeries
from ..results.draws import Draws
from .series_of_posterior import observed_series, some_positions

_TIMES_LONGER, _LEAST_CONTEXT = 4, 64


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

    - `posterior`: a posterior of `tallmc.models.hidden_markov` or `tallmc.models.state_space`.
    - `draws`: the draws, or positions of shape (k, d).
    - `start`, `stop`: the stretch, as for a slice; by default the whole series.
    - `positions`: how many draws to average over, spread over the run.

    **Returns:** one line per time: the probabilities of the states of a hidden Markov model, or the
    expected state of a state-space model.

    **Raises:** `InvalidInput` if the posterior is not one of a series, or the stretch is outside of
    the series.

    >>> import tallmc
    >>> rng = np.random.default_rng(0)
    >>> states = np.repeat([0, 1, 0, 1], 25)
    >>> y = 4.0 * states + rng.normal(size=100)
    >>> posterior = tallmc.models.hidden_markov(y, 2, window=25, buffer=10)
    >>> found = tallmc.diagnose.hidden_states(posterior, tallmc.laplace(posterior).position[None])
    >>> bool(np.mean(found.argmax(axis=1) == states) > 0.95)
    True
    """
    found = observed_series(posterior)
    n_times = len(found.y)
    first = check_int("start", start, 0, n_times - 1)
    end = n_times if stop is None else check_int("stop", stop, first + 1, n_times)
    context = max(_TIMES_LONGER * found.likelihood.before, _LEAST_CONTEXT)
    begin = max(0, first - context)
    y = jnp.asarray(found.y[begin : min(n_times, end + context)])
    at_origin = jnp.asarray(begin == 0)
    chosen = some_positions(posterior, draws, positions)
    total: Any = 0.0
    for position in chosen:
        params = found.params(position)
        states = _smoothed(found.likelihood.series, params, y, at_origin)
        total = total + np.asarray(states, np.float64)
    return total[first - begin : end - begin] / len(chosen)


@quickly_compiled
def _smoothed(
    series: AbstractSeries, params: PyTree, y: Float[Array, "t p"], at_origin: Bool[Array, ""]
) -> Float[Array, "t k"]:
    """E[s(x_t) | y, θ] for each time."""
    factors = series.factors(params)
    state = series.start(factors, at_origin)

    def log_density(tilts: Float[Array, "t k"]) -> Float[Array, ""]:
        def advance(state: Any, at: Any) -> tuple[Any, Array]:
            y, tilt = at
            tilted, log_normaliser = series.tilt(state, tilt)
            observed, log_density = series.observe(factors, tilted, y)
            return series.move(factors, observed), log_normaliser + log_density

        return jnp.sum(lax.scan(advance, state, (y, tilts))[1])

    size = jax.tree.leaves(state)[0].shape[0]
    return jax.grad(log_density)(jnp.zeros((len(y), size), y.dtype))
