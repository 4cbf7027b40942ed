"""What speaks against a stored run, each in a sentence with its cure: of its files, its chains, its noise, and how far it got."""

from __future__ import annotations

import numpy as np

from .._doubts import doubts, failures
from .._draws import Draws
from ..store.reader import Opened


def findings(opened: Opened, draws: Draws) -> list[str]:
    """Empty when nothing does. `draws` are those of the store."""
    found = []
    if opened.damaged:
        listed = ", ".join(opened.damaged[:3])
        cure = "Resume the run: it falls back to the block before."
        found.append(f"{len(opened.damaged)} files are damaged or missing ({listed}). {cure}")
    if not opened.manifest.finished:
        why = opened.manifest.progress.get("stopped_by")
        ended = f": {why} ended it" if why else ""
        so_far = f"it has {opened.manifest.n_draws:,} draws a chain"
        found.append(f"the run is not finished{ended}; {so_far}. Go on with `tallmc resume`.")
    state = opened.snapshot()
    assert state is not None, "there are draws"
    found += failures(draws, np.asarray(state.leaves[".failed_at"]))
    found += doubts(draws, opened.setup.arrays.get("anchor/covariance"))
    found += [str(message) for message in opened.manifest.progress.get("warnings", [])]
    return list(dict.fromkeys([*found, *draws.health.doubts]))
