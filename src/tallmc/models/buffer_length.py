"""How long the buffer of a window must be: the measured memory of the series.

    e_w(B) = ∇f_w(θ; buffer B) − ∇f_w(θ; long buffer),   error(B)² = ‖Cᵀ n ē‖² + n ‖Cᵀ s_e‖²

n is the number of windows, ē and s_e are the mean and the sd of e_w over some of the windows,
and C Cᵀ is the posterior covariance. The gradient of the potential is wrong by Σ_w e_w(B), so
the posterior mean is wrong by error(B) posterior standard deviations, to first order. The mean
of the measured windows is noisy, which makes the error too large rather than too small.
`choose_buffer` takes the shortest buffer whose error is at most half of the wanted 0.01, because
draws around the pilot's position may remember a little longer.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..core.compiler import quickly_compiled
from .densities import Batched, DensityModel
from .series import SeriesLikelihood
from .transforms import ConstrainedLikelihood
from .windows import SeriesPieces, pieces_at, window_times

WANTED_ERROR = 0.01
"""How far the posterior mean may move, in posterior standard deviations."""
_SAFETY = 0.5
_MEASURED_WINDOWS = 256
_GROWTH, _LONGEST = 1.3, 2048
_REFERENCES = (128, 512, 2 * _LONGEST)


class MeasuredBuffer(NamedTuple):
    """A buffer, and the error that it causes, in posterior standard deviations."""

    length: int
    error: float


def likelihood_of(model: DensityModel) -> SeriesLikelihood | None:
    """The likelihood of a model of a series; None for another model."""
    outer = model.log_likelihood
    inner = outer.function if isinstance(outer, Batched) else None
    found = inner.function if isinstance(inner, ConstrainedLikelihood) else None
    return found if isinstance(found, SeriesLikelihood) else None


def recut(
    model: DensityModel, *, window: int, before: int, after: int, used: int | None = None
) -> DensityModel:
    """The same model for pieces of another form."""
    likelihood = likelihood_of(model)
    assert likelihood is not None, "a model of a series"
    changed = dataclasses.replace(
        likelihood,
        window=window,
        before=before,
        after=after,
        used=jnp.asarray(before if used is None else used, jnp.int32),
    )
    return eqx.tree_at(lambda m: m.log_likelihood.function.function, model, changed)


def buffer_errors(
    model: DensityModel,
    y: Float[np.ndarray, "T p"],
    positions: Float[np.ndarray, "k d"],
    factor: Float[np.ndarray, "d d"],
    *,
    window: int,
    buffers: list[int],
    reference: int,
) -> Float[np.ndarray, "k b"]:
    """The error of each buffer at each position, in posterior standard deviations.

    `model` tells by its buffer after the window whether messages come from both sides.
    """
    measured = _measured(model, y, window, reference)
    n = len(window_times(len(y), window))
    found = np.empty((len(positions), len(buffers)))
    for row, position in enumerate(positions):
        exact = measured.gradients(position, reference)
        for column, buffer in enumerate(buffers):
            difference = (measured.gradients(position, buffer) - exact) @ factor
            found[row, column] = np.sqrt(
                np.sum((n * difference.mean(axis=0)) ** 2) + n * np.sum(difference.var(axis=0))
            )
    return found


def choose_buffer(
    model: DensityModel,
    y: Float[np.ndarray, "T p"],
    position: Float[np.ndarray, " d"],
    factor: Float[np.ndarray, "d d"],
    window: int,
) -> MeasuredBuffer:
    """The shortest buffer whose error is below half of 0.01 posterior standard deviations."""
    tried, error = 0, np.inf
    for reference in _REFERENCES:
        for buffer in _ladder(tried, min(reference // 2, len(y))):
            error = buffer_errors(
                model,
                y,
                position[None],
                factor,
                window=window,
                buffers=[buffer],
                reference=min(reference, len(y)),
            )[0, 0]
            if error <= _SAFETY * WANTED_ERROR:
                return MeasuredBuffer(buffer, float(error))
            tried = buffer
        if tried >= len(y):
            break
    warnings.warn(
        f"the series remembers more than {tried} observations: with this buffer the posterior mean "
        f"is wrong by about {error:.2g} posterior standard deviations. Pass a longer `buffer=` and "
        "a longer `window=`, average neighbouring observations, or model the differences of the "
        "series.",
        stacklevel=2,
    )
    return MeasuredBuffer(tried, float(error))


class _MeasuredWindows(NamedTuple):
    """Some windows of a series with long buffers, and the model of such pieces."""

    model: DensityModel
    pieces: SeriesPieces

    def gradients(self, position: Float[np.ndarray, " d"], buffer: int) -> np.ndarray:
        """∇f_w with a part of the buffers, (windows, d)."""
        at = jnp.asarray(position, self.model.dtype)
        return np.asarray(
            _gradients(self.model, at, self.pieces, jnp.asarray(buffer, jnp.int32)), np.float64
        )


@quickly_compiled
def _gradients(
    model: DensityModel, position: Float[Array, " d"], pieces: SeriesPieces, buffer: Array
) -> Float[Array, "n d"]:
    used = eqx.tree_at(lambda m: m.log_likelihood.function.function.used, model, buffer)
    return used.row_gradients(position, pieces)


def _measured(
    model: DensityModel, y: Float[np.ndarray, "T p"], window: int, reference: int
) -> _MeasuredWindows:
    likelihood = likelihood_of(model)
    assert likelihood is not None, "a model of a series"
    times = window_times(len(y), window)
    if len(times) > _MEASURED_WINDOWS:
        # Spread over the series, without the first windows, whose buffers are short.
        times = times[np.linspace(1, len(times) - 1, _MEASURED_WINDOWS).astype(int)]
    after = reference if likelihood.after else 0
    pieces = jax.tree.map(jnp.asarray, pieces_at(y, times, window, reference, after))
    return _MeasuredWindows(recut(model, window=window, before=reference, after=after), pieces)


def _ladder(above: int, most: int) -> list[int]:
    """Buffers to try: above `above`, growing geometrically, up to `most`."""
    found, current = [], above
    while current < most:
        current = min(most, max(current + 1, round(current * _GROWTH)))
        found.append(current)
    return found
