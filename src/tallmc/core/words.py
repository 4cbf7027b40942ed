"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A count with its noun, which takes an s unless there is one.

    >>> counted(1, "column"), counted(0, "column"), counted(20_000, "row")
    ('1 column', '0 columns', '20,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
