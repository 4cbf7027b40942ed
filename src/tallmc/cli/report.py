"""Print the plan, coefficients, cost and warnings of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..results.draws import Draws
from .plan import Plan, Settings
from .run import Finished

if TYPE_CHECKING:
    import pandas as pd

_MAX_ROWS = 40
_MAX_RHAT = 1.01
_MIN_ESS = 400
_SUGGESTED_DRAWS = 4000
_MIN_ESS_FOR_SD = 100
_MAX_SD_RATIO = 1.2
_STATUS_OF_STOP = {"Ctrl-C": 130, "SIGTERM": 143, "the store": 4}
DIAGNOSTICS = {"ess_bulk": "ESS", "rhat": "R-hat"}


def say(console: Console, message: str | Text) -> None:
    """Print a message. Terminals wrap it at words; files get it on one line."""
    console.print(message, soft_wrap=not console.is_terminal)


def print_plan(console: Console, settings: Settings, plan: Plan) -> None:
    if plan.step_size is None:
        say(console, "method: chosen by pilot runs; pass --method to choose another")
        return
    chosen = "" if plan.rule is None else f" ({plan.rule} at the mode)"
    say(console, f"method: {settings.method}, step size {plan.step_size:.3g}{chosen}")
    rows = (
        "" if plan.size is None else f"{plan.size:,} row{'' if plan.size == 1 else 's'} per step, "
    )
    thinning = "" if plan.thin == 1 else f", one per {plan.thin} steps"
    chains = f"{settings.chains} chains" if settings.chains else "chains"
    length = (
        f"{plan.draws:,} draws"
        if plan.draws
        else f"{settings.ess:,.0f} effective draws per coefficient"
    )
    say(console, f"run: {rows}{chains} {'of' if plan.draws else 'until'} {length}{thinning}")


def exit_status(console: Console, finished: Finished) -> int:
    """Print why the run stopped, or the health of its draws. Returns the exit status."""
    stopped = finished.draws.stopped_by or ""
    for reason, status in _STATUS_OF_STOP.items():
        if stopped.startswith(reason):
            say(
                console,
                f"stopped by {stopped}"
                + (f"; `tallmc resume {finished.store}` continues" if finished.store else ""),
            )
            return status
    if not finished.draws.ok.all():
        return 1
    if finished.draws.account is None:
        return 0
    for line in str(finished.draws.health).splitlines():
        say(console, line)
    return 0 if finished.draws.health.trusted else 3


def summarise(draws: Draws, names: Sequence[str]) -> pd.DataFrame | None:
    """Return the summary by coefficient name. None if no chain completed."""
    if not draws.ok.any():
        return None
    table = draws.summary(labels={"beta": list(names)})
    table.index = list(names)
    return table.rename_axis("coefficient")


def print_coefficients(console: Console, summary: pd.DataFrame, columns: Mapping[str, str]) -> None:
    """Print one row per coefficient. `columns` maps columns of `summary` to headings."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("coefficient", overflow="fold")
    for heading in columns.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in summary.head(_MAX_ROWS).iterrows():
        table.add_row(Text(str(name)), *(_formatted(row, column) for column in columns))
    console.print(table)
    if len(summary) > _MAX_ROWS:
        console.print(f"{len(summary) - _MAX_ROWS} more coefficients are in summary.csv.\n")


def _formatted(row: pd.Series, column: str) -> str:
    """Format diagnostics conventionally, other values to at least a hundredth of their sd."""
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
    say(
        console,
        f"rows touched: {draws.n_row_evals:,} = {passes:.1f} passes over the data, "
        f"including {preparing:.1f} for preparation",
    )
    total = timing.preparation + timing.compilation + timing.sampling
    parts = (
        f"preparation {timing.preparation:.1f} + compilation {timing.compilation:.1f} "
        f"+ sampling {timing.sampling:.1f}"
    )
    say(console, f"time: {total:.1f} s = {parts}")


def print_warnings(console: Console, finished: Finished, summary: pd.DataFrame | None) -> None:
    for message in dict.fromkeys([*finished.warnings, *_sampling_warnings(finished, summary)]):
        say(console, Text("warning: ", style="bold yellow").append(message, style="default"))


def _sampling_warnings(finished: Finished, summary: pd.DataFrame | None) -> list[str]:
    """Return warnings about R-hat, the effective sample size and the posterior widths."""
    if summary is None:
        return ["no chain completed, so there is no summary."]
    chains, draws, _ = finished.draws.positions.shape
    draws_per_chain = math.ceil(_SUGGESTED_DRAWS / chains)
    thin = finished.draws.settings["thin"]
    run_longer = "Run longer, e.g. with " + (
        f"--draws {draws_per_chain}." if draws < draws_per_chain else f"--thin {4 * thin}."
    )
    found = []
    rhat, ess = summary["rhat"].dropna(), summary["ess_bulk"].fillna(0)
    if (rhat > _MAX_RHAT).any():
        which = (
            f"{(rhat > _MAX_RHAT).sum()} of {len(summary)} coefficients "
            f"(largest: {rhat.max():.3f}, {rhat.idxmax()})"
        )
        found.append(
            f"R-hat is above {_MAX_RHAT} for {which}: the chains do not agree yet. {run_longer}"
        )
    if (ess < _MIN_ESS).any():
        which = (
            f"{(ess < _MIN_ESS).sum()} of {len(summary)} coefficients "
            f"(smallest: {ess.min():.0f}, {ess.idxmin()})"
        )
        found.append(
            f"the effective sample size is below {_MIN_ESS} for {which}: "
            f"quantiles are inaccurate. {run_longer}"
        )
    return found + _width_warnings(finished, summary)


def _width_warnings(finished: Finished, summary: pd.DataFrame) -> list[str]:
    """Compare the posterior sds with those of the Laplace approximation.

    R-hat and ESS cannot detect that gradient noise widens the stationary law of all chains.
    """
    anchor = finished.plan.anchor
    if anchor is None or anchor.covariance is None:
        return []
    ratio = summary["sd"] / np.sqrt(np.diag(np.asarray(anchor.covariance, np.float64)))
    ratio = ratio[summary["ess_bulk"] > _MIN_ESS_FOR_SD]
    if not (ratio > _MAX_SD_RATIO).any():
        return []
    control_variates = (
        "" if finished.draws.settings["method"].needs > 1 else ", or --method sgld_cv_ps"
    )
    return [
        f"standard deviations are up to {ratio.max():.1f} times those implied by the curvature "
        f"at the mode ({ratio.idxmax()}). "
        "Unless the posterior is far from Gaussian, the cause is gradient noise. Use a smaller "
        f"--step-size{'' if finished.plan.size is None else ', a larger --size'}{control_variates}."
    ]
