"""Arguments of tasks as bytes, for workers in other processes.

A worker compiles a function once for each function object. Functions that cannot be imported, such
as lambdas, travel as bytes of their own, and equal bytes become the same object in a worker.
"""

from __future__ import annotations

import functools
import io
import operator
import pickle
import sys
import types
from typing import Any

from .._core.packages import check_installed


def pickled(value: Any) -> bytes:
    """The bytes of a value. Functions and classes of notebooks and scripts are included."""
    check_installed("cloudpickle", needed_by="an executor of other processes")
    import cloudpickle

    def function_bytes(part: Any) -> bytes | None:
        is_local = isinstance(part, types.FunctionType) and not _can_be_imported(part)
        return cloudpickle.dumps(part) if is_local else None

    buffer = io.BytesIO()
    pickler = cloudpickle.Pickler(buffer)
    pickler.persistent_id = function_bytes
    pickler.dump(value)
    return buffer.getvalue()


def unpickled(content: bytes) -> Any:
    unpickler = pickle.Unpickler(io.BytesIO(content))
    unpickler.persistent_load = _function  # type: ignore[method-assign]
    return unpickler.load()


@functools.lru_cache(maxsize=256)
def _function(content: bytes) -> Any:
    return pickle.loads(content)


def _can_be_imported(function: types.FunctionType) -> bool:
    if function.__module__ == "__main__":
        return False
    try:
        found = operator.attrgetter(function.__qualname__)(sys.modules[function.__module__])
    except (AttributeError, KeyError):
        return False
    return found is function
