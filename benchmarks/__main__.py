"""Run all: `python -m benchmarks`; some: `python -m benchmarks steps draws`; in minutes: `python -m benchmarks --quick`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import tallmc  # noqa: F401  (before anything looks at JAX's devices: what it asks of XLA is heard once)

from . import report

ALL = ("steps", "profile", "samplers", "draws", "preparation", "compilation", "stein", "imports", "store", "race", "automatic")
QUICK = ("steps", "draws", "preparation", "stein", "imports")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join((*ALL, 'accelerator'))}")
    parser.add_argument("--quick", action="store_true", help="no peers that need an environment of their own")
    parser.add_argument("--output", type=Path, default=Path(".bench"), help="folder for results.md and results.json")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    print(*(f"{name}: {value}" for name, value in report.facts().items()), sep="\n")
    for name in options.names or (QUICK if options.quick else ALL):
        module = importlib.import_module(f"benchmarks.{name}")
        module.main(quick=options.quick) if name == "steps" else module.main()
        report.save(options.output, page=options.page)
