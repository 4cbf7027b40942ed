"""The time of `import tallmc` relative to `import jax`.

Each import runs in a fresh process and reads bytecode, as for installed packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from .report import print_table
from .timing import best_seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def load(package: str) -> None:
            subprocess.run([sys.executable, "-c", f"import {package}"], check=True, env=environment)

        seconds = best_seconds(
            {"jax": lambda: load("jax"), "tallmc": lambda: load("tallmc")}, rounds=10
        )
    rows = [
        (
            name,
            f"{took:.2f} (+{took.spread:.0%})",
            f"{took / seconds['jax']:.2f}",
            "≤ 1.5" if name == "tallmc" else "",
        )
        for name, took in seconds.items()
    ]
    print_table("Import, each in a fresh process", ("package", "seconds", "of jax", "target"), rows)
