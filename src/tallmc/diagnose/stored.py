"""Problems of a stored run: damaged files, failed chains, gradient noise, an unfinished run.

Each problem is one message with its cure.
"""

from __future__ import annotations

from ..results.draws import Draws
from ..store.reader import OpenStore


def findings(opened: OpenStore, draws: Draws) -> list[str]:
    """The problems of the stored run, or an empty list. `draws` must be the draws of the store."""
    found = []
    if opened.damaged:
        listed = ", ".join(opened.damaged[:3])
        cure = "Resume the run: it falls back to the last block before the damage."
        found.append(f"{len(opened.damaged)} files are damaged or missing ({listed}). {cure}")
    if not opened.manifest.finished:
        why = opened.manifest.progress.get("stopped_by")
        ended = f": {why} ended it" if why else ""
        so_far = f"it has {opened.manifest.n_draws:,} draws per chain"
        found.append(f"the run is not finished{ended}; {so_far}. Continue with `tallmc resume`.")
    found += [str(message) for message in opened.manifest.progress.get("warnings", [])]
    return list(dict.fromkeys([*found, *draws.health.doubts]))
