"""Display of the progress of a run.

A terminal gets a live table, a notebook gets one line that is redrawn, and any other stream gets
separate lines.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .._core.errors import warn
from .._engine.run import Progress

_FIRST_LINE = 2.0  # seconds
_BETWEEN_LINES = 10.0  # seconds
_MOST_CHAINS = 12

Show = Callable[[Progress], None]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return (
        f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
    )


def _goal(now: Progress) -> str:
    """Draws completed and wanted, effective draws and their goal, pace."""
    draws, ess = f"{now.draws:,}", "?" if now.ess is None else f"{now.ess:,.0f}"
    draws += "" if now.wanted_draws is None else f" of {now.wanted_draws:,}"
    ess += "" if now.wanted_ess is None else f" of {now.wanted_ess:,.0f}"
    return f"{draws} draws · ESS {ess} · {now.steps_per_second:,.0f} steps/s"


def _time(now: Progress) -> str:
    """The time gone and left, or how the run ended."""
    if now.ended:
        return f"{now.stage} after {_duration(now.seconds)}"
    return f"{_duration(now.seconds)} gone, {_duration(now.seconds_left)} left"


def _preparation(stage: str, seconds: float) -> str:
    return f"{stage} · {_duration(seconds)} gone"


def _share_done(now: Progress) -> float:
    if now.wanted_draws is not None:
        return min(1.0, now.step / max(now.n_steps, 1))
    return min(1.0, (now.ess or 0.0) / now.wanted_ess) if now.wanted_ess else 0.0


def _mean_size(rows: float) -> str:
    """A mean number of rows per step may be far below one."""
    return f"{rows:,.0f}" if rows >= 10 else f"{rows:.2g}"


def line(now: Progress) -> str:
    """All facts in one line, for logs."""
    if now.is_preparing:
        return _preparation(now.stage, now.seconds)
    sizes = sum(chain.batch_size for chain in now.chains) / len(now.chains)
    noises = [chain.grad_noise for chain in now.chains if chain.grad_noise is not None]
    failed = sum(chain.outcome != 0 for chain in now.chains)
    parts = [
        _goal(now),
        *([f"{now.n_row_evals:,} rows ({now.passes:.3g} passes)"] if now.n_row_evals else []),
        f"step {now.chains[0].step_size:.3g}",
        *([f"{_mean_size(sizes)} rows per step"] if now.n_row_evals else []),
        *([f"noise {sum(noises) / len(noises):.3g}"] if noises else []),
        *([f"{failed} of {len(now.chains)} chains failed"] if failed else []),
        _time(now),
    ]
    return " · ".join(parts)


def bar(now: Progress, width: int = 20) -> str:
    """A line that begins with a bar, as tqdm draws it: 47%|█████████▍          | 940 of …"""
    full, rest = divmod(round(_share_done(now) * width * 8), 8)
    drawn = ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)
    return f"{_share_done(now):4.0%}|{drawn}| {line(now)}"


def rendered(now: Progress) -> Group:
    """A table with one row per chain, a progress bar and totals below."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("chain", "draws", "step size", "rows per step", "noise", ""):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for number, chain in enumerate(now.chains[:_MOST_CHAINS]):
        state = "" if chain.outcome == 0 else chain.outcome.name.lower().replace("_", " ")
        table.add_row(
            str(number),
            f"{now.draws:,}",
            f"{chain.step_size:.3g}",
            _mean_size(chain.batch_size),
            "–" if chain.grad_noise is None else f"{chain.grad_noise:.3g}",
            Text(state, style="bold red"),
        )
    if len(now.chains) > _MOST_CHAINS:
        table.add_row("…", f"and {len(now.chains) - _MOST_CHAINS} more")
    below = f"{_goal(now)} · {now.n_row_evals:,} rows = {now.passes:.3g} passes · {_time(now)}"
    foot = Table.grid()
    foot.add_row(ProgressBar(total=1.0, completed=_share_done(now), width=60))
    foot.add_row(Text(below))
    return Group(table, foot)


class _StageLine:
    """The line about a stage of the preparation; it counts the seconds between two reports."""

    def __init__(self, now: Progress):
        self.stage, self.began = now.stage, time.perf_counter() - now.seconds

    def __rich__(self) -> Text:
        return Text(_preparation(self.stage, time.perf_counter() - self.began))


class Lines:
    """Print lines for logs: the first after two seconds, then at growing intervals.

    A new stage gets a line at once. The last line is the state in which the run ended.
    """

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.first = self.next = time.perf_counter() + _FIRST_LINE
        self.between = _BETWEEN_LINES
        self.stage = ""

    def __call__(self, now: Progress) -> None:
        is_new, self.stage = now.stage != self.stage, now.stage
        if time.perf_counter() < (self.first if is_new else self.next):
            return
        print(f"tallmc: {line(now)}", file=self.stream, flush=True)
        self.next = time.perf_counter() + self.between
        self.between *= 1.2


@contextlib.contextmanager
def showing(wanted: bool | None) -> Iterator[Show | None]:
    """Open the display; yield the function to call with each `Progress`, or None.

    `wanted` is None to display on terminals and in notebooks only, True to display everywhere, and
    False to display nothing. If a display fails, it is closed with a warning and the run continues.
    """
    stack = contextlib.ExitStack()
    show: Show | None = None
    if wanted is not False:
        try:
            show = _open(stack, wanted is True)
        except Exception as error:
            _give_up(error)

    def show_or_close(now: Progress) -> None:
        nonlocal show
        if show is None:
            return
        try:
            show(now)
        except Exception as error:
            show = None
            _give_up(error)

    try:
        yield None if show is None else show_or_close
    finally:
        try:
            stack.close()
        except Exception as error:
            _give_up(error)


def _open(stack: contextlib.ExitStack, also_lines: bool) -> Show | None:
    if _in_notebook():
        # rich redraws in notebooks only if ipywidgets is installed.
        from IPython.display import display

        handle: Any = display({"text/plain": "tallmc: starting"}, raw=True, display_id=True)
        return lambda now: handle.update({"text/plain": bar(now)}, raw=True)
    if sys.stderr is None:
        return None
    if sys.stderr.isatty():
        console = Console(stderr=True)
        live = stack.enter_context(Live(console=console, transient=True, refresh_per_second=4))
        return lambda now: live.update(_StageLine(now) if now.is_preparing else rendered(now))
    return Lines(sys.stderr) if also_lines else None


def _in_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


def _give_up(error: Exception) -> None:
    warn(f"progress is no longer shown ({type(error).__name__}: {error}); the run continues.")
