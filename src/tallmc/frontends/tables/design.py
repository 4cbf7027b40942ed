"""The rows of a regression: a scaled matrix, the response, and what belongs to each row."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .encoding import DesignEncoding


@dataclasses.dataclass(frozen=True)
class GroupDesign:
    """The rows of a term `(1 + x | group)`.

    **Arguments:**

    - `name`: the term, such as "1 + x | group".
    - `group`: the column after the bar.
    - `codes`: the group of each row, a number of `levels`.
    - `levels`: the names of the groups.
    - `x`: one column per coefficient that each group has, scaled like the design.
    - `names`, `means`, `sds`: of the columns of `x`.
    """

    name: str
    group: str
    codes: np.ndarray
    levels: tuple[str, ...]
    x: np.ndarray
    names: tuple[str, ...]
    means: np.ndarray
    sds: np.ndarray


@dataclasses.dataclass(frozen=True)
class Design:
    """The design matrix and response of a regression, with the scaling that was applied.

    Column j of `x` is (column of the table − means[j])/sds[j]; a response of numbers is
    (y − encoding.response.mean)/encoding.response.sd, and `offset` is divided by the same sd.

    **Arguments:**

    - `x`: the matrix, float32 or float64; the intercept comes first.
    - `y`: the response: float64, or int32 codes of classes. None if the rows have none.
    - `names`: the names of the columns.
    - `terms`: the numbers of the columns of each term.
    - `means`, `sds`: the scaling of each column; 0 and 1 for the intercept.
    - `weights`, `offset`, `trials`: values per row, or None. `offset` contains the logarithm of the
      exposure.
    - `groups`: the terms `(1 + x | group)`.
    - `encoding`: makes the same design of new rows.
    - `notes`: lines to print: dropped rows, baselines, the level that counts as 1, identifiers.
    """

    x: np.ndarray
    y: np.ndarray | None
    names: tuple[str, ...]
    terms: dict[str, tuple[int, ...]]
    means: np.ndarray
    sds: np.ndarray
    weights: np.ndarray | None
    offset: np.ndarray | None
    trials: np.ndarray | None
    groups: tuple[GroupDesign, ...]
    encoding: DesignEncoding
    notes: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.x)
