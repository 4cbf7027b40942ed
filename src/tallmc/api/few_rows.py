"""Rows of a small row store are read into memory."""

from __future__ import annotations

from typing import TypeVar

from ..methods.automatic import FEW_ROWS
from ..models.posterior import AbstractPosterior
from ..rows.base import RowAccess

Posterior = TypeVar("Posterior", bound=AbstractPosterior)


def with_few_rows_in_memory(posterior: Posterior) -> Posterior:
    """The posterior with its rows in memory, if they are so few that each step may use all."""
    beyond_memory = posterior.rows.access < RowAccess.TAKE
    return posterior.in_memory() if beyond_memory and posterior.n_rows <= FEW_ROWS else posterior
