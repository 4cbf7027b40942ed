"""Log densities of windows of a series with a hidden Markov state.

    x_t | x_{t−1} ~ p(· | x_{t−1}, θ),   y_t | x_t ~ p(· | x_t, θ),   t = 1 … T

*Messages from the past*: the prediction decomposition. For the windows w with buffers b before them

    f_w(θ) = −log p(y_w | y_b, θ),   Σ_w f_w → −log p(y_{1:T} | θ)  as the buffer grows

A row is a true conditional density, so its derivatives of all orders belong to it. The sum over
rows is exact if every buffer reaches the start of the series.

*Messages from both sides* (Ma, Foti and Fox 2017; Aicher et al. 2019): by Fisher's identity

    ∇ log p(y_{1:T} | θ) = Σ_t E[∇ log p(y_t, x_t | x_{t−1}, θ) | y_{1:T}]

and a row is the terms of its window, given the window and a buffer on each side. These are the
derivatives of log p(y_b, y_w, y_b' | θ) with θ held fixed in the factors of the buffers: reverse
mode is the backward pass. No potential has these gradients, so second derivatives are refused. The
potential of a row is that of the messages from the past.

The bias of both comes from a start that does not know what was before the buffer. It decays
geometrically in B, at the rate at which the filter forgets. The cost of a row is that of L + B
steps of the filter, or L + 2B with messages from both sides.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..core.errors import InvalidInput
from .windows import SeriesPieces

MESSAGES = ("past", "both")


class AbstractSeries(eqx.Module):
    """A hidden Markov process: how the law of its state starts, moves and learns from y_t."""

    @abc.abstractmethod
    def factors(self, params: PyTree) -> PyTree[Array]:
        """What the recursion needs, computed once from the parameters."""

    @abc.abstractmethod
    def start(self, factors: PyTree[Array], at_origin: Bool[Array, ""]) -> PyTree[Array]:
        """The law of the first state of a piece; `at_origin` if it is that of the series."""

    @abc.abstractmethod
    def observe(
        self, factors: PyTree[Array], state: PyTree[Array], y: Float[Array, " p"]
    ) -> tuple[PyTree[Array], Float[Array, ""]]:
        """The law of x_t given y_t too, and log p(y_t | past). NaN is a missing observation."""

    @abc.abstractmethod
    def move(self, factors: PyTree[Array], state: PyTree[Array]) -> PyTree[Array]:
        """The law of x_{t+1} from that of x_t."""

    @abc.abstractmethod
    def tilt(
        self, state: PyTree[Array], by: Float[Array, " k"]
    ) -> tuple[PyTree[Array], Float[Array, ""]]:
        """p(x) exp(byᵀ s(x)) / Z and log Z. s(x) indicates discrete states, and is x for others."""


class SeriesLikelihood(eqx.Module):
    """The log density of each window given its buffer."""

    series: AbstractSeries
    n_times: Int[Array, ""]
    """T."""
    used: Int[Array, ""]
    """How many observations of a buffer are used, of those that a piece holds."""
    window: int = eqx.field(static=True)
    before: int = eqx.field(static=True)
    after: int = eqx.field(static=True)

    def __call__(self, params: PyTree, rows: SeriesPieces) -> Float[Array, " n"]:
        factors = self.series.factors(params)
        # Messages from both sides are those of pieces with a buffer after the window.
        of_piece = _with_both_messages if self.after else past_log_density
        return jax.vmap(of_piece, in_axes=(None, 0, None))(factors, rows, self)


def past_log_density(
    factors: PyTree[Array], piece: SeriesPieces, likelihood: SeriesLikelihood
) -> Float[Array, ""]:
    """log p(y_w | y_b, θ)."""
    used, in_window = _roles(piece, likelihood)
    start = likelihood.series.start(factors, jnp.asarray(piece.time <= likelihood.used))

    def advance(state: PyTree, at: Any) -> tuple[PyTree, Array]:
        y, used, counted = at
        observed, log_density = likelihood.series.observe(factors, state, y)
        moved = likelihood.series.move(factors, observed)
        return _select(used, moved, state), jnp.where(counted, log_density, 0)

    return jnp.sum(lax.scan(advance, start, (piece.y, used, used & in_window))[1])


def fixed_buffer_log_density(
    factors: PyTree[Array], piece: SeriesPieces, likelihood: SeriesLikelihood
) -> Float[Array, ""]:
    """log p(y_b, y_w, y_b' | θ) with θ held fixed in the factors of the buffers."""
    series, fixed = likelihood.series, lax.stop_gradient(factors)
    used, in_window = _roles(piece, likelihood)
    # The transition to x_t belongs to time t.
    next_in_window = jnp.append(in_window[1:], False)
    origin = jnp.asarray(piece.time <= likelihood.used)
    start = series.start(_select(jnp.asarray(piece.time == 0), factors, fixed), origin)

    def advance(state: PyTree, at: Any) -> tuple[PyTree, Array]:
        y, used, here, then = at
        observed, log_density = series.observe(_select(here, factors, fixed), state, y)
        moved = series.move(_select(then, factors, fixed), observed)
        return _select(used, moved, state), jnp.where(used, log_density, 0)

    return jnp.sum(lax.scan(advance, start, (piece.y, used, in_window, next_in_window))[1])


@eqx.filter_custom_jvp
def _with_both_messages(
    factors: PyTree[Array], piece: SeriesPieces, likelihood: SeriesLikelihood
) -> Float[Array, ""]:
    """The value of `past_log_density` with the derivative of `fixed_buffer_log_density`."""
    return past_log_density(factors, piece, likelihood)


@_with_both_messages.def_jvp
def _both_messages_rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
    factors, piece, likelihood = primals
    slopes = _only_once(jax.grad(fixed_buffer_log_density)(factors, piece, likelihood))
    moves = jax.tree.map(
        lambda slope, move: jnp.zeros_like(slope) if move is None else move,
        slopes,
        tangents[0],
    )
    terms = jax.tree.map(lambda slope, move: jnp.sum(slope * move), slopes, moves)
    value = past_log_density(factors, piece, likelihood)
    return value, sum(jax.tree.leaves(terms), jnp.zeros_like(value))


@jax.custom_jvp
def _only_once(slopes: PyTree[Array]) -> PyTree[Array]:
    """Identity whose derivative is refused."""
    return slopes


@_only_once.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise InvalidInput(
        "method",
        'need first derivatives only with messages="both": they are no gradients of a potential',
        "a method that needs second derivatives",
        'Use messages="past", or laplace(posterior, hessian=False, optimiser=tallmc.LBFGS()).',
    )


def _roles(
    piece: SeriesPieces, likelihood: SeriesLikelihood
) -> tuple[Bool[Array, " l"], Bool[Array, " l"]]:
    """Which places of a piece are used, and which of these belong to the window."""
    place = jnp.arange(-likelihood.before, likelihood.window + likelihood.after)
    time = jnp.asarray(piece.time) + place
    inside = (time >= 0) & (time < likelihood.n_times)
    near = (place >= -likelihood.used) & (place < likelihood.window + likelihood.used)
    return inside & near, inside & (place >= 0) & (place < likelihood.window)


def _select(condition: Bool[Array, ""], yes: PyTree[Array], no: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
