"""Have an executor read the rows of a posterior."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor
from typing import TypeVar

import equinox as eqx

from ..core.errors import InvalidInput
from ..models.posterior import AbstractPosterior
from ..rows.sharded import ShardedRows

AnyPosterior = TypeVar("AnyPosterior", bound=AbstractPosterior)


def read_by_executor(posterior: AnyPosterior, executor: Executor | None) -> AnyPosterior:
    """The posterior with rows that the executor reads; None changes nothing.

    **Raises:** `InvalidInput` if it is not an executor, or has nothing to read.
    """
    if executor is None:
        return posterior
    rows = posterior.rows
    if not isinstance(rows, ShardedRows):
        rule = "be None, because the rows are in memory and no worker has to read them"
        cure = "Rows of a row store (tallmc.rows.open) are read by executors."
        raise InvalidInput("executor", rule, type(executor).__name__, cure)
    workers = dataclasses.replace(rows.workers, executor=executor)
    return eqx.tree_at(lambda posterior: posterior.rows, posterior, rows.read_by(workers))
