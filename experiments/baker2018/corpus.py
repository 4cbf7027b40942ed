"""A corpus made on this machine: the docstrings of Python's standard library.

A document is the docstring of a module, class or function. Words are runs of at least three
letters, in lower case, without the English stop words of scikit-learn. The vocabulary holds the
most frequent words. Documents with too few or too many words of it are left out. The files are
parsed, not imported. The corpus depends on the version of Python.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

VOCABULARY, FEWEST, MOST = 1000, 15, 100
_WORD = re.compile(r"[a-z]{3,}")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}


class Corpus(NamedTuple):
    """Word counts of documents."""

    counts: Int[np.ndarray, "documents words"]
    vocabulary: tuple[str, ...]


def standard_library() -> Corpus:
    """The docstrings of the standard library of the Python that runs."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # a slow import

    documents = sorted(
        {
            tuple(word for word in _WORD.findall(text.lower()) if word not in ENGLISH_STOP_WORDS)
            for text in _docstrings(Path(sysconfig.get_paths()["stdlib"]))
        }
    )
    in_documents = Counter(word for document in documents for word in set(document))
    vocabulary = tuple(sorted(word for word, _ in in_documents.most_common(VOCABULARY)))
    number = {word: column for column, word in enumerate(vocabulary)}
    rows = [[number[word] for word in document if word in number] for document in documents]
    kept = [row for row in rows if FEWEST <= len(row) <= MOST]
    counts = np.stack([np.bincount(row, minlength=len(vocabulary)) for row in kept])
    order = np.random.default_rng(0).permutation(len(counts))
    return Corpus(counts[order], vocabulary)


def _docstrings(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        if _LEFT_OUT & set(path.relative_to(folder).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                yield text
