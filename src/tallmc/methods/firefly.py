"""Firefly Monte Carlo: exact draws from a few rows per step, with a lower bound per row."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key, PRNGKeyArray, PyTree, UInt32

from .._anchor.anchor import Anchor, AnchorLevel
from .._core.arrays import Matrix, Scalar, Vector, dot
from .._core.errors import InvalidInput, check_number
from .._core.random import random_words
from .._engine.kernel import AbstractKernel, ChainState, Drawn, Gathered, KernelStep, NewChain
from .._rows.access import AbstractRows, PerRow, RowBlock
from .._rows.law import Batch, uniform_index
from .._rows.passes import Sum
from .._rows.resident import ResidentRows
from ..dynamics import MALA, RandomWalk
from ..dynamics.dynamics import AbstractDynamics, Curvature, PositionState, Suggestion
from ..geometry import GeometryChoice, Identity
from ..models.design import Observations
from ..models.model import AbstractModel, rounded_sum
from ..models.posterior import AbstractPosterior
from ..schedule import AbstractSchedule, as_schedule, in_precision
from ..subsample.selection import Carried, Estimate, Transition
from .abstract import AbstractAnchoredMethod, AtAnchor, labels
from .method import StepSize

# The brightness of the rows, one bit per row, and a lookup of the bright rows by rank.
#
# The only cost that grows with the number of rows is a count over words of 32 rows each.

WORD = 32


class BrightRows(eqx.Module):
    """The bits z with their cumulative counts."""

    words: UInt32[Array, " words"]  # z, 32 rows per word
    upto: Int[Array, " words"]  # Number of bright rows up to and including each word

    @classmethod
    def of(cls, words: UInt32[Array, " words"]) -> BrightRows:
        """Count the bits of these words."""
        counts = lax.population_count(words).astype(jnp.int32)
        return cls(words, lax.associative_scan(jnp.add, counts))

    @property
    def count(self) -> Int[Array, ""]:
        """Number of bright rows."""
        return self.upto[-1]

    def rows(self, ranks: Int[Array, " k"]) -> Int[Array, " k"]:
        """The row numbers of the bright rows of these ranks from 0; arbitrary beyond the last."""
        found = jnp.searchsorted(self.upto, ranks, side="right")
        word_number = jnp.minimum(found, len(self.words) - 1).astype(jnp.int32)
        word = self.words[word_number]
        before = self.upto[word_number] - lax.population_count(word).astype(jnp.int32)
        rank_in_word = ranks - before
        masks = jnp.uint32(2**WORD - 1) >> jnp.arange(WORD - 1, -1, -1, dtype=jnp.uint32)
        counts = lax.population_count(word[:, None] & masks).astype(jnp.int32)
        bit = jnp.sum(counts <= rank_in_word[:, None], axis=1, dtype=jnp.int32)
        return WORD * word_number + bit


def pack(bits: Bool[Array, " n"]) -> UInt32[Array, " words"]:
    """Pack 32 bits per word, the first into the lowest bit."""
    shifts = jnp.arange(WORD, dtype=jnp.uint32)
    return jnp.sum(bits.reshape(-1, WORD).astype(jnp.uint32) << shifts, axis=1, dtype=jnp.uint32)


# A lower bound on the likelihood of each row, as Firefly Monte Carlo uses it.
#
# A bound B_i ≤ L_i is useful if Σ log B_i costs nothing per row. Then the step needs the rows only
# through the gaps g_i = log L_i − log B_i ≥ 0 of some rows:
#
#     P(z_i = 1 | θ) = 1 − e^−g_i,   −log((L_i − B_i)/B_i) = −g_i − log(1 − e^−g_i).


class AbstractBound(eqx.Module):
    """The prior times Π B_i, and the gaps between likelihoods and bounds."""

    model: eqx.AbstractVar[AbstractModel]
    anchor: eqx.AbstractVar[Vector]  # θ̂, where the bound is tight

    @abc.abstractmethod
    def known(self, position: Vector) -> tuple[Scalar, Vector]:
        """−log p(θ) − Σ log B_i(θ), up to a constant, and its gradient. Reads no rows."""

    @abc.abstractmethod
    def gaps(self, position: Vector, block: RowBlock) -> PerRow:
        """g_i = log L_i − log B_i, positive."""

    @abc.abstractmethod
    def sum_gap_gradients(self, position: Vector, block: RowBlock, weights: PerRow) -> Vector:
        """Σ w_i ∇g_i(θ)."""

    def chance_bright(self, position: Vector, block: RowBlock) -> PerRow:
        """P(z_i = 1 | θ) = 1 − B_i/L_i."""
        return -jnp.expm1(-self.gaps(position, block))

    def bright_sum(
        self, position: Vector, block: RowBlock, used: Bool[Array, " n"]
    ) -> tuple[Scalar, Vector]:
        """−Σ log((L_i − B_i)/B_i) over the used rows, and its gradient."""
        gaps = self.gaps(position, block)
        chance = -jnp.expm1(-gaps)
        terms = jnp.where(used, -gaps - jnp.log(chance), 0)
        weights = jnp.where(used, -1 / chance, 0)
        return jnp.sum(terms), self.sum_gap_gradients(position, block, weights)


# Taylor expansions of the rows at the anchor, with a bound of the user's on their remainders.
#
#     R_i(θ) = f_i(θ) − f_i(θ̂) − ∇f_i(θ̂)ᵀδ − ½ δᵀ∇²f_i(θ̂)δ,   δ = θ − θ̂,   |R_i| ≤ c_iᵀφ(θ̂, θ)
#
# c_i are constants of the row, and φ is a function that all rows share. R_i is of third order and
# the difference of numbers of order 1: it needs double precision.

_ROUNDING = 64
"""Rounding errors of a remainder, in units of the machine precision times its largest term."""
_CHECKED_DISTANCE = 4.0
"""The bound is checked at so many posterior standard deviations from the anchor."""

RowConstants = Callable[[PyTree, PyTree], ArrayLike]
"""c_i from the parameters at the anchor and one row, a vector of k numbers."""
Growth = Callable[[PyTree, PyTree], ArrayLike]
"""φ from the parameters at the anchor and the parameters, a vector of k numbers."""


class RowRemainders(NamedTuple):
    """R_i and c_iᵀφ of some rows at a position, and how large the rounding errors can be."""

    values: PerRow
    bounds: PerRow
    rounding: PerRow


class BoundedExpansion(eqx.Module):
    """Expansions of order 2 at the anchor, and the bound on their remainders."""

    model: AbstractModel
    anchor: Vector
    constants: RowConstants
    growth: Growth

    def remainders(self, position: Vector, block: RowBlock) -> RowRemainders:
        delta = position - self.anchor

        def potentials(at: Vector) -> PerRow:
            return self.model.row_potentials(at, block)

        def along_delta(at: Vector) -> tuple[PerRow, PerRow]:
            return jax.jvp(potentials, (at,), (delta,))

        (value, slope), (_, curvature) = jax.jvp(along_delta, (self.anchor,), (delta,))
        parts = jnp.stack([potentials(position), -value, -slope, -curvature / 2])
        bounds = dot(self.constants_of(block), self.growth_at(position))
        largest = jnp.maximum(jnp.max(jnp.abs(parts), axis=0), jnp.abs(bounds))
        precision = _ROUNDING * jnp.finfo(position.dtype).eps
        return RowRemainders(jnp.sum(parts, axis=0), bounds, precision * largest)

    def constants_of(self, block: RowBlock) -> Float[Array, "n k"]:
        """c_i."""
        centre = self.model.layout.unravel(self.anchor)
        constants = jax.vmap(lambda row: jnp.asarray(self.constants(centre, row)))(block)
        return constants.astype(self.anchor.dtype)

    def growth_at(self, position: Vector) -> Float[Array, " k"]:
        """φ(θ̂, θ)."""
        unravel = self.model.layout.unravel
        growth = jnp.asarray(self.growth(unravel(self.anchor), unravel(position)))
        return growth.astype(position.dtype)


def check_near_anchor(
    expansion: BoundedExpansion, posterior: AbstractPosterior, hessian: Matrix, *, both_sides: bool
) -> int:
    """Raise if R_i, or |R_i| for `both_sides`, exceeds its bound near the anchor.

    Checks all rows along the eigenvectors of the `hessian` of the posterior's potential, and
    returns the number of rows evaluated.
    """
    curvatures, directions = np.linalg.eigh(np.asarray(hessian))
    sds = 1 / np.sqrt(np.maximum(curvatures, np.finfo(float).tiny))
    moves = _CHECKED_DISTANCE * (directions * np.minimum(sds, 1.0)).T
    for move in np.concatenate([moves, -moves]):
        position = expansion.anchor + move
        row = posterior.rows.first_where(
            _exceeds, expansion, position, both_sides, width=posterior.width
        )
        if row is not None:
            task = "bound every remainder" if both_sides else "be below every likelihood"
            place = ", ".join(f"{number:.4g}" for number in np.asarray(position))
            rule = f"{task}: |log L_i − expansion| ≤ c_iᵀφ"
            raise InvalidInput("bound", rule, f"more for row {row} at ({place})")
    return 2 * len(moves) * posterior.n_rows


def _exceeds(
    block: RowBlock, expansion: BoundedExpansion, position: Vector, both_sides: bool
) -> Bool[Array, " n"]:
    found = expansion.remainders(position, block)
    values = jnp.abs(found.values) if both_sides else found.values
    return values > found.bounds + found.rounding


# A lower bound on any likelihood: its Taylor expansion at the anchor, less a bound on the rest.
#
# With ℓ_i = log L_i and δ = θ − θ̂, Bardenet, Doucet and Holmes (2017) use
#
#     log B_i(θ) = ℓ_i(θ̂) + ∇ℓ_i(θ̂)ᵀδ + ½ δᵀ∇²ℓ_i(θ̂)δ − c_iᵀφ(θ̂, θ),
#
# where c_iᵀφ ≥ |ℓ_i − its expansion| is the bound above. The sum over all rows then
# needs only Σ∇ℓ_i(θ̂), Σ∇²ℓ_i(θ̂) and Σc_i. An example is c_i = sup ‖∇³ℓ_i‖ and φ = ‖δ‖³/6.


class TaylorBound(AbstractBound):
    """A Taylor expansion of order 2 less a bound on its remainder."""

    model: AbstractModel
    anchor: Vector
    expansion: BoundedExpansion
    gradient: Vector  # −Σ ∇ℓ_i(θ̂)
    hessian: Matrix  # −Σ ∇²ℓ_i(θ̂)
    total: Float[Array, " k"]  # Σ c_i

    def known(self, position: Vector) -> tuple[Scalar, Vector]:
        def collapsed(at: Vector) -> Scalar:
            delta = at - self.anchor
            expansion = dot(self.gradient + dot(self.hessian, delta) / 2, delta)
            remainder = dot(self.total, self.expansion.growth_at(at))
            return self.model.prior_potential(at) + expansion + remainder

        return jax.value_and_grad(collapsed)(position)

    def gaps(self, position: Vector, block: RowBlock) -> PerRow:
        found = self.expansion.remainders(position, block)
        # A row with no gap is never bright. The floor keeps its logarithm finite.
        return jnp.maximum(found.bounds - found.values, jnp.finfo(position.dtype).eps ** 2)

    def sum_gap_gradients(self, position: Vector, block: RowBlock, weights: PerRow) -> Vector:
        remainders = self.model.sum_remainders(2, position, self.anchor, Batch(block, weights))
        constants = dot(weights, self.expansion.constants_of(block))
        growth = self.expansion.growth_at
        return jax.grad(lambda at: dot(constants, growth(at)))(position) - remainders


@dataclasses.dataclass(frozen=True)
class Taylor:
    """A Taylor expansion of order 2 at the anchor, and a bound c_iᵀφ on its remainder.

    `FlyMC` and `SubsampledMH` are exact if |log L_i − expansion| ≤ c_iᵀφ for all rows and
    parameters. This is checked four posterior standard deviations from the anchor, along d
    directions; elsewhere it is up to you. Unless you have proved it (`is_proved`), draws are "not
    checked". The smaller c_iᵀφ, the fewer rows a step reads.

    **Arguments:**

    - `constants`: `constants(anchor, row)`, the vector c_i of one row, of non-negative numbers.
      `anchor` has the structure of the parameters.
    - `growth`: `growth(anchor, params)`, the vector φ of the same length.
    - `is_proved`: whether the inequality is known to hold for all rows and parameters.
    """

    constants: RowConstants
    growth: Growth
    is_proved: bool = False

    def __post_init__(self) -> None:
        for name in ("constants", "growth"):
            if not callable(getattr(self, name)):
                raise InvalidInput(name, "be a function", getattr(self, name))

    def check(self, posterior: AbstractPosterior) -> None:
        """Raise `InvalidInput` if there is no such bound for this posterior."""
        if posterior.dtype != np.float64:
            rule = "be in double precision for a Taylor bound, whose remainders are of third order"
            cure = 'Call jax.config.update("jax_enable_x64", True) first.'
            raise InvalidInput("posterior", rule, str(posterior.dtype), cure)
        anchor = jax.eval_shape(posterior.layout.unravel, posterior.init)
        row = posterior.rows.row_shapes
        found = jax.eval_shape(lambda at, row: jnp.asarray(self.constants(at, row)), anchor, row)
        growth = jax.eval_shape(lambda at: jnp.asarray(self.growth(at, at)), anchor)
        if growth.ndim != 1 or found.shape != growth.shape:
            rule = "return vectors of the same length from `constants` and `growth`"
            raise InvalidInput("bound", rule, f"shapes {found.shape} and {growth.shape}")

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor) -> tuple[TaylorBound, int]:
        """The bound that is tight at the anchor, and how many rows were evaluated to find it."""
        model, centre = posterior.model, anchor.position
        expansion = BoundedExpansion(model, centre, self.constants, self.growth)
        hessian, total = posterior.rows.reduce(
            _hessian_and_constants, expansion, width=posterior.width, finish=rounded_sum
        )
        of_posterior = hessian + jax.hessian(model.prior_potential)(centre)
        checked = check_near_anchor(expansion, posterior, of_posterior, both_sides=False)
        gradient = anchor.gradient - model.prior_gradient(centre)
        bound = TaylorBound(model, centre, expansion, gradient, hessian, total)
        return bound, posterior.n_rows + checked


def _hessian_and_constants(
    block: RowBlock, counted: Bool[Array, " n"], expansion: BoundedExpansion
) -> tuple[Matrix, Float[Array, " k"]]:
    weights = counted.astype(expansion.anchor.dtype)
    hessian = expansion.model.block_hessian(expansion.anchor, block, weights)
    constants = expansion.constants_of(block)
    return hessian, jnp.sum(jnp.where(counted[:, None], constants, 0), axis=0)


# Taylor bounds for x_i ~ N(μ, σ²) with the parameters μ and λ = log σ.
#
# With s = (x − μ̂)/σ̂, a = (μ − μ̂)/σ̂ and b = λ − λ̂, log L = −λ − ½ (s − a)² e^−2b. The remainder
# of its expansion of order 2 in (a, b) is
#
#     −½ s² (e^−2b − 1 + 2b − 2b²) + s a (e^−2b − 1 + 2b) − ½ a² (e^−2b − 1).
#
# The absolute values of the three terms bound it at all parameters: c = (½s², |s|, ½).


def gaussian_bound() -> Taylor:
    """The Taylor bound of Gaussian rows, with constants per row.

    **Returns:** a `Taylor` for a posterior whose rows are numbers and whose parameters are the
    pair (μ, log σ), a tuple.
    """
    return Taylor(_row_constants, _growth, is_proved=True)


def _row_constants(anchor: Any, x: Scalar) -> Float[Array, " 3"]:
    s = (x - anchor[0]) * jnp.exp(-anchor[1])
    return jnp.stack([s**2 / 2, jnp.abs(s), jnp.full_like(s, 0.5)])


def _growth(anchor: Any, params: Any) -> Float[Array, " 3"]:
    a, b = (params[0] - anchor[0]) * jnp.exp(-anchor[1]), params[1] - anchor[1]
    first = jnp.expm1(-2 * b)
    second = first + 2 * b
    third = second - 2 * b**2
    return jnp.stack([jnp.abs(third), jnp.abs(a * second), a**2 * jnp.abs(first)])


# A lower bound on the logistic likelihood, Gaussian in the parameters and tight at the anchor.
#
# With m = xᵀθ̂ and u = xᵀ(θ − θ̂), the bound of Jaakkola and Jordan (1997) on L = σ(s), s = ±xᵀθ,
# that is tight at θ̂ has log B = a s² + s/2 + c, a = −tanh(m/2)/4m. Since log L and log B have the
# same value and slope at θ̂, for δ = θ − θ̂
#
#     −Σ_i log B_i(θ) = const + Σ_i ∇f_i(θ̂)ᵀδ + ½ δᵀPδ,
#     P = Σ_i (r_i/2) x_i x_iᵀ,   r = tanh(m/2)/m.
#
# For either response log L − log B is, for u ≥ 0 (otherwise flip the signs of m and u),
#
#     g = r u²/4 − q u − log(1 + q (e^−u − 1)) ≥ 0,   q = 1/(1 + e^m).
#
# Near the anchor the gap g is of order u². Its rounding error in this form is the machine precision
# times a number of order u.


class TangentBound(AbstractBound):
    """The bound of a logistic regression: Π B_i is one Gaussian, and the prior stays as it is."""

    model: AbstractModel
    anchor: Vector
    gradient: Vector  # Σ ∇f_i(θ̂)
    precision: Matrix  # P, of the rows

    def known(self, position: Vector) -> tuple[Scalar, Vector]:
        delta = position - self.anchor
        change = dot(self.precision, delta)
        of_rows = dot(self.gradient + change / 2, delta)
        prior = self.model.prior_potential(position), self.model.prior_gradient(position)
        return prior[0] + of_rows, prior[1] + self.gradient + change

    def gaps(self, position: Vector, block: Observations) -> PerRow:
        return gap(*self._predictors(position, block))[0]

    def sum_gap_gradients(self, position: Vector, block: Observations, weights: PerRow) -> Vector:
        return self.model.combine(gap(*self._predictors(position, block))[1], block, weights)

    def _predictors(self, position: Vector, block: Observations) -> tuple[PerRow, PerRow]:
        """M and u."""
        x = self.model.regression().columns(block)
        predictors = x @ jnp.stack([self.anchor, position - self.anchor], axis=1)
        return predictors[:, 0], predictors[:, 1]


def gap(m: PerRow, u: PerRow) -> tuple[PerRow, PerRow]:
    """Log L − log B at m + u for the bound that is tight at m, and its derivative in u."""
    sign = jnp.where(u < 0, -1, 1).astype(u.dtype)
    m, u = sign * m, sign * u
    r, q = _slope_ratio(m), jax.nn.sigmoid(-m)
    change = q * jnp.expm1(-u)
    # For q near 1, where m < 0, 1 + change is a rounding error. The other branch computes
    # log(1 + e^(−m−u)) − log(1 + e^−m) instead.
    is_accurate = change > -0.5
    other = q * (1 + jnp.exp(-jnp.abs(m + u))) - 1
    logarithm = jnp.log1p(jnp.where(is_accurate, change, other))
    logarithm = jnp.where(is_accurate, 0, jnp.maximum(m, -u)) + logarithm
    # A row with u = 0 is never bright. The floor keeps its logarithm finite and is far below the
    # rounding error.
    floor = jnp.finfo(u.dtype).eps ** 2
    slope = sign * (r * u / 2 - q + jax.nn.sigmoid(-m - u))
    return jnp.maximum(r * u**2 / 4 - q * u - logarithm, floor), slope


def _slope_ratio(m: PerRow) -> PerRow:
    """tanh(m/2)/m."""
    small = jnp.abs(m) < 1e-4
    return jnp.where(small, 0.5 - m**2 / 24, jnp.tanh(m / 2) / jnp.where(small, 1, m))


@dataclasses.dataclass(frozen=True)
class Tangent:
    """The Gaussian bound of Jaakkola and Jordan, tight at the anchor; logistic regression."""

    is_proved = True

    def check(self, posterior: AbstractPosterior) -> None:
        model = posterior.model
        if not model.one_predictor or not model.regression().likelihood.is_logistic:
            rule = (
                "be a logistic regression for FlyMC, "
                "which needs a tight lower bound on each likelihood"
            )
            cure = (
                "Use tallmc.models.logistic_regression, FlyMC(bound=Taylor(...)), "
                "or mala(...) for other models."
            )
            found = type(posterior).__name__
            if model.one_predictor:
                found = f"the {type(model.regression().likelihood).__name__} family"
            raise InvalidInput("posterior", rule, found, cure)
        shapes = posterior.rows.row_shapes
        if shapes.offset is not None or shapes.weight is not None:
            raise InvalidInput("posterior", "have no weights or offsets for FlyMC", "some")

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor) -> tuple[TangentBound, int]:
        model, at = posterior.model, anchor.position
        precision = posterior.rows.reduce(_bound_curvature, model, at, width=posterior.width)
        gradient = anchor.gradient - model.prior_gradient(at)
        return TangentBound(model, at, gradient, precision.rounded()), posterior.n_rows


def _bound_curvature(
    block: Observations, counted: Bool[Array, " n"], model: AbstractModel, position: Vector
) -> Matrix:
    """Σ (r_i/2) x_i x_iᵀ."""
    x = model.regression().columns(block)
    return x.gram(jnp.where(counted, _slope_ratio(x @ position), 0) / 2)


BoundChoice = Tangent | Taylor


# The step of Firefly Monte Carlo: the brightness given the position, and the reverse.
#
# Both parts of a step take the gaps from one function. Rounding in float32 therefore perturbs
# log p(θ | rows) by the sum of the errors of the gaps and nothing else.

_RING_CHUNK = 512
_BRIGHT_CHUNK = 64


class Ring(eqx.Module):
    """Consecutive rows, where row 0 follows row N − 1."""

    start: Int[Array, "*steps"]  # First row
    key: Key[Array, "*steps"]  # Key for the new brightness of the rows


class FireflyKernel(AbstractKernel):
    """Updates the brightness given the position, then the position given the brightness."""

    bound: AbstractBound
    dynamics: AbstractDynamics
    schedule: AbstractSchedule
    rest: Vector
    ring_size: int = eqx.field(static=True)
    n_rows: int = eqx.field(static=True)

    @property
    def model(self) -> AbstractModel:
        return self.bound.model

    rows_per_step = None

    @property
    def most_rows(self) -> int:
        return self.ring_size + 2 * self.n_rows

    def rows_at_start(self) -> int:
        return self.n_rows

    def init(self, new: NewChain, rows: AbstractRows) -> ChainState:
        # A chunk can start in any word. Words beyond row N that the last chunk reaches stay dark.
        dark = jnp.zeros(-(-self.n_rows // WORD) + _RING_CHUNK // WORD, jnp.uint32)
        everywhere = Ring(jnp.int32(0), new.key)
        words = self._chain_by_chain(
            lambda kernel, *args: kernel.resample(*args, kernel.n_rows),
            *(rows, dark, new.position, everywhere),
        )
        return ChainState(PositionState(new.position), words)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        start_key, step_key, noise_key = jax.random.split(key, 3)
        starts = uniform_index(random_words(start_key, (steps,)), jnp.uint32(self.n_rows))
        ring_keys, dynamics_keys = jax.random.split(step_key, (2, steps))
        noise = self.dynamics.noise(noise_key, steps, self.model.init)
        return Drawn(Ring(starts, ring_keys), (dynamics_keys, noise))

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        return self._chain_by_chain(FireflyKernel.step_of_one, rows, state, gathered, step)

    def step_of_one(
        self, rows: ResidentRows, state: ChainState, gathered: Gathered, step: Int[Array, ""]
    ) -> KernelStep:
        """Take one step of one chain: z given θ, then θ given z."""
        words = self.resample(
            rows, state.carried, state.position, gathered.selection, self.ring_size
        )
        bright = BrightRows.of(words)
        key, noise = gathered.noise

        def evaluate(at: Vector, transition: Transition | None) -> Estimate:
            return self.evaluate(at, bright, rows)

        motion = self.dynamics.init(key, state.position, evaluate)
        step_size = self.schedule(step).astype(state.position.dtype)
        moved = self.dynamics.step(motion, evaluate, step_size, noise)
        stats = {
            "batch_size": self.ring_size + 2 * bright.count,
            "bright_rows": bright.count,
            **moved.stats,
        }
        new = ChainState(PositionState(moved.state.position), bright.words)
        return KernelStep(new, stats, jnp.int32(moved.outcome), moved.estimate.gradient)

    def evaluate(self, position: Vector, bright: BrightRows, rows: ResidentRows) -> Estimate:
        """Return −log p(θ, z), up to a constant, and its gradient in θ, from the bright rows."""

        def add_chunk(chunk: Array, total: Sum) -> Sum:
            ranks = chunk * _BRIGHT_CHUNK + jnp.arange(_BRIGHT_CHUNK)
            used = ranks < bright.count
            block = rows.take(jnp.where(used, bright.rows(ranks), 0))
            return total.plus(self.bound.bright_sum(position, block, used))

        zero = (jnp.zeros((), position.dtype), jnp.zeros_like(position))
        total = lax.fori_loop(0, -(-bright.count // _BRIGHT_CHUNK), add_chunk, Sum(zero, zero))
        known, gradient = self.bound.known(position)
        potential = Sum(total.high[0], total.low[0] + known)
        return Estimate(total.rounded()[1] + gradient, bright.count, Carried(), potential=potential)

    def resample(
        self,
        rows: ResidentRows,
        words: UInt32[Array, " words"],
        position: Vector,
        ring: Ring,
        size: int,
    ) -> UInt32[Array, " words"]:
        """Redraw the brightness of `size` rows from `ring.start` on, in chunks of whole words."""
        n_rows = self.n_rows
        readable = min(_RING_CHUNK, n_rows)

        def draw_chunk(carry: Any) -> Any:
            chunk, row, left, words = carry
            first = row // WORD * WORD
            readable_from = jnp.minimum(first, n_rows - readable)
            block = rows.neighbours(readable_from, readable)
            chance = jnp.pad(self.bound.chance_bright(position, block), (0, _RING_CHUNK - readable))
            chance = jnp.roll(chance, readable_from - first)
            key = jax.random.fold_in(ring.key, chunk)
            bright = _fine_uniform(key, _RING_CHUNK, chance.dtype) < chance
            end = jnp.minimum(jnp.minimum(row + left, first + _RING_CHUNK), n_rows)
            numbers = first + jnp.arange(_RING_CHUNK)
            drawn = (numbers >= row) & (numbers < end)
            old = lax.dynamic_slice_in_dim(words, first // WORD, _RING_CHUNK // WORD)
            new = (old & ~pack(drawn)) | pack(drawn & bright)
            words = lax.dynamic_update_slice_in_dim(words, new, first // WORD, 0)
            return chunk + 1, end % n_rows, left - (end - row), words

        carry = (jnp.int32(0), ring.start, jnp.int32(size), words)
        return lax.while_loop(lambda carry: carry[2] > 0, draw_chunk, carry)[3]

    def _chain_by_chain(self, method: Callable[..., Any], rows: AbstractRows, *args: Any) -> Any:
        """Return `method(self, rows, *args)`, under vmap computed for one chain after another.

        Each chain then pays for its own bright rows, not for the largest number in any chain.
        """
        assert isinstance(rows, ResidentRows), "checked when the method was prepared"
        arrays, static = eqx.partition((self, rows), eqx.is_array)

        @sequential_vmap
        def of_one_chain(arrays, args):  # type: ignore[no-untyped-def]
            kernel, rows = eqx.combine(arrays, static)
            return method(kernel, rows, *args)

        return of_one_chain(arrays, args)


def _fine_uniform(key: PRNGKeyArray, count: int, dtype: Any) -> Float[Array, " count"]:
    """Return (w + v)/2³² with one random word w per entry and one v ∈ [0, 1] for all.

    This resolution is needed, because most chances of being bright are far below 2⁻²⁴. v matters
    only for a row whose chance lies between w/2³² and (w + 1)/2³². The probability that v matters
    for two rows of a chunk is 2⁻⁴⁷.
    """
    words = random_words(key, (count // 2 + 1,)).reshape(-1).astype(dtype)
    return (words[:count] + words[count] * 2.0**-32) * 2.0**-32


_PROPOSALS = {"random-walk": RandomWalk(), "langevin": MALA()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlyMC(AbstractAnchoredMethod):
    """Firefly Monte Carlo, for `logistic_regression`, or any model with a bound of yours.

    Each likelihood L_i has a lower bound B_i, and each row a brightness z_i ∈ {0, 1}. The joint
    density

        p(θ, z) ∝ p(θ) Π_i B_i(θ) Π_{z_i=1} (L_i(θ) − B_i(θ)) / B_i(θ)

    has the posterior as its marginal, since the sum over z_i of row i's factors is L_i. A step

        1. redraws z_i, P(z_i = 1 | θ) = 1 − B_i/L_i, for ⌈fraction · N⌉ consecutive rows that begin
           at a random row (a ring);
        2. moves θ given z by an exact dynamics, random-walk Metropolis or MALA, which needs only
           the bright rows.

    The bound is tight at the anchor: near the anchor few rows are bright. Given z, the bright rows
    pull θ away from the anchor: their factors are nearly 0 there. With many bright rows of which
    each step redraws few, θ and z are strongly dependent and the chain is slow. A bound that is
    equally loose for all rows makes too many rows bright.
    """

    paper = "Maclaurin and Adams (2014)"
    bias = (
        "None: the step size, the fraction and the anchor only decide how fast the chain mixes. A "
        "bound of the user's must hold."
    )
    cost = (
        "Preparing the bound takes one pass or a few. A step touches the rows of the ring once and "
        "the bright rows twice, at θ and at the proposal. To find them, it counts N bits."
    )

    step_size: StepSize
    fraction: float = 0.1
    proposal: str = "langevin"
    geometry: GeometryChoice = dataclasses.field(default_factory=Identity)
    bound: BoundChoice | None = None

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        check_number("fraction", self.fraction, 0, 1, low_open=True)
        if self.proposal not in _PROPOSALS:
            rule = f"be one of {', '.join(map(repr, _PROPOSALS))}"
            raise InvalidInput("proposal", rule, self.proposal)
        if not isinstance(self.geometry, GeometryChoice):
            cure = "See tallmc.geometry."
            raise InvalidInput("geometry", "be a GeometryChoice", self.geometry, cure)
        if not isinstance(self.bound, BoundChoice | None):
            raise InvalidInput("bound", "be Tangent(), Taylor(...) or None", self.bound)

    @property
    def needs(self) -> AnchorLevel:  # type: ignore[override]
        return max(AnchorLevel.MODE, self.geometry.needs)

    @property
    def exact(self) -> bool:
        return self.bound is None or self.bound.is_proved

    @property
    def axes(self) -> dict[str, str]:
        dynamics = type(_PROPOSALS[self.proposal]).__name__
        return labels(dynamics, "of bright rows", "FlyMC", "as bright")

    def suggest(self, curvature: Curvature) -> Suggestion:
        return _PROPOSALS[self.proposal].suggest(curvature)

    def check(self, posterior: AbstractPosterior) -> None:
        (self.bound or Tangent()).check(posterior)

    def kernel_at(self, posterior: AbstractPosterior, anchor: Anchor) -> AtAnchor:
        geometry = self.geometry.prepare(posterior, anchor)
        bound, n_row_evals = (self.bound or Tangent()).prepare(posterior, anchor)
        kernel = FireflyKernel(
            bound=bound,
            dynamics=_PROPOSALS[self.proposal].prepare(posterior, geometry),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
            ring_size=math.ceil(self.fraction * posterior.n_rows),
            n_rows=posterior.n_rows,
        )
        return AtAnchor(kernel, n_row_evals)
