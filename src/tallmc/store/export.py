"""The finished run as Zarr v3 in ArviZ's schema: groups `posterior` and `sample_stats`, dimensions chain and draw.

    xarray.open_datatree("run/draws.zarr", engine="zarr")

Zarr v3 (https://zarr-specs.readthedocs.io) is a folder for each group and array, with a zarr.json and, for every chunk, a file
of the numbers themselves. Chunks are written as the run goes on, the metadata at its end: an unfinished export is no Zarr.
"""

from __future__ import annotations

import json
import math
import operator
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .._kept import Block, joined
from .files import Written, write_file
from .setup import Setup

FOLDER = "draws.zarr"
_CHUNK_BYTES = 2**23


class Export:
    def __init__(self, path: Path, parameters: dict[str, tuple[int, ...]], labels: dict[str, list[str]], about: dict[str, Any]):
        self.path, self.parameters, self.labels, self.about = path / FOLDER, parameters, labels, about
        self.folders = _folder_names(parameters)
        self._start()

    @classmethod
    def of(cls, path: Path, setup: Setup) -> Export:
        content = setup.content
        about = {name: content[name] for name in ("seed", "burn_in", "thin", "n_rows", "dtype", "n_row_evals")}
        about |= {"method": content["method_shown"], "tallmc_version": content["environment"]["tallmc"]}
        return cls(path, {name: tuple(shape) for name, shape in content["parameters"].items()}, content["labels"], about)

    def _start(self) -> None:
        self.buffer: list[Block] = []
        self.chunks = 0
        self.n_draws = 0
        self.files: dict[str, Written] = {}
        self.metadata: dict[str, Any] = {}

    def clear(self) -> None:
        """Begin anew."""
        if self.path.is_symlink():
            self.path.unlink()
        shutil.rmtree(self.path, ignore_errors=True)
        self._start()

    def add(self, block: Block) -> None:
        """Write the chunks that are complete with this block."""
        self.buffer.append(block)
        length = _chunk_length(block)
        if sum(waiting.n_draws for waiting in self.buffer) < length:
            return
        waiting = joined(self.buffer)
        while waiting.n_draws >= length:
            self._write_chunk(_part(waiting, 0, length), length)
            waiting = _part(waiting, length, waiting.n_draws)
        self.buffer = [waiting]

    def finish(self, ok: list[bool], blocks: Callable[[], Iterable[Block]]) -> dict[str, Written]:
        """The last chunk and the metadata. Where a chain failed all is written again: nothing of it shall pass for a draw."""
        if not all(ok):
            self.clear()
            for block in blocks():
                self.add(Block(np.where(np.array(ok)[:, None, None], block.positions, np.nan), block.stats))
        last = joined(self.buffer)
        length = _chunk_length(last) if self.chunks else max(last.n_draws, 1)
        if last.n_draws:
            self._write_chunk(last, length)
        self._write_metadata(last, length, ok)
        return {f"{FOLDER}/{name}": written for name, written in self.files.items()}

    def _write_chunk(self, block: Block, length: int) -> None:
        for name, values in self._arrays(block).items():
            missing = [(0, length - block.n_draws if axis == 1 else 0) for axis in range(values.ndim)]
            chunk = np.pad(values, missing, constant_values=_fill(values.dtype)) if block.n_draws < length else values
            zeros = "/".join("0" * (values.ndim - 2))
            self._write(f"{name}/c/0/{self.chunks}" + (f"/{zeros}" if zeros else ""), _little(chunk))
        self.chunks += 1
        self.n_draws += block.n_draws

    def _arrays(self, block: Block) -> dict[str, np.ndarray]:
        """By the path of their array."""
        found, at, batch = {}, 0, block.positions.shape[:2]
        for name, shape in self.parameters.items():
            size = math.prod(shape)
            found[f"posterior/{self.folders[name]}"] = block.positions[..., at : at + size].reshape(batch + shape)
            at += size
        return found | {f"sample_stats/{name}": values for name, values in block.stats.items()}

    def _write_metadata(self, example: Block, length: int, ok: list[bool]) -> None:
        chains = len(example.positions)
        coordinates: dict[str, Any] = {"chain": np.arange(chains), "draw": np.arange(self.n_draws)}
        for group in ("posterior", "sample_stats"):
            for name, values in coordinates.items():
                self._write_array(f"{group}/{name}", values, [name])
        for name, values in self._arrays(example).items():
            parameter = next((p for p, folder in self.folders.items() if name == f"posterior/{folder}"), None)
            shape, extra = values.shape[2:], self._dimensions(parameter, values.ndim - 2)
            for dimension, size in zip(extra, shape, strict=True):
                entries = self.labels.get(parameter or "", ())
                labelled = list(entries) if len(entries) == size and len(shape) == 1 else np.arange(size)
                self._write_array(f"posterior/{dimension}", labelled, [dimension])
            chunk = (chains, length, *shape)
            self._write_json(name, _array_json((chains, self.n_draws, *shape), chunk, values.dtype, ["chain", "draw", *extra]))
        for group in ("posterior", "sample_stats"):
            self._write_json(group, _group_json({}, {}))
        self._write_json("", _group_json(self.about | {"completed": ok}, dict(sorted(self.metadata.items()))))

    def _dimensions(self, parameter: str | None, count: int) -> list[str]:
        if parameter is None:
            return []
        folder = self.folders[parameter]
        return [f"{folder}_dim"] if count == 1 and parameter in self.labels else [f"{folder}_dim_{axis}" for axis in range(count)]

    def _write_array(self, name: str, values: Any, dimensions: list[str]) -> None:
        """A coordinate: one chunk."""
        if isinstance(values, list):
            texts = [str(value).encode() for value in values]
            lengths = [struct.pack("<I", len(text)) for text in texts]
            content: bytes | memoryview = struct.pack("<I", len(texts)) + b"".join(map(operator.add, lengths, texts))
            metadata = _array_json((len(texts),), (len(texts),), None, dimensions)
        else:
            content, metadata = _little(values), _array_json(values.shape, values.shape, values.dtype, dimensions)
        self._write(f"{name}/c/0", content)
        self._write_json(name, metadata)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        self.metadata[name] = content
        self._write(f"{name}/zarr.json" if name else "zarr.json", json.dumps(content, ensure_ascii=False).encode())

    def _write(self, name: str, content: bytes | memoryview) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        self.files[name] = write_file(self.path, name, lambda file: file.write(content))


def _part(block: Block, first: int, stop: int) -> Block:
    return Block(block.positions[:, first:stop], {name: values[:, first:stop] for name, values in block.stats.items()})


def _chunk_length(block: Block) -> int:
    """Draws in a chunk: a power of two that depends on the shape of one draw only."""
    chains, _, dim = block.positions.shape
    return 1 << max(0, (_CHUNK_BYTES // (chains * dim * block.positions.dtype.itemsize)).bit_length() - 1)


def _fill(dtype: Any) -> Any:
    return np.array(np.nan if np.issubdtype(dtype, np.floating) else 0).astype(dtype)


def _little(values: np.ndarray) -> memoryview:
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def _group_json(attributes: dict[str, Any], members: dict[str, Any]) -> dict[str, Any]:
    """With the metadata of all that is in it, so that opening a run takes one file."""
    consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes, "consolidated_metadata": consolidated}


def _array_json(shape: tuple[int, ...], chunk: tuple[int, ...], dtype: Any, dimensions: list[str]) -> dict[str, Any]:
    """Metadata of an array of numbers or, without a dtype, of texts."""
    codec = {"name": "vlen-utf8"} if dtype is None else {"name": "bytes", "configuration": {"endian": "little"}}
    fill: Any = "" if dtype is None else "NaN" if np.issubdtype(dtype, np.floating) else _fill(np.dtype(dtype)).item()
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "string" if dtype is None else np.dtype(dtype).name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(length, 1) for length in chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [codec],
        "attributes": {},
        "dimension_names": dimensions,
    }


def _folder_names(parameters: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """A folder for each parameter, whatever it is called: names may hold what paths must not.

    >>> _folder_names({"beta": (2,), "../x": (), "a/x": ()})
    {'beta': 'beta', '../x': 'p_.._x', 'a/x': 'a_x'}
    """
    found: dict[str, str] = {}
    for name in parameters:
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        plain = plain if re.match(r"[A-Za-z0-9_]", plain) and plain not in ("chain", "draw") else f"p_{plain}"
        while plain in found.values():
            plain += "_"
        found[name] = plain
    return found
