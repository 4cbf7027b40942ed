"""Add new rows to a fit: `Draws.update`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from .._core.arrays import AbstractQuantities, StoredQuantities
from .._core.errors import InvalidInput
from .._engine.run import Progress
from .._rows.access import AbstractRows
from .._rows.manifest import RowStoreError
from .._rows.opening import is_row_store
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from ..methods.automatic.update import FittedSeries, Update, joined_rows
from ..models.groups import RegressionWithEffects
from ..models.imputation import ImputedRegression
from ..models.posterior import ModelPosterior
from ..results.draws import Draws
from .sample import sample


def update(
    draws: Draws,
    new_rows: Any,
    old_rows: Any = None,
    *,
    chains: int | None = None,
    n_draws: int | None = None,
    ess: float | None = None,
    max_seconds: float | None = None,
    seed: int = 0,
    progress: bool | None = None,
    callback: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
) -> Draws:
    """See `Draws.update`."""
    series, quantities = draws.series, _computed_by(draws.quantities)
    model = getattr(draws.predictive, "model", None)
    if isinstance(model, ImputedRegression | RegressionWithEffects):
        what = "missing values" if isinstance(model, ImputedRegression) else "group effects"
        cure = "Fit the old and the new rows together."
        rule = "be of a fit that integrates nothing out"
        raise InvalidInput("draws", rule, f"one whose {what} are integrated out", cure)
    if series is None:
        rule = "come from the default method with hard rows and a series at one mode"
        found = f"draws of {draws.settings.get('method')}"
        raise InvalidInput("draws", rule, found, "Fit the old and the new rows together.")
    if draws.predictive is None or quantities is None:
        cure = "Attach the posterior: draws.with_posterior(posterior)."
        raise InvalidInput("draws", "know their model", "draws of a file", cure)
    new, every = _new_and_all(draws, series, new_rows, old_rows)

    def posterior(rows: AbstractRows) -> ModelPosterior:
        return ModelPosterior(
            draws.predictive.model,  # type: ignore[union-attr]
            rows,
            quantities,
            draws.predictive,
            draws.settings.get("model"),
        )

    updated = sample(
        posterior(new if every is None else every),
        Update(series, posterior(new)),
        chains=chains,
        n_draws=n_draws,
        ess=ess,
        max_seconds=max_seconds,
        seed=seed,
        progress=progress,
        callback=callback,
        executor=executor,
    )
    assert updated.series is not None, "an update runs on hard rows and a series"
    shards = every.shards.manifest.digest_of_shards if isinstance(every, ShardedRows) else ""
    kept = series.after(updated.series, new.n_rows, shards)
    settings = {**updated.settings, "n_rows": kept.n_rows}
    return dataclasses.replace(updated, series=kept, settings=settings)


Draws.updater = staticmethod(update)


def _computed_by(quantities: AbstractQuantities) -> AbstractQuantities | None:
    return quantities.computed_by if isinstance(quantities, StoredQuantities) else quantities


def _new_and_all(
    draws: Draws, series: FittedSeries, new_rows: Any, old_rows: Any
) -> tuple[AbstractRows, AbstractRows | None]:
    """The new rows and, if the old ones are there too, all rows."""
    assert draws.predictive is not None
    stored = draws.stored_rows(new_rows)
    if stored is not None:
        if old_rows is not None:
            raise InvalidInput("old_rows", "be left out with a row store, which has them", "rows")
        return _further_rows(stored, series), stored
    if isinstance(new_rows, ShardedRows) or is_row_store(new_rows):
        rule, cure = "be a table for a fit with group terms", "Pass the table of the new rows."
        raise InvalidInput("new_rows", rule, "a row store", cure)
    block = draws.predictive.encode(new_rows, response=True)
    if old_rows is None:
        return ResidentRows(block), None
    old = draws.predictive.encode(old_rows, response=True)
    every = joined_rows(old, block)
    new = ResidentRows(block)
    if every.n_rows - new.n_rows != series.n_rows:
        rule = f"be the {series.n_rows:,} rows of the fit and its updates"
        raise InvalidInput("old_rows", rule, f"{every.n_rows - new.n_rows:,} rows")
    return new, every


def _further_rows(rows: ShardedRows, series: FittedSeries) -> ShardedRows:
    """The rows of a row store that come after those of the fit."""
    manifest, folder = rows.shards.manifest, rows.shards.folder
    ends = list(itertools.accumulate(shard.n_rows for shard in manifest.shards))
    known = ends.index(series.n_rows) + 1 if series.n_rows in ends else 0
    first = dataclasses.replace(manifest, shards=manifest.shards[:known])
    if not known or first.digest_of_shards != series.shards:
        rule = f"begin with the {series.n_rows:,} rows of the fit"
        raise RowStoreError(folder, rule, "other rows")
    if known == len(ends):
        cure = "Add rows to it: tallmc.ingest(table, store, append=True)."
        raise RowStoreError(folder, "have new rows", f"the {series.n_rows:,} of the fit", cure)
    return rows.of_shards(range(known, len(ends)))
