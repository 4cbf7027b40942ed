"""Where the rows of each shard come from: mapped `.npy` files."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import io
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._core.files import crc32_of, sum_of
from .manifest import RowManifest, RowStoreError

# Files in NumPy's .npy format whose shape is known.
#
# NumPy parses the header of a file with `ast.literal_eval`, which fails at random when several
# threads call it in Python 3.11. Here the header is compared with the one that the file must have.


@functools.lru_cache(maxsize=256)
def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The first bytes of the file of an array in row-major order."""
    file = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    content = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, content)
    return file.getvalue()


def mapped_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.memmap:
    """The array in a file, mapped; raises ValueError if the file is another one."""
    header = npy_header(shape, dtype)
    with open(path, "rb") as file:
        if file.read(len(header)) != header:
            raise ValueError(f"{path.name} does not hold {dtype} of shape {shape}")
        return np.memmap(file, dtype, "r", len(header), shape)


def _advise(file: BinaryIO, how: str) -> None:
    """Tell the system how a file will be read; macOS has no such call."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, getattr(os, f"POSIX_FADV_{how}"))


# Views: lines of a shard as the rows that a model sees.

View = Callable[[Any], Any]
"""Turns lines of a shard, an array with one column per number, into the rows of a model.

A view only selects and scales numbers, so it works with NumPy as well as inside a program.
"""


@dataclasses.dataclass(frozen=True)
class ByName:
    """Shows each row as a dictionary of its numbers."""

    names: tuple[str, ...]

    def __call__(self, lines: Any) -> dict[str, Any]:
        return {name: lines[..., column] for column, name in enumerate(self.names)}


@dataclasses.dataclass(frozen=True)
class Viewed:
    """A function of rows, as a function of lines of a shard.

    The view is part of the compiled program: copying columns on the host takes more time.
    """

    function: Callable[..., Any]
    view: View

    def __call__(self, lines: Any, *args: Any) -> Any:
        return self.function(self.view(lines), *args)


_SHARDS_AHEAD = 2
_CHECKSUMS: dict[str, Callable[[BinaryIO], str]] = {
    "crc32": crc32_of,
    "sha256": lambda file: sum_of(file).sha256,
}


_INTACT: set[tuple[str, str, str]] = set()
"""Path, name and checksum of shards that this process has checked."""


class AbstractShards(abc.ABC):
    """Rows in pieces, each an array with one line per row. Workers get a small, pickled copy."""

    @property
    @abc.abstractmethod
    def manifest(self) -> RowManifest:
        """What the columns mean, and how many rows each shard has."""

    @property
    @abc.abstractmethod
    def folder(self) -> Path:
        """The folder in which numbers are kept beside the rows."""

    @abc.abstractmethod
    def array(self, number: int, part: slice | None = None) -> np.ndarray:
        """The rows of one shard, which are read from the first to the last, or a part of them."""

    @abc.abstractmethod
    def lines(self, number: int, lines: np.ndarray) -> np.ndarray:
        """Some rows of one shard, by increasing line number."""


@dataclasses.dataclass(frozen=True)
class NpyShards(AbstractShards):
    """The mapped `.npy` files of a row store, or those of some numbers.

    A store may grow: with `numbers`, workers that open it later see the same shards.
    """

    path: str
    numbers: tuple[int, ...] | None = None

    @functools.cached_property
    def manifest(self) -> RowManifest:
        found = RowManifest.read(self.folder)
        if self.numbers is None:
            return found
        return dataclasses.replace(found, shards=tuple(found.shards[k] for k in self.numbers))

    @property
    def folder(self) -> Path:
        return Path(self.path)

    def array(self, number: int, part: slice | None = None) -> np.ndarray:
        if part is not None:
            return self._part(number, part)
        self._read_ahead(number + 1)
        array = self._mapped(number, mmap.MADV_SEQUENTIAL)
        self._check(number, array)
        return array

    def lines(self, number: int, lines: np.ndarray) -> np.ndarray:
        n_rows = self.manifest.shards[number].n_rows
        # Reading ahead pays if most pages have a row that is wanted.
        few = len(lines) * mmap.PAGESIZE < n_rows * len(self.manifest.columns)
        array = self._mapped(number, mmap.MADV_RANDOM if few else mmap.MADV_SEQUENTIAL)
        return np.take(array, lines, axis=0, mode="clip")

    def damaged(self) -> Sequence[str]:
        found = []
        for shard in self.manifest.shards:
            path = self.folder / shard.name
            if not path.is_file():
                found.append(shard.name)
                continue
            kind = shard.checksum.partition(":")[0]
            with open(path, "rb") as file:
                if f"{kind}:{_CHECKSUMS[kind](file)}" != shard.checksum:
                    found.append(shard.name)
        return found

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return NpyShards, (self.path, self.numbers)

    def _check(self, number: int, array: np.ndarray) -> None:
        """Raise if a shard is damaged; once per process and shard."""
        shard = self.manifest.shards[number]
        known = self.path, shard.name, shard.checksum
        if known in _INTACT or not shard.checksum.startswith("crc32:"):
            return
        header = zlib.crc32(npy_header(array.shape, array.dtype))
        found = f"crc32:{zlib.crc32(array.reshape(-1).view(np.uint8).data, header):08x}"
        if found != shard.checksum:
            cure = "Restore the file, or ingest the table again."
            raise RowStoreError(self.folder, f"have an intact {shard.name}", "a damaged one", cure)
        _INTACT.add(known)

    def _part(self, number: int, part: slice) -> np.ndarray:
        """Some lines, read as one request: around a page of a mapping, Linux reads megabytes."""
        array = self._mapped(number, mmap.MADV_RANDOM)
        first, last, _ = part.indices(len(array))
        begin = len(npy_header(array.shape, array.dtype)) + first * array[:1].nbytes
        with open(self.folder / self.manifest.shards[number].name, "rb") as file:
            _advise(file, "RANDOM")
            count = (last - first) * array.shape[1]
            return np.fromfile(file, array.dtype, count, offset=begin).reshape(-1, array.shape[1])

    def _read_ahead(self, first: int) -> None:
        """Have the system read some shards from the disk while others are computed with."""
        for shard in self.manifest.shards[first : first + _SHARDS_AHEAD]:
            with contextlib.suppress(OSError), open(self.folder / shard.name, "rb") as file:
                _advise(file, "WILLNEED")

    def _mapped(self, number: int, advice: int) -> np.ndarray:
        shard = self.manifest.shards[number]
        shape = shard.n_rows, len(self.manifest.columns)
        try:
            array = mapped_npy(self.folder / shard.name, shape, np.dtype(self.manifest.dtype))
        except (OSError, ValueError) as error:
            cure = "Restore the file, or ingest the table again."
            raise RowStoreError(self.folder, f"have {shard.name}", str(error), cure) from None
        array._mmap.madvise(advice)  # type: ignore[attr-defined]
        return np.asarray(array)
