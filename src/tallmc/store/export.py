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
import operator
import os
import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files import FileDigest, sync_folder, write_file
from ..core.quantities import AbstractQuantities, Parameters
from ..engine.sinks import DrawBlock
from .chunks import AS_SAMPLED, FINISHED, Chunks, Kind, Series, fill_value
from .setup import Setup

_LONGEST_NAME = 100


class Export:
    """Writes the coordinates and the metadata of draws.zarr."""

    def __init__(
        self,
        run: Path,
        quantities: AbstractQuantities,
        about: dict[str, Any],
    ):
        self.run, self.path, self.quantities, self.about = run, run / FINISHED, quantities, about
        dims = dict.fromkeys(dim for found in quantities.dims.values() for dim in found)
        self.folders = _folder_names(quantities.shapes)
        self.dims = _folder_names(dims, self.folders.values())
        self.names = {folder: name for name, folder in self.folders.items()}
        self.files: dict[str, FileDigest] = {}
        self.metadata: dict[str, Any] = {}

    @classmethod
    def of(cls, path: Path, setup: Setup, quantities: AbstractQuantities) -> Export:
        """The export of the run in the folder `path`."""
        content = setup.content
        about = {
            name: content[name]
            for name in ("seed", "burn_in", "thin", "n_rows", "dtype", "n_row_evals")
        }
        about |= {
            "method": content["method_shown"],
            "tallmc_version": content["environment"]["tallmc"],
            **content["description"],
        }
        return cls(path, quantities, about)

    def with_values(self, block: DrawBlock) -> DrawBlock:
        """The block with the quantities to store, unless they are parts of the positions."""
        if isinstance(self.quantities, Parameters):
            return block
        found = self.quantities.of(block.positions)
        return block._replace(values={self.folders[name]: found[name] for name in found})

    def series(self, block: DrawBlock) -> Series:
        """Describe the arrays of a run that consists of such blocks."""
        return Series.of(
            block, {self.folders[name]: shape for name, shape in self.quantities.shapes.items()}
        )

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
            extra = self._dimensions(name, kind)
            shape = (series.chains, draws, *kind.shape)
            metadata = _array_json(
                shape, (series.chains, length, *kind.shape), kind.dtype, ["chain", "draw", *extra]
            )
            metadata["codecs"].insert(
                0, {"name": "transpose", "configuration": {"order": [1, 0, *range(2, len(shape))]}}
            )
            self._write_json(name, metadata)
        for group in sorted(groups):
            self._write_json(group, _group_json({}, {}))
        self._write_json(
            "", _group_json(self.about | {"completed": ok}, dict(sorted(self.metadata.items())))
        )

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
            lengths = [struct.pack("<I", len(text)) for text in texts]
            content: bytes | memoryview = struct.pack("<I", len(texts)) + b"".join(
                map(operator.add, lengths, texts)
            )
            metadata = _array_json((len(texts),), (len(texts),), None, dimensions)
        else:
            content, metadata = (
                _little_endian_bytes(values),
                _array_json(values.shape, values.shape, values.dtype, dimensions),
            )
        self._write(f"{name}/c.0", content)
        self._write_json(name, metadata)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        self.metadata[name] = content
        self._write(
            f"{name}/zarr.json" if name else "zarr.json",
            json.dumps(content, ensure_ascii=False).encode(),
        )

    def _write(self, name: str, content: bytes | memoryview) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        self.files[name] = write_file(self.path, name, content)


def _without_failed(block: DrawBlock, ok: np.ndarray) -> DrawBlock:
    """The block with NaN for all draws of chains that failed."""

    def masked(values: np.ndarray) -> np.ndarray:
        return np.where(ok.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan)

    values = block.values
    return DrawBlock(
        masked(block.positions),
        block.stats,
        None if values is None else {name: masked(array) for name, array in values.items()},
    )


def _little_endian_bytes(values: np.ndarray) -> memoryview:
    return (
        np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
    )


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
    codec = (
        {"name": "vlen-utf8"}
        if dtype is None
        else {"name": "bytes", "configuration": {"endian": "little"}}
    )
    fill: Any = (
        ""
        if dtype is None
        else "NaN"
        if np.issubdtype(dtype, np.floating)
        else fill_value(dtype).item()
    )
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "string" if dtype is None else np.dtype(dtype).name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [max(length, 1) for length in chunk]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": fill,
        "codecs": [codec],
        "attributes": {},
        "dimension_names": dimensions,
    }


def _folder_names(names: Iterable[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """One folder name per name. Characters that are unsafe in paths are replaced.

    >>> _folder_names({"beta": (2,), "Beta": (), "../x": (), "a/x": ()})
    {'beta': 'beta', 'Beta': 'Beta_', '../x': 'p_.._x', 'a/x': 'a_x'}
    """
    found: dict[str, str] = {}
    used = {name.lower() for name in taken}  # some file systems ignore case
    for name in names:
        safe_name = _safe_name(name)
        while safe_name.lower() in used:
            safe_name += "_"
        found[name] = safe_name
        used.add(safe_name.lower())
    return found


def _safe_name(name: str) -> str:
    """The name without characters that are unsafe in paths, and unlike chain and draw."""
    safe_name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_LONGEST_NAME]
    is_safe = re.match(r"[A-Za-z0-9_]", safe_name) and safe_name not in ("chain", "draw")
    return safe_name if is_safe else f"p_{safe_name}"
