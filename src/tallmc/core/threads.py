"""One thread per core, for work that does not hold Python's lock."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

_NAME = "tallmc"


def in_threads(
    function: Callable[[Any], Any],
    items: Iterable[Any],
    between: Callable[[], None] = lambda: None,
) -> list[Any]:
    """`function` of every item, in order; by several threads if there are several items.

    `between` is called after each item; it may raise to stop the work. Work that is itself done by
    one of the threads is not divided further.

    >>> in_threads(abs, [1, -2])
    [1, 2]
    """
    given = list(items)
    if len(given) <= 1 or not has_spare_threads():
        results: Iterator[Any] = map(function, given)
    else:
        # Other threads do not see a setting that is local to this one.
        double = bool(jax.config.read("jax_enable_x64"))

        def in_thread(item: Any) -> Any:
            with jax.enable_x64(double):
                return function(item)

        results = _threads().map(in_thread, given)
    found = []
    for result in results:
        between()
        found.append(result)
    return found


def one_per_core(count: int) -> list[slice]:
    """Slices of `count` entries, one per core."""
    ends = [count * k // core_count() for k in range(core_count() + 1)]
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def has_spare_threads() -> bool:
    """Whether there are several cores, and this is not one of the threads."""
    return core_count() > 1 and not threading.current_thread().name.startswith(_NAME)


@functools.cache
def core_count() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(core_count(), thread_name_prefix=_NAME)
