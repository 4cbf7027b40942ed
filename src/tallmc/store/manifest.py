"""The manifest: the only truth about what is complete. It knows every file by its sha256, and itself as well."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from .chunks import Series, is_intact_block
from .files import StoreError, Written, is_intact, open_inside, sync_folder, write_file

MANIFEST, NEXT, PREVIOUS = "manifest.json", "manifest.next.json", "manifest.previous.json"
_FORMAT, _VERSION = "tallmc-run", 2
_MOST_BYTES = 2**28


class BlockEntry(NamedTuple):
    """A block of draws and the state after it."""

    number: int
    n_draws: int
    step: int
    draws: Written
    state: Written | None
    """None once it was given up: a large state is kept for the last blocks only."""

    @property
    def draws_name(self) -> str:
        """What they are called where they are damaged; they are in chunks with those of other blocks."""
        return f"draws of block {self.number}"

    @property
    def state_name(self) -> str:
        return f"blocks/state-{self.number:07}.npz"


@dataclasses.dataclass(frozen=True)
class Manifest:
    setup: dict[str, Written]
    """Files of the setup, by name."""
    series: Series | None = None
    """What the draws are; None before the first block."""
    blocks: tuple[BlockEntry, ...] = ()
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Seconds spent so far, outcomes, and the goal as it stands."""
    finished: bool = False
    exported: dict[str, Written] = dataclasses.field(default_factory=dict)
    """Files that make draws.zarr a Zarr, by name."""

    @property
    def n_draws(self) -> int:
        return sum(block.n_draws for block in self.blocks)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest; the one before it stays, for the case that this one is damaged later."""
    content = {"format": _FORMAT, "version": _VERSION, **dataclasses.asdict(manifest)}
    text = json.dumps({"sha256": _sum_of(content), **content}, allow_nan=False)
    write_file(folder, NEXT, text.encode())
    if (folder / MANIFEST).exists():
        os.replace(folder / MANIFEST, folder / PREVIOUS)
    os.replace(folder / NEXT, folder / MANIFEST)
    sync_folder(folder)


def read_manifest(folder: Path) -> tuple[Manifest, list[str]]:
    """The newest manifest that is whole, and the names of those that are not."""
    # The next one is alone for a moment, between two renames.
    present = [name for name in (MANIFEST, NEXT, PREVIOUS) if os.path.lexists(folder / name)]
    if not present:
        raise StoreError(folder, "be the folder of a run", "a folder without manifest" if folder.is_dir() else "no folder")
    found, damaged = [], [] if MANIFEST in present or NEXT in present else [MANIFEST]
    for name in present:
        try:
            with open_inside(folder, name) as file:
                if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                    raise StoreError(folder, "have a manifest of reasonable size", name)
                found.append(_parsed(folder, file.read()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            damaged.append(name)
            problem = error
    if not found:
        raise StoreError(folder, "have an intact manifest", str(problem), "Restore the folder from a copy.")
    return found[0], damaged


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """Files of the setup, states and draws of blocks that are missing, or not as they were written."""
    named = dict(manifest.setup)
    damaged, first = [], 0
    for block in manifest.blocks:
        if manifest.series is None or not is_intact_block(folder, manifest.series, first, block.n_draws, block.draws):
            damaged.append(block.draws_name)
        if block.state is not None:
            named[block.state_name] = block.state
        first += block.n_draws
    return damaged + [name for name, written in named.items() if not is_intact(folder, name, written)]


def intact_blocks(manifest: Manifest, damaged: Collection[str]) -> tuple[BlockEntry, ...]:
    """The longest part of the run, from its start, of which all draws are intact, up to a block whose state is too."""
    good = 0
    for count, block in enumerate(manifest.blocks, start=1):
        if block.draws_name in damaged:
            break
        if block.state is not None and block.state_name not in damaged:
            good = count
    return manifest.blocks[:good]


def _sum_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _parsed(folder: Path, text: bytes) -> Manifest:
    content = json.loads(text.decode())
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise StoreError(folder, "be the folder of a run", "a manifest of something else")
    if content.get("version") != _VERSION:
        raise StoreError(folder, f"be of version {_VERSION}", content.get("version"), "Use the tallmc that wrote it.")
    if content.pop("sha256", None) != _sum_of(content):
        raise StoreError(folder, "have an intact manifest", "one whose sum is another")
    return Manifest(
        setup=_files(content["setup"]),
        series=None if content["series"] is None else Series.parsed(content["series"]),
        blocks=tuple(_block(entry) for entry in content["blocks"]),
        progress=dict(content["progress"]),
        finished=bool(content["finished"]),
        exported=_files(content["exported"]),
    )


def _block(entry: list[Any]) -> BlockEntry:
    number, n_draws, step, draws, state = entry
    if not all(isinstance(value, int) and value >= 0 for value in (number, n_draws, step)):
        raise ValueError("a block that is not numbered")
    return BlockEntry(number, n_draws, step, _written(draws), None if state is None else _written(state))


def _files(entries: dict[str, Any]) -> dict[str, Written]:
    return {str(name): _written(entry) for name, entry in entries.items()}


def _written(entry: list[Any]) -> Written:
    size, sha256 = entry
    if not isinstance(size, int) or not isinstance(sha256, str):
        raise TypeError("a file without size or sum")
    return Written(size, sha256)
