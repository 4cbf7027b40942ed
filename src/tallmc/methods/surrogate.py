"""The surrogate: the hard rows, a series of all others, and the prior as it is.

In coordinates u with θ = θ̂ + Cu, the potential of the posterior relative to the centre θ̂ is
replaced by

    Ŝ(u) = Δf₀ + gᵀu + ½uᵀHu + Σ_hard w_i R_i(u) + φ(u) T[u, u, u]/6,   Δf = f(θ̂ + Cu) − f(θ̂)

with g and H the derivatives of all rows at θ̂, R_i = Δf_i less its terms of order 1 and 2, and T the
third derivatives of all rows less those of the weighted hard rows. Beyond 120 parameters T would
take too long. In its place is a tilt aᵀu, a = E ∇[S − Ŝ] for u ~ N(0, I), the part of T and of all
higher odd orders that moves means: with a covariance of 21 effects, nine tenths of the variance of
what a series of order 2 leaves out. A row is the harder, the more
its series of order 3 is off at five standard deviations of its own predictor. m rows are drawn in
proportion to that (π_i = min(1, c r_i), w_i = 1/π_i): the hardest of them are certain, and count as
they are. T comes from rows drawn in proportion to their third-order term. A cubic has no lower
bound, so φ turns it into a square beyond the region where chains are.

What the surrogate leaves out is known at any position after one pass over the rows:

    log w(u) = −[S(u) − Ŝ(u)] = −Σ Δf_i + gᵀu + ½uᵀHu + Σ_hard w_i R_i + φ T[u, u, u]/6

is a log importance weight. `check_on_all_rows` has it at draws; `trajectories.py` accepts by it.

Several modes have a surrogate each, and chains move in the u that these share (`ModeSurrogates`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._anchor.anchor import Anchor
from .._anchor.optimisers import derivatives_of_rows, prior_derivatives
from .._core.arrays import DenseMap, Matrix, Scalar, Vector, dot, on_device
from .._core.programs import quickly_compiled
from .._core.statistics import HEAVY_TAIL, pareto_k
from .._core.supervision import checkpoint, in_threads, stage
from .._rows.access import AbstractRows, PerRow, RowAccess, RowBlock
from .._rows.law import Batch
from .._rows.passes import Blocks, Subset, Sum, values_of
from .._rows.probabilities import drawn_in_proportion
from ..models.model import GAUSS_NODES, AbstractModel
from ..models.posterior import AbstractPosterior
from .abstract import Bias

_MOST_PARAMETERS = 120
"""Parameters up to which the series has order 3: a gradient takes 2d³ operations."""
_MOST_CUBIC_ROWS, _FEWEST_CUBIC_ROWS, _CUBIC_OPERATIONS = 16384, 4096, 1.7e10
_MOST_CANDIDATES = 2**22
"""Rows, evenly spaced, of which those for T are drawn."""
_FLOOR = 0.1
"""Share of the rows for T that is drawn uniformly."""
_NEXT_TO_NOTHING = 0.5
"""Sum of r_i of rows that are never hard. Typical draws feel a hundredth of it."""
_GUARD = 5.0
"""φ sets in this far beyond √d, the length of a typical u."""
_WIDE_MOVES, _WIDTH = 8, 2.0
_ROUNDING = 1e-3
"""Rounding errors of the log weights above which remainders are computed without cancellation."""


class SeriesSurrogate(eqx.Module):
    """Ŝ(u)."""

    model: AbstractModel
    centre: Vector
    """θ̂."""
    metric: DenseMap
    """C."""
    linear: Vector
    """g."""
    quadratic: Matrix
    """H."""
    size: Matrix
    """|H| of the rows that are not hard. φ depends on uᵀ|H|u: tails carried by hard rows stay."""
    cubic: Float[Array, "d dd"] | None
    """T[·, e_j, e_k] for all pairs (j, k)."""
    hard: Batch | None
    """The hard rows and w_i, padded with rows of weight zero."""
    accurate: bool = eqx.field(static=True)
    """Whether potentials are so large that remainders must be computed without cancellation."""
    tilt: Vector | None = None
    """a, in place of T."""

    @property
    def n_hard(self) -> int:
        """Rows that an evaluation reads."""
        return 0 if self.hard is None else self.hard.n_rows

    def position(self, u: Vector) -> Vector:
        """θ."""
        return self.centre + self.metric.push(u)

    def positions(self, u: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "k d"]:
        """θ, in float64 on the host."""
        centre, factor = self.centre, self.metric.factor
        return np.asarray(centre, np.float64) + u @ np.asarray(factor, np.float64).T

    def placed(self, u: Vector, uniform: Scalar) -> Vector:
        """θ. With several modes a uniform number decides about the mode."""
        return self.position(u)

    def by_mode(
        self, positions: Float[np.ndarray, "k d"]
    ) -> list[tuple[SeriesSurrogate, np.ndarray]]:
        """Surrogates, and the numbers of the positions that each describes."""
        return [(self, np.arange(len(positions)))]

    def whitened(self, positions: Float[np.ndarray, "*k d"]) -> Float[np.ndarray, "*k d"]:
        """u, in float64 on the host."""
        factor = np.asarray(self.metric.factor, np.float64)
        moves = positions.astype(np.float64) - np.asarray(self.centre, np.float64)
        return np.linalg.solve(factor, moves.reshape(-1, len(factor)).T).T.reshape(moves.shape)

    def potential_and_gradient(self, u: Vector) -> tuple[Scalar, Vector]:
        """Ŝ(u) and ∇Ŝ(u). XLA leaves out whichever is not used."""
        model, at = self.model, self.position(u)
        value, gradient = self.of_rows(u)
        value += model.prior_potential(at) - model.prior_potential(self.centre)
        return value, gradient + self.metric.pull(model.prior_gradient(at))

    def of_rows(self, u: Vector) -> tuple[Scalar, Vector]:
        """Ŝ(u) without the prior, and its gradient."""
        (value, gradient), curved = self._tail(u), dot(self.quadratic, u)
        linear = self.linear if self.tilt is None else self.linear + self.tilt
        value += dot(linear + curved / 2, u)
        gradient += linear + curved
        if self.hard is None:
            return value, gradient
        move = self.metric.push(u)
        of_hard, pull = self.model.remainders_and_gradient(
            self.centre, move, self.hard, self.accurate
        )
        return value + of_hard, gradient + self.metric.pull(pull)

    def log_weights(
        self, u: Float[Array, "k d"], rows: AbstractRows, some: Subset | None = None
    ) -> Float[Array, " k"]:
        """log w(u) for some u, in one pass over all rows.

        The pass sums changes of the potentials, so that it would also see a wrong g or H. If it
        must be `accurate` and these cancel, it sums remainders, or integrates gradients.
        """
        width = max(len(u), self.model.width(rows))
        return rows.reduce(_what_rows_add, self, u, width=width, finish=_log_weights, subset=some)

    @property
    def by_remainders(self) -> bool:
        """Whether a pass sums remainders, which takes several times as long as changes."""
        model = self.model
        return self.accurate and not (model.exact_changes or model.errors_add_up)

    @property
    def cost_of_change(self) -> int:
        """What the change of a potential takes in a pass over the rows, in common potentials."""
        many = self.accurate and not self.model.exact_changes
        return self.model.row_cost * (GAUSS_NODES if many else 1)

    def _tail(self, u: Vector) -> tuple[Scalar, Vector]:
        """φ T[u, u, u]/6 and its gradient."""
        if self.cubic is None:
            return jnp.zeros((), u.dtype), jnp.zeros_like(u)
        half = dot(dot(u, self.cubic).reshape(len(u), -1), u) / 2
        third, spread = dot(half, u) / 3, dot(self.size, u)
        reach = (math.sqrt(len(u)) + _GUARD) ** 2
        far = dot(spread, u) / reach
        damping = (1 + far**4) ** -0.125
        slope = -damping / (1 + far**4) * far**3 / reach
        return damping * third, damping * half + third * slope * spread


def _what_rows_add(
    block: RowBlock, counted: Bool[Array, " n"], surrogate: SeriesSurrogate, u: Float[Array, "k d"]
) -> Float[Array, " k"]:
    """Σ R_i, or Σ Δf_i."""
    model, moves = surrogate.model, surrogate.metric.push(u)
    batch = Batch(block, counted.astype(model.dtype))
    if surrogate.by_remainders:
        return model.sum_of_remainders(surrogate.centre, moves, batch, True)
    if surrogate.accurate and not model.exact_changes:
        return model.sum_along(surrogate.centre, moves, batch)
    return model.sum_of_changes(surrogate.centre, moves, batch)


def _log_weights(
    total: Sum, surrogate: SeriesSurrogate, u: Float[Array, "k d"]
) -> Float[Array, " k"]:
    known, _ = jax.vmap(surrogate.of_rows)(u)
    if surrogate.by_remainders:
        known -= dot(u, surrogate.linear) + jnp.sum(dot(u, surrogate.quadratic) * u, axis=1) / 2
    return (known - total.high) - total.low


class ModeSurrogates(eqx.Module):
    """A surrogate for each of several modes, in coordinates that they share.

    Near mode k, θ = θ̂_k + C_k u, and u is close to N(0, I) for every k. The pair (u, k) has the
    density M_k exp(−Ŝ_k(u)) with M_k = exp(−f(θ̂_k)) |C_k|. Chains move in u alone,

        Ŝ(u) = −log Σ_k M_k exp(−Ŝ_k(u)),

    which has one mode, and k is drawn given u: successive draws are in independent modes. θ has the
    density Σ_k exp(−f(θ̂_k) − Ŝ_k(u_k(θ))), also where modes overlap.
    """

    each: SeriesSurrogate
    """Arrays have an axis of modes, except those of the model."""
    log_masses: Float[Array, " modes"]
    """log M_k, up to a constant."""

    @classmethod
    def of(cls, surrogates: list[SeriesSurrogate], masses: np.ndarray) -> ModeSurrogates:
        model, dtype = surrogates[0].model, surrogates[0].centre.dtype
        alike = [_with_model(None, one) for one in _with_equal_shapes(surrogates)]
        each = jax.tree.map(lambda *of_modes: jnp.stack(of_modes), *alike)
        return cls(_with_model(model, each), on_device(np.log(masses), dtype))

    @property
    def model(self) -> AbstractModel:
        return self.each.model

    @property
    def centre(self) -> Vector:
        return self.each.centre[0]

    @property
    def metric(self) -> DenseMap:
        return DenseMap(self.each.metric.factor[0])

    @property
    def cubic(self) -> Array | None:
        return self.each.cubic

    @property
    def hard(self) -> Batch | None:
        return self.each.hard

    @property
    def n_hard(self) -> int:
        """Rows that an evaluation reads."""
        return 0 if self.hard is None else self.hard.weights.size

    @property
    def cost_of_change(self) -> int:
        return self.each.cost_of_change

    def potential_and_gradient(self, u: Vector) -> tuple[Scalar, Vector]:
        """Ŝ(u) and ∇Ŝ(u)."""
        values, gradients, _ = self._at(u)
        return -jax.nn.logsumexp(-values), dot(jax.nn.softmax(-values), gradients)

    def placed(self, u: Vector, uniform: Scalar) -> Vector:
        """θ in a mode that is drawn given u."""
        values, _, positions = self._at(u)
        below = jnp.cumsum(jax.nn.softmax(-values))[:-1] <= uniform
        return positions[jnp.sum(below)]

    def whitened(self, positions: Float[np.ndarray, "*k d"]) -> Float[np.ndarray, "*k d"]:
        """u of the nearest mode, in float64 on the host."""
        return self._nearest(positions)[0]

    def by_mode(
        self, positions: Float[np.ndarray, "k d"]
    ) -> list[tuple[SeriesSurrogate, np.ndarray]]:
        """Surrogates, and the numbers of the positions that each describes."""
        nearest = self._nearest(positions)[1]
        of_modes = [(one, np.flatnonzero(nearest == k)) for k, one in enumerate(self._modes())]
        return [(one, numbers) for one, numbers in of_modes if len(numbers)]

    def beside(self, other: SeriesSurrogate, positions: Float[np.ndarray, "k d"]) -> np.ndarray:
        """Log of the density of all modes, relative to that of one."""
        log_densities, log_masses = [], np.asarray(self.log_masses, np.float64)
        for one, log_mass in zip(self._modes(), log_masses, strict=True):
            u = one.whitened(positions)
            value, _ = _potentials(one, on_device(u, one.centre.dtype))
            factor = np.asarray(one.metric.factor, np.float64)
            log_density = log_mass - np.linalg.slogdet(factor)[1] - np.asarray(value, np.float64)
            far = np.linalg.norm(u, axis=1) > math.sqrt(u.shape[1]) + 2 * _GUARD
            is_other = not np.array_equal(one.centre, other.centre)
            log_densities.append(np.where(far & is_other, -np.inf, log_density))
            if not is_other:
                own = log_density
        return np.logaddexp.reduce(log_densities, axis=0) - own

    def _at(self, u: Vector) -> tuple[Array, Array, Array]:
        """Ŝ_k(u) − log M_k, ∇Ŝ_k(u) and θ̂_k + C_k u for all k."""
        model = self.model

        def of_mode(arrays: SeriesSurrogate) -> tuple[Scalar, Vector, Vector]:
            one = _with_model(model, arrays)
            return *one.potential_and_gradient(u), one.position(u)

        values, gradients, positions = jax.vmap(of_mode)(_with_model(None, self.each))
        return values - self.log_masses, gradients, positions

    def _modes(self) -> list[SeriesSurrogate]:
        arrays = _with_model(None, self.each)
        of_modes = [jax.tree.map(lambda a, k=k: a[k], arrays) for k in range(len(self.log_masses))]
        return [_with_model(self.model, one) for one in of_modes]

    def _nearest(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """u in the nearest mode, and its number."""
        u = np.stack([one.whitened(positions) for one in self._modes()])
        nearest = np.sum(u**2, axis=-1).argmin(axis=0)
        return np.take_along_axis(u, nearest[None, ..., None], axis=0)[0], nearest


Surrogate = SeriesSurrogate | ModeSurrogates


def _with_model(model: AbstractModel | None, surrogate: SeriesSurrogate) -> SeriesSurrogate:
    return eqx.tree_at(lambda of: of.model, surrogate, model, is_leaf=lambda node: node is None)


@eqx.filter_jit
def _potentials(surrogate: SeriesSurrogate, u: Float[Array, "k d"]) -> tuple[Array, Array]:
    return jax.vmap(surrogate.potential_and_gradient)(u)


def _with_equal_shapes(surrogates: list[SeriesSurrogate]) -> list[SeriesSurrogate]:
    """The same surrogates; hard rows of weight zero, and cubics of zero, fill what a mode lacks."""
    batches = [one.hard for one in surrogates if one.hard is not None]
    most = max(batches, key=lambda batch: batch.n_rows, default=None)
    cubic = next((one.cubic for one in surrogates if one.cubic is not None), None)
    accurate = any(one.accurate for one in surrogates)

    def filled(one: SeriesSurrogate) -> SeriesSurrogate:
        hard, third = one.hard, one.cubic
        if most is not None:
            known = np.zeros(0) if hard is None else np.asarray(hard.weights)
            rows = (most if hard is None else hard).rows
            every = np.arange(most.n_rows) % max(len(known), 1)
            weights = np.pad(known, (0, most.n_rows - len(known)))
            rows = jax.tree.map(lambda values: values[every], rows)
            hard = Batch(rows, on_device(weights, most.weights.dtype))
        if third is None and cubic is not None:
            third = jnp.zeros_like(cubic)
        return dataclasses.replace(one, hard=hard, cubic=third, accurate=accurate)

    return [filled(one) for one in surrogates]


class Expansion(NamedTuple):
    """A centre with the derivatives of the sum over all rows there, in float64."""

    centre: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d d"]
    """C."""
    gradient: Float[np.ndarray, " d"]
    hessian: Float[np.ndarray, "d d"]
    n_row_evals: int

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.gradient).all() and np.isfinite(self.hessian).all())

    @classmethod
    def at(cls, posterior: AbstractPosterior, centre: np.ndarray, factor: np.ndarray) -> Expansion:
        """The derivatives at a centre, in one pass over the rows."""
        position = np.asarray(centre, posterior.dtype)
        _, gradient, hessian = derivatives_of_rows(posterior, position)
        at = position.astype(np.float64)
        return cls(at, factor, gradient, hessian, posterior.n_rows)

    @classmethod
    def at_anchor(cls, posterior: AbstractPosterior, anchor: Anchor) -> Expansion:
        """The derivatives at an anchor that has the Hessian."""
        centre, factor = (np.asarray(of, np.float64) for of in (anchor.position, anchor.factor))
        if anchor.accurate is not None:
            _, *known = prior_derivatives(posterior.model, anchor.position)
            of_prior = [np.asarray(of, np.float64) for of in known]
            if all(np.isfinite(of).all() for of in of_prior):
                gradient, hessian = anchor.accurate
                return cls(centre, factor, gradient - of_prior[0], hessian - of_prior[1], 0)
        return cls.at(posterior, centre, factor)


class RowSizes(NamedTuple):
    """How hard the rows are for a series at a centre."""

    numbers: Int[np.ndarray, " m"]
    """Rows that may be hard. All others together leave out next to nothing."""
    remainder: Float[np.ndarray, " m"]
    """r_i of these rows, what order 3 leaves out at five sds of the row's own predictor."""
    third: Float[np.ndarray, " k"]
    """The term of order 3 there, of every so many rows."""
    every: int
    rounding: float
    """Rounding error of a sum of differences of the rows' potentials."""

    @classmethod
    def of(cls, posterior: AbstractPosterior, expansion: Expansion) -> RowSizes:
        """The sizes of all rows, in one pass over them."""
        dtype, n_rows = posterior.dtype, posterior.n_rows
        metric = DenseMap(on_device(expansion.factor, dtype))
        normals = np.random.default_rng(0).normal(size=(_WIDE_MOVES, posterior.dim))
        wide = on_device(_WIDTH * normals @ expansion.factor.T, dtype)
        centre, every = on_device(expansion.centre, dtype), -(-n_rows // _MOST_CANDIDATES)
        adds_up = posterior.model.errors_add_up
        keep = functools.partial(_kept_sizes, n_rows, every, adds_up)
        found = posterior.rows.survey(
            _sizes, keep, posterior.model, centre, metric, wide, width=posterior.width
        )
        numbers, remainder, third = (
            np.concatenate(parts) for parts in itertools.islice(zip(*found, strict=True), 3)
        )
        size = math.fsum(of_part[3] for of_part in found)
        rounding = float(jnp.finfo(dtype).eps) * (size if adds_up else math.sqrt(size))
        return cls(numbers, remainder, third, every, rounding)


def rehearse_sizes(posterior: AbstractPosterior) -> None:
    """Compile the program of `RowSizes.of`, with one block of rows and any numbers."""
    dim, dtype = posterior.dim, posterior.dtype
    zero, wide = (on_device(np.zeros(shape), dtype) for shape in (dim, (_WIDE_MOVES, dim)))
    metric = DenseMap(on_device(np.eye(dim), dtype))
    block = posterior.rows.read(np.arange(Blocks.of(posterior.n_rows, posterior.width).size))
    values_of(block, _sizes, (posterior.model, zero, metric, wide))


def _sizes(
    block: RowBlock,
    model: AbstractModel,
    centre: Vector,
    metric: DenseMap,
    wide: Float[Array, "k d"],
) -> tuple[PerRow, PerRow, PerRow]:
    return model.series_sizes(centre, metric, wide, block)


def _kept_sizes(
    n_rows: int,
    every: int,
    errors_add_up: bool,
    first: int,
    values: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """What `RowSizes` keeps of the rows from number `first` on, and the sum of |f_i| or of f_i²."""
    remainder = np.nan_to_num(values[0], nan=1e10, posinf=1e10)
    numbers = np.flatnonzero(remainder >= _NEXT_TO_NOTHING / n_rows / 10)
    third = np.nan_to_num(values[1][-first % every :: every])
    sizes = values[2].astype(np.float64)
    size = float(np.sum(sizes if errors_add_up else np.square(sizes)))
    return first + numbers, remainder[numbers], third, size


def make_surrogate(
    posterior: AbstractPosterior,
    expansion: Expansion,
    sizes: RowSizes,
    n_hard: int,
    doublings: int = 0,
) -> SeriesSurrogate:
    """The surrogate at a centre with about `n_hard` hard rows.

    T comes from twice as many rows for each of the `doublings`.
    """
    stage("expanding the rows")
    dtype = posterior.dtype
    if n_hard >= posterior.n_rows:
        hard, weights = np.arange(posterior.n_rows), np.ones(posterior.n_rows)
    else:
        chosen, weights = _hard_rows(sizes.remainder, n_hard)
        hard = sizes.numbers[chosen]
    batch = _batch(posterior, hard, weights) if len(hard) else None
    of_cubic = None
    if posterior.dim <= _MOST_PARAMETERS and sizes.third.any():
        # Certain rows are in the series of all rows and in that of the hard rows alike.
        certain = weights == 1
        every, third = sizes.every, sizes.third.copy()
        third[hard[certain & (hard % every == 0)] // every] = 0
        third[third > 0] += _FLOOR * third.mean(dtype=np.float64)
        affordable = int(_CUBIC_OPERATIONS / posterior.dim**3 / posterior.model.cubic_cost)
        most = _MOST_CUBIC_ROWS if posterior.model.row_cost == 1 else _FEWEST_CUBIC_ROWS
        count = min(max(affordable, _FEWEST_CUBIC_ROWS), most) << doublings
        # A batch is padded to a power of two, so the hard rows take the place of others.
        count -= min(int(np.count_nonzero(~certain)), count // 2)
        drawn, of_drawn = drawn_in_proportion(third, count)
        drawn, of_drawn = every * drawn, every * of_drawn
        numbers, signed = np.append(drawn, hard[~certain]), np.append(of_drawn, -weights[~certain])
        of_cubic = _batch(posterior, numbers, signed) if len(numbers) else None
    centre, factor = on_device(expansion.centre, dtype), expansion.factor
    metric = DenseMap(on_device(factor, dtype))
    of_hard, cubic = _hessian_and_cubic(posterior.model, centre, metric, batch, of_cubic)
    quadratic = factor.T @ expansion.hessian @ factor
    easy = factor.T @ (expansion.hessian - np.asarray(of_hard, np.float64)) @ factor
    values, vectors = np.linalg.eigh((easy + easy.T) / 2)
    return SeriesSurrogate(
        model=posterior.model,
        centre=centre,
        metric=metric,
        linear=on_device(factor.T @ expansion.gradient, dtype),
        quadratic=on_device((quadratic + quadratic.T) / 2, dtype),
        size=on_device((vectors * np.abs(values)) @ vectors.T, dtype),
        cubic=cubic,
        hard=batch,
        accurate=sizes.rounding > _ROUNDING,
        tilt=jnp.zeros_like(centre) if posterior.dim > _MOST_PARAMETERS else None,
    )


_PAIRS = 16


def tilted(surrogate: SeriesSurrogate, posterior: AbstractPosterior) -> SeriesSurrogate:
    """The surrogate with its tilt, by one pass over all rows; as it is where it has T instead.

    Gradients are averaged over pairs ±u, so that the terms of order 2 and 4 cancel.
    """
    if surrogate.tilt is None:
        return surrogate
    stage("averaging gradients over the Gaussian")
    u = np.random.default_rng(0).normal(size=(_PAIRS, posterior.dim))
    pairs = np.stack([u, -u], axis=1).reshape(-1, posterior.dim)
    at, rows = surrogate.positions(pairs).astype(posterior.dtype), posterior.rows

    def total(part: Float[np.ndarray, "k d"]) -> Float[np.ndarray, " d"]:
        return rows.reduce(_gradients, posterior.model, part, width=posterior.width).float64()

    parts = [at] if rows.access < RowAccess.TAKE else np.split(at, _PAIRS)
    mean = sum(in_threads(total, parts, checkpoint)) / len(pairs)
    known = _mean_gradient(surrogate, on_device(pairs, posterior.dtype))
    factor = np.asarray(surrogate.metric.factor, np.float64)
    tilt = on_device(factor.T @ mean - np.asarray(known, np.float64), posterior.dtype)
    return eqx.tree_at(lambda of: of.tilt, surrogate, surrogate.tilt + tilt)


@quickly_compiled
def _mean_gradient(surrogate: SeriesSurrogate, u: Float[Array, "k d"]) -> Vector:
    return jnp.mean(jax.vmap(surrogate.of_rows)(u)[1], axis=0)


def _gradients(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, at: Float[Array, "k d"]
) -> Vector:
    """Σ ∇f_i over a block and some positions."""
    batch = Batch(block, counted.astype(model.dtype))
    return jnp.sum(lax.map(lambda at: model.sum_remainders(0, at, at, batch), at), axis=0)


def _batch(posterior: AbstractPosterior, numbers: np.ndarray, weights: np.ndarray) -> Batch:
    batch = posterior.rows.batch_of(numbers, weights, posterior.dtype)
    if posterior.dim > _MOST_PARAMETERS:
        return batch
    rows = posterior.model.as_matrix(batch.rows)
    return Batch(rows, batch.weights, batch.indices, batch.packed)


def rehearsed(posterior: AbstractPosterior, sizes: RowSizes, n_hard: int) -> SeriesSurrogate:
    """Any surrogate with the shapes of that to come, for programs that are compiled meanwhile."""
    dim, dtype = posterior.dim, posterior.dtype
    zero, unit = on_device(np.zeros(dim), dtype), on_device(np.eye(dim), dtype)
    has_cubic = dim <= _MOST_PARAMETERS and sizes.third.any()
    numbers = np.zeros(n_hard, int)
    return SeriesSurrogate(
        model=posterior.model,
        centre=zero,
        metric=DenseMap(unit),
        linear=zero,
        quadratic=unit,
        size=unit,
        cubic=on_device(np.zeros((dim, dim**2)), dtype) if has_cubic else None,
        hard=_batch(posterior, numbers, numbers) if n_hard else None,
        accurate=sizes.rounding > _ROUNDING,
        tilt=zero if dim > _MOST_PARAMETERS else None,
    )


def rehearse_check(surrogate: SeriesSurrogate, rows: AbstractRows) -> None:
    """Compile the program of the check, with one block of rows."""
    at_once = draws_at_once(surrogate.model)
    u = np.zeros((at_once, len(surrogate.centre)), surrogate.centre.dtype)
    width = max(at_once, surrogate.model.width(rows))
    surrogate.log_weights(on_device(u, u.dtype), rows, rows.subset(width, 1))


def _hard_rows(
    remainders: Float[np.ndarray, " N"], count: int
) -> tuple[np.ndarray, Float[np.ndarray, " n"]]:
    """Places and weights of about `count` rows.

    The easiest rows, as many as leave out next to nothing, are never drawn: such a row would have a
    weight that magnifies its rounding errors.
    """
    if count == 0:
        return np.zeros(0, int), np.zeros(0)
    kept = remainders.copy()
    for level in 10.0 ** np.arange(-12, 2):
        small = remainders < level
        if np.sum(remainders, where=small, dtype=np.float64) > _NEXT_TO_NOTHING:
            break
        kept[small] = 0
    return drawn_in_proportion(kept, count)


@quickly_compiled
def _hessian_and_cubic(
    model: AbstractModel,
    centre: Vector,
    metric: DenseMap,
    hard: Batch | None,
    of_cubic: Batch | None,
) -> tuple[Array, Array | None]:
    """Σ_hard w_i ∇²f_i, and T."""
    hessian, cubic = jnp.zeros((), centre.dtype), None
    if hard is not None:
        hessian = model.block_hessian(centre, hard.rows, hard.weights)
    if of_cubic is not None:
        cubic = model.third_derivatives(centre, metric, of_cubic)
    return hessian, cubic


# The check on all rows.

_CHECKED, _FEWEST_CHECKED, _EVALUATIONS, _STRETCH, _FARTHEST = 256, 64, 2**28, 1.5, 3.0
_TAIL_MATTERS, _FEWEST_OF_TAIL = 0.2, 25
"""Sd of the log weights from which on the tail of the weights matters, and draws to know it."""
CLEAR, FEW_CHECKED = 0.01, 16
"""Sd of the log weights at which a few draws are enough, where a draw costs much."""


def draws_at_once(model: AbstractModel) -> int:
    """Draws that one thread compares with all rows; their number is a multiple of it."""
    return 64 if model.row_cost == 1 else 8


def log_weights_at(
    surrogate: SeriesSurrogate, rows: AbstractRows, u: Float[np.ndarray, "k d"], at_once: int
) -> Float[np.ndarray, " k"]:
    """log w at some u, in one pass over the rows, by threads that have `at_once` of them each."""

    def log_weights(part: np.ndarray) -> np.ndarray:
        return np.asarray(surrogate.log_weights(on_device(part, part.dtype), rows))

    if rows.access < RowAccess.TAKE:  # a row store has threads of its own, and is read once
        at_once = len(u)
    missing = -len(u) % at_once
    at = np.concatenate([u, np.repeat(u[-1:], missing, axis=0)]).astype(surrogate.centre.dtype)
    parts = in_threads(log_weights, at.reshape(-1, at_once, at.shape[1]), checkpoint)
    return np.concatenate(parts).astype(np.float64)[: len(u)]


class Check(NamedTuple):
    """Log importance weights at draws of the surrogate, and what they say about its moments."""

    sd: float
    """Of the log weights."""
    tail: float
    """Pareto's k of the weights; infinite if draws are too few to know it."""
    bias: Bias
    far: float
    """The largest log weight at stretched draws, relative to the mean one; 0 without them."""
    n_draws: int
    n_row_evals: int

    @property
    def heavy(self) -> bool:
        """Whether a few draws have most of the weight: the shifts that it implies say little."""
        return self.sd > _TAIL_MATTERS and self.tail > HEAVY_TAIL


def check_on_all_rows(
    surrogate: Surrogate,
    rows: AbstractRows,
    positions: Float[np.ndarray, "chains draws d"],
    count: int | None = None,
    stretched: int = 0,
    large: float = math.inf,
) -> Check:
    """Compare the surrogate with all rows at `count` of the draws, in one pass over the rows.

    By default 256, or 128 or 64 where rows are many, so that the pass takes seconds at most.
    `stretched` of them are also compared at 1.5 times their distance from the mean, less beyond 120
    parameters. Where a draw costs much, a few draws come first, and are all if their log weights
    are next to nothing, or have an sd from `large` on: where a row costs as much as many, such as a
    group whose effects are integrated out, and where a row store has millions of rows. (Rows in
    memory are compared with 64 draws at once, so that fewer would save nothing.)
    """
    stage("checking the draws on all rows")
    model = surrogate.model
    affordable = _EVALUATIONS // (rows.n_rows * surrogate.cost_of_change)
    if count is None:
        count = next((k for k in (_CHECKED, _CHECKED // 2) if k <= affordable), _FEWEST_CHECKED)
    # The shifts that such weights imply are known to CLEAR/√few, 0.0025 sd or less.
    few = FEW_CHECKED if stretched else 2 * FEW_CHECKED
    costs_much = model.row_cost > 1 or (rows.access < RowAccess.TAKE and count > affordable)
    if costs_much and few < count:
        first = _checked(surrogate, rows, positions, few, min(few, stretched))
        if first.sd >= large or (first.sd <= CLEAR and first.far <= 10 * CLEAR):
            return first
    return _checked(surrogate, rows, positions, count, stretched)


def _checked(
    surrogate: Surrogate,
    rows: AbstractRows,
    positions: Float[np.ndarray, "chains draws d"],
    count: int,
    stretched: int,
) -> Check:
    flat = positions.reshape(-1, positions.shape[2]).astype(np.float64)
    drawn = flat[np.linspace(0, len(flat) - 1, count).astype(int)]
    weights, wide = log_weights_of(surrogate, rows, drawn, stretched)
    weights, far = weights - weights.mean(), wide - weights.mean()
    bias = _implied_bias(drawn, weights, min(count, len(flat)))
    largest = float(far.max(initial=0.0))
    tail = pareto_k(np.exp(weights - weights.max())) if count >= _FEWEST_OF_TAIL else math.inf
    n_row_evals = len(surrogate.by_mode(drawn)) * rows.n_rows
    return Check(float(weights.std()), tail, bias, largest, count, n_row_evals)


def log_weights_of(
    surrogate: Surrogate,
    rows: AbstractRows,
    positions: Float[np.ndarray, "k d"],
    stretched: int = 0,
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " l"]]:
    """log w of positions, and of `stretched` of them farther from the mean, in a pass per mode."""
    near, far = np.empty(len(positions)), []
    for one, numbers in surrogate.by_mode(positions):
        u = one.whitened(positions[numbers])
        middle = u.mean(axis=0)
        # The length of u is √d, give or take 0.7: of 200 parameters no chain comes to 1.5 times it.
        many = u.shape[1] > _MOST_PARAMETERS
        stretch = 1 + _FARTHEST / math.sqrt(u.shape[1]) if many else _STRETCH
        at = np.concatenate([u, middle + stretch * (u[:stretched] - middle)])
        found = log_weights_at(one, rows, at, draws_at_once(surrogate.model))
        if isinstance(surrogate, ModeSurrogates):
            found -= surrogate.beside(one, one.positions(at))
        found = np.nan_to_num(found, nan=-1e6, neginf=-1e6, posinf=1e6)
        near[numbers] = found[: len(u)]
        far.append(found[len(u) :])
    return near, np.concatenate(far)


def _implied_bias(
    draws: Float[np.ndarray, "k d"], log_weights: Float[np.ndarray, " k"], n_different: int
) -> Bias:
    """How far the draws' moments are from those of the weighted draws, with standard errors.

    So many of the draws are different ones.
    """
    count = len(draws)
    weights = np.exp(log_weights - log_weights.max())
    weights *= count / weights.sum()
    scaled = (draws - draws.mean(axis=0)) / np.maximum(draws.std(axis=0), np.finfo(float).tiny)
    shifts = (1 - weights)[:, None] * scaled
    spreads = (1 - weights)[:, None] * (scaled**2 - 1) / 2
    root = math.sqrt(n_different)
    return Bias(
        shifts.mean(axis=0),
        shifts.std(axis=0) / root,
        spreads.mean(axis=0),
        spreads.std(axis=0) / root,
    )
