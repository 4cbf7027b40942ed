"""Missing numbers of a few columns, integrated out under a normal model of them.

    x_i | o_i ~ N(A o_i, Σ),   Σ = LLᵀ,   L = diag(τ) R,   f_i = f(βᵀx_i + γᵀo_i + …; y_i)

x_i are the q columns with missing values and o_i a one and the complete columns. Given those values
of x_i that are known, the others are normal, so the predictor is normal, N(m_i, s_i²): a row needs
one integral over a number, however many values it lacks, and no value is a parameter:

    −log p(y_i, known x_i | θ) = −log N(known x_i) − log ∫ N(η; 0, 1) exp(−f(m_i + s_i η; y_i)) dη

Gauss–Hermite quadrature around the mode computes the integral. It is exact for a normal response.
As in `groups.py`, derivatives hold the nodes η_k fixed. A missing value is NaN in the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._core.arrays import Layout, Scalar, Vector, dot
from .._rows.access import PerRow
from .design import Observations
from .generalised_linear import AbstractRegression, weighted
from .groups import back_solve, cholesky, factor_of, forward_solve, hermite, key_of, lkj_potential
from .hierarchy import AbstractHyperprior, Hierarchical
from .model import AbstractModel
from .priors import LogHalfStudentTPrior, ScaleMixturePrior

_NODES = 15
_NEWTON_STEPS, _LONGEST_STEP = 15, 3.0
_LEAST_VARIANCE = 1e-10
"""Of a predictor: the root has no derivative at zero."""


class CovariatePrior(AbstractHyperprior):
    """The prior of (A, log τ, c): normal, half-t and LKJ(1). Columns are standardised."""

    n_missing: int = eqx.field(static=True)
    """q."""
    n_known: int = eqx.field(static=True)
    """The length of o_i."""
    scale: Scalar
    sd_prior: LogHalfStudentTPrior

    @property
    def n_hyper(self) -> int:
        q = self.n_missing
        return q * self.n_known + q * (q + 1) // 2

    def split(self, hyper: Float[Array, " h"]) -> tuple[Float[Array, "q o"], Float[Array, " t"]]:
        """A, and (log τ, c)."""
        first = self.n_missing * self.n_known
        return hyper[:first].reshape(self.n_missing, self.n_known), hyper[first:]

    def potential(self, parameters: Float[Array, " c"], hyper: Float[Array, " h"]) -> Scalar:
        a, free = self.split(hyper)
        total = 0.5 * jnp.sum((a / self.scale) ** 2) + self.sd_prior.potential(
            free[: self.n_missing]
        )
        return total + lkj_potential(free[self.n_missing :], self.n_missing)

    def sample(
        self, random: np.random.Generator, parameters: Float[np.ndarray, "n c"]
    ) -> Float[np.ndarray, "n h"] | None:
        return None


class ImputedRegression(AbstractRegression):
    """The regression of a row whose columns `places` may be NaN: p(y | θ, what is known of x)."""

    inner: AbstractRegression
    covariates: CovariatePrior
    places: tuple[int, ...] = eqx.field(static=True)
    others: tuple[int, ...] = eqx.field(static=True)
    """The complete columns, but for the intercept."""
    start: int = eqx.field(static=True)
    """Where (A, log τ, c) begins in a position."""

    @property
    def n_columns(self) -> int:
        return self.inner.n_columns

    @property
    def row_cost(self) -> int:
        return _NODES * self.inner.row_cost

    def predictors(self, position: Vector, block: Any) -> Float[Array, "n ..."]:
        """z_i with missing values drawn given the known ones.

        The draw belongs to the position, the row and its place in the block: rows that are alike
        lack different numbers.
        """
        z, sds, _ = self.law(position, block)
        first = z if z.ndim == 1 else z[:, 0]
        bits = lax.bitcast_convert_type(first.astype(jnp.float32), jnp.uint32)
        key = key_of(position)

        def noise(row: Array, place: Array) -> Scalar:
            of_row = jax.random.fold_in(jax.random.fold_in(key, row), place)
            return jax.random.normal(of_row, (), z.dtype)

        return _moved(z, sds * jax.vmap(noise)(bits, jnp.arange(len(bits))))

    def row_potentials(self, position: Vector, block: Observations) -> PerRow:
        z, sds, _ = self.law(position, block)
        return self.integral(z, sds, block)

    def law(
        self, position: Vector, block: Observations
    ) -> tuple[Float[Array, "n ..."], PerRow, PerRow]:
        """Predictors at the means of what is missing, their sds, and −log N(known x_i)."""
        x, q = block.x, len(self.places)
        a, free = self.covariates.split(position[self.start :])
        factor = factor_of(free, q)
        covariance = dot(factor, factor.T)
        given = x[:, jnp.array(self.places)]
        known = (~jnp.isnan(given)).astype(x.dtype)
        missing = 1 - known
        mean = a[:, 0] + dot(x[:, jnp.array(self.others, int)], a[:, 1:].T)
        residuals = known * (jnp.where(jnp.isnan(given), 0, given) - mean)
        # The covariance of what is known; the unit matrix where it is missing.
        of_known = known[:, :, None] * covariance * known[:, None, :]
        root = cholesky(of_known + missing[:, :, None] * jnp.eye(q, dtype=x.dtype))
        scaled = forward_solve(root, residuals)
        log_det = jnp.sum(jnp.log(jnp.diagonal(root, axis1=1, axis2=2)), axis=1)
        filled = mean + residuals + missing * dot(back_solve(root, scaled), covariance)
        slopes = missing * position[jnp.array(self.places)]
        along = dot(slopes, covariance)
        explained = forward_solve(root, known * along)
        variance = jnp.sum(slopes * along, axis=1) - jnp.sum(explained**2, axis=1)
        full = block._replace(x=x.at[:, jnp.array(self.places)].set(filled))
        z = self.inner.predictors(position[: self.inner.dim], full)
        sds = jnp.sqrt(jnp.maximum(variance, 0) + _LEAST_VARIANCE)
        return z, sds, 0.5 * jnp.sum(scaled**2, axis=1) + log_det

    def integral(self, z: Float[Array, "n ..."], sds: PerRow, block: Observations) -> PerRow:
        """−log ∫ N(η; 0, 1) exp(−f(z + s η; y)) dη per row."""
        # The trials of a row share its missing values; a weight counts rows.
        trials = block.weight if self.likelihood.has_trials else None
        each = self.likelihood.potential
        each = each if self.likelihood.elementwise else jax.vmap(each)

        def potentials(eta: PerRow, z: Float[Array, "n ..."], sds: PerRow) -> PerRow:
            found = each(_moved(z, sds * eta), block.y)
            return found if trials is None else trials * found

        # The search is not differentiated: constants go in.
        mode, width = lax.stop_gradient(_mode(potentials, *lax.stop_gradient((z, sds))))
        standard, log_weights = hermite(_NODES, 1)
        shares = jnp.asarray(log_weights[:, None] + standard**2 / 2, sds.dtype)
        eta = mode + width * jnp.asarray(standard, sds.dtype)
        joint = jax.vmap(potentials, in_axes=(0, None, None))(eta, z, sds) + eta**2 / 2
        found = -jax.nn.logsumexp(shares - joint, axis=0) - jnp.log(width)
        return found if trials is not None else weighted(block, found)


def _mode(
    potentials: Callable[..., PerRow], z: Float[Array, "n ..."], sds: PerRow
) -> tuple[PerRow, PerRow]:
    """η̂ of each row, by Newton's steps, and the width of the density there."""

    def slope(eta: PerRow) -> PerRow:
        return jax.jvp(lambda at: potentials(at, z, sds), (eta,), (jnp.ones_like(eta),))[1]

    def step(_: Any, carry: tuple[PerRow, PerRow]) -> tuple[PerRow, PerRow]:
        eta, _ = carry
        slopes, curvatures = jax.jvp(slope, (eta,), (jnp.ones_like(eta),))
        curvatures = 1 + jnp.maximum(curvatures, 0)
        moved = jnp.clip((slopes + eta) / curvatures, -_LONGEST_STEP, _LONGEST_STEP)
        return eta - moved, 1 / jnp.sqrt(curvatures)

    return lax.fori_loop(0, _NEWTON_STEPS, step, (jnp.zeros_like(sds), jnp.ones_like(sds)))


class ImputedModel(AbstractModel):
    """The regression and the normal model of its incomplete columns: p(y, known x | θ)."""

    init: Vector
    layout: Layout = eqx.field(static=True)
    inner: Hierarchical
    law: ImputedRegression

    @property
    def bounded(self) -> bool:
        return self.inner.hyperprior.n_hyper == self.law.covariates.n_hyper

    @property
    def row_cost(self) -> int:
        return self.law.row_cost

    def scale_mixtures(self) -> list[tuple[np.ndarray, ScaleMixturePrior]]:
        return self.inner.scale_mixtures()

    def prior_potential(self, position: Vector) -> Scalar:
        return self.inner.prior_potential(position)

    def row_potentials(self, position: Vector, block: Observations) -> PerRow:
        z, sds, of_covariates = self.law.law(position, block)
        if not self.law.likelihood.has_trials:
            of_covariates = weighted(block, of_covariates)
        return self.law.integral(z, sds, block) + of_covariates


def imputed(model: Any, places: tuple[int, ...], others: tuple[int, ...]) -> ImputedModel:
    """A regression whose last hyper-prior is the `CovariatePrior` of its columns `places`."""
    regression, covariates = model.regression(), model.hyperprior.parts[-1]
    law = ImputedRegression(
        init=model.init,
        layout=model.layout,
        likelihood=regression.likelihood,
        prior=regression.prior,
        inner=regression,
        covariates=covariates,
        places=places,
        others=others,
        start=model.dim - covariates.n_hyper,
    )
    return ImputedModel(model.init, model.layout, model, law)


def _moved(z: Float[Array, "n ..."], by: PerRow) -> Float[Array, "n ..."]:
    """Predictors, or the first of each row, moved."""
    return z + by if z.ndim == 1 else z.at[:, 0].add(by)
