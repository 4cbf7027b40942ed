"""`python -m website.figures`: draw the figures of the theory pages, from `theory_figures/`.

A script writes one picture of its own name, and prints the numbers that the page cites. The
pictures are part of the repository, so that the pages have them in any checkout.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from .gallery import run
from .places import FIGURES, THEORY


def figures() -> list[Path]:
    """The scripts, in the order of their names."""
    return sorted(FIGURES.glob("*.py"))


def make_small(picture: Path) -> None:
    """Store a picture with 64 colours, which a plot does not exceed visibly."""
    with Image.open(picture) as whole:
        reduced = whole.convert("RGB").quantize(64)
    reduced.save(picture, optimize=True)


def main() -> None:
    for script in figures():
        (THEORY / f"{script.stem}.png").unlink(missing_ok=True)
        result = run(script, THEORY, reduced=False)
        make_small(THEORY / f"{script.stem}.png")
        print(f"{script.stem}, {result.seconds:.0f} s\n{result.output}", flush=True)


if __name__ == "__main__":
    main()
