"""What an experiment leaves: curves in panels, claims that hold or do not, tables, and remarks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

Variant = Literal["run", "meant"]


class Panel(NamedTuple):
    """One set of axes."""

    key: str
    title: str
    x: str
    y: str
    log_y: bool = False


class Curve(NamedTuple):
    """A line of a panel, with the sd over chains where there are several. Points are drawn as marks, published lines dotted."""

    panel: str
    label: str
    x: Float[np.ndarray, " k"]
    y: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"] | None = None
    kind: Literal["line", "points", "published"] = "line"


class Claim(NamedTuple):
    """A statement, what was expected and found. One that is not required is reported, and may turn out false."""

    statement: str
    expected: str
    found: str
    holds: bool
    required: bool = True


class Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Result(NamedTuple):
    panels: Sequence[Panel]
    curves: Sequence[Curve]
    claims: Sequence[Claim]
    tables: Sequence[Table] = ()
    remarks: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims if claim.required)


class Setting(NamedTuple):
    """How an experiment is to be run: where data are, whether in its reduced form, and who hears of progress."""

    folder: Path | None
    quick: bool = False
    tell: Callable[[str, float], None] = lambda doing, share: None
    """Takes what is being done and the share of it that is done."""

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def part(self, doing: str) -> Callable[[float], None]:
        """Takes the share of this part of the work that is done."""
        return lambda share: self.tell(doing, share)


def close(statement: str, found: float, target: float, tolerance: float, *, required: bool = True) -> Claim:
    """A number that should be within `tolerance` of a target."""
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
    """That one method's numbers are lower than another's: in mean where it is required, else by two standard errors as well.

    Chains with the same number have the same noise, so that differences are taken chain by chain.
    """
    gains = (worse - better)[np.isfinite(worse - better)]
    gain, error = gains.mean(), gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan
    found = f"{np.nanmean(better):.{digits}g} against {np.nanmean(worse):.{digits}g}, difference {gain:.2g}"
    found += f" ± {error:.1g}" if len(gains) > 1 else " (one chain)"
    holds = bool(gain > 0) if required else bool(gain > 2 * error)
    return Claim(statement, "lower in mean" if required else "lower by two standard errors", found, holds, required)


def over_chains(panel: str, label: str, x: Float[np.ndarray, " k"], values: Float[np.ndarray, "chains k"]) -> Curve:
    """The mean over chains and their sd; chains that failed (NaN) are left out."""
    finite = values[np.isfinite(values).all(axis=1)]
    if not len(finite):
        return Curve(panel, label, x, np.full(len(x), np.nan))
    sd = finite.std(axis=0, ddof=1) if len(finite) > 1 else None
    return Curve(panel, label, x, finite.mean(axis=0), sd)
