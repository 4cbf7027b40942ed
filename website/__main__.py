"""`python -m website`: write the generated pages into `docs/`, before MkDocs builds the site."""

from __future__ import annotations

import argparse

from . import command_line, gallery, methods, reference
from .places import DOCS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    parser.add_argument(
        "--reduced", action="store_true", help="run the examples of the gallery on few rows"
    )
    reduced = parser.parse_args().reduced
    reference.write_pages(DOCS / "reference")
    command_line.write_page(DOCS / "reference" / "command-line.md")
    methods.write_pages(DOCS / "reference")
    gallery.write_pages(DOCS / "gallery", reduced=reduced)


if __name__ == "__main__":
    main()
