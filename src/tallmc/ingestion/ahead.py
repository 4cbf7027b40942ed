"""Read ahead: a thread makes the next items of an iterator while the present one is used."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
_ITEMS_AHEAD = 2
_END = object()


def read_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items. At most two wait to be used. An error is raised where it occurred.

    >>> list(read_ahead(range(3)))
    [0, 1, 2]
    """
    waiting: queue.Queue[Any] = queue.Queue(_ITEMS_AHEAD)
    given_up = threading.Event()

    def put(item: Any) -> None:
        while not given_up.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=0.1)
                break

    def work() -> None:
        try:
            for item in items:
                put((item, None))
                if given_up.is_set():
                    return
            put((_END, None))
        except BaseException as error:
            put((_END, error))

    thread = threading.Thread(target=work, daemon=True, name="tallmc-reader")
    thread.start()
    try:
        while True:
            item, error = waiting.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        given_up.set()
        thread.join()
