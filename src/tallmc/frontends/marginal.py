"""Average marginal effects and contrasts of a term, averaged over rows and draws.

    number      (1/n) Σ_i [E(y | x_i + h) − E(y | x_i − h)] / 2h,   h = 0.02 sd(x)
    category    (1/n) Σ_i [E(y | x_i with level a) − E(y | x_i with level b)]

The rows are those that the user passes. A marginal effect depends on them unless the link is the
identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import InvalidInput, check_number
from ..ingestion.values import ColumnValues
from ..models.predictive import RegressionPredictive
from ..results.draws import Draws
from .new_rows import TableEncoder
from .tables import read_table
from .tables.features import FeatureEncoding
from .tables.table import Table

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

    >>> MarginalEffects("age", ("per unit",), np.array([[0.1], [0.3]]), 0.9, 10).mean.round(2)
    array([0.2])
    """

    column: str
    labels: tuple[str, ...]
    draws: np.ndarray
    interval: float
    n_rows: int

    @property
    def mean(self) -> np.ndarray:
        """The mean over draws of each effect."""
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

    **Raises:** `InvalidInput` if the draws do not come from a table or are weighted, or there is no
    such column.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=200)
    >>> draws = tallmc.fit("y ~ x", {"x": x, "y": 3 * x + 1}, family="gaussian",
    ...     noise_variance=1.0, method=tallmc.mala(2e-4), chains=2, draws=300)
    >>> round(float(tallmc.marginal_effects(draws, {"x": x}, "x").mean[0]))
    3
    """
    interval = check_number("interval", interval, 0, 1, low_open=True, high_open=True)
    encoder = _encoder(draws)
    if draws.weights is not None:
        raise InvalidInput("draws", "all count the same", "draws of decreasing steps")
    table = read_table(rows)
    if table.n_rows > _MOST_ROWS:
        chosen = np.random.default_rng(0).choice(table.n_rows, _MOST_ROWS, replace=False)
        table = table.rows(np.sort(chosen))
    table.column(column, "column")
    found = {feature.name: feature for feature in _features(encoder)}
    if column not in found:
        known = ", ".join(found)
        raise InvalidInput("column", f"be one that the fit uses ({known})", column)
    effects = {
        label: (_mean(draws, high, n_draws) - _mean(draws, low, n_draws)) / distance
        for label, high, low, distance in _changes(table, found[column], contrasts)
    }
    classes = None if draws.predictive is None else draws.predictive.classes
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
    if feature.kind == "category":
        baseline = feature.levels[0]
        for high, low in contrasts or [(level, baseline) for level in feature.levels[1:]]:
            above, below = (_with_level(table, name, level) for level in (high, low))
            yield f"{high} − {low}", above, below, 1.0
        return
    if contrasts is not None:
        raise InvalidInput("contrasts", "be left out unless the column is a category", name)
    if feature.kind == "boolean":
        yield "true − false", _with_number(table, name, 1.0), _with_number(table, name, 0.0), 1.0
        return
    numbers = table.columns[name].numbers.astype(np.float64)
    step = _RELATIVE_STEP * (float(numbers.std()) or 1.0)
    above, below = (_with_number(table, name, numbers + change) for change in (step, -step))
    yield "per unit", above, below, 2 * step


def _encoder(draws: Draws) -> TableEncoder:
    predictive = draws.predictive
    encoder = predictive.encoder.value if isinstance(predictive, RegressionPredictive) else None
    if not isinstance(encoder, TableEncoder):
        cure = "Use tallmc.fit; after tallmc.load pass its formula."
        raise InvalidInput("draws", "come from a fit of a table", "others", cure)
    return encoder


def _features(encoder: TableEncoder) -> list[FeatureEncoding]:
    parts = [encoder.encoding.scaled, *(group.scaled for group in encoder.encoding.groups)]
    return [feature for part in parts for feature in part.terms.features]


def _with_level(table: Table, column: str, level: str) -> Table:
    values = ColumnValues("text", np.zeros(table.n_rows, np.int64), (str(level),))
    return table.with_column(column, values)


def _with_number(table: Table, column: str, values: Any) -> Table:
    numbers = np.broadcast_to(np.asarray(values, np.float64), (table.n_rows,))
    return table.with_column(column, ColumnValues("number", numbers))


def _mean(draws: Draws, table: Table, n_draws: int) -> np.ndarray:
    """The expected response in each draw, averaged over rows: (draws,) or (draws, classes)."""
    return draws.average_response(table, draws=n_draws)
