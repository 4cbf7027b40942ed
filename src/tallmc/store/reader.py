"""Reading a store: the draws of its intact blocks as one array, on disk where they are too many for memory."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._account import Account
from .._draws import Draws, Timing
from .._kept import Block, Snapshot
from .._layout import Layout
from .._outcome import Outcome
from .arrays import read_arrays
from .chunks import read_block
from .files import StoreError, blaming
from .folder import as_folder
from .manifest import BlockEntry, Manifest, damaged_files, intact_blocks, read_manifest
from .methods import decode_method
from .setup import Setup, read_setup

_IN_MEMORY = 2**27
_LEAF = "leaf/"


@dataclasses.dataclass(frozen=True)
class Opened:
    """A store, checked."""

    path: Path
    manifest: Manifest
    """Of what is intact."""
    setup: Setup
    damaged: tuple[str, ...]
    """Files and draws that are missing, or not as they were written."""
    lost: int
    """Blocks that cannot be used for that: those with damaged draws or states, and all that come after."""

    @property
    def blocks(self) -> tuple[BlockEntry, ...]:
        return self.manifest.blocks

    def snapshot(self) -> Snapshot | None:
        """Where the run stands; None before its first block."""
        return read_snapshot(self.path, self.blocks[-1]) if self.blocks else None


def open_store(store: Any) -> Opened:
    """Raises unless there is a run whose setup is intact; damaged blocks are left out, and all that come after them."""
    path = Path(as_folder(store).path)
    manifest, damaged = read_manifest(path)
    damaged += damaged_files(path, manifest)
    good = intact_blocks(manifest, damaged)
    lost = len(manifest.blocks) - len(good)
    series = manifest.series if good else None
    whole = manifest if not lost else Manifest(setup=manifest.setup, series=series, blocks=good)
    with blaming(path, "have a readable setup"):
        return Opened(path, whole, read_setup(path, manifest.setup), tuple(damaged), lost)


def load(store: Any) -> Draws:
    """The draws of a stored run so far, without its posterior. Large arrays are mapped from disk, not read into memory.

    >>> import tempfile, numpy as np, tallmc
    >>> posterior = tallmc.models.linear_regression(np.ones((100, 1)), np.arange(100.0), prior_variance=1e6)
    >>> run = tempfile.mkdtemp() + "/run"
    >>> draws = tallmc.sample(posterior, tallmc.mala(0.01), draws=50, store=run)
    >>> bool((tallmc.load(run).positions == draws.positions).all())
    True
    """
    opened = open_store(store)
    if not opened.manifest.n_draws:
        raise StoreError(opened.path, "have at least one draw", "none yet")
    return draws_of(opened)


def draws_of(opened: Opened) -> Draws:
    """What the store says of the run; parameters are named as in `init`, in a dict in place of its structure."""
    with blaming(opened.path, "say what was run"):
        return _draws_of(opened)


def _draws_of(opened: Opened) -> Draws:
    content, progress, state = opened.setup.content, opened.manifest.progress, opened.snapshot()
    assert state is not None, "asked for only where there are blocks"
    names = {str(name): tuple(map(int, shape)) for name, shape in content["parameters"].items()}
    treedef = jax.tree.structure(collections.OrderedDict.fromkeys(names, 0))
    whole = read_whole(opened.path, opened.manifest)
    if whole.positions.shape[2] != sum(math.prod(shape) for shape in names.values()):
        raise StoreError(opened.path, "name the parameters of its draws", list(names))
    seconds = progress.get("seconds", {})
    method = content["method"] and decode_method(content["method"], opened.setup.group("method"))
    account = opened.setup.account
    return Draws(
        positions=whole.positions,
        sample_stats=whole.stats,
        outcomes=tuple(Outcome(int(code)) for code in state.leaves[".outcome"]),
        n_row_evals_sampling=state.rows_touched,
        n_row_evals_preparation=int(content["n_row_evals"]),
        timing=Timing(float(content["seconds"]), float(seconds.get("compilation", 0.0)), state.seconds),
        layout=Layout(treedef, tuple(names), tuple(names.values())),
        settings={
            "method": method or content["method_shown"],
            **{name: content[name] for name in ("seed", "burn_in", "thin", "n_rows", "dtype")},
            "tallmc_version": content["environment"]["tallmc"],
            "jax_version": content["environment"]["jax"],
        },
        account=None if account is None else _with_run(account, method, progress),
    )


def _with_run(account: Account, method: Any, progress: dict[str, Any]) -> Account:
    inflation = progress.get("inflation")
    doubts = tuple(map(str, progress.get("doubts", account.doubts)))
    return dataclasses.replace(
        account, method=method, doubts=doubts, inflation=None if inflation is None else np.asarray(inflation, float)
    )


def snapshot_arrays(snapshot: Snapshot) -> dict[str, np.ndarray]:
    """A snapshot as it is stored."""
    numbers = {name: np.asarray(getattr(snapshot, name)) for name in ("step", "rows_before", "rows_touched", "seconds")}
    return numbers | {f"{_LEAF}{name}": values for name, values in snapshot.leaves.items()}


def read_snapshot(folder: Path, entry: BlockEntry) -> Snapshot:
    arrays = read_arrays(folder, entry.state_name)
    leaves = {name.removeprefix(_LEAF): values for name, values in arrays.items() if name.startswith(_LEAF)}
    with blaming(folder, "hold the state of a run"):
        step, rows, seconds = int(arrays["step"]), int(arrays["rows_touched"]), float(arrays["seconds"])
        return Snapshot(step, arrays["rows_before"], rows, seconds, leaves)


def read_blocks(folder: Path, manifest: Manifest) -> Iterator[Block]:
    """The draws, so few at a time that memory does not grow with their number."""
    series, draws = manifest.series, manifest.n_draws
    if series is None:
        return
    for first in range(0, max(draws, 1), series.chunk):
        yield read_block(folder, series, first, min(series.chunk, draws - first))


def read_whole(folder: Path, manifest: Manifest, unsaved: Sequence[Block] = ()) -> Block:
    """Blocks end to end, with those that are in memory still. What is large is a file without a name, mapped into memory."""
    expected = sum(entry.draws.bytes for entry in manifest.blocks) + sum(block.n_bytes for block in unsaved)
    place = folder if expected > _IN_MEMORY else None
    positions, stats = _Sink(place), collections.defaultdict[str, _Sink](lambda: _Sink(place))
    for block in itertools.chain(read_blocks(folder, manifest), unsaved):
        positions.add(np.moveaxis(block.positions, 1, 0))
        for name, values in block.stats.items():
            stats[name].add(np.moveaxis(values, 1, 0))
    found = {name: np.moveaxis(sink.whole(), 0, 1) for name, sink in stats.items()}
    return Block(np.moveaxis(positions.whole(), 0, 1), found)


class _Sink:
    """An array that grows along its first axis: in memory, or in a file of that folder that goes when it is let go of."""

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
            except OSError:  # no room on the disk: what is written is read back, and memory takes the rest
                self._give_up_file(len(part))
        self.parts.append(part)

    def whole(self) -> np.ndarray:
        if self.file is None or not math.prod(self.shape):
            return np.concatenate(self.parts) if self.parts else np.zeros(self.shape, self.dtype)
        self.file.flush()
        return np.memmap(self.file, self.dtype, "r", shape=self.shape)

    def _give_up_file(self, last: int) -> None:
        assert self.file is not None
        before = (self.shape[0] - last, *self.shape[1:])
        self.file.seek(0)
        self.parts.append(np.frombuffer(self.file.read(math.prod(before) * self.dtype.itemsize), self.dtype).reshape(before))
        self.file = None


def _unnamed_file(folder: Path) -> Any:
    """On the disk of the store rather than in the system's folder for temporary files, which may be memory."""
    for place in (folder, None):
        try:
            return tempfile.TemporaryFile(dir=place)
        except OSError:
            continue
    return None
