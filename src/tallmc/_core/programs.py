"""Compiled programs: made once, and kept on disk, so that another process loads them.

JAX finds a program in its cache only after it has traced and lowered it, which takes longer than a
short run. The name of an entry of `quickly_compiled` says what the program is made from: the
function, the shapes and types of its arrays, all arguments that are not arrays, the files of this
library, the versions and the device. It can be computed without tracing as long as nothing of it is
foreign: a program with a function of the user, whose code may change, is left to JAX. The entry
names another one, which has the machine code and is found by the lowered program: code is compiled
again only if a change of this library has changed it. An entry that cannot be read, or that others
could have written, counts as absent.

Entries of JAX are kept too if asked for (`cache`). Their key contains neither the instruction set
of the processor nor the number of cores for which XLA divides the work, so every combination of
these has a subfolder.

JAX can limit the size only if the package filelock is installed. `_tidy` does it instead, when a
process starts to use the cache and when the process ends. It also deletes entries that were not
written to their end (a full disk, a killed process): JAX would compile these programs in every
process. JAX compiles whatever it cannot read and ignores that it cannot write.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import io
import itertools
import os
import pickle
import platform
import re
import stat
import sys
import tempfile
import threading
import types
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import jaxlib
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from .compiler import QUICKLY, Options
from .errors import check_int

# The folder of the entries.

_VARIABLE = "TALLMC_CACHE"
_OFF, _ON = {"0", "off", "no", "false"}, {"", "1", "on", "yes", "true"}
_FOLDER = "jax_compilation_cache_dir"
_OPTIONS = {
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
    # XLA's own cache of GPU tuning has no limit and fails if it cannot write.
    "jax_persistent_cache_enable_xla_caches": ("xla_gpu_per_fusion_autotune_cache_dir", "none"),
}
"""JAX's options: the default, which is replaced, and our value. Other values are the user's."""
_SUBFOLDER = "programs-"
_ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")
_STAMP = "tidied"
_MAX_BYTES = 2**30
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


def cache(
    folder: str | os.PathLike[str] | None = None, *, max_bytes: int = _MAX_BYTES
) -> Path | None:
    """Keep all compiled programs on disk, for this process and later ones.

    A program is compiled again only for other shapes or types of data, another version of jaxlib or
    another processor. Programs of this library alone are kept by default. Programs with functions
    of your own, such as a log likelihood, are kept after a call of this function before the first
    `sample`, if the environment variable `TALLMC_CACHE` is 1 or a folder, and by the command
    `tallmc`. `TALLMC_CACHE=off` disables the cache, also for the command and for this function.

    A cache that was configured with JAX's own options (`jax_compilation_cache_dir`) is left as it
    is, unless `folder` is given. A folder that cannot be written is not used. Others must not be
    able to write to the folder: entries contain machine code.

    **Arguments:**

    - `folder`: where to keep the programs. By default `TALLMC_CACHE` if it names a folder, or
      `tallmc` in the user's cache folder: `$XDG_CACHE_HOME` or `~/.cache` on Linux,
      `~/Library/Caches` on macOS.
    - `max_bytes`: the limit on the size of the folder. Programs that have not been used for the
      longest time are deleted first, when a process starts to use the cache and when it ends.

    **Returns:** the folder of the entries that this process uses; `None` if the cache is off.

    >>> import tallmc
    >>> folder = tallmc.cache()
    """
    max_bytes = check_int("max_bytes", max_bytes, 1)
    if _asked().lower() in _OFF:
        return None
    in_use = getattr(jax.config, _FOLDER)
    if folder is None and in_use and not Path(in_use).name.startswith(_SUBFOLDER):
        return Path(in_use)
    programs = _opened(folder, max_bytes)
    if programs is not None:
        _configure(programs, in_use)
    return programs


def entry_path(name: str) -> Path | None:
    """Where the entry of this name is kept; None if the cache is off."""
    if _asked().lower() in _OFF:
        return None
    folder = _in_use or _opened(None, _MAX_BYTES)
    return None if folder is None else folder / f"tallmc-{name}-cache"


def _asked() -> str:
    return os.environ.get(_VARIABLE, "").strip()


_in_use: Path | None = None
"""The folder that was opened last."""


def _opened(folder: str | os.PathLike[str] | None, max_bytes: int) -> Path | None:
    """The subfolder for this machine, tidied; None if it cannot be used."""
    global _in_use
    try:
        if folder is None:
            asked = _asked()
            folder = _default_folder() if asked.lower() in _ON else asked
        root = Path(folder).expanduser().absolute()
        programs = root / (_SUBFOLDER + _machine())
        programs.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=programs):
            pass
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    _tidy(root, max_bytes)
    atexit.unregister(_tidy)
    atexit.register(_tidy, root, max_bytes)
    _in_use = programs
    return programs


def use_cache_if_asked() -> None:
    if _asked():
        cache()


def _configure(programs: Path, in_use: str | None) -> None:
    for option, (default, ours) in _OPTIONS.items():
        if option.upper() not in os.environ and getattr(jax.config, option) == default:
            jax.config.update(option, ours)
    if in_use != str(programs):
        jax.config.update(_FOLDER, str(programs))
        compilation_cache.reset_cache()  # JAX opens a folder once
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    _silence_loader()


def _silence_loader() -> None:
    """Suppress XLA's log lines about the tuning flags of processors with AVX-512.

    XLA logs an error whenever it loads a program with such flags, on the same machine too, and
    loads it correctly (openxla/xla issue 44565).
    """
    levels = os.environ.get("TF_CPP_MIN_LOG_LEVEL"), getattr(jax.config, "jax_logging_level", None)
    if "avx512" in _processor() and levels == ("1", "NOTSET"):
        jax.config.update("jax_logging_level", "CRITICAL")
        jax.config.update("jax_logging_level", "NOTSET")  # restores Python's loggers only


def _default_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/tallmc"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "tallmc"


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = (jaxlib.__version__, platform.machine(), _processor(), str(cores))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _processor() -> str:
    """The model and the instruction set."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    known = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    return "\n".join(sorted({line for line in lines if line.startswith(known)}))


def _tidy(root: Path, max_bytes: int) -> None:
    """Delete new entries that are damaged, then those used longest ago beyond the limit.

    The file `tidied` carries the time of the last call; older entries are not read again.
    """
    stamp = root / _STAMP
    found: list[tuple[float, int, Path]] = []
    try:
        since = stamp.stat().st_mtime if stamp.exists() else 0.0
        stamp.touch()
        for path in root.glob(f"{_SUBFOLDER}*/*"):
            if _ENTRY.fullmatch(path.name):
                status = path.stat()
                if status.st_mtime >= since and _is_damaged(path):
                    path.unlink()
                else:
                    last_used = max(status.st_atime, status.st_mtime)
                    found.append((last_used, status.st_size, path))
        size = sum(entry[1] for entry in found)
        for _, bytes_here, path in sorted(found):
            if size <= max_bytes:
                break
            path.unlink()
            size -= bytes_here
    except OSError:  # another process deletes entries too
        pass


def _is_damaged(path: Path) -> bool:
    """Whether an entry is no compressed data or ends early. Entries of zstandard are not read."""
    content = path.read_bytes()
    if content.startswith(_ZSTANDARD):
        return False
    reader: Any = zlib.decompressobj()
    try:
        reader.decompress(content)
    except zlib.error:
        return True
    return not reader.eof


# Programs of the library.

Function = TypeVar("Function", bound=Callable[..., Any])
Value = TypeVar("Value")

_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
_KNOWN = dict.fromkeys(["tallmc", "jax", "jaxlib", "numpy", "equinox", "jaxtyping"], "")
_KNOWN |= dict.fromkeys(["builtins", "collections", "functools"], "")
"""Packages whose code the name of an entry stands for, and what else the name shall say of them."""
_MOST_PROGRAMS = 512
"""In memory, of one function. Their static arguments may hold data of the user."""


@dataclasses.dataclass(frozen=True)
class Uncompared(Generic[Value]):
    """A static value that no program depends on. All are equal, so programs are shared."""

    value: Value = dataclasses.field(compare=False)


class Static:
    """The parts of a pytree that are not arrays, as a static argument of `jax.jit`.

    Its hash is computed once: equinox would take a millisecond per call for that of a kernel.
    """

    def __init__(self, leaves: tuple[Any, ...], structure: Any):
        self._leaves, self._structure = leaves, structure
        self._hash = hash((leaves, structure))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Static)
            and self._hash == other._hash
            and self._leaves == other._leaves
            and self._structure == other._structure
        )

    def joined(self, arrays: Iterable[Any]) -> Any:
        given = iter(arrays)
        leaves = [next(given) if leaf is _ARRAY else leaf for leaf in self._leaves]
        return jax.tree.unflatten(self._structure, leaves)


_ARRAY = object()  # marks the place of an array
_ARRAYS = (jax.Array, np.ndarray, np.generic)


def split(tree: Any) -> tuple[list[Any], Static]:
    leaves, structure = jax.tree.flatten(tree)
    arrays = []
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, _ARRAYS):
            arrays.append(leaf)
            leaves[k] = _ARRAY
    return arrays, Static(tuple(leaves), structure)


def quickly_compiled(function: Function) -> Function:
    """`function`, compiled with few passes of LLVM. Arguments that are not arrays are static."""
    return functools.update_wrapper(_Compiled(function), function)  # type: ignore[return-value]


class _Compiled:
    __qualname__: str

    def __init__(self, function: Callable[..., Any], options: Options = QUICKLY):
        self._made_from = function, options
        self._jitted = _jitted(function, options)
        # XLA writes a program that was itself read from a file without some of its functions. By
        # its name, JAX does not find this one among those that it keeps. Its text says which
        # arguments it uses only if it has all.
        self._to_keep = _jitted(function, options, suffix="_to_keep", keep_unused=True)
        self.programs: dict[Any, _Once] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arrays, static = split((args, kwargs))
        if not _is_plain(arrays):
            return self._jitted(arrays, static)
        options = tuple(getattr(jax.config, option) for option in _SETTINGS)
        key = (static, options, tuple(map(_kind, arrays)))
        program = self.programs.get(key)
        if program is None:
            with self._lock:
                if len(self.programs) >= _MOST_PROGRAMS:
                    self.programs.clear()
                program = self.programs.setdefault(key, _Once())
        return program.made(lambda: self._made(arrays, static, key))(arrays)

    def _made(self, arrays: list[Any], static: Static, key: Any) -> Callable[..., Any]:
        kinds = [(shape, str(dtype), weak) for shape, dtype, weak in key[2]]
        name = _name((self._made_from, static, key[1], kinds))
        path = None if name is None else entry_path(name)
        if path is None:
            return lambda arrays: self._jitted(arrays, static)
        if (program := _loaded(path, arrays)) is not None:
            return program
        return _kept(path, self._to_keep.lower(arrays, static), self._made_from[1], arrays)


def _jitted(
    function: Callable[..., Any], options: Options, suffix: str = "", keep_unused: bool = False
) -> Any:
    def flat(arrays: list[Any], static: Static) -> Any:
        args, kwargs = static.joined(arrays)
        return function(*args, **kwargs)

    flat.__name__ = getattr(function, "__name__", "program") + suffix
    return jax.jit(flat, static_argnums=1, compiler_options=options, keep_unused=keep_unused)


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


def _kind(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype, getattr(array, "weak_type", False)


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
        if isinstance(part, types.ModuleType):
            return tuple, ((_known(part.__name__), part.__name__),)
        if not (isinstance(part, type) or callable(part)) or not hasattr(part, "__module__"):
            return NotImplemented
        place = _known(str(part.__module__)), part.__module__, getattr(part, "__qualname__", "")
        if _found(*place[1:]) is part:
            return NotImplemented if isinstance(part, type) and not place[0] else (tuple, (place,))
        if isinstance(part, types.FunctionType):
            given = part.__defaults__, part.__kwdefaults__
            enclosed = [cell.cell_contents for cell in part.__closure__ or ()]
            return tuple, ((*place, _code(part.__code__), given, enclosed),)
        if isinstance(part, _JITTED):
            return tuple, ((*place, part.__wrapped__),)
        if isinstance(part, type) and place[0]:
            raise _Foreign(place)  # made in a function
        return NotImplemented


_JITTED: Any = type(jax.jit(lambda: None))


def _found(module: str, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _known(module: str) -> str:
    package = module.partition(".")[0]
    if package not in _KNOWN:
        raise _Foreign(package)
    return _KNOWN[package]


def _code(code: types.CodeType) -> Any:
    """What distinguishes this code from other code of its module."""
    constants = [_code(c) if isinstance(c, types.CodeType) else c for c in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _name(parts: Any) -> str | None:
    """A name for a program made from these parts; None if they are not all known."""
    content = io.BytesIO()
    pickler = _Description(content)
    pickler.fast = True  # equal parts have equal bytes, whether or not they are the same object
    try:
        pickler.dump(parts)
    except (_Foreign, pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError):
        return None
    return hashlib.sha256(_versions() + _sources() + content.getvalue()).hexdigest()


@functools.cache
def _sources() -> bytes:
    """The files of this library, in 10 ms. Every checkout changes the times of files."""
    folder, sources = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        sources.update(bytes(path.relative_to(folder)) + path.read_bytes())
    return sources.digest()


@functools.cache
def _versions() -> bytes:
    device = jax.devices()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    known = (jax.__version__, jaxlib.__version__, np.__version__, flags, len(jax.devices()))
    return repr((known, device.device_kind, device.client.platform_version)).encode()


def _kept(path: Path, lowered: Any, options: Options, arrays: list[Any]) -> Callable[..., Any]:
    """The lowered program, compiled unless its code is there, and kept under this path."""
    from jax.experimental.serialize_executable import serialize

    text = lowered.as_text()
    made_from = f"{sorted(options.items())} {text}".encode()
    code = f"code-{hashlib.sha256(_versions() + made_from).hexdigest()}"
    result = lowered.out_tree
    _write(path, lambda: (code, result.unflatten(range(result.num_leaves)), "lapack" in text))
    program = _loaded(path, arrays)
    if program is None:
        before = _seen.hits
        program = lowered.compile()
        if _seen.hits == before and (place := entry_path(code)) is not None:
            _write(place, lambda: serialize(program)[0])
    return program


def _write(path: Path, content: Callable[[], Any]) -> None:
    try:
        compressed = zlib.compress(pickle.dumps(content()), level=1)
        temporary = path.with_name(uuid.uuid4().hex)
        with open(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(compressed)
        os.replace(temporary, path)
    except Exception:  # a program that cannot be kept is compiled again
        return


def _read(path: Path | None) -> Any:
    if path is None or not _is_ours(path):
        raise OSError(path)
    return pickle.loads(zlib.decompress(path.read_bytes()))


def _loaded(path: Path, arrays: list[Any]) -> Callable[..., Any] | None:
    from jax.experimental.serialize_executable import deserialize_and_load

    try:
        code, result, calls_lapack = _read(path)
        if calls_lapack:
            _initialise_lapack()
        structures = jax.tree.structure(((arrays,), {})), jax.tree.structure(result)
        payload = _read(entry_path(code))
        return deserialize_and_load(payload, *structures, execution_devices=jax.devices()[:1])
    except Exception:  # whatever is wrong with an entry, the program can be compiled
        return None


@functools.cache
def _initialise_lapack() -> None:
    """Set the functions of LAPACK that a loaded program may call, as JAX does in lowering."""
    try:
        from jaxlib.lapack import prepare_lapack_call

        prepare_lapack_call("potrf", np.dtype(np.float32))
    except ImportError:  # another version: by lowering a call, which is slower
        jax.jit(jax.lax.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


def _is_ours(path: Path) -> bool:
    """Whether only this user can have written the entry: loading it runs its code."""
    for part in (path, path.parent):
        status = part.stat()
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        if status.st_uid != os.getuid():
            return False
    return True
