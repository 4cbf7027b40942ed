"""Where a run is to be stored, and what shall be said about it there."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Folder:
    """`sample(..., store=Folder("run", labels={"beta": ["intercept", "age"]}))`; `store="run"` is `Folder("run")`.

    `about` is any JSON that should travel with the run: where the data came from, say.
    """

    path: Path | str
    labels: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """Names for the entries of a vector parameter."""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def as_folder(store: str | os.PathLike[str] | Folder) -> Folder:
    """
    >>> as_folder("run").path.name
    'run'
    """
    if isinstance(store, Folder):
        return dataclasses.replace(store, path=Path(store.path))
    if not isinstance(store, (str, os.PathLike)) or not str(store):
        raise InvalidInput("store", "be the name of a folder", store)
    return Folder(Path(store))
