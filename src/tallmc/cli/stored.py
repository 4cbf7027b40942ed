"""`tallmc diagnose` and `tallmc report`: what a stored run says of itself."""

from __future__ import annotations

import json
from pathlib import Path

from ..diagnose.stored import findings
from ..store.files import StoreError
from ..store.reader import Opened, draws_of, open_store


def print_findings(store: Path, *, as_json: bool) -> int:
    """Print what speaks against the draws; returns 1 when something does."""
    opened = _opened(store)
    draws = draws_of(opened)
    found = findings(opened, draws)
    if as_json:
        chains, n_draws, d = draws.positions.shape
        health = draws.health
        content = {
            "run": str(store),
            "finished": opened.manifest.finished,
            "chains": chains,
            "draws": n_draws,
            "parameters": d,
            "ess": health.ess,
            "rhat": health.rhat if health.rhat == health.rhat and health.rhat < float("inf") else None,
            "warnings": found,
        }
        print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for message in found:
            print(f"warning: {message}")
        if not found:
            print("nothing speaks against these draws")
    return 1 if found else 0


def _opened(store: Path) -> Opened:
    opened = open_store(store)
    if not opened.manifest.n_draws:
        raise StoreError(opened.path, "have at least one draw", "none yet", "Go on with `tallmc resume`.")
    return opened
