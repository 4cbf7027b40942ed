"""The files of a table: paths, patterns, folders, and folders named `key=value` (Hive)."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote

from .errors import TableError, some

_MISSING = "__HIVE_DEFAULT_PARTITION__"
SUFFIXES = (".csv", ".csv.gz", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npz")


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A file with rows of the table.

    **Arguments:**

    - `path`: its path.
    - `name`: how messages call it: its path below the folder that was named.
    - `partition`: columns with one value in the whole file, from the names of its folders.
    """

    path: Path
    name: str
    partition: tuple[tuple[str, str | None], ...] = ()

    @property
    def suffix(self) -> str:
        """The ending, one of `SUFFIXES`."""
        return next(ending for ending in SUFFIXES if self.path.name.lower().endswith(ending))

    def identity(self) -> list[str | int]:
        """Changes if the file does, as far as its size and time of change tell."""
        found = self.path.stat()
        return [str(self.path.resolve()), found.st_size, found.st_mtime_ns]


def table_files(paths: Iterable[str | Path]) -> list[TableFile]:
    """The files at `paths` in their order; those of a folder, in the order of their names."""
    found = [file for path in paths for file in _files_at(path)]
    if not found:
        raise TableError("TABLE", "be at least one file", "none")
    keys = {tuple(key for key, _ in file.partition) for file in found}
    if len(keys) > 1:
        shown = some("/".join(names) or "none" for names in sorted(keys))
        raise TableError("TABLE", "have the same partition keys in all files", shown)
    return found


def _files_at(given: str | Path) -> Iterator[TableFile]:
    path = Path(given)
    if path.is_file():
        yield _checked(TableFile(path, path.name))
    elif path.is_dir():
        yield from _files_in(path)
    elif glob.has_magic(str(given)) and (matches := sorted(glob.glob(str(given)))):
        for match in matches:
            yield from _files_at(match)
    else:
        cure = "Check the path. Relative paths start at the current folder."
        raise TableError("TABLE", "be a file or folder", f"{path}, which does not exist", cure)


def _files_in(folder: Path) -> Iterator[TableFile]:
    """The files below a folder, except those whose name begins with "." or "_" (as in Spark)."""
    inside = [
        path.relative_to(folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(p[0] in "._" for p in path.relative_to(folder).parts)
    ]
    if not inside:
        raise TableError("TABLE", "have files with rows", f"{folder}, which has none")
    for path in inside:
        pairs = [part.partition("=") for part in path.parts[:-1] if "=" in part]
        partition = tuple(
            (unquote(key), None if value == _MISSING else unquote(value)) for key, _, value in pairs
        )
        yield _checked(TableFile(folder / path, str(path), partition))


def _checked(file: TableFile) -> TableFile:
    if not file.path.name.lower().endswith(SUFFIXES):
        cure = "Convert the file, e.g. with pandas: table.to_parquet(...)."
        raise TableError("TABLE", f"end in one of {', '.join(SUFFIXES)}", file.name, cure)
    return file
