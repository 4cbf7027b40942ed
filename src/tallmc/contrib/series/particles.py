"""Nonlinear state-space models by buffered particle filters.

    x_t | x_{t−1} ~ N(m(x_{t−1}, θ), diag s(θ)²),   y_t | x_t ~ p(· | x_t, θ)

A row is a window with a buffer on each side. By Fisher's identity its gradient is

    Σ_{t in window} E[∇ log p(y_t | x_t, θ) + ∇ log p(x_t | x_{t−1}, θ) | y of the piece]

A bootstrap filter with systematic resampling carries one sum of these terms per particle, along
the particle's ancestors, and averages them at the end of the piece (Poyiadjis, Doucet and Singh,
2011; with buffers Aicher, Putcha, Nemeth, Fearnhead and Fox, 2019). With n particles the mean of
the estimate has an error of order 1/n. Its variance grows with the length of the piece: pieces are
short, so that the particles keep different ancestors.

The filter's randomness is a function of the parameters' bits and of the row. Another position has
other random numbers, so a chain sees fresh noise at every step, and a run can be resumed. The
potential of a row is the filter's estimate: it is noisy, so methods that need a mode, potentials or
second derivatives do not apply. Use `sgld` and other methods with simple gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, PyTree, UInt32

from ..._core.arrays import Scalar, Vector, layout_of
from ..._core.errors import InvalidInput, check_int
from ..._core.packages import check_installed
from ..._core.random import new_key
from ..._rows.access import PerRow
from ..._rows.resident import resident
from ...models.model import DensityModel
from ...models.posterior import ModelPosterior
from ...models.transforms import (
    ConstrainedLikelihood,
    ConstrainedPrior,
    constrained,
    constrained_parameters,
)
from .windows import SeriesPieces, checked_series, only_once, pieces_at, roles_of

Particles = tuple[Float[Array, "n d"], Float[Array, " n"]]
"""States, and the sums of terms along their ancestors."""


class ParticleLikelihood(eqx.Module):
    """Estimated log density of each window, with the estimated score as its derivative."""

    start: Callable[[PyTree], tuple[Vector, Vector]]
    drift: Callable[[PyTree, Vector], Vector]
    scale: Callable[[PyTree], Vector]
    log_observation: Callable[[PyTree, Vector, Vector], Scalar]
    n_times: Int[Array, ""]
    used: Int[Array, ""]
    window: int = eqx.field(static=True)
    before: int = eqx.field(static=True)
    after: int = eqx.field(static=True)
    particles: int = eqx.field(static=True)

    def __call__(self, params: PyTree, rows: SeriesPieces) -> PerRow:
        key = jax.random.fold_in(new_key(0), _hashed(params))
        keys = jax.vmap(lambda time: jax.random.fold_in(key, time))(jnp.asarray(rows.time))
        return jax.vmap(_estimated, in_axes=(None, 0, 0, None))(params, rows, keys, self)

    def filtered(
        self, params: PyTree, piece: SeriesPieces, key: PRNGKeyArray
    ) -> tuple[Scalar, Scalar]:
        """Estimates of log p(y_w | y_b, θ), and of a function whose gradient is the score."""
        used, in_window = roles_of(piece, self)
        # The transition to x_t belongs to time t.
        next_in_window = jnp.append(in_window[1:], False)
        mean, sd = self.start(params)
        start_key, *keys = jax.random.split(key, 1 + len(used))
        noise = jax.random.normal(start_key, (self.particles, len(mean)), mean.dtype)
        first = lax.stop_gradient(mean + sd * noise)
        terms = jnp.sum(norm.logpdf(first, mean, sd), axis=1)
        terms = jnp.where(jnp.asarray(piece.time) == 0, terms, 0)

        def advance(carry: Particles, at: Any) -> tuple[Particles, Scalar]:
            (states, terms), (y, key, used, here, then) = carry, at
            known = jnp.where(jnp.isnan(y), 0, y)
            fits = jax.vmap(lambda x: self.log_observation(params, x, known))(states)
            fits = jnp.where(jnp.isnan(y).any(), 0, fits)
            resample_key, move_key = jax.random.split(key)
            ancestors = _systematic(resample_key, lax.stop_gradient(fits))
            chosen = states[ancestors]
            means, sd = jax.vmap(lambda x: self.drift(params, x))(chosen), self.scale(params)
            noise = jax.random.normal(move_key, means.shape, means.dtype)
            moved = lax.stop_gradient(means + sd * noise)
            of_move = jnp.sum(norm.logpdf(moved, means, sd), axis=1)
            summed = (terms + jnp.where(here, fits, 0))[ancestors] + jnp.where(then, of_move, 0)
            after = jnp.where(used, moved, states), jnp.where(used, summed, terms)
            return after, jnp.where(here & used, logsumexp(fits) - np.log(self.particles), 0)

        inputs = (jnp.asarray(piece.y), jnp.stack(keys), used, in_window, next_in_window)
        (_, terms), log_densities = lax.scan(advance, (first, terms), inputs)
        return jnp.sum(log_densities), jnp.mean(terms)


def _systematic(key: PRNGKeyArray, log_weights: Float[Array, " n"]) -> Int[Array, " n"]:
    """Ancestors: each particle about n times its weight."""
    sums = jnp.cumsum(jax.nn.softmax(log_weights))
    n = len(sums)
    places = (jnp.arange(n) + jax.random.uniform(key, (), sums.dtype)) / n
    return jnp.minimum(jnp.searchsorted(sums, places * sums[-1]), n - 1)


def _hashed(params: PyTree) -> UInt32[Array, ""]:
    """A word that changes with any bit of the parameters."""
    word = jnp.zeros((), jnp.uint32)
    for leaf in jax.tree.leaves(lax.stop_gradient(params)):
        for entry in lax.bitcast_convert_type(jnp.asarray(leaf), jnp.uint32).ravel():
            word = (word ^ entry) * jnp.uint32(0x9E3779B1)
            word = word ^ word >> 15
    return word


@eqx.filter_custom_jvp
def _estimated(
    params: PyTree, piece: SeriesPieces, key: PRNGKeyArray, likelihood: ParticleLikelihood
) -> Scalar:
    return likelihood.filtered(params, piece, key)[0]


@_estimated.def_jvp
def _estimated_rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
    params, piece, key, likelihood = primals

    def score_of(params: PyTree) -> tuple[Scalar, Scalar]:
        value, terms = likelihood.filtered(params, piece, key)
        return terms, value

    slopes, value = jax.grad(score_of, has_aux=True)(params)
    moves = jax.tree.map(
        lambda slope, move: jnp.zeros_like(slope) if move is None else move, slopes, tangents[0]
    )
    terms = jax.tree.map(lambda slope, move: jnp.sum(slope * move), only_once(slopes), moves)
    return value, sum(jax.tree.leaves(terms), jnp.zeros_like(value))


def nonlinear_state_space(
    y: ArrayLike,
    *,
    start: Callable[[PyTree], tuple[Vector, Vector]],
    drift: Callable[[PyTree, Vector], Vector],
    scale: Callable[[PyTree], Vector],
    log_observation: Callable[[PyTree, Vector, Vector], Scalar],
    log_prior: Callable[[PyTree], Scalar],
    init: Mapping[str, Any],
    transforms: Mapping[str, Any] | None = None,
    window: int = 16,
    buffer: int = 8,
    particles: int = 256,
) -> ModelPosterior:
    """A nonlinear state-space model of a series, with windows of the series as rows.

    **Arguments:**

    - `y`: the series, one number or one line per time, in order. A line with a NaN is missing.
    - `start`: θ to the mean and the sd of a state about which nothing is known.
    - `drift`: (θ, x_{t−1}) to m, the mean of x_t.
    - `scale`: θ to s, the sds of x_t given x_{t−1}.
    - `log_observation`: (θ, x_t, y_t) to log p(y_t | x_t, θ).
    - `log_prior`, `init`, `transforms`: of the parameters θ by name, as in `tallmc.Posterior`.
    - `window`, `buffer`: observations per row that count, and on each side of them.
    - `particles`: of the filter of each row.

    **Returns:** a posterior for methods with simple gradients, such as `tallmc.methods.sgld`.
    """
    series = checked_series(y)
    check_int("window", window, 1, len(series), high_name="the length of the series")
    check_int("buffer", buffer, 1)
    check_int("particles", particles, 2)
    if transforms:
        check_installed("numpyro", needed_by="transforms of tallmc.contrib.series")
    floats = {name: jnp.asarray(value, series.dtype) for name, value in init.items()}
    if not floats:
        raise InvalidInput("init", "have at least one parameter", init)
    constraints, free = constrained(floats, transforms or {}, {})
    layout, at = layout_of(free)
    counts = jnp.asarray(len(series), jnp.int32), jnp.asarray(buffer, jnp.int32)
    likelihood = ParticleLikelihood(
        start, drift, scale, log_observation, *counts, window, buffer, buffer, particles
    )
    model = DensityModel(
        log_likelihood=ConstrainedLikelihood(likelihood, constraints),
        log_prior=ConstrainedPrior(log_prior, constraints),
        init=at,
        layout=layout,
        batched=True,
    )
    times = np.arange(0, len(series), window)
    return ModelPosterior(
        model,
        resident(pieces_at(series, times, window, buffer, buffer)),
        constrained_parameters(constraints),
        description={
            "family": f"nonlinear state-space model, {particles} particles",
            "observations": str(len(series)),
            "window": str(window),
            "buffer": f"{buffer} on both sides, not measured",
        },
    )
