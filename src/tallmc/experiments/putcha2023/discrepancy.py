"""What the figures with a kernel Stein discrepancy share: the KSD of growing prefixes, and the rows touched to reach a level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ... import diagnose
from ..._draws import Draws
from ..._posterior import AbstractPosterior
from ..chains import Share, Trace
from ..results import Claim, Curve, Table, lower, over_chains

_LEVELS = 4
THOUSANDS = "iterations / 1000"


class Path(NamedTuple):
    """log₁₀ KSD of growing prefixes, chain by chain; steps taken, and rows touched by a chain, at the end of each."""

    steps: Int[np.ndarray, " k"]
    log_ksd: Float[np.ndarray, "chains k"]
    rows: Float[np.ndarray, " k"]
    preparation: int = 0

    @property
    def end(self) -> float:
        """The mean over chains of the longest prefix's."""
        return float(np.nanmean(self.log_ksd[:, -1]))


def prefixes(steps: int, every: int = 200) -> Int[np.ndarray, " k"]:
    """199, 399, …: the lengths of putcha-2023's code."""
    return np.arange(every, steps + 1, every) - 1


def as_run_path(trace: Trace, lengths: Int[np.ndarray, " k"], share: Share, *, lagged: bool = True) -> Path:
    """With the gradients that moved the chain, one step behind it unless told otherwise, and with their sign flipped."""
    chains = [(x, g) if lagged else (x[:-1], g[1:]) for x, g in zip(trace.positions, trace.gradients, strict=True)]
    rows = np.cumsum(trace.sizes, axis=1, dtype=float).mean(axis=0)[lengths - 1]
    return Path(lengths, _log_paths(chains, lengths, share, flipped_sign=True), rows)


def as_meant_path(posterior: AbstractPosterior, draws: Draws, lengths: Int[np.ndarray, " k"], share: Share) -> Path:
    """With exact gradients."""
    chains = ((x, diagnose.exact_gradients(posterior, x) if np.isfinite(x).all() else x) for x in draws.positions)
    rows = np.asarray(draws.sample_stats["n_row_evals"], float).mean(axis=0)[lengths - 1]
    log_ksd = _log_paths(list(chains), lengths, share, flipped_sign=False)
    return Path(draws.settings["thin"] * lengths, log_ksd, rows, draws.n_row_evals_preparation)


def curves(panel: str, paths: Mapping[str, Path], scale: float = 1.0) -> list[Curve]:
    """Against steps times `scale`."""
    return [over_chains(panel, label, scale * path.steps, path.log_ksd) for label, path in paths.items()]


def lower_end(paths: Mapping[str, Path], better: str, worse: str, *, required: bool = False) -> Claim:
    statement = f"{better} ends with a lower log₁₀ KSD than {worse}"
    return lower(statement, paths[better].log_ksd[:, -1], paths[worse].log_ksd[:, -1], required=required)


def rows_to_reach(paths: Mapping[str, Path]) -> Table:
    """Rows of one chain until its mean log₁₀ KSD is down to a level for good.

    Levels go down from where all ended, or the best began, to a little above where the best ended.
    """
    means = {label: np.nanmean(path.log_ksd, axis=0) for label, path in paths.items()}
    first, last = (np.array([mean[at] for mean in means.values()]) for at in (0, -1))
    levels = np.round(np.linspace(max(last.max(), first.min()), last.min() + 0.1, _LEVELS) + 0.005, 2)
    rows = []
    for label, path in paths.items():
        below = [_first_for_good(means[label] <= level) for level in levels]
        reached = ["never" if first is None else f"{path.rows[first]:.3g}" for first in below]
        rows.append([label, f"{path.preparation:.3g}", *reached])
    return Table(
        "Rows touched by a chain to reach a log₁₀ KSD", ["method", "before", *(f"≤ {level:g}" for level in levels)], rows
    )


def _first_for_good(below: np.ndarray) -> int | None:
    """Where the last run of True begins, if there is one at the end."""
    if not below[-1]:
        return None
    above = np.flatnonzero(~below)
    return int(above[-1]) + 1 if len(above) else 0


def _log_paths(
    chains: Sequence[tuple[np.ndarray, np.ndarray]], lengths: Int[np.ndarray, " k"], share: Share, *, flipped_sign: bool
) -> Float[np.ndarray, "chains k"]:
    paths = []
    for done, (x, g) in enumerate(chains):
        finite = np.isfinite(x).all() and np.isfinite(g).all()
        ksd = diagnose.ksd_path(x, g, list(lengths), flipped_sign=flipped_sign) if finite else np.full(len(lengths), np.nan)
        paths.append(np.log10(ksd))
        share((done + 1) / len(chains))
    return np.array(paths)
