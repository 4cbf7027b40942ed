"""One number per row of a row store, kept in files beside the rows.

The numbers are a weighted sum of parts. A part is a function of the rows: its files can be deleted
at any time, and are computed again, to the same bits, when they are needed.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .._core.files import TEMPORARY
from .passes import Blocks, map_blocks
from .pickled import pickled
from .shards import AbstractShards, View, Viewed, mapped_npy, npy_header

_FOLDER = "numbers"
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


class ValuesPart(eqx.Module):
    """`factor · function(rows, *args)`, or `factor · given`."""

    function: Callable[..., Any] | None = eqx.field(static=True)
    args: tuple[Any, ...]
    width: int = eqx.field(static=True)  # floats that the function needs per row
    totals: tuple[float, ...] = eqx.field(static=True, default=())
    """The sum of the function over each shard."""
    factor: float = eqx.field(static=True, default=1.0)
    given: Float[Array, " N"] | None = None  # numbers of the user
    name: str = eqx.field(static=True, default="")
    """Identifies the function, its arguments and the rows."""

    @property
    def total(self) -> float:
        """Sum over all rows, with the factor."""
        return self.factor * float(np.sum(self.totals))


class ShardedValues(eqx.Module):
    """One number per row: the sum of some parts."""

    parts: tuple[ValuesPart, ...]

    @property
    def total(self) -> float:
        return float(sum(part.total for part in self.parts))


@dataclasses.dataclass(frozen=True)
class PartFiles:
    """The files of one part, for the workers that read and write them."""

    shards: AbstractShards
    view: View
    part: ValuesPart

    @property
    def folder(self) -> Path:
        assert self.part.name, "`named` gives it one"
        return self.shards.folder / _FOLDER / self.part.name

    @classmethod
    def named(cls, shards: AbstractShards, view: View, part: ValuesPart) -> PartFiles:
        """The files of a new part, which gets its name."""
        arrays = jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, part)
        content = pickled((shards.manifest.digest, view, arrays))
        name = hashlib.sha256(content).hexdigest()[:24]
        return cls(shards, view, dataclasses.replace(part, name=name))

    def of_shard(self, number: int) -> np.ndarray:
        """The numbers of one shard, without the factor."""
        n_rows = self.shards.manifest.shards[number].n_rows
        if self.part.given is not None:
            first = self.shards.manifest.starts[number]
            return np.asarray(self.part.given)[first : first + n_rows]
        path = self.folder / f"{number:06d}.npy"
        for dtype in _DTYPES:
            with contextlib.suppress(ValueError, OSError):
                return np.asarray(mapped_npy(path, (n_rows,), dtype))
        values = self._computed(number)
        self._keep(path, values)
        return values

    def _computed(self, number: int) -> np.ndarray:
        array = self.shards.array(number)
        blocks = Blocks.of(len(array), self.part.width)
        assert self.part.function is not None
        function = Viewed(self.part.function, self.view)
        values = map_blocks(blocks.reader(array), blocks, function, self.part.args)
        return np.asarray(values, np.result_type(values.dtype, np.float32))

    def _keep(self, path: Path, values: np.ndarray) -> None:
        # Without room or permission to keep them, the numbers are computed again when needed.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Two workers may compute the same numbers at the same time.
            temporary = path.with_name(f"{uuid.uuid4().hex}{TEMPORARY}")
            with open(temporary, "wb") as file:
                file.write(npy_header(values.shape, values.dtype))
                file.write(values.data)
            os.replace(temporary, path)


def sums_of_shard(files: PartFiles, number: int, _: Any) -> tuple[float, int | None, float]:
    """The sum over one shard; the first line whose number is negative or not finite; the number."""
    values = files.of_shard(number)
    bad = ~np.isfinite(values) | (values < 0)
    line = int(np.argmax(bad)) if bad.any() else None
    return float(np.sum(values, dtype=np.float64)), line, float(values[line or 0])


_made_here: set[Path] = set()


def delete_at_exit(folder: Path) -> None:
    _made_here.add(folder)


@atexit.register
def _delete_folders() -> None:
    for folder in _made_here:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: another process keeps numbers there
            folder.parent.rmdir()
