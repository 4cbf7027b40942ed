"""Read the published curves in the folder `curves`, whose README names their source.

Its CSV files have one column NAME_x and one column NAME_y per curve.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from .results import Curve

_FOLDER = Path(__file__).parent / "curves"


def published(file: str) -> dict[str, tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]]:
    """Return x and y of each curve in a file."""
    with (_FOLDER / f"{file}.csv").open(encoding="utf-8", newline="") as text:
        header, *lines = csv.reader(text)
    columns = {
        name: np.array([float(line[index]) for line in lines if line[index]])
        for index, name in enumerate(header)
        if name[-2:] in ("_x", "_y")
    }
    return {
        name[:-2]: (columns[name], columns[f"{name[:-2]}_y"])
        for name in columns
        if name.endswith("_x")
    }


def published_curves(file: str, panel: str, labels: Mapping[str, str]) -> list[Curve]:
    """Return the curves of a file that `labels` maps to their labels in the figure."""
    found = published(file)
    return [
        Curve(panel, label, *found[name], kind="published")
        for name, label in labels.items()
        if name in found
    ]
