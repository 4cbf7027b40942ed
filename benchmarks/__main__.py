"""Run all benchmarks with `python -m benchmarks`, or some with `python -m benchmarks steps draws`.

`python -m benchmarks --quick` runs a selection that takes minutes. `--page --with a b` writes the
page from the results of runs with `--output a` and `--output b`, such as two on cores of their own.
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

os.environ["TALLMC_CACHE"] = "off"  # first calls compile

import tallmc  # noqa: F401  (sets XLA_FLAGS before JAX starts a backend)

from . import race_page, report

ALL = (
    "steps",
    "many_chains",
    "profile",
    "samplers",
    "draws",
    "preparation",
    "compilation",
    "stein",
    "imports",
    "store",
    "ingest",
    "cluster",
    "race",
    "calls",
    "automatic",
    "small_data",
)
QUICK = ("steps", "draws", "preparation", "stein", "imports")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join((*ALL, 'accelerator'))}")
    parser.add_argument(
        "--quick", action="store_true", help="skip peers that need their own environment"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(".bench"), help="folder for results.md and results.json"
    )
    parser.add_argument(
        "--with", dest="others", nargs="*", type=Path, default=(), help="folders of other results"
    )
    parser.add_argument("--page", action="store_true", help="write docs/performance.md")
    options = parser.parse_args()
    print(*(f"{name}: {value}" for name, value in report.facts().items()), sep="\n")
    for folder in options.others:
        report.read(folder)
    report.save(options.output, page=options.page and bool(options.others))
    chosen = () if options.others else QUICK if options.quick else ALL
    for name in options.names or chosen:
        module = importlib.import_module(f"benchmarks.{name}")
        module.main(quick=options.quick) if name == "steps" else module.main()
        report.save(options.output, page=options.page and options.names != ["race"])
    if options.page:
        race_page.write()
