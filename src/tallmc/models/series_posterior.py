"""The posterior of a series: windows as rows, and a buffer that is given or measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..core.errors import InvalidInput, check_int
from ..core.layout import layout_of
from ..rows.resident import resident
from .buffer_length import choose_buffer, recut
from .densities import Batched, DensityModel
from .pilot import series_pilot, stretch_length
from .posterior import ModelPosterior
from .series import MESSAGES, AbstractSeries, SeriesLikelihood
from .transforms import (
    ConstrainedLikelihood,
    ConstrainedPrior,
    constrained,
    constrained_parameters,
)
from .windows import pieces_at, window_times

_SHORTEST_WINDOW = 64
"""The window unless the user gives one or the buffer is longer."""


def series_posterior(
    series: AbstractSeries,
    log_prior: Callable[[PyTree], Float[Array, ""]],
    y: Float[np.ndarray, "T p"],
    init: Mapping[str, Any],
    transforms: Mapping[str, Any],
    *,
    window: int | None,
    buffer: int | None,
    messages: str,
    description: Mapping[str, str],
) -> ModelPosterior:
    """The posterior of a series.

    **Arguments:**

    - `series`: the hidden Markov process.
    - `log_prior`: the log prior density of constrained parameters.
    - `y`: the observations, one line per time.
    - `init`: constrained parameters where the search for the mode starts.
    - `transforms`: the constraints.
    - `window`: L. By default 64, or the length of the buffer if that is more.
    - `buffer`: B. By default the shortest one that moves the posterior mean by less than 0.01
      posterior standard deviations, measured at a rough mode. The search for the mode then starts
      at that mode.
    - `messages`: "past" or "both".
    - `description`: the model in words.
    """
    n_times = len(y)
    if messages not in MESSAGES:
        raise InvalidInput("messages", 'be "past" or "both"', messages)
    if window is not None:
        check_int("window", window, 1, n_times, high_name="the length of the series")
    if buffer is not None:
        check_int("buffer", buffer, 1)
    floats = {name: jnp.asarray(value, y.dtype) for name, value in init.items()}
    constraints, free = constrained(floats, transforms, {})
    layout, start = layout_of(free)
    stretch = stretch_length(n_times)
    counts = (jnp.asarray(n_times, jnp.int32), jnp.zeros((), jnp.int32))
    likelihood = SeriesLikelihood(series, *counts, window=stretch, before=0, after=0)
    model = DensityModel(
        log_likelihood=Batched(ConstrainedLikelihood(likelihood, constraints)),
        log_prior=ConstrainedPrior(log_prior, constraints),
        init=start,
        layout=layout,
    )
    length, error = window or min(_SHORTEST_WINDOW, n_times), "not measured"
    if buffer is None:
        pilot = series_pilot(model, y)
        # A buffer after the window means messages from both sides, whatever its length.
        sided = recut(model, window=length, before=1, after=int(messages == "both"))
        buffer, sds = choose_buffer(sided, y, pilot.position, pilot.factor, length)
        length = length if window else min(max(length, buffer), n_times)
        model = eqx.tree_at(lambda m: m.init, model, jnp.asarray(pilot.position, y.dtype))
        error = f"{sds:.2g} posterior standard deviations, at a rough mode"
    buffer = min(buffer, n_times)
    after = buffer if messages == "both" else 0
    pieces = pieces_at(y, window_times(n_times, length), length, buffer, after)
    return ModelPosterior(
        recut(model, window=length, before=buffer, after=after),
        resident(pieces),
        constrained_parameters(constraints),
        description={
            **description,
            "observations": str(n_times),
            "window": str(length),
            "buffer": f"{buffer}, messages from {_SIDES[messages]}",
            "error of the posterior mean by the buffer": error,
        },
    )


_SIDES = {"past": "the past", "both": "both sides"}
