"""Programs that are compiled once and kept on disk, so that another process loads them.

JAX finds a program in its cache only after it has traced and lowered it, which takes longer than a
short run. The name of an entry here says what the program is made from: the function, the shapes
and types of its arrays, all arguments that are not arrays, the files of this library, the versions
and the device. It can be computed without tracing as long as nothing of it is foreign: a program
with a function of the user, whose code may change, is left to JAX.

An entry that cannot be read, or that others could have written, counts as absent.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import pickle
import stat
import threading
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jaxlib
import numpy as np

from .arrays import Static, Uncompared
from .cache import entry_path
from .compiler import QUICKLY

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
_KNOWN = {"tallmc", "jax", "jaxlib", "numpy", "equinox", "jaxtyping", "builtins", "functools"}
"""Packages whose code the name of an entry stands for."""
_MOST_PROGRAMS = 512
"""In memory, of one function. Their static arguments may hold data of the user."""


def quickly_compiled(function: Function) -> Function:
    """`function`, compiled with few passes of LLVM. Arguments that are not arrays are static."""
    return functools.update_wrapper(_Compiled(function), function)  # type: ignore[return-value]


class _Compiled:
    __qualname__: str

    def __init__(self, function: Callable[..., Any]):
        def flat(arrays: list[Any], static: Static) -> Any:
            args, kwargs = static.joined(arrays)
            return function(*args, **kwargs)

        functools.update_wrapper(flat, function)
        self._jitted = jax.jit(flat, static_argnums=1, compiler_options=QUICKLY)
        self.programs: dict[Any, _Once] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if _is_array(leaf)]
        static = Static.of(leaves, structure, _is_array)
        if not _is_plain(arrays):
            return self._jitted(arrays, static)
        options = tuple(getattr(jax.config, option) for option in _OPTIONS)
        key = (static, options, tuple(map(_kind, arrays)))
        program = self.programs.get(key)
        if program is None:
            with self._lock:
                if len(self.programs) >= _MOST_PROGRAMS:
                    self.programs.clear()
                program = self.programs.setdefault(key, _Once())
        return program.made(lambda: self._made(arrays, static, key))(arrays)

    def _made(self, arrays: list[Any], static: Static, key: Any) -> Callable[..., Any]:
        name = _name((self.__module__, self.__qualname__, static, key[1:]))
        path = None if name is None else entry_path(name)
        if path is None:
            return lambda arrays: self._jitted(arrays, static)
        program = _loaded(path, arrays)
        if program is None:
            before = _seen.hits
            program = self._jitted.lower(arrays, static).compile()
            # XLA writes a program that was itself read from a file without some of its functions.
            if _seen.hits == before:
                _keep(path, program)
        return program


class _Once:
    """A program that one thread makes and others wait for."""

    def __init__(self) -> None:
        self._program: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    def made(self, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        if self._program is None:
            with self._lock:
                self._program = self._program or make()
        return self._program


class _Seen(threading.local):
    """Programs that JAX has read from its own cache, in this thread."""

    hits = 0


_seen = _Seen()


def _count_hits(event: str, **_: Any) -> None:
    _seen.hits += event == "/jax/compilation_cache/cache_hits"


jax.monitoring.register_event_listener(_count_hits)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _kind(array: Any) -> tuple[Any, ...]:
    return array.shape, str(array.dtype), getattr(array, "weak_type", False)


def _is_plain(arrays: list[Any]) -> bool:
    """Whether a program can be called as it is: outside of a trace, on the default device."""
    if any(getattr(jax.config, option) for option in ("jax_disable_jit", "jax_debug_nans")):
        return False
    here = _default_device()
    return all(
        not isinstance(array, jax.core.Tracer) and array.sharding == here
        for array in arrays
        if isinstance(array, jax.Array)
    )


@functools.cache
def _default_device() -> Any:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


class _Foreign(Exception):
    """Something that is not part of the library or of a package that it knows."""


class _Description(pickle.Pickler):
    """Writes what a program is made from, in the same bytes in every process."""

    def reducer_override(self, part: Any) -> Any:
        if isinstance(part, Uncompared):
            return str, ("",)
        if isinstance(part, Static):
            return tuple, ((part.joined(itertools.count()),),)
        if (isinstance(part, type) or callable(part)) and hasattr(part, "__module__"):
            package = str(part.__module__).partition(".")[0]
            if package not in _KNOWN:
                raise _Foreign(package)
        return NotImplemented


def _name(parts: Any) -> str | None:
    """A name for a program made from these parts; None if they are not all known."""
    content = io.BytesIO()
    pickler = _Description(content)
    pickler.fast = True  # equal parts have equal bytes, whether or not they are the same object
    try:
        pickler.dump(parts)
    except (_Foreign, pickle.PicklingError, TypeError, AttributeError, RecursionError):
        return None
    return hashlib.sha256(_environment() + content.getvalue()).hexdigest()


@functools.cache
def _environment() -> bytes:
    """Versions, options and the device, and the files of this library with their times."""
    folder = Path(__file__).parents[1]
    files = sorted((str(path), path.stat()) for path in folder.rglob("*.py"))
    sources = [(name, status.st_size, status.st_mtime_ns) for name, status in files]
    device = jax.devices()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    known = (jax.__version__, jaxlib.__version__, np.__version__, flags, len(jax.devices()))
    return repr((known, device.device_kind, device.client.platform_version, sources)).encode()


def _keep(path: Path, program: Any) -> None:
    from jax.experimental.serialize_executable import serialize

    try:
        payload, _, structure = serialize(program)
        result = jax.tree.unflatten(structure, range(structure.num_leaves))
        content = zlib.compress(pickle.dumps((payload, result)), level=1)
        temporary = path.with_name(uuid.uuid4().hex)
        with open(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except Exception:  # a program that cannot be kept is compiled again
        return


def _loaded(path: Path, arrays: list[Any]) -> Callable[..., Any] | None:
    from jax.experimental.serialize_executable import deserialize_and_load

    try:
        if not _is_ours(path):
            return None
        payload, result = pickle.loads(zlib.decompress(path.read_bytes()))
        structures = jax.tree.structure(((arrays,), {})), jax.tree.structure(result)
        return deserialize_and_load(payload, *structures, execution_devices=jax.devices()[:1])
    except Exception:  # whatever is wrong with an entry, the program can be compiled
        return None


def _is_ours(path: Path) -> bool:
    """Whether only this user can have written the entry: loading it runs its code."""
    for part in (path, path.parent):
        status = part.stat()
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            return False
    return True
