"""Compiled programs on disk, so that another process does not compile them again.

There are two kinds of entries. Those of `programs.py` are used by default, and loaded without
tracing. Those that JAX reads and writes, for programs with code of the user, are used if asked for.
The key of JAX's entry contains the program, the options of the compiler with `XLA_FLAGS`, the
version of jaxlib and the device. It contains neither the instruction set of the processor nor the
number of cores for which XLA divides the work, so every combination of these has a subfolder.

JAX can limit the size only if the package filelock is installed. `_tidy` does it instead, when a
process starts to use the cache and when the process ends. It also deletes entries that were not
written to their end (a full disk, a killed process): JAX would compile these programs in every
process. JAX compiles whatever it cannot read and ignores that it cannot write.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import re
import sys
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.experimental.compilation_cache import compilation_cache

from .errors import check_int

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
      `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows.
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
    home: dict[str, tuple[str, str]] = {
        "win32": ("LOCALAPPDATA", "AppData/Local"),
        "darwin": ("", "Library/Caches"),
    }
    variable, below_home = home.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    given = os.environ.get(variable, "")
    return (Path(given) if os.path.isabs(given) else Path.home() / below_home) / "tallmc"


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
