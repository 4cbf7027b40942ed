"""How long `import tallmc` takes, against `import jax`, each in a fresh process."""

from __future__ import annotations

import subprocess
import sys

from .report import print_table
from .timing import best_seconds


def main() -> None:
    def load(package: str) -> None:
        subprocess.run([sys.executable, "-c", f"import {package}"], check=True)

    seconds = best_seconds({"jax": lambda: load("jax"), "tallmc": lambda: load("tallmc")}, rounds=7)
    rows = [
        (name, f"{took:.2f} (+{took.spread:.0%})", f"{took / seconds['jax']:.2f}", "≤ 1.6" if name == "tallmc" else "")
        for name, took in seconds.items()
    ]
    print_table("Import, each in a fresh process", ("package", "seconds", "of jax", "target"), rows)
