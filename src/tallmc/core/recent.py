"""Arrays that were made recently, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np


class RecentArrays:
    """Keeps arrays by key, and forgets those that were used least recently. Safe in threads.

    **Arguments:**

    - `most_bytes`: bytes of all arrays that are kept.

    >>> recent = RecentArrays(most_bytes=100)
    >>> recent.get("a", lambda: np.ones(9)).sum(), recent.get("a", lambda: np.zeros(9)).sum()
    (np.float64(9.0), np.float64(9.0))
    >>> recent.get("b", lambda: np.ones(9)).sum(), recent.get("a", lambda: np.zeros(9)).sum()
    (np.float64(9.0), np.float64(0.0))
    """

    def __init__(self, most_bytes: int):
        self._most, self._lock = most_bytes, threading.Lock()
        self._arrays: OrderedDict[Hashable, np.ndarray] = OrderedDict()
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of this key, made if it is not there."""
        with self._lock:
            if key in self._arrays:
                self._arrays.move_to_end(key)
                return self._arrays[key]
        made = make()
        with self._lock:
            if key not in self._arrays:
                self._arrays[key] = made
                self._bytes += made.nbytes
            while self._bytes > self._most:
                _, forgotten = self._arrays.popitem(last=False)
                self._bytes -= forgotten.nbytes
        return made
