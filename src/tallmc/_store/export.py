"""Export a finished run as Zarr v3 in ArviZ's schema.

The groups are `posterior` and `sample_stats`; the dimensions are chain and draw. If the posterior
has other quantities than the positions of the chains, these are in `unconstrained`.

    xarray.open_datatree("run/draws.zarr", engine="zarr")

Zarr v3 (https://zarr-specs.readthedocs.io) has one folder per group and array. A folder holds a
zarr.json and one file of raw values per chunk. The chunks are written during the run (`chunks.py`).
The export adds coordinates and metadata.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .._core.arrays import AbstractQuantities, Parameters
from .._core.files import FileDigest, sync_folder, write_file
from .._engine.run import DrawBlock
from .chunks import AS_SAMPLED, FINISHED, Chunks, Kind, Series, fill_value
from .setup import Setup

_LONGEST_NAME = 100


class Export:
    """Writes the coordinates and the metadata of draws.zarr."""

    def __init__(self, run: Path, setup: Setup, quantities: AbstractQuantities):
        self.run, self.path, self.quantities = run, run / FINISHED, quantities
        content, kept = setup.content, ("seed", "burn_in", "thin", "n_rows", "dtype", "n_row_evals")
        self.about: dict[str, Any] = {
            **{name: content[name] for name in kept},
            "method": content["method_shown"],
            "tallmc_version": content["environment"]["tallmc"],
            **content["description"],
        }
        dims = dict.fromkeys(dim for found in quantities.dims.values() for dim in found)
        self.folders = _folder_names(quantities.shapes)
        self.dims = _folder_names(dims, self.folders.values())
        self.names = {folder: name for name, folder in self.folders.items()}
        self.files: dict[str, FileDigest] = {}
        self.metadata: dict[str, Any] = {}

    def with_values(self, block: DrawBlock) -> DrawBlock:
        """The block with the quantities to store, unless they are parts of the positions."""
        if isinstance(self.quantities, Parameters):
            return block
        found = self.quantities.of(block.positions)
        return block._replace(values={self.folders[name]: found[name] for name in found})

    def series(self, block: DrawBlock) -> Series:
        shapes = self.quantities.shapes.items()
        return Series.of(block, {self.folders[name]: shape for name, shape in shapes})

    def finish(
        self, chunks: Chunks, ok: list[bool], blocks: Callable[[], Iterable[DrawBlock]]
    ) -> dict[str, FileDigest]:
        """Make the chunks a Zarr.

        If a chain failed, new chunks with NaN for all its draws are written, because none of them
        is valid.
        """
        if not all(ok):
            os.rename(self.path, self.run / AS_SAMPLED)
            sync_folder(self.run)
            chunks = Chunks(self.path, chunks.series)
            for block in blocks():
                chunks.add([_without_failed(block, np.array(ok))])
        self._write_metadata(chunks.series, chunks.draws, chunks.fill_up(), ok)
        return {f"{FINISHED}/{name}": written for name, written in self.files.items()}

    def _write_metadata(self, series: Series, draws: int, length: int, ok: list[bool]) -> None:
        coordinates: dict[str, Any] = {"chain": np.arange(series.chains), "draw": np.arange(draws)}
        groups = {name.partition("/")[0] for name in series.arrays} | {"sample_stats"}
        for group in sorted(groups):
            for name, values in coordinates.items():
                self._write_array(f"{group}/{name}", values, [name])
        for name, kind in series.arrays.items():
            shape = (series.chains, draws, *kind.shape)
            chunk = (series.chains, length, *kind.shape)
            dimensions = ["chain", "draw", *self._dimensions(name, kind)]
            metadata = _array_json(shape, chunk, kind.dtype, dimensions)
            # Chunks hold draw after draw, not chain after chain.
            order = {"order": [1, 0, *range(2, len(shape))]}
            metadata["codecs"].insert(0, {"name": "transpose", "configuration": order})
            self._write_json(name, metadata)
        for group in sorted(groups):
            self._write_json(group, _group_json({}, {}))
        members = dict(sorted(self.metadata.items()))
        self._write_json("", _group_json(self.about | {"completed": ok}, members))

    def _dimensions(self, name: str, kind: Kind) -> list[str]:
        """Name an array's dimensions beyond chain and draw, and write their coordinates."""
        group, _, folder = name.partition("/")
        named = self.quantities.dims.get(self.names.get(folder, ""), ())
        is_quantity = group == "posterior" and len(named) == len(kind.shape)
        found = [f"{folder}_dim_{axis}" for axis in range(len(kind.shape))]
        for axis, size in enumerate(kind.shape):
            entries: Any = self.quantities.coords.get(named[axis]) if is_quantity else None
            if is_quantity:
                found[axis] = self.dims[named[axis]]
            entries = np.arange(size) if entries is None else list(entries)
            self._write_array(f"{group}/{found[axis]}", entries, [found[axis]])
        return found

    def _write_array(self, name: str, values: Any, dimensions: list[str]) -> None:
        """Write a coordinate as one chunk."""
        if isinstance(values, list):
            texts = [str(value).encode() for value in values]
            content = struct.pack("<I", len(texts))
            content += b"".join(struct.pack("<I", len(text)) + text for text in texts)
            metadata = _array_json((len(texts),), (len(texts),), None, dimensions)
        else:
            content = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
            metadata = _array_json(values.shape, values.shape, values.dtype, dimensions)
        self._write(f"{name}/c.0", content)
        self._write_json(name, metadata)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        self.metadata[name] = content
        file = f"{name}/zarr.json" if name else "zarr.json"
        self._write(file, json.dumps(content, ensure_ascii=False).encode())

    def _write(self, name: str, content: bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        self.files[name] = write_file(self.path, name, content)


def _without_failed(block: DrawBlock, ok: np.ndarray) -> DrawBlock:
    """The block with NaN for all draws of chains that failed."""

    def masked(values: np.ndarray) -> np.ndarray:
        return np.where(ok.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan)

    values = block.values and {name: masked(array) for name, array in block.values.items()}
    return DrawBlock(masked(block.positions), block.stats, values)


def _group_json(attributes: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    """Metadata of a group and its members, so that opening a run reads one file."""
    consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": attributes,
        "consolidated_metadata": consolidated,
    }


def _array_json(
    shape: tuple[int, ...], chunk: tuple[int, ...], dtype: Any, dimensions: list[str]
) -> dict[str, Any]:
    """Metadata of an array of numbers, or of strings if `dtype` is None."""
    codec: dict[str, Any] = {"name": "vlen-utf8"}
    fill: Any = ""
    if dtype is not None:
        codec = {"name": "bytes", "configuration": {"endian": "little"}}
        fill = "NaN" if np.issubdtype(dtype, np.floating) else fill_value(dtype).item()
    chunk_shape = {"chunk_shape": [max(length, 1) for length in chunk]}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "string" if dtype is None else np.dtype(dtype).name,
        "chunk_grid": {"name": "regular", "configuration": chunk_shape},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": fill,
        "codecs": [codec],
        "attributes": {},
        "dimension_names": dimensions,
    }


def _folder_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """One folder name per name. Characters that are unsafe in paths are replaced."""
    found: dict[str, str] = {}
    used = {name.lower() for name in taken}  # some file systems ignore case
    for name in names:
        safe_name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_LONGEST_NAME]
        if not re.match(r"[A-Za-z0-9_]", safe_name) or safe_name in ("chain", "draw"):
            safe_name = f"p_{safe_name}"
        while safe_name.lower() in used:
            safe_name += "_"
        found[name] = safe_name
        used.add(safe_name.lower())
    return found
