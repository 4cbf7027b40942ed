"""Terms without a formula: the intercept, and every column of the table as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from ...ingestion.values import ColumnValues
from .features import FeatureEncoding
from .matrix import INTERCEPT, RawColumn, ones


@dataclasses.dataclass(frozen=True)
class PlainTerms:
    """An intercept and columns of the table.

    **Arguments:**

    - `features`: the columns.
    - `intercept`: whether the first column is 1.

    >>> region = FeatureEncoding("region", "category", ("north", "south"))
    >>> PlainTerms((FeatureEncoding("age", "number"), region), True).names
    ('Intercept', 'age', 'region[T.south]')
    """

    features: tuple[FeatureEncoding, ...]
    intercept: bool

    @property
    def terms(self) -> dict[str, tuple[int, ...]]:
        """The columns of the design that each column of the table gives."""
        found: dict[str, tuple[int, ...]] = {INTERCEPT: (0,)} if self.intercept else {}
        first = len(found)
        for feature in self.features:
            count = max(len(feature.levels) - 1, 0) if feature.kind == "category" else 1
            found[feature.name] = tuple(range(first, first + count))
            first += count
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of the design."""
        names = [INTERCEPT] if self.intercept else []
        for feature in self.features:
            if feature.kind == "category":
                names += [f"{feature.name}[T.{level}]" for level in feature.levels[1:]]
            else:
                names.append(feature.name)
        return tuple(names)

    def raw_columns(self, columns: Mapping[str, ColumnValues], n_rows: int) -> list[RawColumn]:
        """The columns of the design, from columns of the table as `FeatureEncoding.values`."""
        found = [ones(n_rows)] if self.intercept else []
        for feature in self.features:
            numbers = columns[feature.name].numbers
            if feature.kind == "category":
                indicators = np.eye(len(feature.levels))[1:]
                found += [RawColumn(numbers, indicator) for indicator in indicators]
            else:
                found.append(RawColumn(numbers))
        return found
