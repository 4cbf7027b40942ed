"""Progress of a pass in rows: one line that is redrawn on a terminal, or lines for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

_BETWEEN_UPDATES = 0.2  # seconds, on terminals
_BETWEEN_LINES = 10.0  # seconds, elsewhere
_CLEAR = "\r\x1b[K"


class SomeRows(Protocol):
    """Anything that knows how many rows it has."""

    @property
    def n_rows(self) -> int: ...


Rows = TypeVar("Rows", bound=SomeRows)


def shown(
    batches: Iterable[Rows], stage: str, done: int, total: int | None, wanted: bool | None
) -> Iterator[Rows]:
    """The same batches, with a line on stderr on how far they are.

    **Arguments:**

    - `batches`: the batches.
    - `stage`: what is done with them, such as "writing".
    - `done`: the rows before the first batch.
    - `total`: the number of rows, if it is known.
    - `wanted`: None to show progress on terminals only, True everywhere, False nowhere.
    """
    stream = sys.stderr
    redraws = stream is not None and stream.isatty()
    if stream is None or wanted is False or (wanted is None and not redraws):
        yield from batches
        return
    began = time.perf_counter()
    due = began if redraws else began + _BETWEEN_LINES
    before = done
    try:
        for batch in batches:
            yield batch
            done += batch.n_rows
            if (now := time.perf_counter()) >= due:
                line = _line(stage, done, total, (done - before) / max(now - began, 1e-9))
                if redraws:
                    stream.write(_CLEAR + line)
                    stream.flush()
                else:
                    print(f"tallmc: {line}", file=stream, flush=True)
                due = now + (_BETWEEN_UPDATES if redraws else _BETWEEN_LINES)
    finally:
        if redraws:
            stream.write(_CLEAR)
            stream.flush()


def _line(stage: str, done: int, total: int | None, per_second: float) -> str:
    """
    >>> _line("writing", 2_000_000, 8_000_000, 1e6)
    'writing: 2,000,000 of 8,000,000 rows · 25 % · 1,000,000 rows/s · 6 s left'
    """
    if not total:
        return f"{stage}: {done:,} rows · {per_second:,.0f} rows/s"
    left = (total - done) / max(per_second, 1e-9)
    return (
        f"{stage}: {done:,} of {total:,} rows · {done / total:.0%} · {per_second:,.0f} rows/s · "
        f"{left:.0f} s left"
    ).replace("%", " %")
