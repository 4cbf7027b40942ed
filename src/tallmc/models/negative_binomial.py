"""Negative binomial regression with log link and unknown dispersion.

E y = μ = e^{x·β},   Var y = μ + αμ²,   s = log α, shared by all rows
−log p(y) = log Γ(1/α) − log Γ(y + 1/α) − (1/α) log(1/(1 + αμ)) − y log(αμ/(1 + αμ)) + log y!
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, ArrayLike, Float

from ..core.layout import Layout, layout_of
from ..rows.sharded import ShardedRows
from .design import check_prior_variance, regression_data
from .linear_predictor import AbstractLinearPredictor
from .posterior import ModelPosterior

_LOG_DISPERSION_VARIANCE = 4.0


class NegativeBinomialRegression(AbstractLinearPredictor):
    """Negative binomial regression; `negative_binomial_regression` builds its posterior."""

    init: Float[Array, " d"]
    layout: Layout = eqx.field(static=True)
    prior_variance: Float[Array, ""] | Float[Array, " c"]
    n_shared = 1

    @property
    def n_predictors(self) -> int:
        return 1

    def prior_potential(self, position: Float[Array, " d"]) -> Float[Array, ""]:
        beta, log_dispersion = position[:-1], position[-1]
        return (
            0.5 * jnp.sum(beta**2 / self.prior_variance)
            + 0.5 * log_dispersion**2 / _LOG_DISPERSION_VARIANCE
        )

    def row_potential(self, z: Float[Array, " 2"], y: Float[Array, ""]) -> Float[Array, ""]:
        log_mean, log_dispersion = z
        shape, log_odds = jnp.exp(-log_dispersion), log_mean + log_dispersion
        log_gammas = gammaln(shape) - gammaln(y + shape) + gammaln(y + 1)
        return log_gammas + shape * jax.nn.softplus(log_odds) + y * jax.nn.softplus(-log_odds)

    def largest_curvature(self) -> None:
        return None


def negative_binomial_regression(
    X: ArrayLike | ShardedRows,
    y: ArrayLike | None = None,
    prior_variance: ArrayLike | None = None,
    *,
    response: str | None = None,
) -> ModelPosterior:
    """Bayesian negative binomial regression, β_j ~ N(0, prior_variance), log α ~ N(0, 4).

    **Arguments:**

    - `X`: the design matrix, with its own intercept column; or the rows of a row store, from
      `tallmc.rows.open`.
    - `y`: a count (0, 1, 2, …) per row.
    - `prior_variance`: a number, or one per column.
    - `response`: the name of the response, if X is a row store; then there is no `y`.

    **Returns:** a posterior with the parameters `beta` and `log_dispersion`.

    **Raises:** `InvalidInput` if y is not a count in every row, or X is not a finite matrix.

    >>> X = [[1.0, 0.5], [1.0, -2.0], [1.0, 1.5]]
    >>> posterior = negative_binomial_regression(X, [0, 2, 7], prior_variance=10.0)
    >>> posterior.layout.names
    ('beta', 'log_dispersion')
    """
    data = regression_data(X, y, response)
    data.check_response("be a count (0, 1, 2, …) in every row", lambda y: y >= 0)
    variance = check_prior_variance(prior_variance, data.n_columns, data.dtype)
    zero = jnp.zeros(data.n_columns, data.dtype)
    layout, init = layout_of({"beta": zero, "log_dispersion": jnp.zeros((), data.dtype)})
    model = NegativeBinomialRegression(init=init, layout=layout, prior_variance=variance)
    return ModelPosterior(model, data.rows)
