"""The live table: one row per chain, and totals below."""

from __future__ import annotations

import time
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ...engine.progress import Progress
from .text import ess_shown, goal_shown, preparation_shown, share_done, size_shown, time_shown

_MOST_CHAINS = 12


class LiveTable:
    """A table on the terminal; it is removed when the run ends."""

    def __init__(self, console: Console | None = None):
        self.live = Live(
            console=console or Console(stderr=True), transient=True, refresh_per_second=4
        )

    def __enter__(self) -> LiveTable:
        self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.live.stop()

    def __call__(self, now: Progress) -> None:
        self.live.update(StageLine(now) if now.is_preparing else rendered(now))


class StageLine:
    """The line about a stage of the preparation; it counts the seconds between two reports."""

    def __init__(self, now: Progress):
        self.stage, self.began = now.stage, time.perf_counter() - now.seconds

    def __rich__(self) -> Text:
        return Text(preparation_shown(self.stage, time.perf_counter() - self.began))


def rendered(now: Progress) -> Group:
    """Render progress as a table with a progress bar."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("chain", "draws", "step size", "rows per step", "noise", ""):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for number, chain in enumerate(now.chains[:_MOST_CHAINS]):
        fine = chain.outcome == 0
        noise = "–" if chain.grad_noise is None else f"{chain.grad_noise:.3g}"
        state = Text("" if fine else chain.outcome.name.lower().replace("_", " "), style="bold red")
        table.add_row(
            str(number),
            f"{now.draws:,}",
            f"{chain.step_size:.3g}",
            size_shown(chain.batch_size),
            noise,
            state,
        )
    if len(now.chains) > _MOST_CHAINS:
        table.add_row("…", f"and {len(now.chains) - _MOST_CHAINS} more")
    below = (
        f"{goal_shown(now)} · {ess_shown(now)} · {now.steps_per_second:,.0f} steps/s · "
        f"{now.n_row_evals:,} rows = {now.passes:.3g} passes · {time_shown(now)}"
    )
    foot = Table.grid()
    foot.add_row(ProgressBar(total=1.0, completed=share_done(now), width=60))
    foot.add_row(Text(below))
    return Group(table, foot)
