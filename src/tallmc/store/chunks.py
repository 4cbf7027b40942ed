"""Draws in the chunks of Zarr v3 arrays, to which they are added block by block.

A chunk is a file of the numbers of some draws, draw after draw: as the sampler records them, and so that a chunk that is not full
grows at its end. To add draws is to replace the last chunk by a longer one that begins with the same bytes. So what an earlier
manifest says of these stays true at every moment, and only draws of a chunk that is not full are written again. What makes a Zarr
of the chunks is written at its end (`export.py`); until then the manifest says what their arrays are.
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

from .._kept import Block
from .files import StoreError, Written, open_inside, replaced, sync_folder

FINISHED, AS_SAMPLED = "draws.zarr", "sampled.zarr"
_POSTERIOR, _STATS = "posterior/", "sample_stats/"
_NAME = re.compile(rf"({_POSTERIOR}|{_STATS})[A-Za-z0-9_][A-Za-z0-9_.-]*")
_FLOATS = {"float16", "float32", "float64"}
_DTYPES = {"bool", *_FLOATS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
_MOST_ARRAYS = 10_000
_CHUNK_BYTES = 2**23
_PIECE = 2**22


class Kind(NamedTuple):
    """What a draw of one chain has in an array."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def on_disk(self) -> np.dtype:
        return np.dtype(self.dtype).newbyteorder("<")


class Series(NamedTuple):
    """The arrays of a run. Those of the posterior, end to end, are the positions."""

    chains: int
    chunk: int
    """Draws in a chunk."""
    arrays: dict[str, Kind]

    @classmethod
    def of(cls, block: Block, parameters: dict[str, tuple[int, ...]]) -> Series:
        """The length of a chunk depends on the shape of one draw only."""
        arrays = {f"{_POSTERIOR}{name}": Kind(block.positions.dtype.name, shape) for name, shape in parameters.items()}
        arrays |= {f"{_STATS}{name}": Kind(values.dtype.name, ()) for name, values in block.stats.items()}
        one = cls(len(block.positions), 1, arrays)
        return one._replace(chunk=1 << max(0, (_CHUNK_BYTES // max(one.bytes, 1)).bit_length() - 1))

    @classmethod
    def parsed(cls, content: list[Any]) -> Series:
        """What a manifest says, refused where it is no such thing."""
        chains, chunk, listed = content
        arrays = {str(name): Kind(dtype, tuple(shape)) for name, (dtype, shape) in listed.items()}
        lengths = [chains, chunk, *(1 + length for kind in arrays.values() for length in kind.shape)]
        if not all(isinstance(length, int) and length > 0 for length in lengths) or len(arrays) > _MOST_ARRAYS:
            raise ValueError("arrays without a shape")
        for name, kind in arrays.items():
            kinds = _DTYPES if name.startswith(_STATS) else _FLOATS
            if not _NAME.fullmatch(name) or kind.dtype not in kinds:
                raise ValueError("arrays that are none of a run's")
        return cls(chains, chunk, arrays)

    def is_like(self, other: Series) -> bool:
        """Whether draws of one can follow those of the other."""
        shapes = [{name: kind.shape for name, kind in series.arrays.items()} for series in (self, other)]
        return self.chains == other.chains and shapes[0] == shapes[1]

    @property
    def bytes(self) -> int:
        """Of one draw."""
        return self.chains * sum(kind.bytes for kind in self.arrays.values())

    def split(self, block: Block) -> dict[str, np.ndarray]:
        """A block by its arrays, each (draw, chain, ...)."""
        found, at, positions = {}, 0, np.moveaxis(block.positions, 1, 0)
        for name, kind in self.arrays.items():
            if name.startswith(_POSTERIOR):
                size = math.prod(kind.shape)
                values = positions[..., at : at + size].reshape(*positions.shape[:2], *kind.shape)
                at += size
            else:
                values = np.moveaxis(block.stats[name.removeprefix(_STATS)], 1, 0)
            found[name] = np.ascontiguousarray(values, kind.on_disk)
        return found

    def joined(self, arrays: dict[str, np.ndarray]) -> Block:
        """The block that `split` gives these arrays of."""
        posterior = [values for name, values in arrays.items() if name.startswith(_POSTERIOR)]
        flat = [values.reshape(*values.shape[:2], math.prod(values.shape[2:])) for values in posterior]
        positions = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=-1)
        stats = {name.removeprefix(_STATS): values for name, values in arrays.items() if name.startswith(_STATS)}
        return Block(np.moveaxis(positions, 1, 0), {name: np.moveaxis(values, 1, 0) for name, values in stats.items()})

    def chunk_name(self, name: str, number: int) -> str:
        return f"{name}/c.0.{number}" + ".0" * len(self.arrays[name].shape)

    def chunk_names(self, draws: int) -> set[str]:
        """Of all chunks that so many draws begin."""
        return {self.chunk_name(name, number) for name in self.arrays for number in range(-(-draws // self.chunk))}


class Chunks:
    """The end of a series of draws in the folder of a Zarr."""

    def __init__(self, folder: Path, series: Series, draws: int = 0, tails: dict[str, list[memoryview]] | None = None):
        self.folder, self.series, self.draws = folder, series, draws
        self.tails = tails or {name: [] for name in series.arrays}
        """What the last chunk of each array holds, unless it is full."""
        for name in series.arrays:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for made in {folder.parent, folder, *(folder / Path(name).parent for name in series.arrays)}:
            sync_folder(made)

    @classmethod
    def after(cls, run: Path, series: Series, draws: int) -> Chunks:
        """To go on where so many draws are stored."""
        first = draws - draws % series.chunk
        tails = {name: [_bytes_of(values)] for name, values in _read(run, series, first, draws - first).items()}
        return cls(run / FINISHED, series, draws, tails)

    def add(self, blocks: list[Block]) -> Written:
        """Write blocks as one; what is written is the numbers of one array after the other."""
        digest, split = hashlib.sha256(), [self.series.split(block) for block in blocks]
        for name in self.series.arrays:
            content = [_bytes_of(arrays[name]) for arrays in split]
            for part in content:
                digest.update(part)
            self._add(name, content)
        added = sum(block.n_draws for block in blocks)
        self.draws += added
        return Written(added * self.series.bytes, digest.hexdigest())

    def fill_up(self) -> int:
        """All chunks of one length, which is returned; an only one is as long as the run."""
        length = min(self.series.chunk, max(self.draws, 1))
        missing = -self.draws % length
        for name, tail in self.tails.items():
            if any(tail):
                kind = self.series.arrays[name]
                fill = np.full((missing, self.series.chains, *kind.shape), fill_value(kind.dtype), kind.on_disk)
                self._write(name, self.draws // self.series.chunk, [*tail, _bytes_of(fill)])
        return length

    def _add(self, name: str, content: list[memoryview]) -> None:
        full = self.series.chunk * self.series.chains * self.series.arrays[name].bytes
        number, chunk, size = self.draws // self.series.chunk, self.tails[name], sum(map(len, self.tails[name]))
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
    """What stands where there is no draw."""
    return np.array(np.nan if np.issubdtype(dtype, np.floating) else 0).astype(dtype)


def read_block(run: Path, series: Series, first: int, count: int) -> Block:
    """Draws `first` and on, of all arrays."""
    return series.joined(_read(run, series, first, count))


def is_intact_block(run: Path, series: Series, first: int, count: int, written: Written) -> bool:
    """Whether these draws are all there, and those that were written."""
    if written.bytes != count * series.bytes or written.bytes < count:
        return False
    digest = hashlib.sha256()
    try:
        for name in series.arrays:
            for chunk, start, size in _places(series, name, first, count):
                with open_inside(run, f"{_folder(run)}/{chunk}") as file:
                    file.seek(start)
                    while size and (piece := file.read(min(size, _PIECE))):
                        digest.update(piece)
                        size -= len(piece)
                if size:
                    return False
    except OSError:
        return False
    return digest.hexdigest() == written.sha256


def _read(run: Path, series: Series, first: int, count: int) -> dict[str, np.ndarray]:
    """Draws `first` and on, by array."""
    found = {}
    for name, kind in series.arrays.items():
        found[name] = np.empty((count, series.chains, *kind.shape), kind.on_disk)
        content, at = _bytes_of(found[name]), 0
        for chunk, start, size in _places(series, name, first, count):
            with open_inside(run, f"{_folder(run)}/{chunk}") as file:
                file.seek(start)
                if file.readinto(content[at : at + size]) != size:
                    raise StoreError(run, "hold whole chunks", chunk)
            at += size
    return found


def _places(series: Series, name: str, first: int, count: int) -> Iterator[tuple[str, int, int]]:
    """In which chunks these draws are, from which byte on, and how many bytes of them."""
    per_draw, stop = series.chains * series.arrays[name].bytes, first + count
    while first < stop and per_draw:
        number, start = divmod(first, series.chunk)
        length = min(series.chunk - start, stop - first)
        yield series.chunk_name(name, number), start * per_draw, length * per_draw
        first += length


def _bytes_of(values: np.ndarray) -> memoryview:
    return values.reshape(-1).view(np.uint8).data


def _folder(run: Path) -> str:
    """Where the draws are as they were sampled: beside the finished run, where that leaves out a chain."""
    return AS_SAMPLED if os.path.lexists(run / AS_SAMPLED) else FINISHED
