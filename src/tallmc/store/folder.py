"""The folder of a stored run, and the notes stored with it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder for `sample(..., store=...)`, with notes; `store="run"` means `Folder("run")`.

    **Arguments:**

    - `path`: a new or empty folder.
    - `about`: any JSON to store with the run, such as the origin of the data.

    >>> Folder("run", about={"table": "patients.csv"}).about["table"]
    'patients.csv'
    """

    path: Path | str
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def as_folder(store: str | os.PathLike[str] | Folder) -> Folder:
    """Convert a path to a `Folder`.

    >>> as_folder("run").path.name
    'run'
    """
    if isinstance(store, Folder):
        return dataclasses.replace(store, path=Path(store.path))
    if not isinstance(store, (str, os.PathLike)) or not str(store):
        raise InvalidInput("store", "be the name of a folder", store)
    return Folder(Path(store))
