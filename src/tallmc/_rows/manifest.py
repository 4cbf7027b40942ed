"""The manifest of a row store: what its columns mean, and the files that hold the rows.

A row store is a folder with `manifest.json` and shards: `.npy` files of row-major float32 or
float64, one column per number of a row. There are no pickles. The manifest is written last, so a
folder without one is an unfinished store.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path

from .._core.errors import InvalidInput
from .._core.files import from_json, write_file

MANIFEST = "manifest.json"
_VERSION = 3
_MOST_BYTES = 2**27


class RowStoreError(InvalidInput):
    """A row store cannot be used: it is unfinished, damaged or of another format."""

    def __init__(self, folder: Path, rule: str, found: object, cure: str = ""):
        super().__init__(f"row store {folder}", rule, found, cure)


@dataclasses.dataclass(frozen=True)
class Column:
    """One number of a row.

    **Arguments:**

    - `name`: its name, such as "age" or "city=Paris".
    - `source`: the column of the table that it comes from.
    - `level`: the level for which it is 1, if it indicates one of a category: responses, and
      stores of former versions. Otherwise a category is one number, the place of the level.
    - `mean`, `sd`, `low`, `high`: mean, standard deviation and extremes of its values as they were
      in the table, over all rows.
    - `whole`: whether all these values are whole numbers.
    - `standardised`: whether the store holds (value − mean)/sd instead of the value. For codes of
      a category, whose mean is 0 and sd 1, whether a design standardises its indicators.
    """

    name: str
    source: str
    level: str | None = None
    mean: float = 0.0
    sd: float = 1.0
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    standardised: bool = False


@dataclasses.dataclass(frozen=True)
class Category:
    """The levels of a column of text, and the share of rows that each has."""

    name: str
    levels: tuple[str, ...]
    shares: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """A file of rows, with a checksum of its bytes: "crc32:…", "sha256:…" in old stores."""

    name: str
    n_rows: int
    checksum: str


@dataclasses.dataclass(frozen=True)
class RowManifest:
    """What a row store holds.

    **Arguments:**

    - `dtype`: "float32" or "float64".
    - `columns`: the columns, in the order of the numbers of a row.
    - `shards`: the files, in the order of the rows.
    - `response`: the name of the response, if one was named at ingestion.
    - `categories`: the levels of the columns of text.
    """

    dtype: str
    columns: tuple[Column, ...]
    shards: tuple[ShardFile, ...]
    response: str | None = None
    categories: tuple[Category, ...] = ()

    @property
    def n_rows(self) -> int:
        """N, the number of rows."""
        return sum(shard.n_rows for shard in self.shards)

    @property
    def starts(self) -> list[int]:
        """The number of the first row of each shard."""
        return list(itertools.accumulate((shard.n_rows for shard in self.shards[:-1]), initial=0))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def covariates(self) -> dict[str, Category]:
        """The categories by name, without the response."""
        return {of.name: of for of in self.categories if of.name != self.response}

    def places(self, name: str) -> tuple[int, ...]:
        """The numbers of a row that come from a column of the table."""
        return tuple(k for k, column in enumerate(self.columns) if column.source == name)

    @property
    def digest(self) -> str:
        """Identifies the rows: the sha256 of the manifest, which has checksums of all shards."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def digest_of_shards(self) -> str:
        """Identifies the rows, whatever the columns mean: the sha256 of sizes and checksums."""
        found = json.dumps([[shard.n_rows, shard.checksum] for shard in self.shards])
        return hashlib.sha256(found.encode()).hexdigest()

    def to_json(self) -> str:
        """The manifest as JSON."""
        # One line per field: lines of levels would be many, and `asdict` copies each of them.
        content = {"format": "tallmc rows", "version": _VERSION, **vars(self)}
        write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=vars).encode
        lines = (f" {write(name)}: {write(of)}" for name, of in content.items())
        return "{\n" + ",\n".join(lines) + "\n}"

    @classmethod
    def from_json(cls, text: str) -> RowManifest:
        """The manifest from JSON; raises ValueError, TypeError or KeyError for other content."""
        content = json.loads(text)
        version = content.pop("version")
        if content.pop("format") != "tallmc rows" or version not in (1, 2, _VERSION):
            raise ValueError(f"not version {_VERSION} of a row store")
        if version == 1:
            for fields in content["shards"]:
                fields["checksum"] = f"sha256:{fields.pop('sha256')}"
        if version < _VERSION:  # one indicator per level but the first
            for fields in content["categories"]:
                name = fields["name"]
                of = [each["mean"] for each in content["columns"] if each["source"] == name]
                fields["shares"] = [1 - sum(of), *of]
        manifest: RowManifest = from_json(cls, content)
        for each in manifest.categories:
            counts = len(set(each.levels)), len(each.levels), len(each.shares)
            if len(set(counts)) > 1 or not all(0 <= share <= 1 for share in each.shares):
                found = f"{counts[1]} levels and {counts[2]} shares of rows"
                raise ValueError(f"{each.name!r} has {found}")
        for category in manifest.covariates.values():
            manifest._check_codes(category)
        if manifest.dtype not in ("float32", "float64") or not manifest.columns:
            raise ValueError(f"{len(manifest.columns)} columns of {manifest.dtype}")
        if any("/" in shard.name or shard.n_rows < 1 for shard in manifest.shards):
            raise ValueError("a shard is outside of the folder, or empty")
        return manifest

    def _check_codes(self, category: Category) -> None:
        """Raise unless the columns of a category can hold its levels, and no others."""
        columns = [self.columns[place] for place in self.places(category.name)]
        of_levels = tuple(column.level for column in columns)
        is_coded = of_levels == (None,) and columns[0].high == len(category.levels) - 1
        if not is_coded and of_levels != category.levels[1:]:
            found = f"up to {columns[0].high:g}" if of_levels == (None,) else f"of {of_levels}"
            raise ValueError(f"{category.name!r} has {len(category.levels)} levels, codes {found}")

    def write(self, folder: Path) -> None:
        """Write the manifest, atomically."""
        write_file(folder, MANIFEST, self.to_json().encode())

    @classmethod
    def read(cls, folder: Path) -> RowManifest:
        """The manifest of the row store in `folder`."""
        path = folder / MANIFEST
        if not path.is_file():
            problem = "none" if folder.is_dir() else "no such folder"
            cure = "Make a row store with `tallmc ingest`, or run an interrupted one again."
            raise RowStoreError(folder, f"have a {MANIFEST}", problem, cure)
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ValueError("it is too large")
            return cls.from_json(path.read_text())
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RowStoreError(folder, f"have a readable {MANIFEST}", str(error)) from error
