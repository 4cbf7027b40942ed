"""Who reads a row store for a command: this process, several processes, or a Dask cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

from ..core.errors import InvalidInput
from ..core.packages import check_installed


@dataclasses.dataclass(frozen=True)
class Readers:
    """The choice of the user."""

    workers: int | None = None
    """Number of processes on this machine."""
    scheduler: str | None = None
    """Address of a Dask scheduler."""

    def __post_init__(self) -> None:
        if self.scheduler is None:
            return
        check_installed("dask", "distributed", needed_by="--scheduler")
        if self.workers is not None:
            rule = "be left out with --scheduler, whose cluster has its own workers"
            raise InvalidInput("--workers", rule, self.workers)

    @contextlib.contextmanager
    def executor(self) -> Iterator[Executor | None]:
        """The executor, which ends with the block; None if this process reads the rows."""
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
