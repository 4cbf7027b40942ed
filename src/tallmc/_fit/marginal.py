"""Average marginal effects and contrasts of a term, averaged over rows and draws.

    number      (1/n) Σ_i [E(y | x_i + h) − E(y | x_i − h)] / 2h,   h = 0.02 sd(x), within the range
    category    (1/n) Σ_i [E(y | x_i with level a) − E(y | x_i with level b)]

The rows are those that the user passes. A marginal effect depends on them unless the link is the
identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.errors import InvalidInput, check_number
from .._ingestion.values import ColumnValues
from ..models.predictive import RegressionPredictive
from ..results.draws import Draws
from .columns import FeatureEncoding
from .reading import Table, read_table
from .regression import TableEncoder

if TYPE_CHECKING:
    import pandas as pd

_RELATIVE_STEP = 0.02
"""In sds of the column: small for the curvature of the link, large for single precision."""
_MOST_ROWS = 20_000


@dataclasses.dataclass(frozen=True)
class MarginalEffects:
    """Effects of a column on the expected response, with their uncertainty.

    **Arguments:**

    - `column`: the column.
    - `labels`: one per effect: "per unit", or the contrast "south − north"; with the class, if the
      response has classes.
    - `draws`: the effect in each draw, (draws, effects).
    - `interval`: the probability of the interval.
    - `n_rows`: how many rows were averaged.
    """

    column: str
    labels: tuple[str, ...]
    draws: np.ndarray
    interval: float
    n_rows: int

    @property
    def mean(self) -> np.ndarray:
        return self.draws.mean(axis=0)

    def to_frame(self) -> pd.DataFrame:
        """A table with one row per effect: mean, sd and interval."""
        import pandas as pd

        tail = (1 - self.interval) / 2
        low, high = np.quantile(self.draws, [tail, 1 - tail], axis=0)
        content = {"mean": self.mean, "sd": self.draws.std(axis=0), "low": low, "high": high}
        return pd.DataFrame(content, index=pd.Index(self.labels, name=self.column))

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{label}: {mean:.4g}" for label, mean in zip(self.labels, self.mean, strict=True)
        )
        return f"MarginalEffects({self.column}: {shown}; {self.n_rows:,} rows)"


def marginal_effects(
    draws: Draws,
    rows: Any,
    column: str,
    *,
    contrasts: Sequence[tuple[str, str]] | None = None,
    interval: float = 0.9,
    n_draws: int = 400,
) -> MarginalEffects:
    """The average effect of a column of the table on the expected response.

    **Arguments:**

    - `draws`: the draws of `tallmc.fit`, or of `tallmc fit` through `tallmc.load`.
    - `rows`: the table over whose rows to average: that of the fit, or any other.
    - `column`: a column of the table. A number has the effect per unit; a category has contrasts.
    - `contrasts`: pairs of levels (a, b) for a − b. By default each level less the baseline.
    - `interval`: the probability of the interval.
    - `n_draws`: how many draws are used at most.

    **Returns:** a `MarginalEffects`, one effect per contrast, and per class if there are several.
    """
    interval = check_number("interval", interval, 0, 1, low_open=True, high_open=True)
    predictive = draws.predictive
    encoder = predictive.encoder.value if isinstance(predictive, RegressionPredictive) else None
    if not isinstance(encoder, TableEncoder):
        cure = "Use tallmc.fit; after tallmc.load pass its formula."
        raise InvalidInput("draws", "come from a fit of a table", "others", cure)
    if draws.weights is not None:
        raise InvalidInput("draws", "all count the same", "draws of decreasing steps")
    table = read_table(rows)
    if table.n_rows > _MOST_ROWS:
        chosen = np.random.default_rng(0).choice(table.n_rows, _MOST_ROWS, replace=False)
        table = table.rows(np.sort(chosen))
    table.column(column, "column")
    found = {feature.name: feature for feature in encoder.encoding.features}
    if column not in found:
        known = ", ".join(found)
        raise InvalidInput("column", f"be one that the fit uses ({known})", column)
    mean = draws.average_response
    effects = {
        label: (mean(high, n_draws=n_draws) - mean(low, n_draws=n_draws)) / distance
        for label, high, low, distance in _changes(table, found[column], contrasts)
    }
    classes = None if predictive is None else predictive.classes
    labels = [
        label if values.ndim == 1 else f"{label}, {name}"
        for label, values in effects.items()
        for name in (classes or ("",) if values.ndim > 1 else ("",))
    ]
    columns = [values.reshape(len(values), -1) for values in effects.values()]
    return MarginalEffects(
        column, tuple(labels), np.concatenate(columns, axis=1), interval, table.n_rows
    )


def _changes(
    table: Table, feature: FeatureEncoding, contrasts: Sequence[tuple[str, str]] | None
) -> Iterator[tuple[str, Table, Table, float]]:
    """Per effect: its label, two tables that differ in the column, and by how much."""
    name = feature.name

    def with_level(level: str) -> Table:
        codes = np.zeros(table.n_rows, np.int64)
        return table.with_column(name, ColumnValues("text", codes, (str(level),)))

    def with_numbers(values: float | np.ndarray) -> Table:
        numbers = np.broadcast_to(np.asarray(values, np.float64), (table.n_rows,))
        return table.with_column(name, ColumnValues("number", numbers))

    if feature.kind == "category":
        baseline = feature.levels[0]
        for high, low in contrasts or [(level, baseline) for level in feature.levels[1:]]:
            yield f"{high} − {low}", with_level(high), with_level(low), 1.0
        return
    if contrasts is not None:
        raise InvalidInput("contrasts", "be left out unless the column is a category", name)
    if feature.kind == "boolean":
        yield "true − false", with_numbers(1.0), with_numbers(0.0), 1.0
        return
    numbers = table.columns[name].numbers.astype(np.float64)
    step = _RELATIVE_STEP * (float(numbers.std()) or 1.0)
    # Splines are not defined outside of the range of the table.
    low, high = numbers.min() + step, numbers.max() - step
    centre = np.clip(numbers, low, high) if low < high else numbers
    yield "per unit", with_numbers(centre + step), with_numbers(centre - step), 2 * step
