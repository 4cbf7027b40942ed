"""Write a store during its run.

A thread writes one block while the next block is sampled, so sampling does not wait for the disk.
The state and a new manifest follow each block. If the process ends at any moment, the manifest
names the last block whose files are all on disk, so at most one complete block is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .._core.arrays import AbstractQuantities, Parameters
from .._core.files import TEMPORARY, FileDigest, sync_folder, write_file
from .._engine.run import DrawBlock, DrawSink, Snapshot
from ..methods.abstract import RunPlan
from .chunks import AS_SAMPLED, FINISHED, Chunks, Kind, Series, fill_value
from .files import Folder, StoreError, exclusive, writable, write_arrays
from .manifest import MANIFEST, PREVIOUS, BlockEntry, Manifest, write_manifest
from .reader import OpenStore, read_blocks, read_whole, snapshot_arrays
from .setup import Setup, make_setup, write_setup

# Export a finished run as Zarr v3 in ArviZ's schema.
#
# The groups are `posterior` and `sample_stats`; the dimensions are chain and draw. If the posterior
# has other quantities than the positions of the chains, these are in `unconstrained`.
#
#     xarray.open_datatree("run/draws.zarr", engine="zarr")
#
# Zarr v3 (https://zarr-specs.readthedocs.io) has one folder per group and array. A folder holds a
# zarr.json and one file of raw values per chunk. The chunks are written during the run
# (`chunks.py`). The export adds coordinates and metadata.

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


_SECONDS_PER_BLOCK = 0.5
# Share of the time so far; the number of blocks grows with the logarithm of the run's length.
_SHARE_PER_BLOCK = 0.01
_MOST_BYTES = 2**23
_STATES_KEPT = 2
_FOLDERS = ("blocks", FINISHED, AS_SAMPLED)


class StorageFailed(OSError):
    """A block could not be written: the disk is full, removed or no longer writable."""


class StoreSink(DrawSink):
    in_memory = False

    def __init__(self, path: Path, manifest: Manifest, export: Export):
        self.path, self.manifest, self.export = path, manifest, export
        self.series = manifest.series
        self.chunks = self.series and Chunks.after(path, self.series, manifest.n_draws)
        self.pending: list[DrawBlock] = []
        self.in_flight: list[DrawBlock] = []
        """Blocks that the thread is writing and the manifest does not name yet."""
        self.n_draws = manifest.n_draws
        self._began = self._last = time.perf_counter()
        self._thread = ThreadPoolExecutor(1, "tallmc-store")
        self._writing: Future[None] | None = None
        self._whole: DrawBlock | None = None

    def add(self, block: DrawBlock) -> None:
        block = self.export.with_values(block)
        found = self.export.series(block)
        self.series = self.series or found
        if not found.is_like(self.series):
            raise StoreError(self.path, "have the arrays of its run", sorted(self.series.arrays))
        self.pending.append(block)  # an empty block too, because its state is newer
        self.n_draws += block.n_draws

    def settle(self, snapshot: Callable[[], Snapshot], *, last: bool = False) -> None:
        if last or self._is_time():
            self._wait()
            if self.pending:
                self._last = time.perf_counter()
                self.in_flight, self.pending = self.pending, []
                self._writing = self._thread.submit(self._write, self.in_flight, snapshot())
        if last:
            self._wait()

    def whole(self) -> DrawBlock:
        if self._whole is None or self._whole.n_draws != self.n_draws:
            with contextlib.suppress(StorageFailed):
                self._wait()
            self._whole = read_whole(self.path, self.manifest, [*self.in_flight, *self.pending])
        return self._whole

    def conclude(
        self, completed: list[bool], *, finished: bool, facts: dict[str, Any]
    ) -> list[str]:
        """Write the last manifest and, for a finished run, the export."""
        try:
            exported = {}
            if finished and self.chunks is not None:
                blocks = functools.partial(read_blocks, self.path, self.manifest)
                exported = self.export.finish(self.chunks, completed, blocks)
            self.manifest = dataclasses.replace(
                self.manifest, progress=facts, finished=finished, exported=exported
            )
            write_manifest(self.path, self.manifest)
        except OSError as error:
            cure = "The blocks are intact; resume the run once there is room."
            return [f"the store could not be completed: {error.strerror}. {cure}"]
        return []

    def close(self) -> None:
        self._thread.shutdown()

    def _is_time(self) -> bool:
        now = time.perf_counter()
        enough = max(_SECONDS_PER_BLOCK, _SHARE_PER_BLOCK * (now - self._began))
        pending = sum(block.n_bytes for block in self.pending)
        return now - self._last >= enough or pending >= _MOST_BYTES

    def _wait(self) -> None:
        if self._writing is None:
            return
        try:
            self._writing.result()
        except OSError as error:
            raise StorageFailed(error.errno, f"{error.strerror or error} in {self.path}") from error
        self._writing = None

    def _write(self, blocks: list[DrawBlock], snapshot: Snapshot) -> None:
        """Write the draws, the state and the manifest that names them. Runs in the thread."""
        old, expired = self.manifest.blocks, None
        n_draws = sum(block.n_draws for block in blocks)
        number = old[-1].number + 1 if old else 0
        entry = BlockEntry(number, n_draws, snapshot.step, FileDigest(0, ""), None)
        if self.chunks is None:
            assert self.series is not None, "`add` sets it with the first block"
            self.chunks = Chunks(self.path / FINISHED, self.series)
        draws = self.chunks.add(blocks)
        state = write_arrays(self.path, entry.state_name, snapshot_arrays(snapshot))
        states = state.bytes + sum(block.state.bytes for block in old if block.state is not None)
        are_large = states > draws.bytes + sum(block.draws.bytes for block in old)
        if are_large and len(old) >= _STATES_KEPT:
            at = len(old) - _STATES_KEPT
            expired = old[at]
            old = (*old[:at], expired._replace(state=None), *old[at + 1 :])
        known = (*old, entry._replace(draws=draws, state=state))
        manifest = dataclasses.replace(self.manifest, series=self.chunks.series, blocks=known)
        write_manifest(self.path, manifest)
        self.manifest, self.in_flight = manifest, []
        if expired is not None:
            (self.path / expired.state_name).unlink(missing_ok=True)


def check_new(folder: Folder) -> None:
    """Check before any computation that the folder can store a run; refuse one with other files."""
    path = Path(folder.path)
    with writable(path):
        path.mkdir(parents=True, exist_ok=True)
        found = {entry.name for entry in path.iterdir()}
        if {MANIFEST, PREVIOUS} & found:
            cure = "Continue the run with tallmc.resume(store, posterior), "
            cure += "read it with tallmc.load(store), or choose another folder."
            raise StoreError(path, "be a new folder", "one that holds a run", cure)
        # These may be left over from a run that ended before its first manifest.
        leftover = re.compile(rf"lock|blocks|setup.*|manifest\.next.*|.*{re.escape(TEMPORARY)}")
        if not all(map(leftover.fullmatch, found)):
            raise StoreError(path, "be a new or empty folder", f"one that holds {sorted(found)[0]}")
        (path / "blocks").mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=path / "blocks"):
            sync_folder(path)


@contextlib.contextmanager
def reserving(folder: Folder) -> Iterator[None]:
    """Check a new folder, and remove it if the block fails before the run can be resumed."""
    path = Path(folder.path)
    made = [each for each in (path, *path.parents) if not each.exists()]
    is_ours = bool(made) or (path.is_dir() and not any(path.iterdir()))
    try:
        check_new(folder)  # makes the folder; a signal may come at once
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if is_ours and not {MANIFEST, PREVIOUS} & {entry.name for entry in path.iterdir()}:
                for entry in path.iterdir():
                    entry.rmdir() if entry.is_dir() else entry.unlink()
                for each in made:
                    each.rmdir()
        raise


@contextlib.contextmanager
def recording(folder: Folder, plan: RunPlan) -> Iterator[StoreSink]:
    """Make a new store for a run before its first step."""
    path = Path(folder.path)
    with exclusive(path):
        with writable(path):
            setup = make_setup(plan, folder)
            manifest = Manifest(setup=write_setup(path, setup))
            write_manifest(path, manifest)
        export = Export(path, setup, plan.posterior.quantities)
        with contextlib.closing(StoreSink(path, manifest, export)) as sink:
            yield sink


@contextlib.contextmanager
def continuing(opened: OpenStore, quantities: AbstractQuantities) -> Iterator[StoreSink]:
    """Open a store to append to it. Files that its manifest does not name are removed."""
    path = opened.path
    with exclusive(path):
        with writable(path):
            _refuse_links(path)
            manifest = dataclasses.replace(opened.manifest, finished=False, exported={})
            write_manifest(path, manifest)
            if (path / AS_SAMPLED).is_dir():
                shutil.rmtree(path / FINISHED, ignore_errors=True)
                os.rename(path / AS_SAMPLED, path / FINISHED)
                sync_folder(path)
            named = {block.state_name for block in manifest.blocks}
            if manifest.series is not None:
                chunks = manifest.series.chunk_names(manifest.n_draws)
                named |= {f"{FINISHED}/{name}" for name in chunks}
            for folder, _, names in itertools.chain(*(os.walk(path / part) for part in _FOLDERS)):
                for file in (Path(folder, name) for name in names):
                    if file.relative_to(path).as_posix() not in named:
                        file.unlink()
            sink = StoreSink(path, manifest, Export(path, opened.setup, quantities))
        with contextlib.closing(sink):
            yield sink


def _refuse_links(path: Path) -> None:
    """Refuse links, so that nothing outside the store is written or removed."""
    found = [path / part for part in _FOLDERS]
    for folder, folders, _ in itertools.chain(*(os.walk(each) for each in found)):
        found += [Path(folder, name) for name in folders]
    for each in found:
        if each.is_symlink():
            raise StoreError(path, "hold folders, not links", each.name)
