"""The zig-zag process with subsampling and control variates."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._anchor.anchor import Anchor
from .._core.arrays import AbstractLinearMap, Matrix, Scalar, Vector, dot, on_device
from .._core.errors import InvalidInput, Outcome, check_int, check_number
from .._core.random import derived_keys, key_of, random_words, uniform_of
from .._core.statistics import ess, moments
from .._core.supervision import stage
from .._engine.kernel import AbstractKernel, ChainState, Drawn, Gathered, KernelStep
from .._rows.access import AbstractRows, PerRow
from .._rows.law import AbstractStream
from ..dynamics.dynamics import AbstractDynamicsState, Curvature, Suggestion
from ..geometry import Dense
from ..methods.abstract import AbstractAnchoredMethod
from ..methods.registry import named
from ..methods.subsampled.remainders import ModelRemainders
from ..models.design import RegressionRows
from ..models.generalised_linear import remainder, weighted
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..models.priors import AbstractPrior, JoinedPrior, NormalPrior, PriorOfEntries
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


# Switching rates of the zig-zag process with control variates.
#
# In coordinates u with θ = θ̂ + Cu the potential U has the derivatives
#
#     ∂_j U(u) = (a + Bu)_j + Σ_i w_ij s_i(u),   w_i = Cᵀx_i,   t = w_iᵀu
#
#     order 1   a = Cᵀ∇f(θ̂),  B = Cᵀ∇²f₀C,     s_i = f'(ẑ_i + t) − f'(ẑ_i)
#     order 2   a = Cᵀ∇f(θ̂),  B = Cᵀ∇²f(θ̂)C,   s_i = f'(ẑ_i + t) − f'(ẑ_i) − f''(ẑ_i)t
#
# with a Gaussian prior f₀, whose Hessian is constant. Order 1 is ZZ-CV of Bierkens, Fearnhead and
# Roberts (2019). Each term has a rate of its own:
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


class Rates(eqx.Module):
    """Rates of the anchor's terms and of the rows."""

    remainders: ModelRemainders
    linear: Vector  # a
    matrix: Matrix  # B
    stream: AbstractStream  # Rows in proportion to c_i
    total: Scalar  # Σc

    @property
    def metric(self) -> AbstractLinearMap:
        """C."""
        return self.remainders.metric

    def known(self, u: Vector, velocity: Vector) -> tuple[Vector, Vector]:
        """α and β: after a time t, v_j (a + B(u + vt))_j = α_j + β_j t."""
        start = velocity * (self.linear + dot(self.matrix, u))
        return start, velocity * dot(self.matrix, velocity)

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
    posterior: AbstractPosterior, anchor: Anchor, metric: AbstractLinearMap, order: int
) -> Rates:
    """The rates at the anchor; one pass over the rows."""
    model = posterior.model
    cure = "Use subsampled_mh(...), or mala(...)."
    if not model.one_predictor:
        rule = "be a generalised linear model with one predictor"
        raise InvalidInput("posterior", rule, type(model).__name__, cure)
    prior, likelihood = model.regression().prior, model.regression().likelihood
    if not _is_gaussian(prior):
        raise InvalidInput("posterior", "have a Gaussian prior", type(prior).__name__, cure)
    if not model.remainder_bound(order):
        rule = f"have rows whose derivatives of order {order + 1} are bounded"
        raise InvalidInput("posterior", rule, f"the {type(likelihood).__name__} family", cure)
    remainders = ModelRemainders.at(model, order, anchor, metric)
    assert anchor.hessian is not None and anchor.factor is not None, "the method needs a Hessian"
    factor = np.asarray(anchor.factor, np.float64)
    hessian = anchor.hessian if order == 2 else jax.hessian(model.prior_potential)(anchor.position)
    constants = posterior.rows.map(_constants, remainders, width=posterior.width)
    # A row of zeros never switches a velocity; the table needs a positive weight.
    positive = np.maximum(np.asarray(constants, np.float64), np.finfo(np.float32).tiny)
    positive = np.maximum(positive, 1e-9 * positive.mean())
    stream = posterior.rows.preferential_stream(
        positive, floor=0.0, certain_of=None, dtype=posterior.dtype
    ).stream
    return Rates(
        remainders=remainders,
        linear=on_device(factor.T @ np.asarray(anchor.gradient, np.float64), posterior.dtype),
        matrix=on_device(factor.T @ np.asarray(hessian, np.float64) @ factor, posterior.dtype),
        stream=stream,
        # The table rounds p_i: with this total, total · p_i ≥ c_i for every row.
        total=on_device(_ROUNDING * np.max(positive / stream.probabilities()), posterior.dtype),
    )


def _is_gaussian(prior: AbstractPrior) -> bool:
    if isinstance(prior, JoinedPrior | PriorOfEntries):
        return all(map(_is_gaussian, prior.parts))
    return isinstance(prior, NormalPrior)


def _constants(block: RegressionRows, remainders: ModelRemainders) -> PerRow:
    """c_i, from sup |f⁽ᵏ⁺¹⁾| ‖w_i‖ᵏ⁺¹."""
    sizes = jnp.abs(remainders.model.regression().columns(block).pulled(remainders.metric))
    length = jnp.maximum(jnp.linalg.norm(sizes, axis=1), jnp.finfo(sizes.dtype).tiny)
    return remainders.constants(block) * (jnp.sum(sizes, axis=1) / length)


# The step of the zig-zag process: a fixed time along its path.
#
# The position moves with velocity v ∈ {−1, 1}ᵈ in the coordinates u. Until a horizon, the rate of
# candidate rows is bounded by its value at the farther end: the norm is convex along a line. One
# pass of the loop draws the first switch of the known terms, in closed form, and a chunk of
# candidates. It moves to the first event, or to the horizon or the last candidate if there is none.
# The process has no memory, so the next pass draws everything anew.

# The longest time with one bound, in which a coordinate moves by 0.3 standard deviations.
HORIZON = 0.3
# A step that would read more rows ends early. This is counted, and ends the claim of exactness.
_MOST_ROWS = 2**22


class ZigZagState(AbstractDynamicsState):
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


class ZigZagKernel(AbstractKernel):
    """Follows the path of the zig-zag process for a fixed time."""

    rates: Rates
    schedule: AbstractSchedule
    rest: Vector
    chunk: int = eqx.field(static=True)  # Candidates that are drawn at once

    @property
    def model(self) -> AbstractModel:
        return self.rates.remainders.model

    rows_per_step = None
    most_rows = _MOST_ROWS

    def broken_claim(self, chains: ChainState) -> str | None:
        exceeded, unfinished = (
            int(np.asarray(counts, np.int64).sum())
            for counts in (chains.carried.exceeded, chains.carried.unfinished)
        )
        if exceeded:
            worst = float(np.max(chains.carried.worst))
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
        none = jnp.zeros(len(positions), jnp.int32)
        return RateBreaches(none, jnp.zeros(len(positions), positions.dtype), none)

    def init(
        self,
        key: PRNGKeyArray,
        position: Vector,
        carried: RateBreaches,
        gathered: Gathered,
        rows: AbstractRows,
    ) -> ChainState:
        u = self.rates.metric.solve(position - self.rates.remainders.anchor)
        velocity = jax.random.rademacher(key, u.shape, u.dtype)
        return ChainState(ZigZagState(position, u, velocity), carried)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        return Drawn(key_of(random_words(key, (steps,))), None)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        motion, carried = state.motion, state.carried
        time = self.schedule(step).astype(motion.position.dtype)
        keys = derived_keys(gathered.selection, 4)
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
        position = anchor + self.rates.metric.push(flown.u)
        unfinished = carried.unfinished + (flown.left > 0).astype(jnp.int32)
        breaches = RateBreaches(flown.breaches.exceeded, flown.breaches.worst, unfinished)
        return KernelStep(
            ChainState(ZigZagState(position, flown.u, flown.velocity), breaches),
            stats,
            jnp.int32(Outcome.OK),
            jnp.zeros_like(position),
        )

    def _advance(self, flight: _Flight, keys: Array, rows: AbstractRows) -> _Flight:
        """Move to the first event, or as far as the draws of one pass reach."""
        rates, u, velocity, chunk = self.rates, flight.u, flight.velocity, self.chunk
        known_key, rows_key, coins_key, coordinates_key = keys
        dim, dtype, first = len(u), u.dtype, flight.passes * chunk
        exponentials = -jnp.log(
            uniform_of(random_words(known_key, (dim,), flight.passes * dim)[:, 0], dtype)
        )
        switches = first_arrivals(*rates.known(u, velocity), exponentials)
        # The bound must not depend on the switches: a pass that ends at its last candidate draws
        # them anew, and would do so more often for late ones.
        horizon = jnp.minimum(flight.left, HORIZON)
        farthest = jnp.maximum(jnp.linalg.norm(u), jnp.linalg.norm(u + velocity * horizon))
        bound = rates.bound(farthest)
        horizon = jnp.minimum(horizon, jnp.min(switches))

        coins = random_words(coins_key, (chunk,), first)
        arrivals = jnp.cumsum(-jnp.log(uniform_of(coins[:, 0], dtype))) / bound
        before = arrivals < horizon
        draws = rates.stream.draw(rows_key, (chunk,), first)
        at = u + velocity * jnp.where(before, arrivals, 0)[:, None]
        of_rows = rates.of_rows(at, rows.take(draws.indices))
        words = random_words(coordinates_key, (chunk,), first)
        coordinates = of_rows.coordinates(uniform_of(words[:, 0], dtype))
        caps = bound / draws.weights
        switching = of_rows.switching(velocity, coordinates)
        kept = before & (uniform_of(coins[:, 1], dtype) * caps < switching)
        row_switches, chosen = jnp.any(kept), jnp.argmax(kept)

        # Without a kept candidate the path is known up to the last one, or up to the horizon.
        reached = jnp.minimum(arrivals[-1], horizon)
        time = jnp.where(row_switches, arrivals[chosen], reached)
        known_switches = ~row_switches & (time == jnp.min(switches))
        coordinate = jnp.where(row_switches, coordinates[chosen], jnp.argmin(switches))
        switched = row_switches | known_switches
        reverse = switched & (jnp.arange(dim) == coordinate)
        used = before & (arrivals <= time)
        move, move_velocity = rates.metric.push(jnp.stack([u, velocity]))
        ratio = jnp.where(used, of_rows.largest / caps, 0)
        return _Flight(
            u=u + velocity * time,
            velocity=jnp.where(reverse, -velocity, velocity),
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


_SUGGESTED_TIME = 2.0
_MOST_CHUNK = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZigZag(AbstractAnchoredMethod):
    """The zig-zag process, for logistic, probit, binomial and linear regression, Gaussian priors.

    In the coordinates of the Laplace approximation, the position moves on a straight line with
    velocity v ∈ {−1, 1}ᵈ. Coordinates of v change their sign at random times, whose rates leave the
    posterior invariant:

        du/dt = v,   v_j → −v_j at the rate λ_j(u, v),   λ_j(u, v) − λ_j(u, F_j v) = v_j ∂_j U(u)

    A step follows the path for the time `step_size`. The position at its end is the draw. Averages
    along the path are recorded too, without any error of discretisation: `path_moments` reads them.
    """

    paper = "Bierkens, Fearnhead and Roberts (2019)"
    bias = "None, at any step size, which is only the time between draws."
    cost = (
        "A pass over the rows for c_i, and then about Σc E‖u‖ᵏ/k! rows per unit of time, with the "
        "order k. This number does not depend on N with order 1, the order of the paper, and falls "
        "as N^(−1/2) with order 2. It is proportional to d² with order 1 and to d³ with order 2."
    )
    exact = True

    step_size: float
    order: int = 2

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, 0, low_open=True)
        check_int("order", self.order, 1, 2)

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": "zig-zag process",
            "gradient": f"control variates of order {self.order}",
            "subsample": "thinned rows",
            "size": "Poisson",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        rule = "the time in which a coordinate crosses two standard deviations"
        return Suggestion(_SUGGESTED_TIME, rule, 1.0, 1.0)

    def kernel_at(self, posterior: AbstractPosterior, anchor: Anchor) -> tuple[ZigZagKernel, int]:
        metric = Dense().prepare(posterior, anchor)
        stage("bounding the rows")
        rates = prepare_rates(posterior, anchor, metric, self.order)
        kernel = ZigZagKernel(
            rates=rates,
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
            chunk=_chunk(rates, posterior.dim),
        )
        return kernel, posterior.n_rows


def _chunk(rates: Rates, dim: int) -> int:
    """About the number of candidates until the known terms switch a velocity.

    For v_j u_j standard normal, (v_j u_j)₊ has the mean 1/√2π.
    """
    per_time = float(rates.bound(jnp.full((), math.sqrt(dim), rates.total.dtype)))
    mean = per_time / (dim / math.sqrt(2 * math.pi) + 1 / HORIZON)
    return min(max(2, math.ceil(mean + math.sqrt(mean))), _MOST_CHUNK)


# Exact averages along the paths of a zig-zag run.
#
# A draw of `ZigZag` records the mean and the variance of its piece of the path. Over all pieces,
#
#     mean = average of the means,   sd² = average of the variances + variance of the means.
#
# Both are integrals along the path, without an error of discretisation: Monte-Carlo error remains.


class PathMoments(NamedTuple):
    """Averages along paths, per parameter."""

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]
    mean_error: Float[np.ndarray, " d"]
    """The Monte-Carlo standard error of `mean`."""


def path_moments(draws: Draws) -> PathMoments:
    """Means and sds of the parameters, as exact averages along the paths of a zig-zag run.

    **Arguments:**

    - `draws`: draws of `zig_zag(...)`. Thinned draws hold the last piece of the path before
      each draw only.

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
        raise InvalidInput("draws", "be those of a zig-zag process", draws, cure)
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
