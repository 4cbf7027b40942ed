"""The manifest: the list of complete blocks and files.

The manifest holds the sha256 of every file, and of itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from .._core.files import FileDigest, from_json, sync_folder, write_file
from .chunks import Series, StoredDraws
from .files import StoreError, is_intact, open_inside

MANIFEST, NEXT, PREVIOUS = "manifest.json", "manifest.next.json", "manifest.previous.json"
_FORMAT = "tallmc-run"
# Raised to 5 when classes and fields were renamed: the setup names the classes and fields of the
# method and of the kernel. The draws did not change, so those of version 4 can still be loaded.
VERSION, _VERSION_OF_SAME_DRAWS = 5, 4
_MOST_BYTES = 2**28


class BlockEntry(NamedTuple):
    """A block of draws and the state after it."""

    number: int
    n_draws: int
    step: int
    draws: FileDigest
    state: FileDigest | None
    """None if the state was deleted: large states are kept for the last blocks only."""

    @property
    def draws_name(self) -> str:
        """A name for messages; the draws share chunk files with other blocks."""
        return f"draws of block {self.number}"

    @property
    def state_name(self) -> str:
        return f"blocks/state-{self.number:07}.npz"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The complete part of a stored run."""

    setup: dict[str, FileDigest]  # digests of the setup files, by name
    series: Series | None = None  # the arrays of the draws; None before the first block
    blocks: tuple[BlockEntry, ...] = ()
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Facts about the end of the run: seconds, warnings, what stopped it."""
    finished: bool = False
    exported: dict[str, FileDigest] = dataclasses.field(default_factory=dict)
    """Digests of the metadata files of draws.zarr, by name."""
    version: int = VERSION

    @property
    def n_draws(self) -> int:
        return sum(block.n_draws for block in self.blocks)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest; the previous manifest is kept as a fallback."""
    content = {"format": _FORMAT, **dataclasses.asdict(manifest)}
    text = json.dumps({"sha256": _checksum(content), **content}, allow_nan=False)
    write_file(folder, NEXT, text.encode())
    if (folder / MANIFEST).exists():
        os.replace(folder / MANIFEST, folder / PREVIOUS)
    os.replace(folder / NEXT, folder / MANIFEST)
    sync_folder(folder)


def read_manifest(folder: Path) -> tuple[Manifest, list[str]]:
    """The newest intact manifest, and the names of damaged ones."""
    # Between the two renames of `write_manifest`, only NEXT and PREVIOUS exist.
    present = [name for name in (MANIFEST, NEXT, PREVIOUS) if os.path.lexists(folder / name)]
    if not present:
        problem = "a folder without a manifest" if folder.is_dir() else "no such folder"
        cure = "Pass the folder that the run was given as its store."
        if (folder / "fit.json").exists():
            problem = "the results of a fit"
            cure += " A fit that was given none has no stored run: fit again with a store."
        raise StoreError(folder, "be the folder of a run", problem, cure)
    found, damaged = [], [] if MANIFEST in present or NEXT in present else [MANIFEST]
    for name in present:
        try:
            with open_inside(folder, name) as file:
                if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                    raise StoreError(folder, "have a manifest of reasonable size", name)
                found.append(_parse(folder, file.read()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            damaged.append(name)
            last_error = error
    if not found:
        cure = "Restore the folder from a copy."
        raise StoreError(folder, "have an intact manifest", str(last_error), cure)
    return found[0], damaged


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """Setup files, states and draws that are missing or do not match their digests."""
    named = dict(manifest.setup)
    damaged, first = [], 0
    for block in manifest.blocks:
        stored = manifest.series and StoredDraws(folder, manifest.series, first, block.n_draws)
        if stored is None or not stored.are_intact(block.draws):
            damaged.append(block.draws_name)
        if block.state is not None:
            named[block.state_name] = block.state
        first += block.n_draws
    return damaged + [
        name for name, written in named.items() if not is_intact(folder, name, written)
    ]


def intact_blocks(manifest: Manifest, damaged: Collection[str]) -> tuple[BlockEntry, ...]:
    """The longest initial part of the run with intact draws that ends with an intact state."""
    n_intact = 0
    for count, block in enumerate(manifest.blocks, start=1):
        if block.draws_name in damaged:
            break
        if block.state is not None and block.state_name not in damaged:
            n_intact = count
    return manifest.blocks[:n_intact]


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _parse(folder: Path, text: bytes) -> Manifest:
    content = json.loads(text.decode())
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise StoreError(folder, "be the folder of a run", "the manifest of another format")
    if content.get("version") not in (VERSION, _VERSION_OF_SAME_DRAWS):
        cure = "Use the version of tallmc that wrote it."
        raise StoreError(folder, f"be of version {VERSION}", content.get("version"), cure)
    if content.pop("sha256", None) != _checksum(content):
        raise StoreError(folder, "have an intact manifest", "a manifest with a wrong checksum")
    manifest = from_json(Manifest, content)
    if manifest.series is not None:
        manifest.series.check()
    for block in manifest.blocks:
        if min(block[:3]) < 0:
            raise ValueError("a block entry needs three non-negative integers")
    return manifest
