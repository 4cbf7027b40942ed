"""Generalised linear models: linear, logistic and Poisson regression with independent Gaussian priors.

    f_i(θ) = f(x_iᵀθ; y_i),   ∇f_i = f'(z_i) x_i,   ∇²f_i = f''(z_i) x_i x_iᵀ,   f₀(θ) = Σ θ_j²/2v_j

The compact gradient of a row is the scalar f'(z_i). In closed form: ‖∇f_i‖ = |f'|‖x_i‖, tr(H_i Σ H_iᵀ) = f''² ‖x_i‖² x_iᵀΣx_i,
L_i = sup f'' · ‖x_i‖² (putcha-2023, appendix C). For Gaussian θ the predictor z_i is Gaussian, so that means over θ of what a row
does are one-dimensional integrals, by Gauss–Hermite quadrature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int

from .._arrays import check_numeric, to_floats
from .._errors import InvalidInput, check_number
from .._layout import Layout, layout_of
from .._posterior import AbstractPosterior
from .._rows import dot
from . import fused
from .families import AbstractFamily, Bernoulli, Gaussian, Poisson

if TYPE_CHECKING:
    from ..geometry import AbstractGeometry

_QUADRATURE_NODES = 24


class Observations(NamedTuple):
    x: Float[Array, "n d"]
    y: Float[Array, " n"]


class GeneralisedLinear(AbstractPosterior):
    """A generalised linear model; build one with `logistic_regression`, `linear_regression` or `poisson_regression`."""

    data: Observations
    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)
    family: AbstractFamily
    prior_variance: Float[Array, ""] | Float[Array, " d"]
    packed: Float[Array, "N c"] | None = None
    """The data once more, as the GPU likes to read them; whoever replaces the data begins with `without_copies`."""

    def without_copies(self) -> GeneralisedLinear:
        return dataclasses.replace(self, packed=None)

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        return 0.5 * jnp.sum(position**2 / self.prior_variance)

    def row_potentials(self, position: Float[Array, " d"], rows: Observations) -> Float[Array, " n"]:
        return self.family.potential(dot(rows.x, position), rows.y)

    def row_gradients(self, position: Float[Array, " d"], rows: Observations) -> Float[Array, " n"]:
        return self.family.slope(dot(rows.x, position), rows.y)

    def linear_row_gradients(
        self, centre: Float[Array, " d"], move: Float[Array, " d"], rows: Observations
    ) -> Float[Array, " n"]:
        z = dot(rows.x, centre)
        return self.family.slope(z, rows.y) + self.family.curvature(z, rows.y) * dot(rows.x, move)

    def remainders(
        self, order: int, position: Float[Array, " d"], centre: Float[Array, " d"], rows: Observations
    ) -> Float[Array, " n"]:
        if order == 0:
            return self.row_gradients(position, rows)
        return self._remainders(order, dot(rows.x, centre), rows.y)(dot(rows.x, position - centre))

    def mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        positions: Float[Array, "k d"],
        metric: AbstractGeometry,
        rows: Observations,
    ) -> Float[Array, " n"]:
        z = dot(rows.x, centre)
        moves = dot(rows.x, (positions - centre).T)
        mean_square = jnp.mean(jax.vmap(self._remainders(order, z, rows.y), 1, 1)(moves) ** 2, axis=1)
        return mean_square * jnp.sum(metric.pull(rows.x) ** 2, axis=1)

    def gaussian_mean_square_remainders(
        self,
        order: int,
        centre: Float[Array, " d"],
        spread: AbstractGeometry,
        width: Float[Array, ""],
        metric: AbstractGeometry,
        rows: Observations,
    ) -> Float[Array, " n"]:
        z, sd = dot(rows.x, centre), width * jnp.linalg.norm(spread.pull(rows.x), axis=1)
        remainders = self._remainders(order, z, rows.y)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)

        def add_node(total: Float[Array, " n"], node: tuple[Array, Array]) -> tuple[Float[Array, " n"], None]:
            at, weight = node
            return total + weight * remainders(at * sd) ** 2, None

        quadrature = jnp.asarray(nodes, self.dtype), jnp.asarray(weights / weights.sum(), self.dtype)
        mean_square, _ = lax.scan(add_node, jnp.zeros_like(z), quadrature)
        return mean_square * jnp.sum(metric.pull(rows.x) ** 2, axis=1)

    def _remainders(self, order: int, z: Float[Array, " n"], y: Float[Array, " n"]) -> Callable[[Array], Float[Array, " n"]]:
        """f'(z + v) less the first `order` terms of its Taylor series, as a function of v."""
        slope = self.family.slope(z, y) if order >= 1 else 0.0
        curvature = self.family.curvature(z, y) if order >= 2 else 0.0
        return lambda move: self.family.slope(z + move, y) - slope - curvature * move

    def sum_remainders(
        self,
        order: int,
        position: Float[Array, " d"],
        centre: Float[Array, " d"],
        rows: Observations,
        weights: Float[Array, " n"],
        indices: Int[Array, " n"] | None = None,
    ) -> Float[Array, " d"]:
        if indices is None or self.packed is None or not fused.is_worth_it(len(indices)):
            return super().sum_remainders(order, position, centre, rows, weights)

        def compact(z: Sequence[Float[Array, " n"]], y: Float[Array, " n"]) -> Float[Array, " n"]:
            return self._remainders(order, z[0], y)(z[1])

        about = jnp.stack([centre, position - centre])
        return fused.weighted_row_sum(compact, self.packed, indices, weights, about)

    def combine(self, compact: Float[Array, " n"], rows: Observations, weights: Float[Array, " n"]) -> Float[Array, " d"]:
        return dot(weights * compact, rows.x)

    def expand(self, compact: Float[Array, " n"], rows: Observations) -> Float[Array, "n d"]:
        return compact[:, None] * rows.x

    def norms(self, compact: Float[Array, " n"], rows: Observations) -> Float[Array, " n"]:
        return jnp.abs(compact) * jnp.linalg.norm(rows.x, axis=1)

    def block_hessian(self, position: Float[Array, " d"], rows: Observations) -> Float[Array, "d d"]:
        curvature = self.family.curvature(dot(rows.x, position), rows.y)
        return dot((rows.x * curvature[:, None]).T, rows.x)

    def curvature_norms(
        self, position: Float[Array, " d"], factor: Float[Array, "d k"], rows: Observations
    ) -> Float[Array, " n"]:
        curvature = self.family.curvature(dot(rows.x, position), rows.y)
        return jnp.abs(curvature) * jnp.linalg.norm(rows.x, axis=1) * jnp.linalg.norm(dot(rows.x, factor), axis=1)

    def lipschitz(self) -> Float[Array, " N"]:
        largest = self.family.largest_curvature()
        if largest is None:
            family = type(self.family).__name__
            raise InvalidInput(
                "posterior",
                "have Lipschitz gradients for this method",
                f"the {family} family, whose curvature has no bound",
                "Use weights='gradient' or 'curvature', and a fixed size.",
            )
        return largest.astype(self.dtype) * jnp.sum(self.data.x**2, axis=1)


def logistic_regression(X: ArrayLike, y: ArrayLike, prior_variance: ArrayLike) -> GeneralisedLinear:
    """Bayesian logistic regression, y_i ∈ {0, 1}, θ_j ~ N(0, prior_variance).

    `X` carries its own intercept column. `prior_variance` is a number or one a coefficient.

    >>> posterior = logistic_regression([[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]], [1, 0, 1], prior_variance=10.0)
    >>> posterior.n_rows, posterior.dim
    (3, 2)
    """
    x, responses = _design(X, y)
    if not np.isin(responses, (0.0, 1.0)).all():
        raise InvalidInput("y", "be 0 or 1 in every row", _first_bad(responses, ~np.isin(responses, (0.0, 1.0))))
    return _regression(x, responses, prior_variance, Bernoulli())


def linear_regression(X: ArrayLike, y: ArrayLike, prior_variance: ArrayLike, noise_variance: float = 1.0) -> GeneralisedLinear:
    """Bayesian linear regression with known noise variance, y_i ~ N(x_iᵀθ, noise_variance), θ_j ~ N(0, prior_variance).

    The posterior is Gaussian, which makes this the model on which samplers can be checked exactly.
    """
    x, responses = _design(X, y)
    noise = jnp.asarray(check_number("noise_variance", noise_variance, 0, low_open=True), x.dtype)
    return _regression(x, responses, prior_variance, Gaussian(noise))


def poisson_regression(X: ArrayLike, y: ArrayLike, prior_variance: ArrayLike) -> GeneralisedLinear:
    """Bayesian Poisson regression with log link, y_i ∈ {0, 1, 2, …}, θ_j ~ N(0, prior_variance).

    Its gradients are not Lipschitz: adaptive sizes and Lipschitz weights do not apply.
    """
    x, responses = _design(X, y)
    bad = (responses < 0) | (responses != np.floor(responses))
    if bad.any():
        raise InvalidInput("y", "be a count (0, 1, 2, …) in every row", _first_bad(responses, bad))
    return _regression(x, responses, prior_variance, Poisson())


def _design(X: ArrayLike, y: ArrayLike) -> tuple[Float[Array, "n d"], np.ndarray]:
    x, responses = to_floats("X", X), np.asarray(check_numeric("y", y), np.float64)
    if x.ndim != 2 or 0 in x.shape:
        raise InvalidInput("X", "be a matrix with at least one row and one column", f"shape {x.shape}")
    if responses.shape != x.shape[:1]:
        raise InvalidInput("y", f"have one value a row of X ({x.shape[0]})", f"shape {responses.shape}")
    finite = np.asarray(jnp.all(jnp.isfinite(x), axis=1)) & np.isfinite(responses)
    if not finite.all():
        raise InvalidInput("X and y", "be finite", f"NaN or infinity in row {np.argmin(finite)}", "Drop or impute such rows.")
    return x, responses


def _regression(x: Float[Array, "n d"], y: np.ndarray, prior_variance: ArrayLike, family: AbstractFamily) -> GeneralisedLinear:
    d = x.shape[1]
    variance = to_floats("prior_variance", prior_variance, x.dtype)
    if variance.shape not in ((), (d,)) or not bool(jnp.all((variance > 0) & jnp.isfinite(variance))):
        raise InvalidInput("prior_variance", f"be positive and finite, a number or one a column ({d})", prior_variance)
    layout, init = layout_of({"beta": jnp.zeros(d, x.dtype)})
    rows = Observations(x, to_floats("y", y, x.dtype))
    packed = None if jax.tree.leaves(family) else fused.pack(*rows)  # a compiled kernel knows no numbers but its arguments
    return GeneralisedLinear(rows, init, layout, family, variance, packed)


def _first_bad(values: np.ndarray, bad: np.ndarray) -> str:
    return f"{values[np.argmax(bad)]:g} in row {np.argmax(bad)}"
