"""Models of counts on simplices: what a sampler needs is expected counts, not gradients.

A model has one or several simplices. Point w on a simplex has the prior Dirichlet(α), and the rows
determine counts n_i of the categories, given w and the latent variables z_i of row i:

    p(w, z | x) ∝ Π_k w_k^{α_k − 1 + Σ_i n_ik(x_i, z_i)},   n̂ = Σ_{i∈S} w_i E[n_i | w, x_i]

The sum over a batch S of rows with weights w_i estimates Σ_i E n_i without bias if the expectation
is exact. Patterson and Teh (2013), section 4, and Baker et al. (2018), section 4. A position holds
θ > 0, and w = θ/θ. along the last axis is what users see (`methods/simplex/`).

A model of counts has no gradients of rows. Methods that need them are refused with one message.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..._core.arrays import ComputedQuantities, Layout, Scalar, Vector, check_numeric, layout_of
from ..._core.errors import InvalidInput
from ..._rows.access import AbstractRows, PerRow, RowBlock
from ..._rows.law import Batch
from ..._rows.resident import ResidentRows
from ...models.model import AbstractModel
from ...models.posterior import ModelPosterior
from .transitions import normalised

_ROWS_PER_STEP = 100


class AbstractCountsModel(AbstractModel):
    """Expected counts of rows, given points on simplices."""

    prior: eqx.AbstractVar[Float[Array, "*k"]]  # α, in the shape of θ; the last axis is a simplex

    totals_vary: ClassVar[bool] = True
    """Whether the total of the counts of a simplex depends on its point."""

    bounded = False

    @abc.abstractmethod
    def expected_counts(
        self, simplex: Float[Array, "*k"], batch: Batch, key: PRNGKeyArray
    ) -> Float[Array, "*k"]:
        """Σ w_i E n_i over the rows of a batch with weights w_i, given w in the shape of α."""

    def theta(self, position: Vector) -> Float[Array, "*k"]:
        """θ in the shape of α."""
        return position.reshape(self.prior.shape)

    def simplex(self, position: Vector) -> Float[Array, "*k"]:
        """W = θ/θ. ."""
        return normalised(self.theta(position))

    def check_gradients(self, n_rows: int, inflation: float) -> None:
        size = min(n_rows, _ROWS_PER_STEP)
        step_size = min(1.0, 4 * inflation * size / max(n_rows - size, 1))
        thin = math.ceil(2 / step_size)
        settings = f"step_size={step_size:.2g}, batch_size={size}) with thin={thin}"
        raise InvalidInput(
            "method",
            "be given for a model of counts, which has no gradients of rows",
            None,
            f"Try tallmc.contrib.simplex.scir({settings}.",
        )

    def prior_potential(self, position: Vector) -> Scalar:
        # θ_k ~ Gamma(α_k, 1), so that w ~ Dirichlet(α).
        theta = self.theta(position)
        return jnp.sum(theta - (self.prior - 1) * jnp.log(theta))

    def row_potentials(self, position: Vector, block: RowBlock) -> PerRow:
        # All gradients and curvatures of the base class come from here.
        raise InvalidInput(
            "method",
            "need no gradients: the rows of a model of counts have none",
            "a method that evaluates gradients or potentials",
            "Use scir(step_size=..., batch_size=...) of tallmc.contrib.simplex.",
        )


def counts_posterior(
    model: AbstractCountsModel,
    rows: AbstractRows,
    name: str,
    dims: tuple[str, ...],
    coords: Mapping[str, tuple[str, ...]],
    description: Mapping[str, str],
) -> ModelPosterior:
    """A posterior whose quantity `name` is w."""
    quantities = ComputedQuantities(
        lambda position: {name: model.simplex(position)}, model.dim, {name: dims}, coords
    )
    return ModelPosterior(model, rows, quantities, None, description)


def checked_prior(parameter: str, prior: ArrayLike, size: int) -> Float[np.ndarray, " k"]:
    """α as a vector of positive numbers, from a number or a vector."""
    values = np.asarray(check_numeric(parameter, prior), np.float64)
    if values.shape not in ((), (size,)) or not (np.isfinite(values) & (values > 0)).all():
        raise InvalidInput(parameter, f"be a positive number, or {size} of them", prior)
    return np.broadcast_to(values, (size,))


def checked_counts(parameter: str, counts: Any, one: str) -> np.ndarray:
    """A matrix of counts from an array or a SciPy sparse matrix, as integers."""
    dense = counts.toarray() if hasattr(counts, "toarray") else counts
    values = np.asarray(check_numeric(parameter, dense))
    if values.ndim != 2 or 0 in values.shape:
        rule = f"be a matrix with one row per {one} and one column per category"
        raise InvalidInput(parameter, rule, f"shape {values.shape}")
    wrong = ~(np.isfinite(values) & (values >= 0) & (values % 1 == 0))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        found = f"{values[row, column]} in row {row}, column {column}"
        raise InvalidInput(parameter, "be counts: 0, 1, 2, …", found)
    return values.astype(np.int64)


def checked_labels(parameter: str, labels: Any, size: int, dim: str) -> dict[str, tuple[str, ...]]:
    """Names of the entries of a dimension; no names if `labels` is None."""
    if labels is None:
        return {}
    names = tuple(map(str, labels))
    if len(names) != size:
        raise InvalidInput(parameter, f"have one name per column ({size})", len(names))
    return {dim: names}


# Rows of counts with common probabilities: the Dirichlet–multinomial model.
#
#     x_i ~ Multinomial(m_i, w),   w ~ Dirichlet(α):   w | x ~ Dirichlet(α + Σ_i x_i)
#
# The model is conjugate, so its posterior is known. It shows what SGRLD and SCIR do to small
# probabilities (Baker et al., 2018, section 4). The expected counts of a row are its counts.


class DirichletMultinomial(AbstractCountsModel):
    """Rows are vectors of counts of the same categories."""

    prior: Float[Array, " k"]
    init: Vector
    layout: Layout

    totals_vary = False

    def expected_counts(
        self, simplex: Float[Array, " k"], batch: Batch, key: PRNGKeyArray
    ) -> Float[Array, " k"]:
        return batch.weights @ batch.rows.astype(simplex.dtype)


def dirichlet_multinomial(
    counts: Any, prior: ArrayLike = 1.0, labels: Sequence[str] | None = None
) -> ModelPosterior:
    """Probabilities of categories from rows of counts, with a Dirichlet prior.

    **Arguments:**

    - `counts`: a matrix with one row per observation and one column per category, dense or sparse.
    - `prior`: α, a positive number or one per category.
    - `labels`: names of the categories.

    **Returns:** a posterior with the quantity `probabilities`. Its law is Dirichlet(α + column
    sums). Draw from it with `scir` or `sgrld_simplex`.

    >>> import numpy as np, tallmc
    >>> posterior = tallmc.contrib.simplex.dirichlet_multinomial(np.eye(3, dtype=int), prior=0.1)
    >>> method = tallmc.contrib.simplex.scir(step_size=0.5, batch_size=3)
    >>> draws = tallmc.sample(posterior, method, chains=2, n_draws=50, progress=False)
    >>> draws.params["probabilities"].shape
    (2, 50, 3)
    """
    values = checked_counts("counts", counts, "observation")
    n_categories = values.shape[1]
    alpha = jnp.asarray(checked_prior("prior", prior, n_categories), float)
    layout, init = layout_of({"theta": alpha + jnp.mean(alpha)})
    model = DirichletMultinomial(prior=alpha, init=init, layout=layout)
    description = {"family": "Dirichlet–multinomial", "categories": str(n_categories)}
    coords = checked_labels("labels", labels, n_categories, "category")
    rows = ResidentRows(jnp.asarray(values.astype("int32")))
    return counts_posterior(model, rows, "probabilities", ("category",), coords, description)
