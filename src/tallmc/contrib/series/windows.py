"""A series as rows: windows that do not overlap, each with a buffer of its neighbours.

    y_1 … y_T  →  n = ⌈T/L⌉ windows of L observations;   row = [B before | L | B after]

Only the observations of the window count. Those of the buffer tell what state the window starts
in, and, with messages from both sides, what state it ends in. The rows need (L + B)/L of the memory
of the series. What lies outside of the series is NaN, like a missing observation, and `time` tells
the two apart.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from ..._anchor.anchor import Anchor
from ..._core.arrays import HostMatrix, HostVector, Matrix, Scalar, Vector, check_numeric, layout_of
from ..._core.errors import InvalidInput, check_int, warn
from ..._core.programs import quickly_compiled
from ..._rows.access import PerRow
from ..._rows.resident import resident
from ...models.model import DensityModel
from ...models.posterior import AbstractPosterior, ModelPosterior, check_in_memory, check_posterior
from ...models.transforms import (
    ConstrainedLikelihood,
    ConstrainedPrior,
    Constraints,
    constrained,
    constrained_parameters,
)
from ...results.draws import Draws


class SeriesPieces(NamedTuple):
    """Pieces of a series: a window and its buffer per row."""

    y: Float[Array | np.ndarray, "*n l p"]  # NaN where missing or outside of the series
    time: Int[Array | np.ndarray, "*n"]  # of the first observation of the window, counted from 0


def checked_series(values: Any) -> Float[np.ndarray, "T p"]:
    """A series as a matrix, one line per time; raises unless it is numbers or NaN."""
    found = np.asarray(check_numeric("y", values))
    if found.ndim not in (1, 2) or 0 in found.shape:
        rule = "be a series: a vector, or a matrix with one line per time"
        raise InvalidInput("y", rule, f"shape {found.shape}")
    floats = found if found.dtype == np.float32 else found.astype(jnp.result_type(float))
    if np.isinf(floats).any():
        raise InvalidInput("y", "be finite, or NaN where an observation is missing", "infinity")
    if np.isnan(floats).reshape(len(floats), -1).all(axis=0).any():
        raise InvalidInput("y", "have observations in each column", "only NaN")
    return floats.reshape(len(floats), -1)


def pieces_at(
    y: Float[np.ndarray, "T p"], times: Int[np.ndarray, " n"], window: int, before: int, after: int
) -> SeriesPieces:
    """The pieces whose windows start at `times`."""
    places = times[:, None] + np.arange(-before, window + after)
    inside = (places >= 0) & (places < len(y))
    found = y[np.clip(places, 0, len(y) - 1)]
    found[~inside] = np.nan
    return SeriesPieces(found, times.astype(np.int32))


# Log densities of windows of a series with a hidden Markov state.
#
#     x_t | x_{t−1} ~ p(· | x_{t−1}, θ),   y_t | x_t ~ p(· | x_t, θ),   t = 1 … T
#
# *Messages from the past*: the prediction decomposition. For the windows w with buffers b before
# them
#
#     f_w(θ) = −log p(y_w | y_b, θ),   Σ_w f_w → −log p(y_{1:T} | θ)  as the buffer grows
#
# A row is a true conditional density, so its derivatives of all orders belong to it. The sum over
# rows is exact if every buffer reaches the start of the series.
#
# *Messages from both sides* (Ma, Foti and Fox 2017; Aicher et al. 2019): by Fisher's identity
#
#     ∇ log p(y_{1:T} | θ) = Σ_t E[∇ log p(y_t, x_t | x_{t−1}, θ) | y_{1:T}]
#
# and a row is the terms of its window, given the window and a buffer on each side. These are the
# derivatives of log p(y_b, y_w, y_b' | θ) with θ held fixed in the factors of the buffers: reverse
# mode is the backward pass. No potential has these gradients, so second derivatives are refused.
# The potential of a row is that of the messages from the past.
#
# The bias of both comes from a start that does not know what was before the buffer. It decays
# geometrically in B, at the rate at which the filter forgets. The cost of a row is that of L + B
# steps of the filter, or L + 2B with messages from both sides.

_SIDES = {"past": "the past", "both": "both sides"}


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
    ) -> tuple[PyTree[Array], Scalar]:
        """The law of x_t given y_t too, and log p(y_t | past). NaN is a missing observation."""

    @abc.abstractmethod
    def move(self, factors: PyTree[Array], state: PyTree[Array]) -> PyTree[Array]:
        """The law of x_{t+1} from that of x_t."""

    @abc.abstractmethod
    def tilt(self, state: PyTree[Array], by: Float[Array, " k"]) -> tuple[PyTree[Array], Scalar]:
        """p(x) exp(byᵀ s(x)) / Z and log Z. s(x) indicates discrete states, and is x for others."""


class SeriesLikelihood(eqx.Module):
    """The log density of each window given its buffer."""

    series: AbstractSeries
    n_times: Int[Array, ""]  # T
    used: Int[Array, ""]  # How many observations of a buffer are used, of those that a piece holds
    window: int = eqx.field(static=True)
    before: int = eqx.field(static=True)
    after: int = eqx.field(static=True)

    def __call__(self, params: PyTree, rows: SeriesPieces) -> PerRow:
        factors = self.series.factors(params)
        # Messages from both sides are those of pieces with a buffer after the window.
        of_piece = _with_both_messages if self.after else past_log_density
        return jax.vmap(of_piece, in_axes=(None, 0, None))(factors, rows, self)


def past_log_density(
    factors: PyTree[Array], piece: SeriesPieces, likelihood: SeriesLikelihood
) -> Scalar:
    """Log p(y_w | y_b, θ)."""
    used, in_window = roles_of(piece, likelihood)
    start = likelihood.series.start(factors, jnp.asarray(piece.time <= likelihood.used))

    def advance(state: PyTree, at: Any) -> tuple[PyTree, Array]:
        y, used, counted = at
        observed, log_density = likelihood.series.observe(factors, state, y)
        moved = likelihood.series.move(factors, observed)
        return _select(used, moved, state), jnp.where(counted, log_density, 0)

    return jnp.sum(lax.scan(advance, start, (piece.y, used, used & in_window))[1])


def fixed_buffer_log_density(
    factors: PyTree[Array], piece: SeriesPieces, likelihood: SeriesLikelihood
) -> Scalar:
    """Log p(y_b, y_w, y_b' | θ) with θ held fixed in the factors of the buffers."""
    series, fixed = likelihood.series, lax.stop_gradient(factors)
    used, in_window = roles_of(piece, likelihood)
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
) -> Scalar:
    """The value of `past_log_density` with the derivative of `fixed_buffer_log_density`."""
    return past_log_density(factors, piece, likelihood)


@_with_both_messages.def_jvp
def _both_messages_rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
    factors, piece, likelihood = primals
    slopes = jax.grad(fixed_buffer_log_density)(factors, piece, likelihood)
    return past_log_density(factors, piece, likelihood), moved_along(slopes, tangents[0])


def moved_along(slopes: PyTree[Array], moves: PyTree[Array]) -> Scalar:
    """Σ slope · move, for first derivatives only; a move may be None."""

    def term(slope: Array, move: Array | None) -> Scalar:
        return jnp.zeros((), slope.dtype) if move is None else jnp.sum(slope * move)

    terms = jax.tree.leaves(jax.tree.map(term, only_once(slopes), moves))
    return sum(terms, jnp.zeros_like(terms[0]))


@jax.custom_jvp
def only_once(slopes: PyTree[Array]) -> PyTree[Array]:
    """Identity whose derivative is refused."""
    return slopes


@only_once.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise InvalidInput(
        "method",
        "need first derivatives only: those given messages from both sides have no potential",
        "a method that needs second derivatives",
        'Use messages="past", or find_anchor(posterior, hessian=False, optimiser=LBFGS()).',
    )


def roles_of(piece: SeriesPieces, likelihood: Any) -> tuple[Bool[Array, " l"], Bool[Array, " l"]]:
    """Which places of a piece are used, and which of these belong to the window."""
    place = jnp.arange(-likelihood.before, likelihood.window + likelihood.after)
    time = jnp.asarray(piece.time) + place
    inside = (time >= 0) & (time < likelihood.n_times)
    near = (place >= -likelihood.used) & (place < likelihood.window + likelihood.used)
    return inside & near, inside & (place >= 0) & (place < likelihood.window)


def _select(condition: Bool[Array, ""], yes: PyTree[Array], no: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


# How long the buffer of a window must be: the measured memory of the series.
#
#     e_w(B) = ∇f_w(θ; buffer B) − ∇f_w(θ; long buffer),   error(B)² = ‖Cᵀ n ē‖² + n ‖Cᵀ s_e‖²
#
# n is the number of windows, ē and s_e are the mean and the sd of e_w over some of the windows,
# and C Cᵀ is the posterior covariance. The gradient of the potential is wrong by Σ_w e_w(B), so
# the posterior mean is wrong by error(B) posterior standard deviations, to first order. The mean
# of the measured windows is noisy, which makes the error too large rather than too small.
# `choose_buffer` takes the shortest buffer whose error is at most half of the wanted 0.01, because
# draws around the pilot's position may remember a little longer.

WANTED_ERROR = 0.01  # How far the posterior mean may move, in posterior standard deviations
_SAFETY = 0.5
_MEASURED_WINDOWS = 256
_GROWTH, _LONGEST = 1.3, 2048
_REFERENCES = (128, 512, 2 * _LONGEST)


def likelihood_of(model: DensityModel) -> SeriesLikelihood | None:
    """The likelihood of a model of a series; None for another model."""
    outer = model.log_likelihood
    found = outer.function if isinstance(outer, ConstrainedLikelihood) else None
    return found if isinstance(found, SeriesLikelihood) else None


def recut(model: DensityModel, *, window: int, before: int, after: int) -> DensityModel:
    """The same model for pieces of another form."""
    likelihood = likelihood_of(model)
    assert likelihood is not None, "a model of a series"
    used = jnp.asarray(before, jnp.int32)
    changed = dataclasses.replace(likelihood, window=window, before=before, after=after, used=used)
    return eqx.tree_at(lambda m: m.log_likelihood.function, model, changed)


def buffer_errors(
    model: DensityModel,
    y: Float[np.ndarray, "T p"],
    positions: Float[np.ndarray, "k d"],
    factor: HostMatrix,
    *,
    window: int,
    buffers: list[int],
    reference: int,
) -> Float[np.ndarray, "k b"]:
    """The error of each buffer at each position, in posterior standard deviations.

    `model` tells by its buffer after the window whether messages come from both sides.
    """
    likelihood = likelihood_of(model)
    assert likelihood is not None, "a model of a series"
    times = np.arange(0, len(y), window)
    n = len(times)
    if n > _MEASURED_WINDOWS:
        # Spread over the series, without the first windows, whose buffers are short.
        times = times[np.linspace(1, n - 1, _MEASURED_WINDOWS).astype(int)]
    after = reference if likelihood.after else 0
    pieces = jax.tree.map(jnp.asarray, pieces_at(y, times, window, reference, after))
    model = recut(model, window=window, before=reference, after=after)

    def gradients(position: np.ndarray, buffer: int) -> np.ndarray:
        at = jnp.asarray(position, model.dtype)
        return np.asarray(_gradients(model, at, pieces, jnp.int32(buffer)), np.float64)

    found = np.empty((len(positions), len(buffers)))
    for row, position in enumerate(positions):
        exact = gradients(position, reference)
        for column, buffer in enumerate(buffers):
            difference = (gradients(position, buffer) - exact) @ factor
            found[row, column] = np.sqrt(
                np.sum((n * difference.mean(axis=0)) ** 2) + n * np.sum(difference.var(axis=0))
            )
    return found


def choose_buffer(
    model: DensityModel,
    y: Float[np.ndarray, "T p"],
    position: HostVector,
    factor: HostMatrix,
    window: int,
) -> tuple[int, float]:
    """The shortest buffer whose error is below half of 0.01 posterior sds, and its error."""
    tried, error = 0, np.inf
    for reference in _REFERENCES:
        form = {"window": window, "reference": min(reference, len(y))}
        most = min(reference // 2, len(y))
        while tried < most:
            tried = min(most, max(tried + 1, round(tried * _GROWTH)))
            error = buffer_errors(model, y, position[None], factor, buffers=[tried], **form)[0, 0]
            if error <= _SAFETY * WANTED_ERROR:
                return tried, float(error)
        if tried >= len(y):
            break
    warn(
        f"the series remembers more than {tried} observations: with this buffer the posterior mean "
        f"is wrong by about {error:.2g} posterior standard deviations. Pass a longer `buffer=` and "
        "a longer `window=`, average neighbouring observations, or model the differences of the "
        "series."
    )
    return tried, float(error)


@quickly_compiled
def _gradients(
    model: DensityModel, position: Vector, pieces: SeriesPieces, buffer: Array
) -> Float[Array, "n d"]:
    """∇f_w with a part of the buffers."""
    used = eqx.tree_at(lambda m: m.log_likelihood.function.used, model, buffer)
    return used.row_gradients(position, pieces)


# A rough mode of a series' posterior, and the curvature there, from a few stretches of the series.
#
# The stretches are spread over the series, so that regimes that come and go are among them. Their
# log densities are exact: each starts from the law of a state whose past is unknown. The curvature
# of the whole series is that of the stretches times T over their length, plus that of the prior.

_STRETCHES, _STRETCH = 8, 512
_MOST_STEPS = 300
_LEAST_EIGENVALUE = 1e-6  # Eigenvalues of the curvature are at least this share of the largest


class SeriesPilot(NamedTuple):
    """A rough mode, and a factor of the posterior covariance there."""

    position: HostVector
    factor: HostMatrix  # C with C Cᵀ = Σ̂


def series_pilot(model: DensityModel, y: Float[np.ndarray, "T p"]) -> SeriesPilot:
    """The pilot of a model whose windows are stretches without buffer.

    It is searched by L-BFGS from the init of the model; the init if that fails.
    """
    from scipy.optimize import minimize

    stretch = min(_STRETCH, len(y))
    n = max(1, min(_STRETCHES, len(y) // stretch))
    times = np.linspace(0, len(y) - stretch, n).astype(int)
    pieces = jax.tree.map(jnp.asarray, pieces_at(y, times, stretch, 0, 0))

    def value_and_gradient(at: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _value_and_gradient(model, jnp.asarray(at, model.dtype), pieces)
        return float(value), np.asarray(gradient, np.float64)

    start = np.asarray(model.init, np.float64)
    options = {"maxiter": _MOST_STEPS}
    end = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options).x
    position = end if np.isfinite(end).all() else start
    of_stretches, of_prior = (
        np.asarray(matrix, np.float64)
        for matrix in _curvatures(model, jnp.asarray(position, model.dtype), pieces)
    )
    hessian = of_stretches / (n * stretch / len(y)) + of_prior
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    values = np.maximum(values, _LEAST_EIGENVALUE * np.abs(values).max())
    return SeriesPilot(position, vectors / np.sqrt(values))


@quickly_compiled
def _value_and_gradient(
    model: DensityModel, position: Vector, pieces: SeriesPieces
) -> tuple[Scalar, Vector]:
    def potential(at: Vector) -> Scalar:
        return model.prior_potential(at) + jnp.sum(model.row_potentials(at, pieces))

    return jax.value_and_grad(potential)(position)


@quickly_compiled
def _curvatures(
    model: DensityModel, position: Vector, pieces: SeriesPieces
) -> tuple[Matrix, Matrix]:
    """The curvature of the stretches, and that of the prior."""
    weights = jnp.ones(pieces.time.shape, model.dtype)
    prior = jax.hessian(model.prior_potential)(position)
    return model.block_hessian(position, pieces, weights), prior


# The posterior of a series: windows as rows, and a buffer that is given or measured.

LOG_SD = 2.0  # The prior sd of the log of a scale or a rate
SPREAD = 5.0  # The prior sd of a mean, in sds of the series
_SHORTEST_WINDOW = 64  # The window unless the user gives one or the buffer is longer


def series_posterior(
    series: AbstractSeries,
    log_prior: Callable[[PyTree], Scalar],
    y: Float[np.ndarray, "T p"],
    init: Mapping[str, Any],
    transforms: Mapping[str, Any],
    *,
    window: int | None,
    buffer: int | None,
    messages: str,
    description: Mapping[str, str],
) -> ModelPosterior:
    """The posterior of a series; `window`, `buffer` and `messages` as in `hidden_markov`.

    `log_prior`, `init` and `transforms` are about constrained parameters. If the buffer is
    measured, the search for the mode starts at the rough mode of the measurement.
    """
    n_times = len(y)
    if messages not in _SIDES:
        raise InvalidInput("messages", 'be "past" or "both"', messages)
    if window is not None:
        check_int("window", window, 1, n_times, high_name="the length of the series")
    if buffer is not None:
        check_int("buffer", buffer, 1)
    counts = (jnp.asarray(n_times, jnp.int32), jnp.zeros((), jnp.int32))
    stretch = min(_STRETCH, n_times)
    likelihood = SeriesLikelihood(series, *counts, window=stretch, before=0, after=0)
    model, constraints = constrained_model(likelihood, log_prior, init, transforms, y.dtype)
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
    pieces = pieces_at(y, np.arange(0, n_times, length), length, buffer, after)
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


def constrained_model(
    likelihood: Callable[[PyTree, SeriesPieces], PerRow],
    log_prior: Callable[[PyTree], Scalar],
    init: Mapping[str, Any],
    transforms: Mapping[str, Any],
    dtype: Any,
) -> tuple[DensityModel, Constraints]:
    """The model of unconstrained parameters."""
    floats = {name: jnp.asarray(value, dtype) for name, value in init.items()}
    constraints, free = constrained(floats, transforms, {})
    layout, start = layout_of(free)
    model = DensityModel(
        log_likelihood=ConstrainedLikelihood(likelihood, constraints),
        log_prior=ConstrainedPrior(log_prior, constraints),
        init=start,
        layout=layout,
        batched=True,
    )
    return model, constraints


def log_normal(values: Float[Array, " k"], median: Float[Array, ...]) -> Scalar:
    """Σ log density of values whose logs are N(log median, 2²)."""
    logs = jnp.log(values)
    return jnp.sum(norm.logpdf(logs, jnp.log(median), LOG_SD) - logs)


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


def _unit(positions: Float[np.ndarray, "k d"], anchor: Anchor | None) -> HostMatrix:
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


# What a series tells about its hidden states, averaged over draws.
#
#     E[s(x_t) | y] = E_θ[ ∂/∂δ_t log p(y; δ) at δ = 0 ],   p(x_t; δ) ∝ p(x_t) exp(δ_tᵀ s(x_t))
#
# s(x) is the indicator of each state of a hidden Markov model, and x itself in a state-space
# model. One reverse pass through the filter is the smoother. Observations further than the context
# from the stretch are left out. Their influence decays as that of a buffer. The cost is one pass
# over the stretch per position.


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
