"""A table in memory: columns of numbers, booleans and text by name, and the rows of new tables.

Columns are `ColumnValues`: numbers with NaN where they are missing, or codes of text with −1 where
it is missing. The levels of text are sorted, unless the source declares an order (pandas
categories, Arrow's ordered dictionaries).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from ...ingestion.errors import TableError, check_names, some
from ...ingestion.values import ColumnValues, check_lengths


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns of equal length by name.

    **Arguments:**

    - `columns`: the values of each column.
    - `description`: how messages call the table: the name of a file, or the type of a frame.
    - `notes`: lines to print about how the table was read.

    >>> from tallmc.frontends.tables import read_table
    >>> table = read_table({"age": [20, 30], "city": ["Rome", None]})
    >>> table.n_rows, table.columns["city"].levels, table.columns["city"].numbers.tolist()
    (2, ('Rome',), [0, -1])
    """

    columns: Mapping[str, ColumnValues]
    description: str
    notes: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def column(self, name: str, parameter: str) -> ColumnValues:
        """The column `name`; an error about `parameter` lists the columns if there is none."""
        if name not in self.columns:
            cure = f"The columns are: {some(self.columns)}."
            raise TableError(parameter, f"name a column of {self.description}", name, cure)
        return self.columns[name]

    def without(self, names: Iterable[str]) -> Table:
        """The table without some columns."""
        left_out = {names} if isinstance(names, str) else set(names)
        for name in sorted(left_out):
            self.column(name, "--exclude (exclude)")
        kept = {name: values for name, values in self.columns.items() if name not in left_out}
        return dataclasses.replace(self, columns=kept)

    def rows(self, which: np.ndarray | slice) -> Table:
        """Some of the rows: a mask, numbers of rows or a slice."""
        kept = {name: values[which] for name, values in self.columns.items()}  # type: ignore[index]
        return dataclasses.replace(self, columns=kept)

    def with_column(self, name: str, values: ColumnValues) -> Table:
        """The table with one more column."""
        return dataclasses.replace(self, columns={**self.columns, name: values})


def make_table(
    columns: Iterable[tuple[str, ColumnValues]], description: str, notes: Iterable[str] = ()
) -> Table:
    """A table from its columns. Spaces around names are removed; names and lengths are checked."""
    pairs = [(str(name).strip(), values) for name, values in columns]
    check_names(description, [name for name, _ in pairs])
    made = dict(pairs)
    check_lengths({name: len(values) for name, values in made.items()})
    return Table(made, description, tuple(notes))
