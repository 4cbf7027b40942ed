"""Cumulative logit regression for ordered classes.

    P(y ≤ k) = 1/(1 + e^{−(c_k − z)}),   k = 0, …, K − 2,   c₀ < c₁ < …
    c₀ = s₀,   c_k = c_{k−1} + e^{s_k}

The cut points are the shared parameters, in the unconstrained form s. There is no intercept: the
cut points take its place.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.errors import check_int
from ..rows.sharded import ShardedRows
from .design import normal_prior, regression_data
from .likelihood import AbstractLikelihood
from .observations import Observations
from .posterior import ModelPosterior
from .priors import AbstractPrior
from .regression import Shared, regression_posterior

_TINY_GAP = -20.0  # below it, log(1 − e^{−g}) = s − g/2 to 1e-19


class CumulativeLogit(AbstractLikelihood):
    """Ordered classes 0 to K − 1; z = (predictor, s₀, …, s_{K−2})."""

    n_classes: int = eqx.field(static=True)

    @property
    def n_predictors(self) -> int:
        return 1

    @property
    def n_shared(self) -> int:
        return self.n_classes - 1

    @property
    def log_concave(self) -> bool:
        return False

    def row_potential(self, z: Float[Array, " k"], y: Float[Array, ""]) -> Float[Array, ""]:
        # σ(b) − σ(a) = σ(b) σ(−a) (1 − e^{−(b−a)}) with a, b the margins below and above y.
        margins = cut_points(z[1:]) - z[0]
        edge = jnp.zeros(1, z.dtype)
        below = jnp.concatenate([edge, jax.nn.softplus(margins)])
        above = jnp.concatenate([jax.nn.softplus(-margins), edge])
        gaps = jnp.concatenate([edge, _log_gap(z[2:]), edge])
        is_y = jnp.arange(self.n_classes) == y
        return jnp.sum(jnp.where(is_y, below + above - gaps, 0.0))

    def largest_curvature(self) -> None:
        return None

    @property
    def cubic_bound(self) -> None:
        return None

    def starting_point(self, rows: Observations) -> None:
        return None

    def constant(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        return jnp.zeros_like(y)

    def mean(self, z: Float[Array, "n k"]) -> Float[Array, "n classes"]:
        upper = jax.nn.sigmoid(jax.vmap(cut_points)(z[:, 1:]) - z[:, :1])
        return jnp.diff(jnp.pad(upper, ((0, 0), (1, 1)), constant_values=(0.0, 1.0)), axis=1)

    def simulate(self, key: PRNGKeyArray, z: Float[Array, "n k"]) -> Float[Array, " n"]:
        latent = z[:, 0] + jax.random.logistic(key, z.shape[:1], z.dtype)
        cuts = jax.vmap(cut_points)(z[:, 1:])
        return jnp.sum(latent[:, None] > cuts, axis=1).astype(z.dtype)


def _log_gap(s: Float[Array, " k"]) -> Float[Array, " k"]:
    """log(1 − e^{−g}) with g = eˢ, also where g underflows."""
    gap, is_tiny = jnp.exp(s), s < _TINY_GAP
    return jnp.where(is_tiny, s - 0.5 * gap, jnp.log(-jnp.expm1(-jnp.where(is_tiny, 1.0, gap))))


class CutPointPrior(AbstractPrior):
    """The prior of s for which the class probabilities at z = 0 are uniform on the simplex.

    The map from cut points to probabilities has the Jacobian Π σ'(c_k), and that from s to cut
    points has Π_{k≥1} e^{s_k}.
    """

    @property
    def log_concave(self) -> bool:
        return False

    def potential(self, values: Float[Array, " k"]) -> Float[Array, ""]:
        cuts = cut_points(values)
        slopes = jax.nn.softplus(cuts) + jax.nn.softplus(-cuts)
        return jnp.sum(slopes) - jnp.sum(values[1:])


def cut_points(free: Float[Array, " k"]) -> Float[Array, " k"]:
    """c from s."""
    return jnp.cumsum(jnp.concatenate([free[:1], jnp.exp(free[1:])]))


def ordinal_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    classes: int | None = None,
    *,
    response: str | None = None,
    weights: ArrayLike | str | None = None,
    offset: ArrayLike | str | None = None,
) -> ModelPosterior:
    """Bayesian cumulative logit regression, y_i ∈ {0, 1, …, classes − 1}, in this order.

    **Arguments:**

    - `X`: the design matrix, without an intercept, as an array or a data frame; or the
      rows of a row store, from `tallmc.rows.open`.
    - `y`: the class of each row.
    - `prior_variance`: a number, or one per column.
    - `classes`: the number of classes; by default one more than the largest y.
    - `response`: the name of the response, if X is a row store; then there is no `y`.
    - `weights`: how many times each row counts; for a row store the name of a column.
    - `offset`: a number per row that is added to its predictor; for a row store the name of a
      column.

    **Returns:** a posterior with the parameters `beta` and `cut_points`, in the unconstrained form
    s: the first cut point, then the logs of the distances between cut points.

    **Raises:** `InvalidInput` if y is not a class number in every row, or X is not a finite matrix.

    >>> posterior = ordinal_regression([[0.5], [-2.0], [1.5]], [1, 0, 2], prior_variance=10.0)
    >>> posterior.layout.shapes
    ((1,), (2,))
    """
    data = regression_data(X, y, response, weights, offset)
    known = check_int("classes", int(data.y_high) + 1 if classes is None else classes, 2)
    data.check_response(
        f"be a class (0 to {known - 1}) in every row", lambda y: (y >= 0) & (y < known)
    )
    shared = cut_points_at_start(known)
    prior = normal_prior(prior_variance, data)
    return regression_posterior(data, CumulativeLogit(known), prior, shared=[shared])


def cut_points_at_start(classes: int) -> Shared:
    """Cut points for which all classes are equally likely at z = 0, and their prior."""
    share = np.arange(1, classes) / classes
    cuts = np.log(share / (1 - share))
    free = np.concatenate([cuts[:1], np.log(np.diff(cuts))])
    return Shared("cut_points", free, CutPointPrior())
