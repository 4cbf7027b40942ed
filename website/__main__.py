"""`python -m website`: write the generated pages into `docs/`, before MkDocs builds the site."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import command_line, gallery, methods, reference
from .gallery import Runs
from .places import DOCS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of the pages")
    parser.add_argument(
        "--examples",
        type=Runs,
        choices=Runs,
        default=Runs.FULL,
        help="run the examples of the gallery in full, on few rows, or not at all",
    )
    arguments = parser.parse_args()
    docs: Path = arguments.docs
    reference.write_pages(docs / "reference")
    command_line.write_page(docs / "reference" / "command-line.md")
    methods.write_pages(docs / "reference")
    gallery.write_pages(docs / "gallery", arguments.examples)


if __name__ == "__main__":
    main()
