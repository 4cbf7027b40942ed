"""The result of an experiment: curves in panels, claims, tables and remarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Real

Variant = Literal["run", "meant", "stated", "works"]
"""As run by the authors' code, as meant, as stated in the paper, or as it works."""


class Panel(NamedTuple):
    """One set of axes."""

    key: str
    title: str
    x: str
    y: str
    log_y: bool = False
    log_x: bool = False


class Curve(NamedTuple):
    """A line of a panel, with the sd over chains if there are several.

    Points are drawn as marks, a cloud (draws) as small marks without a line, a reference (exact
    values) as a dashed line, published curves as dotted lines and published tables as crosses.
    """

    panel: str
    label: str
    x: Real[np.ndarray, " k"]
    y: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"] | None = None
    kind: Literal["line", "points", "cloud", "reference", "published", "published marks"] = "line"


class Claim(NamedTuple):
    """A statement with its expected and found values. Only required claims must hold."""

    statement: str
    expected: str
    found: str
    holds: bool
    required: bool = True


class ResultTable(NamedTuple):
    """A table of strings with a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Result(NamedTuple):
    """Everything that an experiment produces."""

    panels: Sequence[Panel]
    curves: Sequence[Curve]
    claims: Sequence[Claim]
    tables: Sequence[ResultTable] = ()
    remarks: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims if claim.required)


class ExperimentSetting(NamedTuple):
    """How to run an experiment: the data folder, whether reduced, and a progress callback."""

    folder: Path | None
    quick: bool = False
    tell: Callable[[str, float], None] = lambda doing, share: None
    """Receives the current activity and the share of it that is done."""

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def part(self, doing: str) -> Callable[[float], None]:
        """Return a callback that receives the share done of this activity."""
        return lambda share: self.tell(doing, share)


def close(
    statement: str, found: float, target: float, tolerance: float, *, required: bool = True
) -> Claim:
    """Claim that a number is within `tolerance` of a target."""
    decimals = max(0, 2 - math.floor(math.log10(tolerance)))
    holds = bool(abs(found - target) <= tolerance)
    return Claim(statement, f"{target:g} ± {tolerance:g}", f"{found:.{decimals}f}", holds, required)


def lower(
    statement: str,
    better: Float[np.ndarray, " chains"],
    worse: Float[np.ndarray, " chains"],
    *,
    digits: int = 3,
    required: bool = False,
) -> Claim:
    """Claim that the values of one method are lower than those of another.

    A required claim compares means. Any other claim needs a difference of two standard errors.
    Chains with the same index share their noise, so differences are taken per chain.
    """
    gains = (worse - better)[np.isfinite(worse - better)]
    if not len(gains):
        return Claim(
            statement, "lower", "no chain of both is finite", holds=False, required=required
        )
    gain, error = (
        gains.mean(),
        gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan,
    )
    found = (
        f"{np.nanmean(better):.{digits}g} against {np.nanmean(worse):.{digits}g}, "
        f"difference {gain:.2g}"
    )
    found += f" ± {error:.1g}" if len(gains) > 1 else " (one chain)"
    holds = bool(gain > 0) if required else bool(gain > 2 * error)
    return Claim(
        statement,
        "lower in mean" if required else "lower by two standard errors",
        found,
        holds,
        required,
    )


def mean_sd(values: Float[np.ndarray, " k"], digits: int) -> str:
    """Mean ± sd, with the sd if there are several values."""
    sd = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{sd}"


def over_chains(
    panel: str, label: str, x: Real[np.ndarray, " k"], values: Float[np.ndarray, "chains k"]
) -> Curve:
    """Return the mean and sd over chains, without failed chains (NaN)."""
    finite = values[np.isfinite(values).all(axis=1)]
    if not len(finite):
        return Curve(panel, label, x, np.full(len(x), np.nan))
    sd = finite.std(axis=0, ddof=1) if len(finite) > 1 else None
    return Curve(panel, label, x, finite.mean(axis=0), sd)
