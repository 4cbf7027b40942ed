"""Read a store: the draws of its intact blocks as one array.

Large draws are mapped from disk.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core.arrays import AbstractQuantities, Layout, Parameters, StoredQuantities
from .._core.errors import Outcome
from .._engine.run import DrawBlock, Snapshot
from ..methods.abstract import Account
from ..results.draws import Draws, Timing
from ..results.saved import account_from, layout_of_shapes
from .chunks import StoredDraws
from .files import StoreError, as_folder, blaming, read_arrays
from .manifest import VERSION, Manifest, damaged_files, intact_blocks, read_manifest
from .setup import Setup, decode_method, read_setup

_IN_MEMORY = 2**27
_LEAF_PREFIX = "leaf/"
_CLAIM = "broken_claim"


@dataclasses.dataclass(frozen=True)
class OpenStore:
    """A store whose files have been checked."""

    path: Path
    manifest: Manifest  # the intact part of the manifest
    setup: Setup
    damaged: tuple[str, ...]  # files and draws that are missing or do not match their digests
    lost: int  # number of unusable blocks: damaged blocks and all blocks after them

    def snapshot(self) -> Snapshot | None:
        """The state after the last block; None before the first block."""
        if not self.manifest.blocks:
            return None
        arrays = read_arrays(self.path, self.manifest.blocks[-1].state_name)
        leaves = {
            name.removeprefix(_LEAF_PREFIX): values
            for name, values in arrays.items()
            if name.startswith(_LEAF_PREFIX)
        }
        with blaming(self.path, "hold the state of a run"):
            return Snapshot(
                step=int(arrays["step"]),
                rows_before=arrays["rows_before"],
                rows_touched=int(arrays["rows_touched"]),
                seconds=float(arrays["seconds"]),
                leaves=leaves,
                broken_claim=arrays.get(_CLAIM, np.zeros(0, np.uint8)).tobytes().decode() or None,
            )


def open_store(store: Any, *, only_draws: bool = False) -> OpenStore:
    """Open and check a store. A damaged block and all later blocks are left out.

    Raises `StoreError` if the folder has no run with an intact setup. A store of the former version
    is refused, unless only its draws are wanted.
    """
    path = Path(as_folder(store).path)
    manifest, damaged = read_manifest(path)
    if manifest.version < VERSION and not only_draws:
        problem = f"version {manifest.version}, which has former names of classes and settings"
        cure = "tallmc.load reads its draws. Resume it with the version of tallmc that wrote it."
        raise StoreError(path, f"be of version {VERSION}", problem, cure)
    damaged += damaged_files(path, manifest)
    good = intact_blocks(manifest, damaged)
    lost = len(manifest.blocks) - len(good)
    if lost:
        series = manifest.series if good else None
        manifest = Manifest(manifest.setup, series, good, version=manifest.version)
    with blaming(path, "have a readable setup"):
        return OpenStore(path, manifest, read_setup(path, manifest.setup), tuple(damaged), lost)


def draws_of(opened: OpenStore) -> Draws:
    """The draws in a store; `params` is a dict by parameter name. Raises if there are none."""
    if not opened.manifest.n_draws:
        cure = "Continue it with `tallmc resume`."
        raise StoreError(opened.path, "have at least one draw", "none yet", cure)
    with blaming(opened.path, "say what was run"):
        return _draws_of(opened)


def _draws_of(opened: OpenStore) -> Draws:
    content, progress, state = opened.setup.content, opened.manifest.progress, opened.snapshot()
    assert state is not None, "callers check that there are blocks"
    layout = layout_of_shapes(content["parameters"])
    whole = read_whole(opened.path, opened.manifest)
    if whole.positions.shape[2] != layout.dim:
        raise StoreError(opened.path, "name the parameters of its draws", list(layout.names))
    seconds = progress.get("seconds", {})
    method = None  # if the store could not hold it, or has former names
    if content["method"] and opened.manifest.version == VERSION:
        method = decode_method(content["method"], opened.setup.group("method"))
    draws = Draws(
        positions=whole.positions,
        sample_stats=whole.stats,
        outcomes=tuple(Outcome(int(code)) for code in state.leaves[".outcome"]),
        n_row_evals_sampling=state.rows_touched,
        n_row_evals_preparation=int(content["n_row_evals"]),
        timing=Timing(
            preparation=float(seconds.get("preparation", content["seconds"])),
            compilation=float(seconds.get("compilation", 0.0)),
            sampling=state.seconds,
            checking=float(seconds.get("checking", 0.0)),
        ),
        layout=layout,
        quantities=_quantities(content["quantities"], layout, whole),
        settings={
            "method": method or content["method_shown"],
            **{name: content[name] for name in ("seed", "burn_in", "thin", "n_rows", "dtype")},
            "tallmc_version": content["environment"]["tallmc"],
            "jax_version": content["environment"]["jax"],
            "model": {str(key): str(value) for key, value in content["description"].items()},
            **({} if opened.setup.goal.ess is None else {"ess": opened.setup.goal.ess}),
        },
        account=_account_after_run(opened, method),
        stopped_by=progress.get("stopped_by"),
        n_row_evals_check=int(progress.get("n_row_evals_check", 0)),
        about=content["about"],
        series=opened.setup.series,
    )
    if "doubts" in progress or draws.account is None:
        return draws
    # The run was killed: what it would have reported is computed from what it left.
    covariance = opened.setup.arrays.get("anchor/covariance")
    draws = dataclasses.replace(draws, account=draws.account.without_claim(state.broken_claim))
    return draws.judged(np.asarray(state.leaves[".failed_at"]), covariance)


def _quantities(stored: dict[str, Any], layout: Layout, whole: DrawBlock) -> AbstractQuantities:
    dims = {str(name): tuple(map(str, found)) for name, found in stored["dims"].items()}
    coords = {str(name): tuple(map(str, found)) for name, found in stored["coords"].items()}
    if whole.values is None:
        entries = {name: coords[dims[name][0]] for name in dims}
        return Parameters(layout.labelled(entries))
    values = dict(zip(map(str, stored["shapes"]), whole.values.values(), strict=True))
    return StoredQuantities(values, dims, coords)


def _account_after_run(opened: OpenStore, method: Any) -> Account | None:
    stored, progress = opened.setup.content["account"], opened.manifest.progress
    if stored is None:
        return None
    found = {**stored, "bias": progress.get("bias") or opened.setup.group("bias")}
    names = ("doubts", "inflation", "unmeasured", "noise_tail", "reasons")
    found |= {name: progress[name] for name in names if name in progress}
    return dataclasses.replace(account_from(found), method=method)


def snapshot_arrays(snapshot: Snapshot) -> dict[str, np.ndarray]:
    names = ("step", "rows_before", "rows_touched", "seconds")
    numbers = {name: np.asarray(getattr(snapshot, name)) for name in names}
    if snapshot.broken_claim is not None:
        numbers[_CLAIM] = np.frombuffer(snapshot.broken_claim.encode(), np.uint8)
    return numbers | {f"{_LEAF_PREFIX}{name}": values for name, values in snapshot.leaves.items()}


def read_blocks(folder: Path, manifest: Manifest) -> Iterator[DrawBlock]:
    """Yield the draws chunk by chunk, so memory does not grow with their number."""
    series, draws = manifest.series, manifest.n_draws
    if series is None:
        return
    for first in range(0, max(draws, 1), series.chunk):
        yield StoredDraws(folder, series, first, min(series.chunk, draws - first)).read()


def read_whole(folder: Path, manifest: Manifest, unsaved: Sequence[DrawBlock] = ()) -> DrawBlock:
    """Join the stored blocks and the unsaved ones.

    Large arrays are copied to unnamed temporary files, which are mapped into memory.
    """
    expected = sum(entry.draws.bytes for entry in manifest.blocks)
    expected += sum(block.n_bytes for block in unsaved)
    file_folder = folder if expected > _IN_MEMORY else None
    # Positions, statistics and values, by name.
    grown: tuple[dict[str, _GrowingArray], ...] = ({"": _GrowingArray(file_folder)}, {}, {})
    has_values = False
    for block in itertools.chain(read_blocks(folder, manifest), unsaved):
        has_values = block.values is not None
        added = ({"": block.positions}, block.stats, block.values or {})
        for arrays, parts in zip(grown, added, strict=True):
            for name, part in parts.items():
                arrays.setdefault(name, _GrowingArray(file_folder)).add(np.moveaxis(part, 1, 0))
    positions, stats, values = (
        {name: np.moveaxis(array.whole(), 0, 1) for name, array in arrays.items()}
        for arrays in grown
    )
    return DrawBlock(positions[""], stats, values if has_values else None)


class _GrowingArray:
    """An array that grows along its first axis, in memory or in a temporary file in `folder`."""

    def __init__(self, folder: Path | None):
        self.parts: list[np.ndarray] = []
        self.shape: tuple[int, ...] = (0,)
        self.dtype = np.dtype(float)
        self.file = _unnamed_file(folder) if folder is not None else None

    def add(self, part: np.ndarray) -> None:
        length, self.dtype = self.shape[0] + len(part), part.dtype
        self.shape = (length, *part.shape[1:])
        if self.file is not None:
            try:
                self.file.write(np.ascontiguousarray(part).data)
                return
            except OSError:  # the disk is full: continue in memory, without the incomplete part
                before = (length - len(part), *part.shape[1:])
                self.file.seek(0)
                content = self.file.read(math.prod(before) * self.dtype.itemsize)
                self.parts.append(np.frombuffer(content, self.dtype).reshape(before))
                self.file = None
        self.parts.append(part)

    def whole(self) -> np.ndarray:
        if self.file is None or not math.prod(self.shape):
            return np.concatenate(self.parts) if self.parts else np.zeros(self.shape, self.dtype)
        self.file.flush()
        return np.memmap(self.file, self.dtype, "r", shape=self.shape)


def _unnamed_file(folder: Path) -> Any:
    """A temporary file on the disk of the store if possible; the system's may be in memory."""
    for file_folder in (folder, None):
        try:
            return tempfile.TemporaryFile(dir=file_folder)
        except OSError:
            continue
    return None
