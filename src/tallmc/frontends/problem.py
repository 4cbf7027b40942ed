"""A regression problem: a table or a row store, the model chosen for it, and its posterior."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from ..models.design import design_data, store_data
from ..models.posterior import ModelPosterior
from ..rows.sharded import ShardedRows
from .new_rows import design_matrix, group_terms, times
from .regression_form import RegressionForm
from .regression_model import RegressionModel
from .row_store_design import row_store_design
from .tables import Design, make_design
from .tables.matrix import INTERCEPT
from .tables.table import Table


@dataclasses.dataclass(frozen=True)
class RegressionProblem:
    """A posterior, and how it came from a table.

    **Arguments:**

    - `form`: the regression without its rows.
    - `posterior`: the posterior. Its quantities are coefficients in the units of the table.
    - `notes`: lines to print.
    """

    form: RegressionForm
    posterior: ModelPosterior
    notes: tuple[str, ...]

    @property
    def response(self) -> str:
        """The name of the response."""
        return self.form.encoding.response.name

    @property
    def n_columns(self) -> int:
        """Columns of the design without the intercept."""
        return len(set(self.form.columns.names) - {INTERCEPT})

    @classmethod
    def of_table(cls, table: Table, model: RegressionModel) -> RegressionProblem:
        """The problem of a table in memory."""
        family, _ = model.families()
        design = make_design(
            table,
            model.response,
            formula=model.formula,
            weights=model.weights,
            offset=model.offset,
            exposure=model.exposure,
            trials=model.trials,
            exclude=model.exclude,
            categorical=model.categorical,
            drop_missing=model.drop_missing,
            standardise=model.standardise,
            intercept=model.intercept,
            response_kind=family.response,
            level=model.level,
            dtype=str(jax.dtypes.canonicalize_dtype(np.float64)),
        )
        design, notes = _without_zero_weights(design)
        form = RegressionForm(model, design.encoding, table.description)
        x = design_matrix(design, family.has_intercept)
        y, weights = np.asarray(design.y, np.float64), design.weights
        if design.trials is not None:
            y, weights = y / design.trials, times(design.trials, weights)
        data = design_data(x, y, form.columns.names, weights, design.offset, group_terms(design))
        posterior = form.posterior(data, x.std(axis=0, dtype=np.float64))
        return cls(form, posterior, (*design.notes, *notes, *_notes_on(model)))

    @classmethod
    def of_rows(cls, rows: ShardedRows, model: RegressionModel) -> RegressionProblem:
        """The problem of a row store."""
        design = row_store_design(rows.shards.manifest, model)
        form = RegressionForm(model, design.encoding, "row store")
        data = store_data(rows.viewed(design.view), form.columns.names)
        return cls(form, form.posterior(data, design.column_sds), _notes_on(model))


def _notes_on(model: RegressionModel) -> tuple[str, ...]:
    """Notes on choices that are hard to sample."""
    if not any(shown.startswith("horseshoe") for shown in model.prior.values()):
        return ()
    return ("horseshoe: coefficients near zero make its posterior hard to sample; see the verdict",)


def _without_zero_weights(design: Design) -> tuple[Design, tuple[str, ...]]:
    """The rows that count."""
    weights = design.weights
    if weights is None or (weights > 0).all():
        return design, ()
    kept = weights > 0

    def some(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[kept]

    groups = tuple(
        dataclasses.replace(group, codes=group.codes[kept], x=group.x[kept])
        for group in design.groups
    )
    names = ("x", "y", "weights", "offset", "trials")
    fields: dict[str, Any] = {name: some(getattr(design, name)) for name in names}
    note = f"left out {int((~kept).sum())} rows of weight 0"
    return dataclasses.replace(design, groups=groups, **fields), (note,)
