"""Draws in the chunks of Zarr v3 arrays; each block of draws is appended.

A chunk is a file that holds the values of some draws, draw after draw, in the order in which the
sampler records them. So a partial chunk grows at its end: appending draws replaces the last chunk
by a longer one that begins with the same bytes. An earlier manifest stays valid at every moment,
and only the draws of a partial chunk are written again. The Zarr metadata is written at the end of
the run (`writer.py`). Until then the manifest describes the arrays.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._core.arrays import flat
from .._core.files import FileDigest, replaced, sync_folder
from .._engine.run import DrawBlock
from .files import StoreError, open_inside

FINISHED, AS_SAMPLED = "draws.zarr", "sampled.zarr"
_POSTERIOR, _STATS, POSITIONS = "posterior/", "sample_stats/", "unconstrained/position"
_ARRAY_NAME = re.compile(rf"(({_POSTERIOR}|{_STATS})[A-Za-z0-9_][A-Za-z0-9_.-]*|{POSITIONS})")
_FLOATS = {"float16", "float32", "float64"}
_DTYPES = {
    "bool",
    *_FLOATS,
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
_MOST_ARRAYS = 10_000
_CHUNK_BYTES = 2**23
_BYTES_PER_READ = 2**22


class Kind(NamedTuple):
    """Type and shape of one array, per draw and chain."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def on_disk(self) -> np.dtype:
        return np.dtype(self.dtype).newbyteorder("<")


class Series(NamedTuple):
    """The arrays of a run.

    The posterior arrays are the quantities that users see. If there is no array of positions, the
    posterior arrays, concatenated, are the positions.
    """

    chains: int
    chunk: int  # draws per chunk
    arrays: dict[str, Kind]

    @classmethod
    def of(cls, block: DrawBlock, quantities: dict[str, tuple[int, ...]]) -> Series:
        """Describe a block's arrays. The chunk length depends only on the shape of one draw."""
        dtype, values = block.positions.dtype.name, block.values
        arrays = {
            f"{_POSTERIOR}{name}": Kind(dtype if values is None else values[name].dtype.name, shape)
            for name, shape in quantities.items()
        }
        if values is not None:
            arrays[POSITIONS] = Kind(dtype, block.positions.shape[2:])
        stats = block.stats.items()
        arrays |= {f"{_STATS}{name}": Kind(found.dtype.name, ()) for name, found in stats}
        single_draw = cls(len(block.positions), 1, arrays)
        fitting = _CHUNK_BYTES // max(single_draw.bytes, 1)
        return single_draw._replace(chunk=1 << max(0, fitting.bit_length() - 1))

    def check(self) -> None:
        """Raise ValueError if the description in a manifest is invalid."""
        lengths = [self.chains, self.chunk]
        lengths += [1 + length for kind in self.arrays.values() for length in kind.shape]
        if min(lengths) < 1 or len(self.arrays) > _MOST_ARRAYS:
            raise ValueError("the arrays have invalid shapes")
        for name, kind in self.arrays.items():
            kinds = _DTYPES if name.startswith(_STATS) else _FLOATS
            if not _ARRAY_NAME.fullmatch(name) or kind.dtype not in kinds:
                raise ValueError("the arrays have invalid names or types")

    def is_like(self, other: Series) -> bool:
        """Whether the draws of one series can follow the draws of the other."""
        here, there = (
            (each.chains, {name: kind.shape for name, kind in each.arrays.items()})
            for each in (self, other)
        )
        return here == there

    @property
    def bytes(self) -> int:
        """Bytes per draw of all chains."""
        return self.chains * sum(kind.bytes for kind in self.arrays.values())

    def split(self, block: DrawBlock) -> dict[str, np.ndarray]:
        """Split a block into its arrays, each (draw, chain, ...)."""
        found, at, positions = {}, 0, block.positions
        for name, kind in self.arrays.items():
            if name == POSITIONS:
                values = positions
            elif name.startswith(_STATS):
                values = block.stats[name.removeprefix(_STATS)]
            elif block.values is not None:
                values = block.values[name.removeprefix(_POSTERIOR)]
            else:
                size = math.prod(kind.shape)
                values = positions[..., at : at + size].reshape(*positions.shape[:2], *kind.shape)
                at += size
            found[name] = np.ascontiguousarray(np.moveaxis(values, 1, 0), kind.on_disk)
        return found

    def joined(self, arrays: dict[str, np.ndarray]) -> DrawBlock:
        """Inverse of `split`."""
        posterior, stats = (
            {
                name.removeprefix(group): np.moveaxis(values, 1, 0)
                for name, values in arrays.items()
                if name.startswith(group)
            }
            for group in (_POSTERIOR, _STATS)
        )
        if POSITIONS in arrays:
            return DrawBlock(np.moveaxis(arrays[POSITIONS], 1, 0), stats, posterior)
        return DrawBlock(flat(posterior), stats)

    def chunk_name(self, name: str, number: int) -> str:
        return f"{name}/c.0.{number}" + ".0" * len(self.arrays[name].shape)

    def chunk_names(self, draws: int) -> set[str]:
        """Names of all chunks that the first `draws` draws occupy."""
        return {
            self.chunk_name(name, number)
            for name in self.arrays
            for number in range(-(-draws // self.chunk))
        }


class Chunks:
    """Appends draws to the chunks in the folder of a Zarr."""

    def __init__(
        self,
        folder: Path,
        series: Series,
        draws: int = 0,
        tails: dict[str, list[memoryview]] | None = None,
    ):
        self.folder, self.series, self.draws = folder, series, draws
        self.tails = tails or {name: [] for name in series.arrays}
        """The content of the last chunk of each array, if the chunk is not full."""
        for name in series.arrays:
            (folder / name).mkdir(parents=True, exist_ok=True)
        groups = {folder / Path(name).parent for name in series.arrays}
        for created in {folder.parent, folder, *groups}:
            sync_folder(created)

    @classmethod
    def after(cls, run: Path, series: Series, draws: int) -> Chunks:
        first = draws - draws % series.chunk
        partial = StoredDraws(run, series, first, draws - first).arrays()
        tails = {name: [_bytes_of(values)] for name, values in partial.items()}
        return cls(run / FINISHED, series, draws, tails)

    def add(self, blocks: list[DrawBlock]) -> FileDigest:
        """Append blocks as one; the digest covers one array after the other."""
        digest, split = hashlib.sha256(), [self.series.split(block) for block in blocks]
        for name in self.series.arrays:
            content = [_bytes_of(arrays[name]) for arrays in split]
            for part in content:
                digest.update(part)
            self._add(name, content)
        added = sum(block.n_draws for block in blocks)
        self.draws += added
        return FileDigest(added * self.series.bytes, digest.hexdigest())

    def fill_up(self) -> int:
        """Pad the last of several chunks to the common length, and return the length."""
        length = min(self.series.chunk, max(self.draws, 1))
        missing = -self.draws % length
        for name, tail in self.tails.items():
            if any(tail):
                kind = self.series.arrays[name]
                shape = (missing, self.series.chains, *kind.shape)
                fill = np.full(shape, fill_value(kind.dtype), kind.on_disk)
                self._write(name, self.draws // self.series.chunk, [*tail, _bytes_of(fill)])
        return length

    def _add(self, name: str, content: list[memoryview]) -> None:
        full = self.series.chunk * self.series.chains * self.series.arrays[name].bytes
        number, chunk = self.draws // self.series.chunk, self.tails[name]
        size = sum(map(len, chunk))
        for part in content:
            while size + len(part) >= full > 0:
                self._write(name, number, [*chunk, part[: full - size]])
                part, number, chunk, size = part[full - size :], number + 1, [], 0
            chunk, size = [*chunk, part], size + len(part)
        if size and any(content):
            self._write(name, number, chunk)
        self.tails[name] = chunk

    def _write(self, name: str, number: int, content: list[memoryview]) -> None:
        with replaced(self.folder, self.series.chunk_name(name, number)) as file:
            file.writelines(content)


def fill_value(dtype: str) -> Any:
    return np.array(np.nan if np.issubdtype(dtype, np.floating) else 0).astype(dtype)


class StoredDraws(NamedTuple):
    """Some draws of a run on disk."""

    run: Path
    series: Series
    first: int
    n_draws: int

    def read(self) -> DrawBlock:
        return self.series.joined(self.arrays())

    def arrays(self) -> dict[str, np.ndarray]:
        """The draws by array, each (draw, chain, ...)."""
        found = {}
        for name, kind in self.series.arrays.items():
            found[name] = np.empty((self.n_draws, self.series.chains, *kind.shape), kind.on_disk)
            content, at = _bytes_of(found[name]), 0
            for chunk, start, size in self._byte_ranges(name):
                with open_inside(self.run, chunk) as file:
                    file.seek(start)
                    if file.readinto(content[at : at + size]) != size:
                        raise StoreError(self.run, "hold whole chunks", chunk)
                at += size
        return found

    def are_intact(self, written: FileDigest) -> bool:
        if written.bytes != self.n_draws * self.series.bytes or written.bytes < self.n_draws:
            return False
        digest = hashlib.sha256()
        try:
            for name in self.series.arrays:
                for chunk, start, size in self._byte_ranges(name):
                    with open_inside(self.run, chunk) as file:
                        file.seek(start)
                        while size and (piece := file.read(min(size, _BYTES_PER_READ))):
                            digest.update(piece)
                            size -= len(piece)
                    if size:
                        return False
        except OSError:
            return False
        return digest.hexdigest() == written.sha256

    def _byte_ranges(self, name: str) -> Iterator[tuple[str, int, int]]:
        """The files that hold these draws of an array: name, first byte and number of bytes."""
        # If a chain failed, the draws as sampled are beside the export.
        folder = AS_SAMPLED if os.path.lexists(self.run / AS_SAMPLED) else FINISHED
        series, first, stop = self.series, self.first, self.first + self.n_draws
        per_draw = series.chains * series.arrays[name].bytes
        while first < stop and per_draw:
            number, start = divmod(first, series.chunk)
            length = min(series.chunk - start, stop - first)
            yield f"{folder}/{series.chunk_name(name, number)}", start * per_draw, length * per_draw
            first += length


def _bytes_of(values: np.ndarray) -> memoryview:
    return values.reshape(-1).view(np.uint8).data
