"""Parameters that occur in the prior only, such as the scales of group effects.

    θ = (ψ, η):   f(θ) = f₀(ψ, η) + Σ f_i(ψ)

The rows do not depend on the hyper-parameters η. So a model of ψ becomes a model of θ whose row
gradients are zero in η. The effects are *centred*: they lie in a position themselves, not divided
by their scale. With many rows per group the rows determine the effects, and the centred form then
has the weaker dependence between effects and scales. The joint density has a spike without mass
where a scale and its effects are zero. Next to it there is a mode, unless the effects are too small
to be seen in the rows.
"""

from __future__ import annotations

import abc
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._core.arrays import AbstractLinearMap, Layout, Matrix, Scalar, Vector
from .._rows.access import AbstractRows, PerRow, RowBlock
from .._rows.law import Batch
from .groups import factor_of, forward_solve, lkj_log_integral, lkj_potential, sample_lkj
from .model import AbstractModel, Compact, EffectTerm, Moves
from .priors import (
    AbstractPrior,
    LogGammaPrior,
    LogHalfStudentTPrior,
    ScaleMixturePrior,
    sum_if_known,
)

_SPIKE = 3.0
"""In logs: a scale 20 times smaller than its estimate."""


class AbstractHyperprior(eqx.Module):
    """The prior of hyper-parameters, and of the parameters given them."""

    @property
    @abc.abstractmethod
    def n_hyper(self) -> int:
        """The number of hyper-parameters."""

    @abc.abstractmethod
    def potential(self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]) -> Scalar:
        """−log p(ψ | η) − log p(η), up to a constant; not the prior that the model of ψ has."""

    def log_integral(self) -> float | None:
        """The constant, log ∫ exp(−potential); None if it is not known."""
        return None

    @abc.abstractmethod
    def sample(
        self, random: np.random.Generator, parameters: Float[np.ndarray, "n c"]
    ) -> Float[np.ndarray, "n h"] | None:
        """Draws of η; those of ψ given η are written into `parameters`, where it is their prior.

        None if it is not known how.
        """

    def effect_terms(self, start: int) -> tuple[EffectTerm, ...]:
        """Group effects whose log sds are hyper-parameters, which begin at `start`."""
        return ()


class SeveralHyperpriors(AbstractHyperprior):
    """Independent hyper-priors; their hyper-parameters follow each other."""

    parts: tuple[AbstractHyperprior, ...]

    @property
    def n_hyper(self) -> int:
        return sum(part.n_hyper for part in self.parts)

    def potential(self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]) -> Scalar:
        total, start = jnp.zeros((), hyper.dtype), 0
        for part in self.parts:
            total += part.potential(parameters, hyper[start : start + part.n_hyper])
            start += part.n_hyper
        return total

    def log_integral(self) -> float | None:
        return sum_if_known(part.log_integral() for part in self.parts)

    def sample(
        self, random: np.random.Generator, parameters: Float[np.ndarray, "n c"]
    ) -> Float[np.ndarray, "n h"] | None:
        found = [part.sample(random, parameters) for part in self.parts]
        drawn = [each for each in found if each is not None]
        return np.concatenate(drawn, axis=1) if len(drawn) == len(found) else None

    def effect_terms(self, start: int) -> tuple[EffectTerm, ...]:
        starts = itertools.accumulate((part.n_hyper for part in self.parts[:-1]), initial=start)
        found = (part.effect_terms(at) for part, at in zip(self.parts, starts, strict=True))
        return tuple(itertools.chain.from_iterable(found))


class Hierarchical(AbstractModel):
    """A model with hyper-parameters. They follow the parameters of the inner model."""

    init: Vector
    layout: Layout = eqx.field(static=True)
    inner: AbstractModel
    hyperprior: AbstractHyperprior

    bounded = False  # if a scale and all its effects go to zero, the density goes to infinity

    @property
    def bounded_curvature(self) -> bool:
        return self.inner.bounded_curvature

    @property
    def exact_changes(self) -> bool:
        return self.inner.exact_changes

    @property
    def errors_add_up(self) -> bool:
        return self.inner.errors_add_up

    def regression(self) -> Any:
        return self.inner.regression()

    def scale_mixtures(self) -> list[tuple[np.ndarray, ScaleMixturePrior]]:
        return self.inner.scale_mixtures()

    def prior_potential(self, position: Vector) -> Scalar:
        parameters = self._inner(position)
        hyper = self.hyperprior.potential(parameters, position[self.inner.dim :])
        return self.inner.prior_potential(parameters) + hyper

    def log_prior_integral(self) -> float | None:
        return sum_if_known([self.inner.log_prior_integral(), self.hyperprior.log_integral()])

    def sample_prior(
        self, random: np.random.Generator, n_draws: int
    ) -> Float[np.ndarray, "n d"] | None:
        parameters = self.inner.sample_prior(random, n_draws)
        hyper = None if parameters is None else self.hyperprior.sample(random, parameters)
        if parameters is None or hyper is None:
            return None
        return np.concatenate([parameters, hyper], axis=1)

    def row_potentials(self, position: Vector, block: RowBlock) -> PerRow:
        return self.inner.row_potentials(self._inner(position), block)

    def row_gradients(self, position: Vector, block: RowBlock) -> Compact:
        return self.inner.row_gradients(self._inner(position), block)

    def remainders(self, order: int, position: Vector, centre: Vector, block: RowBlock) -> Compact:
        return self.inner.remainders(order, self._inner(position), self._inner(centre), block)

    def sum_remainders(self, order: int, position: Vector, centre: Vector, batch: Batch) -> Vector:
        at, around = self._inner(position), self._inner(centre)
        return self._outer(self.inner.sum_remainders(order, at, around, batch))

    def potentials_and_gradient(
        self, position: Vector, batch: Batch
    ) -> tuple[Float[Array, " p"], Vector]:
        pieces, gradient = self.inner.potentials_and_gradient(self._inner(position), batch)
        return pieces, self._outer(gradient)

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Vector,
        spread: AbstractLinearMap,
        width: Scalar,
        metric: AbstractLinearMap,
        block: RowBlock,
    ) -> PerRow:
        return self.inner.gaussian_mean_square_remainders(
            order, self._inner(centre), self._leading(spread), width, self._leading(metric), block
        )

    def combine(self, compact: Compact, block: RowBlock, weights: PerRow) -> Vector:
        return self._outer(self.inner.combine(compact, block, weights))

    def width(self, rows: AbstractRows) -> int:
        return self.inner.width(rows)

    def sum_of_squares(self, compact: Compact, block: RowBlock, weights: PerRow) -> Vector:
        return self._outer(self.inner.sum_of_squares(compact, block, weights))

    def expand(self, compact: Compact, block: RowBlock) -> Float[Array, "n d"]:
        return self._outer(self.inner.expand(compact, block))

    def norms(self, compact: Compact, block: RowBlock) -> PerRow:
        return self.inner.norms(compact, block)

    def as_matrix(self, block: RowBlock) -> RowBlock:
        return self.inner.as_matrix(block)

    def adds_pieces(self, block: RowBlock) -> bool:
        return self.inner.adds_pieces(block)

    def hessian_products(self, position: Vector, directions: Moves, batch: Batch) -> Moves:
        at, along = self._inner(position), self._inner(directions)
        return self._outer(self.inner.hessian_products(at, along, batch))

    def effect_terms(self) -> tuple[EffectTerm, ...]:
        return self.hyperprior.effect_terms(self.inner.dim)

    def effect_hessians(self, position: Vector, batch: Batch) -> Float[Array, " b"]:
        return self.inner.effect_hessians(self._inner(position), batch)

    def block_hessian(self, position: Vector, block: RowBlock, weights: PerRow) -> Matrix:
        inner = self.inner.block_hessian(self._inner(position), block, weights)
        return jnp.pad(inner, (0, self.hyperprior.n_hyper))

    def series_sizes(
        self, centre: Vector, metric: AbstractLinearMap, wide: Moves, block: RowBlock
    ) -> tuple[PerRow, PerRow, PerRow]:
        at, leading = self._inner(centre), self._leading(metric)
        return self.inner.series_sizes(at, leading, self._inner(wide), block)

    def third_derivatives(
        self, centre: Vector, metric: AbstractLinearMap, batch: Batch
    ) -> Float[Array, "d dd"]:
        return self.inner.third_derivatives(self._inner(centre), self._leading(metric), batch)

    def sum_of_changes(self, centre: Vector, moves: Moves, batch: Batch) -> Float[Array, " k"]:
        return self.inner.sum_of_changes(self._inner(centre), self._inner(moves), batch)

    def sum_of_remainders(
        self, centre: Vector, moves: Moves, batch: Batch, accurate: bool
    ) -> Float[Array, " k"]:
        at, inner_moves = self._inner(centre), self._inner(moves)
        return self.inner.sum_of_remainders(at, inner_moves, batch, accurate)

    def remainders_and_gradient(
        self, centre: Vector, move: Vector, batch: Batch, accurate: bool
    ) -> tuple[Scalar, Vector]:
        at, inner_move = self._inner(centre), self._inner(move)
        value, gradient = self.inner.remainders_and_gradient(at, inner_move, batch, accurate)
        return value, self._outer(gradient)

    def curvature_norms(
        self, position: Vector, factor: Float[Array, "d k"], block: RowBlock
    ) -> PerRow:
        return self.inner.curvature_norms(self._inner(position), factor[: self.inner.dim], block)

    def row_lipschitz(self, block: RowBlock) -> PerRow:
        return self.inner.row_lipschitz(block)

    def is_in_spike(self, position: Float[Any, " d"]) -> bool:
        """Whether a scale is far below its estimate at the start, where there is no bound."""
        fall = np.asarray(self.init - position, np.float64)[self.inner.dim :]
        return bool((fall > _SPIKE).any())

    def _inner(self, positions: Float[Array, "*k d"]) -> Float[Array, "*k c"]:
        return positions[..., : self.inner.dim]

    def _outer(self, gradients: Float[Array, "*k c"]) -> Float[Array, "*k d"]:
        return _padded(gradients, self.hyperprior.n_hyper)

    def _leading(self, whole: AbstractLinearMap) -> LeadingRows:
        return LeadingRows(whole, self.hyperprior.n_hyper)


class LeadingRows(AbstractLinearMap):
    """The first rows of C: a move of all parameters, seen by those of the inner model."""

    whole: AbstractLinearMap
    n_left_out: int = eqx.field(static=True)

    def n_columns(self, n_rows: int) -> int:
        return self.whole.n_columns(n_rows + self.n_left_out)

    def pull(self, gradient: Float[Array, "*k c"]) -> Float[Array, "*k d"]:
        return self.whole.pull(_padded(gradient, self.n_left_out))

    def push(self, move: Float[Array, "*k d"]) -> Float[Array, "*k c"]:
        pushed = self.whole.push(move)
        return pushed[..., : pushed.shape[-1] - self.n_left_out]

    def matrix(self, n_rows: int, dtype: Any) -> Float[Array, "c d"]:
        return self.whole.matrix(n_rows + self.n_left_out, dtype)[:n_rows]

    def solve(self, move: Float[Array, "*k c"]) -> Float[Array, "*k d"]:
        raise NotImplementedError("the first rows of a matrix have no inverse")


def _padded(values: Float[Array, "*k c"], count: int) -> Float[Array, "*k d"]:
    return jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, count)])


# Group effects: coefficients that differ between groups, with unknown spread.
#
# u_g ~ N(0, LLᵀ) for group g,   L = diag(σ) R,   σ_j ~ half-t₄(0, scale_j),   RRᵀ ~ LKJ(1)
#
# The hyper-parameters of a term are log σ_j, then the free forms of the correlations, if there are
# any (`groups.py`, which integrates the effects of many groups out).


class GroupEffects(AbstractHyperprior):
    """The prior of the effects of a group term, of their standard deviations and correlations."""

    start: int = eqx.field(static=True)
    """Where the effects begin among the parameters, group after group."""
    n_groups: int = eqx.field(static=True)
    n_columns: int = eqx.field(static=True)
    sd_prior: AbstractPrior
    """The prior of the log standard deviations."""

    @property
    def n_hyper(self) -> int:
        return self.n_columns * (self.n_columns + 1) // 2

    def potential(self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]) -> Scalar:
        (term,), r = self.effect_terms(0), self.n_columns
        factor = factor_of(hyper, r)
        scaled = forward_solve(factor, term.by_group(parameters))
        total = self.sd_prior.potential(hyper[:r]) + lkj_potential(hyper[r:], r)
        log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
        return total + 0.5 * jnp.sum(scaled**2) + self.n_groups * log_det

    def log_integral(self) -> float | None:
        of_effects = 0.5 * self.n_groups * self.n_columns * math.log(2 * math.pi)
        of_sds = self.sd_prior.log_integral(self.n_columns)
        return sum_if_known([of_sds, lkj_log_integral(self.n_columns), of_effects])

    def sample(
        self, random: np.random.Generator, parameters: Float[np.ndarray, "n c"]
    ) -> Float[np.ndarray, "n h"] | None:
        n_draws, r = len(parameters), self.n_columns
        log_sds = self.sd_prior.sample(random, n_draws, r)
        if log_sds is None:
            return None
        hyper = np.concatenate([log_sds, sample_lkj(random, n_draws, r)], axis=1)
        factors = np.asarray(jax.vmap(lambda at: factor_of(at, r))(jnp.asarray(hyper)))
        effects = random.standard_normal((n_draws, self.n_groups, r)) @ factors.mT
        parameters[:, self.effect_terms(0)[0].effects] = effects.reshape(n_draws, -1)
        return hyper

    def effect_terms(self, start: int) -> tuple[EffectTerm, ...]:
        return (EffectTerm(self.start, self.n_groups, self.n_columns, start),)


# The regularised horseshoe (Piironen and Vehtari, 2017), for many coefficients near zero.
#
#     β_j ~ N(0, τ² λ̃_j²),   λ̃_j² = c²λ_j²/(c² + τ²λ_j²)
#     λ_j ~ half-Cauchy(1),   τ ~ half-Cauchy(τ₀),   c² ~ Inv-Gamma(ν/2, νs²/2)
#
# The hyper-parameters are log λ_j, log τ and log c², unconstrained.


class Horseshoe(AbstractHyperprior):
    """The prior of some coefficients, of their local scales, the global scale and the slab."""

    coefficients: tuple[int, ...] = eqx.field(static=True)
    """The coefficients among the parameters."""
    global_scale: Scalar
    """τ₀."""
    slab_scale: Scalar
    """s."""
    slab_degrees: Scalar
    """ν."""

    @property
    def n_hyper(self) -> int:
        return len(self.coefficients) + 2

    def potential(self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]) -> Scalar:
        beta = parameters[jnp.asarray(self.coefficients)]
        log_local, log_global, log_slab = hyper[:-2], hyper[-2], hyper[-1]
        one = jnp.ones((), hyper.dtype)
        of_local = LogHalfStudentTPrior(one, one).potential(log_local)
        of_global = LogHalfStudentTPrior(self.global_scale, one).potential(hyper[-2:-1])
        half = 0.5 * self.slab_degrees
        of_slab = half * log_slab + half * self.slab_scale**2 * jnp.exp(-log_slab)
        # log λ̃²τ² = log c² − log(1 + c²/τ²λ²)
        log_variance = log_slab - jax.nn.softplus(log_slab - 2 * (log_global + log_local))
        of_beta = 0.5 * jnp.sum(beta**2 * jnp.exp(-log_variance) + log_variance)
        return of_local + of_global + of_slab + of_beta

    def log_integral(self) -> float:
        count, half = len(self.coefficients), 0.5 * float(self.slab_degrees)
        one = jnp.ones((), self.global_scale.dtype)
        of_scales = [
            LogHalfStudentTPrior(one, one).log_integral(count),
            LogHalfStudentTPrior(self.global_scale, one).log_integral(1),
        ]
        of_slab = math.lgamma(half) - half * math.log(half * float(self.slab_scale) ** 2)
        return math.fsum(of_scales) + of_slab + 0.5 * count * math.log(2 * math.pi)

    def sample(
        self, random: np.random.Generator, parameters: Float[np.ndarray, "n c"]
    ) -> Float[np.ndarray, "n h"]:
        n_draws, half = len(parameters), 0.5 * float(self.slab_degrees)
        scales = np.abs(random.standard_cauchy((n_draws, self.n_hyper - 1)))
        scales[:, -1] *= float(self.global_scale)
        slab = half * float(self.slab_scale) ** 2 / random.gamma(half, size=(n_draws, 1))
        wide = (scales[:, :-1] * scales[:, -1:]) ** 2
        sds = np.sqrt(slab / (1 + slab / wide))
        parameters[:, list(self.coefficients)] = sds * random.standard_normal(sds.shape)
        return np.log(np.concatenate([scales, slab], axis=1))


# R2-D2 (Zhang et al., 2022): a prior of the share of variance that the columns explain.
#
#     R² ~ Beta(a, b),   φ ~ Dirichlet(ξ, …, ξ),   β_j ~ N(0, σ² φ_j τ²/s_j²),   τ² = R²/(1 − R²)
#
# The shares are φ = g/Σg with g_j ~ Gamma(ξ, 1). The hyper-parameters are log g_j and
# log τ² = logit R², unconstrained; Σg is independent of φ, and the rows do not change its law.


class R2D2(AbstractHyperprior):
    """The prior of some coefficients, of R² and of their shares of it."""

    coefficients: tuple[int, ...] = eqx.field(static=True)
    """The coefficients among the parameters."""
    column_sds: Float[Array, " k"]
    """s_j."""
    noise: Scalar | None
    """σ; None if log σ is a parameter."""
    noise_at: int = eqx.field(static=True)
    """The place of log σ among the parameters, if it is one."""
    beta: Float[Array, " 2"]
    """a and b."""
    concentration: Scalar
    """ξ."""

    @property
    def n_hyper(self) -> int:
        return len(self.coefficients) + 1

    def potential(self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]) -> Scalar:
        beta = parameters[jnp.asarray(self.coefficients)]
        log_noise = parameters[self.noise_at] if self.noise is None else jnp.log(self.noise)
        log_gammas, logit = hyper[:-1], hyper[-1]
        of_r2 = jnp.sum(self.beta * jax.nn.softplus(jnp.stack([-logit, logit])))
        log_shares = log_gammas - jax.nn.logsumexp(log_gammas)
        log_variance = logit + log_shares + 2 * (log_noise - jnp.log(self.column_sds))
        of_beta = 0.5 * jnp.sum(beta**2 * jnp.exp(-log_variance) + log_variance)
        return self._of_gammas.potential(log_gammas) + of_r2 + of_beta

    def log_integral(self) -> float:
        count, (a, b) = len(self.coefficients), np.asarray(self.beta, np.float64).tolist()
        of_r2 = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
        of_gammas = self._of_gammas.log_integral(count)
        return of_gammas + of_r2 + 0.5 * count * math.log(2 * math.pi)

    def sample(
        self, random: np.random.Generator, parameters: Float[np.ndarray, "n c"]
    ) -> Float[np.ndarray, "n h"]:
        log_gammas = self._of_gammas.sample(random, len(parameters), len(self.coefficients))
        # Gamma variates, because 1 − R² may round to 0.
        explained, rest = (random.gamma(float(of), size=(len(parameters), 1)) for of in self.beta)
        logit = np.log(explained / rest)
        noise = np.exp(parameters[:, self.noise_at, None]) if self.noise is None else self.noise
        log_shares = log_gammas - np.logaddexp.reduce(log_gammas, axis=1, keepdims=True)
        sds = np.asarray(noise) * np.exp(0.5 * (logit + log_shares)) / np.asarray(self.column_sds)
        parameters[:, list(self.coefficients)] = sds * random.standard_normal(sds.shape)
        return np.concatenate([log_gammas, logit], axis=1)

    @property
    def _of_gammas(self) -> LogGammaPrior:
        return LogGammaPrior(self.concentration, jnp.ones((), self.concentration.dtype))
