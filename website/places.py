"""Folders of the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"
FIGURES = ROOT / "website" / "theory_figures"
THEORY = DOCS / "theory"
