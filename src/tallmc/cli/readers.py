"""Who reads a row store for a command: this process, several processes, or a Dask cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import NamedTuple

from ..core.errors import InvalidInput


class Readers(NamedTuple):
    """The choice of the user."""

    workers: int | None = None
    """Number of processes on this machine."""
    scheduler: str | None = None
    """Address of a Dask scheduler."""

    @contextlib.contextmanager
    def executor(self) -> Iterator[Executor | None]:
        """The executor, which ends with the block; None if this process reads the rows."""
        if self.workers is not None and self.scheduler is not None:
            rule = "be left out with --scheduler, whose cluster has its own workers"
            raise InvalidInput("--workers", rule, self.workers)
        if self.workers is not None:
            # JAX has threads, and a forked process would not have them.
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(self.workers, context) as pool:
                yield pool
        elif self.scheduler is not None:
            with _client(self.scheduler) as client:
                yield client.get_executor()
        else:
            yield None


NO_READERS = Readers()


def _client(address: str) -> contextlib.AbstractContextManager:
    from dask.distributed import Client

    try:
        return Client(address)
    except OSError as error:
        cure = "Start one with `dask scheduler`, and workers with `dask worker ADDRESS`."
        raise InvalidInput(
            "--scheduler", "be the address of one", f"{address}: {error}", cure
        ) from None
