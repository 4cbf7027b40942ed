"""`tallmc diagnose` and `tallmc report`: what a stored run says of itself."""

from __future__ import annotations

import json
from pathlib import Path

from .. import report
from ..diagnose.stored import findings
from ..store.files import StoreError
from ..store.reader import Opened, draws_of, open_store
from .problem import Problem


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


def write_report(store: Path, out: Path, parameters: list[str] | None, table: Path | None) -> int:
    """Write the page; returns the exit status. Where the table is gone the page goes without what needs it, and says so."""
    posterior = None
    about = _opened(store).setup.content["about"]
    if table is not None or Path(str(about.get("table", ""))).is_file():
        posterior = Problem.of_run(about, table).posterior
    report.write_report(store, out, posterior=posterior, parameters=parameters)
    print(f"written: {out}")
    return 0
