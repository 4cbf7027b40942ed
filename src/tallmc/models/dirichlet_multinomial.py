"""Rows of counts with common probabilities: the Dirichlet–multinomial model.

    x_i ~ Multinomial(m_i, w),   w ~ Dirichlet(α):   w | x ~ Dirichlet(α + Σ_i x_i)

The model is conjugate, so its posterior is known. It shows what SGRLD and SCIR do to small
probabilities (Baker et al., 2018, section 4). The expected counts of a row are its counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from ..core.layout import Layout, layout_of
from ..rows.batch import Batch
from ..rows.resident import ResidentRows
from .counts import (
    AbstractCountsModel,
    checked_counts,
    checked_labels,
    checked_prior,
    counts_posterior,
)
from .posterior import ModelPosterior


class DirichletMultinomial(AbstractCountsModel):
    """Rows are vectors of counts of the same categories."""

    prior: Float[Array, " k"]
    init: Float[Array, " d"]
    layout: Layout

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
    sums). Draw from it with `tallmc.scir` or `tallmc.sgrld_simplex`.

    **Raises:** `InvalidInput` if `counts` is not a matrix of counts, or α is not positive.

    >>> import numpy as np, tallmc
    >>> posterior = tallmc.models.dirichlet_multinomial(np.eye(3, dtype=int), prior=0.1)
    >>> method = tallmc.scir(step_size=0.5, size=3)
    >>> draws = tallmc.sample(posterior, method, chains=2, draws=50, progress=False)
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
