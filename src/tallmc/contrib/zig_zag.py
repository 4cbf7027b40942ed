"""The zig-zag process with subsampling and control variates, and what it shares with `bouncy`."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._anchor.anchor import Anchor
from .._core.arrays import AbstractLinearMap, HostVector, Matrix, Scalar, Vector, dot, on_device
from .._core.errors import InvalidInput, check_int, check_number
from .._core.random import derived_keys, normals_of, pairs_for_normals, random_words, uniform_of
from .._core.statistics import ess, moments
from .._core.supervision import stage
from .._engine.kernel import AbstractKernel, ChainState, Gathered, KernelStep, NewChain
from .._rows.access import AbstractRows, PerRow
from .._rows.law import AbstractStream
from ..dynamics.dynamics import AbstractDynamicsState, Curvature, Suggestion
from ..geometry import Dense
from ..methods.abstract import AbstractAnchoredMethod, AtAnchor, labels
from ..methods.registry import named
from ..methods.subsampled.method import breach_totals, no_breaches
from ..methods.subsampled.remainders import ModelRemainders
from ..models.design import RegressionRows
from ..models.generalised_linear import remainder, weighted
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..models.priors import (
    AbstractPrior,
    JoinedPrior,
    LaplacePrior,
    NormalPrior,
    PriorOfEntries,
    StudentTPrior,
    TemperedPrior,
)
from ..results.draws import Draws
from ..schedule import AbstractSchedule, as_schedule, in_precision

# Switching times of a rate that grows or falls linearly.
#
# The first arrival τ of a Poisson process with rate (α + βt)₊ solves, for a standard exponential E,
#
#     ∫₀^τ (α + βt)₊ dt = E.
#
# With α₊ = max(α, 0) the rate is positive from the time τ₀ = max(−α, 0)/β on, and
#
#     τ = τ₀ + 2E / (α₊ + √(α₊² + 2βE)),
#
# which has no difference of nearly equal numbers. A falling rate may end before E is reached: the
# root is then not real, and there is no arrival.


def first_arrivals(start: Vector, growth: Vector, exponential: Vector) -> Vector:
    """τ of every coordinate, from its α, β and E; infinite if there is no arrival."""
    positive, grows = jnp.maximum(start, 0), growth > 0
    wait = jnp.where(start < 0, -start / jnp.where(grows, growth, 1), 0)
    square = positive**2 + 2 * growth * exponential
    denominator = positive + jnp.sqrt(jnp.maximum(square, 0))
    found = wait + 2 * exponential / jnp.maximum(denominator, jnp.finfo(start.dtype).tiny)
    never = (square < 0) | (~grows & (start <= 0))
    return jnp.where(never, jnp.inf, found)


# Exact averages along a piecewise linear path.
#
# On a piece of length τ the position is m + νt, so
#
#     ∫ (m + νt) dt = mτ + ντ²/2,   ∫ (m + νt)² dt = m²τ + mντ² + ν²τ³/3.


class PathIntegrals(eqx.Module):
    """Integrals of the move away from the anchor and of its square, per parameter."""

    move: Vector
    square: Vector

    @classmethod
    def zero(cls, like: Vector) -> PathIntegrals:
        return cls(jnp.zeros_like(like), jnp.zeros_like(like))

    def extended(self, move: Vector, velocity: Vector, time: Scalar) -> PathIntegrals:
        """The integrals of the path with one more piece."""
        mean = move + velocity * time / 2
        square = move**2 + velocity * time * (move + velocity * time / 3)
        return PathIntegrals(self.move + time * mean, self.square + time * square)

    def mean(self, time: Scalar) -> Vector:
        return self.move / time

    def variance(self, time: Scalar) -> Vector:
        return jnp.maximum(self.square / time - self.mean(time) ** 2, 0)


# The steepest slopes of a prior along a line.
#
# The prior is a product over the parameters. The slope of a Gaussian or a Laplace prior grows with
# its parameter. That of a Student-t prior, (ν + 1)(θ − m)/(νs² + (θ − m)²), turns at m ± s√ν. On an
# interval the extremes of a slope are therefore at its ends, or where it turns.


def turning_points(prior: AbstractPrior, dim: int) -> tuple[Vector, Vector] | None:
    """Where the slopes of the prior turn, per parameter; None if they are not known."""
    match prior:
        case NormalPrior() | LaplacePrior():
            return jnp.zeros(dim), jnp.zeros(dim)
        case StudentTPrior(scale=scale, degrees=degrees, mean=mean):
            away = scale * jnp.sqrt(degrees)
            return jnp.broadcast_to(mean - away, (dim,)), jnp.broadcast_to(mean + away, (dim,))
        case TemperedPrior(prior=inner):
            return turning_points(inner, dim)
        case JoinedPrior() | PriorOfEntries():
            low, high = jnp.zeros(dim), jnp.zeros(dim)
            for part, entries in zip(prior.parts, prior.entries, strict=True):
                found = turning_points(part, len(entries))
                if found is None:
                    return None
                at = np.asarray(entries)
                low, high = low.at[at].set(found[0]), high.at[at].set(found[1])
            return low, high
    return None


class PriorSlopes(eqx.Module):
    """The gradient of a prior and its extremes."""

    prior: AbstractPrior
    turns: tuple[Vector, ...]

    def at(self, position: Vector) -> Vector:
        return jax.grad(self.prior.potential)(position)

    def extremes(self, start: Vector, end: Vector) -> tuple[Vector, Vector]:
        """The least and the largest slope of every parameter on its way from start to end."""
        low, high = jnp.minimum(start, end), jnp.maximum(start, end)
        points = jnp.stack([low, high, *(jnp.clip(turn, low, high) for turn in self.turns)])
        slopes = jax.vmap(self.at)(points)
        return jnp.min(slopes, axis=0), jnp.max(slopes, axis=0)


# Switching rates of the zig-zag process with control variates.
#
# In coordinates u with θ = θ̂ + Cu the potential U has the derivatives
#
#     ∂_j U(u) = (a + Bu)_j + Σ_i w_ij s_i(u),   w_i = Cᵀx_i,   t = w_iᵀu
#
#     order 1   a = Cᵀ∇f(θ̂),  B = Cᵀ∇²f₀C,     s_i = f'(ẑ_i + t) − f'(ẑ_i)
#     order 2   a = Cᵀ∇f(θ̂),  B = Cᵀ∇²f(θ̂)C,   s_i = f'(ẑ_i + t) − f'(ẑ_i) − f''(ẑ_i)t
#
# with a Gaussian prior f₀, whose Hessian is constant. Other priors are left out of a and B, and
# their own gradient Cᵀ∇f₀ is added to a + Bu. Order 1 is ZZ-CV of Bierkens, Fearnhead and Roberts
# (2019). Each term has a rate of its own:
#
#     λ_j(u, v) = (v_j (a + Bu)_j)₊ + Σ_i (v_j w_ij s_i(u))₊
#
# For each part, (x)₊ − (−x)₊ = x. So λ_j(u, v) − λ_j(u, F_j v) = v_j ∂_j U(u), where F_j reverses
# the velocity v_j: the process leaves the posterior invariant. The sum of positive parts may be
# larger than the positive part of the sum, so velocities switch more often than they have to.
#
# The rate of row i over all coordinates is at most c_i M(u), with the order k,
#
#     c_i = sup |f⁽ᵏ⁺¹⁾| ‖w_i‖₁ ‖w_i‖ᵏ,   M(u) = ‖u‖ᵏ/k!
#
# A candidate is row i with probability p_i ∝ c_i, from one alias table for all coordinates, and
# then coordinate j with probability |w_ij|/‖w_i‖₁. It switches v_j with probability (v_j w_ij s_i)₊
# over the rate of the candidate.

_ROUNDING = 1 + 1e-6


class RowRates(eqx.Module):
    """The part of some rows in the rates, at one position per row."""

    slopes: PerRow  # s_i
    columns: Float[Array, "n d"]  # w_ij

    @property
    def largest(self) -> PerRow:
        """|s_i| ‖w_i‖₁, which no c_i M may be below."""
        return jnp.abs(self.slopes) * jnp.sum(jnp.abs(self.columns), axis=1)

    def coordinates(self, uniform: PerRow) -> Int[Array, " n"]:
        """A coordinate j per row, drawn with probability |w_ij|/‖w_i‖₁."""
        sums = jnp.cumsum(jnp.abs(self.columns), axis=1)
        below = jnp.sum(sums <= uniform[:, None] * sums[:, -1:], axis=1)
        return jnp.minimum(below, sums.shape[1] - 1)

    def switching(self, velocity: Vector, coordinates: Int[Array, " n"]) -> PerRow:
        """(v_j w_ij s_i)₊ ‖w_i‖₁/|w_ij|: the rate, over the probability of the coordinate."""
        chosen = jnp.take_along_axis(self.columns, coordinates[:, None], axis=1)[:, 0]
        sign = velocity[coordinates] * jnp.sign(chosen) * jnp.sign(self.slopes)
        return jnp.maximum(sign, 0) * self.largest


class Candidates(NamedTuple):
    """What some rows would do to the velocity."""

    rates: PerRow  # Their rates, over the probabilities with which they were chosen
    largest: PerRow  # The largest rates that they could have with other velocities
    normals: Float[Array, "n d"]  # The velocity is reflected on these


class ZigZagRates(eqx.Module):
    """Rates of the known terms and of the rows, at which a velocity is reflected.

    Here single coordinates of the velocity change their sign; `bouncy` has other reflections.
    """

    remainders: ModelRemainders
    linear: Vector  # a
    matrix: Matrix  # B
    stream: AbstractStream  # Rows in proportion to c_i
    total: Scalar  # Σc
    slopes: PriorSlopes | None  # Of a prior that is not Gaussian
    refreshment: Scalar | None  # The rate at which the velocity is drawn anew

    @staticmethod
    def size(columns: Float[Array, "n d"]) -> PerRow:
        """The norm of w_i that bounds the change of its term per unit of time."""
        return jnp.sum(jnp.abs(columns), axis=1)

    def speed(self, velocity: Vector) -> Scalar:
        """The norm of v that belongs to `size`."""
        return jnp.ones((), velocity.dtype)

    def first_velocity(self, key: PRNGKeyArray, like: Vector) -> Vector:
        """A velocity of the stationary law."""
        return jax.random.rademacher(key, like.shape, like.dtype)

    def directions(self, velocity: Vector) -> Float[Array, "m d"]:
        """D: the rates of the known terms are the positive parts of D∇U."""
        return jnp.diag(velocity)

    def normal(self, term: Int[Array, ""], gradient: Vector) -> Vector:
        """The vector on which a known term reflects the velocity."""
        return (jnp.arange(len(gradient)) == term).astype(gradient.dtype)

    def candidates(self, velocity: Vector, rows: RowRates, uniform: PerRow) -> Candidates:
        """What these rows do; `uniform` chooses among the terms of a row."""
        coordinates = rows.coordinates(uniform)
        normals = jax.nn.one_hot(coordinates, len(velocity), dtype=velocity.dtype)
        return Candidates(rows.switching(velocity, coordinates), rows.largest, normals)

    def known_events(self, dim: int) -> float:
        """About the number of events of the known terms per unit of time."""
        # For v_j u_j standard normal, (v_j u_j)₊ has the mean 1/√2π.
        return dim / math.sqrt(2 * math.pi)

    @property
    def metric(self) -> AbstractLinearMap:
        """C."""
        return self.remainders.metric

    def position(self, u: Vector) -> Vector:
        """θ."""
        return self.remainders.anchor + self.metric.push(u)

    def known_gradient(self, u: Vector) -> Vector:
        """The gradient without the terms of the rows."""
        found = self.linear + dot(self.matrix, u)
        if self.slopes is None:
            return found
        return found + self.metric.pull(self.slopes.at(self.position(u)))

    def known(
        self, u: Vector, velocity: Vector, horizon: Scalar
    ) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """α and β: at times t up to the horizon, D∇U(u + vt) ≤ α + βt without the rows.

        With a Gaussian prior both sides are equal.
        """
        along = self.directions(velocity)
        start = dot(along, self.linear + dot(self.matrix, u))
        if self.slopes is not None:
            ends = self.position(u), self.position(u + velocity * horizon)
            least, largest = self.slopes.extremes(*ends)
            pushed = self.metric.push(along)
            start += jnp.sum(jnp.maximum(pushed * least, pushed * largest), axis=1)
        return start, dot(along, dot(self.matrix, velocity))

    def of_rows(self, u: Float[Array, "n d"], block: RegressionRows) -> RowRates:
        """The part of these rows, each at a position of its own."""
        model, order, y = self.remainders.model.regression(), self.remainders.order, block.y
        w = model.columns(block).pulled(self.metric)
        anchored = model.predictors(self.remainders.anchor, block)
        t = jnp.sum(w * u, axis=1)
        derivative = model.likelihood.derivative
        expansion = sum(
            derivative(power + 1, anchored, y) * t**power / math.factorial(power)
            for power in range(order)
        )
        slopes = remainder(
            order - 1,
            lambda s: derivative(order + 1, anchored + s * t, y) * t**order,
            derivative(1, anchored + t, y) - expansion,
            jnp.abs(t),
        )
        return RowRates(weighted(block, slopes).astype(w.dtype), w)

    def bound(self, distance: Scalar) -> Scalar:
        """Σc M at this distance from the anchor."""
        # growth(u, 0) bounds a remainder by ‖u‖ᵏ⁺¹/(k + 1)!; its derivative bounds the slope.
        away = jnp.stack([distance])
        of_values = self.remainders.growth(away, jnp.zeros_like(away))
        tiny = jnp.finfo(distance.dtype).tiny
        return self.total * of_values * (self.remainders.order + 1) / jnp.maximum(distance, tiny)


def prepare_rates(
    kind: type[ZigZagRates],
    posterior: AbstractPosterior,
    anchor: Anchor,
    order: int,
    refreshment: float | None = None,
) -> ZigZagRates:
    """The rates of this kind at the anchor; one pass over the rows."""
    model, metric = posterior.model, Dense().prepare(posterior, anchor)
    cure = "Use subsampled_mh(...), or mala(...)."
    if not model.one_predictor:
        rule = "be a generalised linear model with one predictor"
        raise InvalidInput("posterior", rule, type(model).__name__, cure)
    prior, likelihood = model.regression().prior, model.regression().likelihood
    turns = turning_points(prior, model.dim)
    if turns is None:
        rule = "have a Gaussian, Laplace or Student-t prior"
        raise InvalidInput("posterior", rule, type(prior).__name__, cure)
    if not model.remainder_bound(order):
        rule = f"have rows whose derivatives of order {order + 1} are bounded"
        raise InvalidInput("posterior", rule, f"the {type(likelihood).__name__} family", cure)
    remainders = ModelRemainders.at(model, order, anchor, metric)
    assert anchor.hessian is not None and anchor.factor is not None, "the method needs a Hessian"
    factor, at = np.asarray(anchor.factor, np.float64), anchor.position
    gradient = np.asarray(anchor.gradient, np.float64)
    of_prior = np.asarray(jax.hessian(model.prior_potential)(at), np.float64)
    hessian = np.asarray(anchor.hessian, np.float64) if order == 2 else of_prior
    slopes = None
    if not _is_gaussian(prior):
        slopes = PriorSlopes(prior, tuple(on_device(turn, posterior.dtype) for turn in turns))
        gradient, hessian = gradient - np.asarray(model.prior_gradient(at)), hessian - of_prior
    constants = posterior.rows.map(_constants, remainders, kind.size, width=posterior.width)
    # A row of zeros never switches a velocity; the table needs a positive weight.
    positive = np.maximum(np.asarray(constants, np.float64), np.finfo(np.float32).tiny)
    positive = np.maximum(positive, 1e-9 * positive.mean())
    stream = posterior.rows.preferential_stream(
        positive, floor=0.0, certain_of=None, dtype=posterior.dtype
    ).stream
    return kind(
        remainders=remainders,
        linear=on_device(factor.T @ gradient, posterior.dtype),
        matrix=on_device(factor.T @ hessian @ factor, posterior.dtype),
        stream=stream,
        # The table rounds p_i: with this total, total · p_i ≥ c_i for every row.
        total=on_device(_ROUNDING * np.max(positive / stream.probabilities()), posterior.dtype),
        slopes=slopes,
        refreshment=None if refreshment is None else on_device(refreshment, posterior.dtype),
    )


def _is_gaussian(prior: AbstractPrior) -> bool:
    if isinstance(prior, JoinedPrior | PriorOfEntries):
        return all(map(_is_gaussian, prior.parts))
    return isinstance(prior, NormalPrior)


def _constants(
    block: RegressionRows, remainders: ModelRemainders, size: Callable[[Matrix], PerRow]
) -> PerRow:
    """c_i, from sup |f⁽ᵏ⁺¹⁾| ‖w_i‖ᵏ⁺¹."""
    columns = remainders.model.regression().columns(block).pulled(remainders.metric)
    length = jnp.maximum(jnp.linalg.norm(columns, axis=1), jnp.finfo(columns.dtype).tiny)
    return remainders.constants(block) * (size(columns) / length)


# The step of a process: a fixed time along its path.
#
# The position moves with velocity v in the coordinates u, with v ∈ {−1, 1}ᵈ in the zig-zag process.
# Until a horizon, the rate of candidate rows is bounded by its value at the farther end: the norm
# is convex along a line. One pass of the loop draws the first event of the known terms, in closed
# form, and a chunk of candidates. It moves to the first event, or to the horizon or the last
# candidate if there is none. The process has no memory, so the next pass draws everything anew.
# Known terms with a prior that is not Gaussian have a bound on their rate, which thins their event.

# The longest time with one bound, in which a coordinate moves by 0.3 standard deviations.
HORIZON = 0.3
# A step that would read more rows ends early. This is counted, and ends the claim of exactness.
_MOST_ROWS = 2**22


class PathState(AbstractDynamicsState):
    """Position θ = θ̂ + Cu."""

    position: Vector
    whitened: Vector  # u
    velocity: Vector  # v


class RateBreaches(eqx.Module):
    """How often the steps of a chain left the bounds of the rates."""

    exceeded: Int[Array, "*chains"]  # Candidates whose rate was above its bound
    worst: Float[Array, "*chains"]  # The largest rate, relative to its bound
    unfinished: Int[Array, "*chains"]  # Steps that ended before their time


class _Flight(eqx.Module):
    """A path in the making."""

    u: Vector
    velocity: Vector
    left: Scalar  # The time left in the step
    passes: Int[Array, ""]  # Passes of the loop
    n_rows: Int[Array, ""]
    n_switches: Int[Array, ""]
    breaches: RateBreaches
    integrals: PathIntegrals


class PathKernel(AbstractKernel):
    """Follows the path of a process for a fixed time."""

    rates: ZigZagRates
    schedule: AbstractSchedule
    rest: Vector
    chunk: int = eqx.field(static=True)  # Candidates that are drawn at once

    @property
    def model(self) -> AbstractModel:
        return self.rates.remainders.model

    rows_per_step = None
    most_rows = _MOST_ROWS

    def broken_claim(self, chains: ChainState) -> str | None:
        exceeded, worst, unfinished = breach_totals(chains.carried)
        if exceeded:
            return (
                f"the rates of {exceeded:,} rows were above their bounds, at most by {worst:.2g} "
                "times: the draws are not exact."
            )
        if unfinished:
            return (
                f"{unfinished:,} steps would have read more than {_MOST_ROWS:,} rows and ended "
                "early: the draws are not exact. Make the step size smaller."
            )
        return None

    def start_memory(self, positions: Float[Array, "chains d"], rows: AbstractRows) -> RateBreaches:
        return RateBreaches(*no_breaches(positions))

    def init(self, new: NewChain, rows: AbstractRows) -> ChainState:
        u = self.rates.metric.solve(new.position - self.rates.remainders.anchor)
        velocity = self.rates.first_velocity(new.key, u)
        return ChainState(PathState(new.position, u, velocity), new.carried)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        motion, carried = state.motion, state.carried
        time = self.schedule(step).astype(motion.position.dtype)
        keys = derived_keys(gathered.selection, 5)
        none, integrals = jnp.int32(0), PathIntegrals.zero(motion.whitened)
        flown = lax.while_loop(
            lambda flight: (flight.left > 0) & (flight.n_rows < _MOST_ROWS),
            lambda flight: self._advance(flight, keys, rows),
            _Flight(motion.whitened, motion.velocity, time, none, none, none, carried, integrals),
        )
        anchor = self.rates.remainders.anchor
        stats = {
            "batch_size": flown.n_rows,
            "n_switches": flown.n_switches,
            "path_mean": anchor + flown.integrals.mean(time),
            "path_variance": flown.integrals.variance(time),
        }
        position = self.rates.position(flown.u)
        unfinished = carried.unfinished + (flown.left > 0).astype(jnp.int32)
        breaches = RateBreaches(flown.breaches.exceeded, flown.breaches.worst, unfinished)
        return KernelStep(ChainState(PathState(position, flown.u, flown.velocity), breaches), stats)

    def _advance(self, flight: _Flight, keys: Array, rows: AbstractRows) -> _Flight:
        """Move to the first event, or as far as the draws of one pass reach."""
        rates, u, velocity, chunk = self.rates, flight.u, flight.velocity, self.chunk
        known_key, rows_key, coins_key, terms_key, refreshment_key = keys
        dtype, first = u.dtype, flight.passes * chunk
        # The bounds must not depend on the switches: a pass that ends at its last candidate draws
        # them anew, and would do so more often for late ones.
        horizon = jnp.minimum(flight.left, HORIZON)
        farthest = jnp.maximum(jnp.linalg.norm(u), jnp.linalg.norm(u + velocity * horizon))
        bound = rates.bound(farthest) * rates.speed(velocity)
        start, growth = rates.known(u, velocity, horizon)
        known = uniform_of(random_words(known_key, start.shape, flight.passes * len(start)), dtype)
        switches = first_arrivals(start, growth, -jnp.log(known[:, 0]))
        refreshed, fresh = self._refreshment(refreshment_key, flight)
        horizon = jnp.minimum(horizon, jnp.minimum(jnp.min(switches), refreshed))

        coins = random_words(coins_key, (chunk,), first)
        arrivals = jnp.cumsum(-jnp.log(uniform_of(coins[:, 0], dtype))) / bound
        before = arrivals < horizon
        draws = rates.stream.draw(rows_key, (chunk,), first)
        at = u + velocity * jnp.where(before, arrivals, 0)[:, None]
        of_rows = rates.of_rows(at, rows.take(draws.indices))
        words = random_words(terms_key, (chunk,), first)
        candidates = rates.candidates(velocity, of_rows, uniform_of(words[:, 0], dtype))
        caps = bound / draws.weights
        kept = before & (uniform_of(coins[:, 1], dtype) * caps < candidates.rates)
        row_switches, chosen = jnp.any(kept), jnp.argmax(kept)

        # Without a kept candidate the path is known up to the last one, or up to the horizon.
        reached = jnp.minimum(arrivals[-1], horizon)
        time = jnp.where(row_switches, arrivals[chosen], reached)
        term = jnp.argmin(switches)
        gradient = rates.known_gradient(u + velocity * time)
        known_switches = ~row_switches & (time == switches[term])
        if rates.slopes is not None:
            rate = dot(rates.directions(velocity), gradient)[term]
            known_switches &= known[term, 1] * (start + growth * time)[term] < rate
        switched = row_switches | known_switches
        normal = jnp.where(row_switches, candidates.normals[chosen], rates.normal(term, gradient))
        after = jnp.where(switched, reflected(velocity, normal), velocity)
        after = jnp.where(~row_switches & (time == refreshed), fresh, after)
        used = before & (arrivals <= time)
        move, move_velocity = rates.metric.push(jnp.stack([u, velocity]))
        ratio = jnp.where(used, candidates.largest / caps, 0)
        return _Flight(
            u=u + velocity * time,
            velocity=after,
            left=flight.left - time,
            passes=flight.passes + 1,
            n_rows=flight.n_rows + jnp.sum(used, dtype=jnp.int32),
            n_switches=flight.n_switches + switched.astype(jnp.int32),
            breaches=RateBreaches(
                flight.breaches.exceeded + jnp.sum(ratio > 1, dtype=jnp.int32),
                jnp.maximum(flight.breaches.worst, jnp.max(ratio)),
                flight.breaches.unfinished,
            ),
            integrals=flight.integrals.extended(move, move_velocity, time),
        )

    def _refreshment(self, key: PRNGKeyArray, flight: _Flight) -> tuple[Scalar, Vector]:
        """When the velocity is drawn anew, and the new one; never without a rate."""
        velocity, rate = flight.velocity, self.rates.refreshment
        if rate is None:
            return jnp.full((), jnp.inf, velocity.dtype), velocity
        pairs = 1 + pairs_for_normals(len(velocity), velocity.dtype)
        words = random_words(key, (pairs,), flight.passes * pairs)
        time = -jnp.log(uniform_of(words[0, 0], velocity.dtype)) / rate
        return time, normals_of(words[1:], len(velocity), velocity.dtype)


def reflected(velocity: Vector, normal: Vector) -> Vector:
    """v − 2(vᵀg)g/‖g‖²; for a unit vector g the reversal of one coordinate."""
    square = jnp.maximum(jnp.sum(normal**2), jnp.finfo(normal.dtype).tiny)
    return velocity - 2 * (jnp.sum(velocity * normal) / square) * normal


_SUGGESTED_TIME = 2.0
_MOST_CHUNK = 256


class AbstractPathMethod(AbstractAnchoredMethod):
    """A process in continuous time; a step follows its path for the time `step_size`."""

    bias = "None, at any step size, which is only the time between draws."
    exact = True
    process: ClassVar[str]

    step_size: float
    order: int

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, 0, low_open=True)
        check_int("order", self.order, 1, 2)

    @property
    def axes(self) -> dict[str, str]:
        gradient = f"control variates of order {self.order}"
        return labels(self.process, gradient, "thinned rows", "Poisson")

    def suggest(self, curvature: Curvature) -> Suggestion:
        rule = "the time in which a coordinate crosses two standard deviations"
        return Suggestion(_SUGGESTED_TIME, rule, 1.0, 1.0)

    @abc.abstractmethod
    def rates_at(self, posterior: AbstractPosterior, anchor: Anchor) -> ZigZagRates:
        """The rates of the process."""

    def kernel_at(self, posterior: AbstractPosterior, anchor: Anchor) -> AtAnchor:
        stage("bounding the rows")
        rates = self.rates_at(posterior, anchor)
        kernel = PathKernel(
            rates=rates,
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
            chunk=_chunk(rates, posterior.dim),
        )
        return AtAnchor(kernel, posterior.n_rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZigZag(AbstractPathMethod):
    """The zig-zag process, for logistic, probit, binomial and linear regression.

    In the coordinates of the Laplace approximation, the position moves on a straight line with
    velocity v ∈ {−1, 1}ᵈ. Coordinates of v change their sign at random times, whose rates leave the
    posterior invariant:

        du/dt = v,   v_j → −v_j at the rate λ_j(u, v),   λ_j(u, v) − λ_j(u, F_j v) = v_j ∂_j U(u)

    A step follows the path for the time `step_size`. The position at its end is the draw. Averages
    along the path are recorded too, without any error of discretisation: `path_moments` reads them.
    Priors are Gaussian, Laplace or Student-t.
    """

    paper = "Bierkens, Fearnhead and Roberts (2019)"
    cost = (
        "A pass over the rows for c_i, and then about Σc E‖u‖ᵏ/k! rows per unit of time, with the "
        "order k. This number does not depend on N with order 1, the order of the paper, and falls "
        "as N^(−1/2) with order 2. It is proportional to d² with order 1 and to d³ with order 2."
    )
    process = "zig-zag process"

    step_size: float
    order: int = 2

    def rates_at(self, posterior: AbstractPosterior, anchor: Anchor) -> ZigZagRates:
        return prepare_rates(ZigZagRates, posterior, anchor, self.order)


def _chunk(rates: ZigZagRates, dim: int) -> int:
    """About the number of candidates until the known terms change a velocity."""
    typical = jnp.ones(dim, rates.total.dtype)
    per_time = float(rates.bound(jnp.linalg.norm(typical)) * rates.speed(typical))
    mean = per_time / (rates.known_events(dim) + 1 / HORIZON)
    return min(max(2, math.ceil(mean + math.sqrt(mean))), _MOST_CHUNK)


# Exact averages along the paths of a run.
#
# A draw records the mean and the variance of its piece of the path. Over all pieces,
#
#     mean = average of the means,   sd² = average of the variances + variance of the means.
#
# Both are integrals along the path, without an error of discretisation: Monte-Carlo error remains.


class PathMoments(NamedTuple):
    """Averages along paths, per parameter."""

    mean: HostVector
    sd: HostVector
    mean_error: HostVector
    """The Monte-Carlo standard error of `mean`."""


def path_moments(draws: Draws) -> PathMoments:
    """Means and sds of the parameters, as exact averages along the paths of a run.

    **Arguments:**

    - `draws`: draws of `zig_zag(...)` or `bouncy(...)`. Thinned draws hold the last piece of the
      path before each draw only.

    **Returns:** a `PathMoments`. Failed chains are left out.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], 10.0, noise_variance=1.0)
    >>> draws = tallmc.sample(posterior, zig_zag(step_size=2.0), progress=False)
    >>> path_moments(draws).mean.round(1) + 0.0
    array([ 1., -1.])
    """
    stats = getattr(draws, "sample_stats", {})
    if not {"path_mean", "path_variance"} <= set(stats):
        cure = "Use sample(posterior, zig_zag(...))."
        raise InvalidInput("draws", "be those of a process with paths", draws, cure)
    if not draws.ok.any():
        found = f"outcomes {[outcome.name for outcome in draws.outcomes]}"
        raise InvalidInput("draws", "have a chain that completed", found)
    means = np.asarray(stats["path_mean"], np.float64)[draws.ok]
    within = np.asarray(stats["path_variance"], np.float64)[draws.ok].mean(axis=(0, 1))
    between = moments(means)
    sd, error = np.sqrt(within + between.sd**2), between.sd / np.sqrt(ess(means))
    return PathMoments(between.mean, sd, error)


@named("Bierkens, Fearnhead and Roberts (2019), section 5")
def zig_zag(step_size: float, order: int = 2) -> ZigZag:
    """Zig-zag process with subsampling and control variates: exact, reads a few rows.

    `step_size` is the time between draws, in units in which a coordinate crosses one standard
    deviation of the anchor's Gaussian. `order` is the order of the control variates: 1, as in the
    paper, or 2, which reads fewer rows.
    """
    return ZigZag(step_size=step_size, order=order)
