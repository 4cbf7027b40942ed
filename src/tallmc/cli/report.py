"""What a run prints: the plan, the coefficients, the cost, and warnings with a cure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._draws import Draws
from .plan import Plan, Settings
from .run import Finished

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 40
_LARGEST_RHAT = 1.01
_SMALLEST_ESS = 400
_ENOUGH_DRAWS = 4000
_ENOUGH_FOR_SD = 100
_WIDEST = 1.2
_STOPPED = {"Ctrl-C": 130, "SIGTERM": 143, "the store": 4}
DIAGNOSTICS = {"ess_bulk": "ESS", "rhat": "R-hat"}


def say(console: Console, message: str | Text) -> None:
    """A line of text: whole words on a terminal, unbroken in a file."""
    console.print(message, soft_wrap=not console.is_terminal)


def print_plan(console: Console, settings: Settings, plan: Plan) -> None:
    if plan.step_size is None:
        say(console, "method: chosen by pilot runs; give --method for another")
        return
    chosen = "" if plan.rule is None else f" ({plan.rule} at the mode)"
    say(console, f"method: {settings.method}, step size {plan.step_size:.3g}{chosen}")
    size = "" if plan.size is None else f"{plan.size:,} row{'' if plan.size == 1 else 's'} a step, "
    every = "" if plan.thin == 1 else f", one for every {plan.thin} steps"
    number = f"{settings.chains} chains" if settings.chains else "chains"
    long = f"{plan.draws:,} draws" if plan.draws else f"{settings.ess:,.0f} effective draws of every coefficient"
    say(console, f"run: {size}{number} {'of' if plan.draws else 'until there are'} {long}{every}")


def exit_status(console: Console, finished: Finished) -> int:
    """Print what was chosen and how wrong it may be; returns the exit status that all of it asks for."""
    stopped = finished.draws.stopped_by or ""
    for reason, status in _STOPPED.items():
        if stopped.startswith(reason):
            say(console, f"stopped by {stopped}" + (f"; `tallmc resume {finished.store}` goes on" if finished.store else ""))
            return status
    if not finished.draws.ok.all():
        return 1
    if finished.draws.account is None:
        return 0
    for line in str(finished.draws.health).splitlines():
        say(console, line)
    return 0 if finished.draws.health.trusted else 3


def summarise(draws: Draws, names: Sequence[str]) -> pd.DataFrame | None:
    """The summary by column name; None when no chain completed."""
    if not draws.ok.any():
        return None
    table = draws.summary(labels={"beta": list(names)})
    table.index = list(names)
    return table.rename_axis("coefficient")


def print_coefficients(console: Console, summary: pd.DataFrame, columns: Mapping[str, str]) -> None:
    """A row a coefficient. `columns` are headings by column of `summary`."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("coefficient", overflow="fold")
    for heading in columns.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in summary.head(_MOST_ROWS).iterrows():
        table.add_row(Text(str(name)), *(_shown(row, column) for column in columns))
    console.print(table)
    if len(summary) > _MOST_ROWS:
        console.print(f"{len(summary) - _MOST_ROWS} more coefficients are in summary.csv.\n")


def _shown(row: pd.Series, column: str) -> str:
    """Diagnostics in their usual form, values to a hundredth of their standard deviation or better."""
    value = row[column]
    if not np.isfinite(value):
        return "–"
    spec = {"ess_bulk": ",.0f", "rhat": ".3f", "z": "+.2f"}.get(column)
    if spec is None:
        decimals = 2 - math.floor(math.log10(row["sd"])) if row["sd"] > 0 else -1
        spec = f".{decimals}f" if 0 <= decimals <= 8 else ".4g"
    return format(value, spec)


def print_cost(console: Console, draws: Draws) -> None:
    n_rows, timing = draws.settings["n_rows"], draws.timing
    passes, preparing = draws.n_row_evals / n_rows, draws.n_row_evals_preparation / n_rows
    say(console, f"rows touched: {draws.n_row_evals:,} = {passes:.1f} passes over the data, of which preparation {preparing:.1f}")
    total = timing.preparation + timing.compilation + timing.sampling
    parts = f"preparation {timing.preparation:.1f} + compilation {timing.compilation:.1f} + sampling {timing.sampling:.1f}"
    say(console, f"time: {total:.1f} s = {parts}")


def print_warnings(console: Console, finished: Finished, summary: pd.DataFrame | None) -> None:
    for message in dict.fromkeys([*finished.warnings, *_doubts(finished, summary)]):
        say(console, Text("warning: ", style="bold yellow").append(message, style="default"))


def _doubts(finished: Finished, summary: pd.DataFrame | None) -> list[str]:
    """What the draws themselves give reason to doubt."""
    if summary is None:
        return ["no chain completed, so there is no summary."]
    chains, draws, _ = finished.draws.positions.shape
    enough = math.ceil(_ENOUGH_DRAWS / chains)
    thin = finished.draws.settings["thin"]
    longer = "Run longer, e.g. with " + (f"--draws {enough}." if draws < enough else f"--thin {4 * thin}.")
    found = []
    rhat, ess = summary["rhat"].dropna(), summary["ess_bulk"].fillna(0)
    if (rhat > _LARGEST_RHAT).any():
        which = f"{(rhat > _LARGEST_RHAT).sum()} of {len(summary)} coefficients (largest: {rhat.max():.3f}, {rhat.idxmax()})"
        found.append(f"R-hat is above {_LARGEST_RHAT} for {which}: the chains do not agree yet. {longer}")
    if (ess < _SMALLEST_ESS).any():
        which = f"{(ess < _SMALLEST_ESS).sum()} of {len(summary)} coefficients (smallest: {ess.min():.0f}, {ess.idxmin()})"
        found.append(f"the effective sample size is below {_SMALLEST_ESS} for {which}: quantiles are rough. {longer}")
    return found + _too_wide(finished, summary)


def _too_wide(finished: Finished, summary: pd.DataFrame) -> list[str]:
    """R-hat and ESS cannot see that gradient noise widens the law the chains agree on; the curvature at the mode can."""
    anchor = finished.plan.anchor
    if anchor is None or anchor.covariance is None:
        return []
    ratio = summary["sd"] / np.sqrt(np.diag(np.asarray(anchor.covariance, np.float64)))
    ratio = ratio[summary["ess_bulk"] > _ENOUGH_FOR_SD]
    if not (ratio > _WIDEST).any():
        return []
    better = "" if finished.draws.settings["method"].needs > 1 else ", or --method sgld_cv_ps"
    return [
        f"standard deviations are up to {ratio.max():.1f} times those that the curvature at the mode gives ({ratio.idxmax()}). "
        "Unless the posterior is far from Gaussian this is gradient noise: "
        f"take a smaller --step-size{'' if finished.plan.size is None else ', a larger --size'}{better}."
    ]
