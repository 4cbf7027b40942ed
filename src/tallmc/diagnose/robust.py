"""Robust errors: draws with the sandwich covariance, which does not rest on the likelihood.

    V = c H⁻¹ (Σ_g s_g s_gᵀ) H⁻¹,   s_g = Σ_{i∈g} ∇f_i(θ̂),   H = ∇²f(θ̂)

with a cluster g per row, or per label; f_i has the weight of its row, so that survey weights count
as they should. c is N/(N − d) for rows (HC1) and G/(G − 1) · (N − 1)/(N − d) for G clusters, as in
Stata and statsmodels. The scores take one pass over the rows, the Hessian another.

The calibrated posterior has the draws θ̂ + L_V L⁻¹(θ − θ̂), with LLᵀ their covariance and θ̂ their
mean: an affine map, so that the shape of the posterior stays and its covariance becomes V. It is
not the posterior of any prior and likelihood: its intervals cover as those of θ̂ do in repeated
samples (Müller, 2013).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .._core.arrays import on_device
from .._core.errors import InvalidInput
from .._core.statistics import add_by_code
from .._rows.access import RowBlock
from .._rows.sharded import ShardedRows
from ..methods.abstract import Account
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..results.draws import Draws
from ..results.prediction import used_draws

_MOST_STORED_LABELS = 2**20
"""A row store holds numbers in single precision, perhaps standardised."""


def robust(draws: Draws, rows: Any = None, *, cluster: str | ArrayLike | None = None) -> Draws:
    """Draws whose covariance is that of robust, or cluster-robust, errors.

    The mean stays. Summaries, intervals and predictions of the result have robust errors, and its
    report and summary say so.

    **Arguments:**

    - `draws`: draws of `tallmc.fit`, or of any posterior with `rows=posterior`.
    - `rows`: the table, the row store or the posterior of the draws; by default what `tallmc.fit`
      has read.
    - `cluster`: a column of the table or of the row store, or one label per row: rows with the same
      label may depend on each other. By default rows are independent.
    """
    from .._fit.fit import fitted_posterior

    if draws.settings.get("errors"):
        raise InvalidInput("draws", "not have robust errors already", draws.settings["errors"])
    if draws.weights is not None:
        raise InvalidInput("draws", "all count the same", "draws of decreasing steps")
    given = draws.source if rows is None else rows
    posterior = fitted_posterior(draws, given)
    whose = draws.with_posterior(posterior)
    labels = None if cluster is None else _labels(cluster, given, posterior)
    flat = used_draws(draws).flat.astype(np.float64)
    centre, dim, n_rows = flat.mean(axis=0), posterior.dim, posterior.n_rows
    if len(flat) <= dim:
        raise InvalidInput("draws", f"be more than the parameters ({dim})", len(flat))
    position = on_device(centre, posterior.dtype)
    hessian = posterior.model.full_hessian(position, posterior.rows).float64()
    meat, n_clusters = _meat(posterior, position, labels)
    if n_clusters <= dim:
        rule = f"have more labels than the model has parameters ({dim})"
        raise InvalidInput("cluster", rule, n_clusters, "Use fewer columns.")
    scale = n_rows / (n_rows - dim)
    if labels is not None:
        scale = n_clusters / (n_clusters - 1) * (n_rows - 1) / (n_rows - dim)
    bread = np.linalg.inv(hessian)
    if (np.diag(meat) == 0).any():
        given = "scales of a prior: of groups, horseshoe or r2d2"
        cure = "Choose priors without unknown scales, and C(group) instead of (1 | group)."
        raise InvalidInput("draws", "have parameters that all occur in the rows", given, cure)
    wanted = np.linalg.cholesky(scale * bread @ meat @ bread)
    try:
        found = np.linalg.cholesky(np.atleast_2d(np.cov(flat.T)))
    except np.linalg.LinAlgError:
        rule = f"be more than the parameters ({flat.shape[1]}), and differ"
        raise InvalidInput("draws", rule, len(flat), "Draw more: n_draws=...") from None
    moves = np.linalg.solve(found, (draws.positions - centre).reshape(-1, dim).T)
    moved = (centre + (wanted @ moves).T).reshape(draws.positions.shape)
    by = "" if labels is None else f" by {cluster if isinstance(cluster, str) else 'cluster'}"
    errors = f"robust{by}: sandwich covariance of {n_clusters:,} "
    errors += "rows" if labels is None else "clusters"
    account = draws.account or Account(draws.settings.get("method"))
    note = f"errors are {errors}. The draws are an affine map of those of the posterior."
    account = dataclasses.replace(account, notes=(*account.notes, note))
    return dataclasses.replace(
        whose,
        positions=moved.astype(draws.positions.dtype),
        quantities=posterior.quantities,
        settings={**draws.settings, "errors": errors},
        account=account,
        series=None,  # it is that of the posterior
    )


def _labels(cluster: str | ArrayLike, given: Any, posterior: AbstractPosterior) -> np.ndarray:
    """The number of the cluster of each row."""
    if not isinstance(cluster, str):
        values = np.asarray(cluster)
    elif isinstance(posterior.rows, ShardedRows):
        shards = posterior.rows.shards
        if cluster not in shards.manifest.names:
            rule = "be a column of the row store, or one label per row"
            raise InvalidInput("cluster", rule, cluster)
        place = shards.manifest.names.index(cluster)
        column = shards.manifest.columns[place]
        if column.whole and column.high - column.low > _MOST_STORED_LABELS:
            rule = "have labels that stored numbers tell apart"
            found = f"numbers from {column.low:,.0f} to {column.high:,.0f}"
            raise InvalidInput("cluster", rule, found, "Pass an array with one label per row.")
        n_shards = len(shards.manifest.shards)
        values = np.concatenate([shards.array(k)[:, place] for k in range(n_shards)])
    elif isinstance(given, AbstractPosterior):
        rule = "be one label per row, where rows are those of a posterior"
        raise InvalidInput("cluster", rule, cluster)
    else:
        from .._fit.columns import missing
        from .._fit.reading import read_table

        labels = read_table(given).column(cluster, "cluster")
        if missing(labels).any():
            raise InvalidInput("cluster", "have no missing labels", cluster)
        values = labels.numbers
    if values.shape != (posterior.n_rows,):
        cure = "Leave out rows with missing values or weight 0 before the fit."
        rule = f"have one label per row of the fit ({posterior.n_rows:,})"
        raise InvalidInput("cluster", rule, f"shape {values.shape}", cure)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise InvalidInput("cluster", "have no missing labels", "NaN")
    return np.unique(values, return_inverse=True)[1].ravel()


def _meat(
    posterior: AbstractPosterior, position: Float[Array, " d"], labels: np.ndarray | None
) -> tuple[Float[np.ndarray, "d d"], int]:
    """Σ_g s_g s_gᵀ and the number of clusters, in one pass over the rows."""
    dim, n_rows = posterior.dim, posterior.n_rows
    numbers = np.arange(n_rows) if labels is None else labels
    scores = posterior.rows.by_block(  # type: ignore[attr-defined]
        _scores, posterior.model, position, width=posterior.width, beside=numbers.astype(np.int32)
    )
    if labels is None:
        blocks = (block.astype(np.float64) for block in scores)
        return sum((block.T @ block for block in blocks), np.zeros((dim, dim))), n_rows
    sums, first = np.zeros((int(labels.max()) + 1, dim)), 0
    for block in scores:
        add_by_code(sums, labels[first : first + len(block)], block)
        first += len(block)
    return sums.T @ sums, len(sums)


def _scores(
    block: RowBlock, _: Array, model: AbstractModel, position: Float[Array, " d"]
) -> Float[Array, "n d"]:
    return model.expand(model.row_gradients(position, block), block)
