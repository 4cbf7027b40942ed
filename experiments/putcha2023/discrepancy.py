"""KSD of growing prefixes of a chain, and rows needed to reach a level, for several figures."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tallmc import diagnose
from tallmc._core.supervision import in_threads
from tallmc.models.posterior import AbstractPosterior
from tallmc.results.draws import Draws

from ..chains import Share, Trace
from ..results import Claim, Curve, ResultTable, lower, over_chains

_N_LEVELS = 4
THOUSANDS = "iterations / 1000"


class KsdPath(NamedTuple):
    """log₁₀ KSD of growing prefixes, per chain.

    `steps` and `rows` are the steps taken and the rows touched per chain at the end of each prefix.
    """

    steps: Int[np.ndarray, " k"]
    log_ksd: Float[np.ndarray, "chains k"]
    rows: Float[np.ndarray, " k"]
    preparation: int = 0
    """Rows touched before the first step."""

    @property
    def end(self) -> float:
        """Mean log₁₀ KSD of the longest prefix over chains."""
        return float(np.nanmean(self.log_ksd[:, -1]))


def prefixes(steps: int, every: int = 200) -> Int[np.ndarray, " k"]:
    """Return the lengths in the code of putcha-2023: 199, 399, …"""
    return np.arange(every, steps + 1, every) - 1


def as_run_path(
    trace: Trace, lengths: Int[np.ndarray, " k"], share: Share, *, lagged: bool = True
) -> KsdPath:
    """Compute the KSD from the gradients that moved the chain, with flipped sign.

    If `lagged`, each position is paired with the gradient at the previous position.
    """
    chains = [
        (x, g) if lagged else (x[:-1], g[1:])
        for x, g in zip(trace.positions, trace.gradients, strict=True)
    ]
    rows = np.cumsum(trace.sizes, axis=1, dtype=float).mean(axis=0)[lengths - 1]
    return KsdPath(lengths, _log_ksd_of_chains(chains, lengths, share, flipped_sign=True), rows)


def as_meant_path(
    posterior: AbstractPosterior, draws: Draws, lengths: Int[np.ndarray, " k"], share: Share
) -> KsdPath:
    """Compute the KSD from exact gradients."""
    chains = (
        (x, diagnose.exact_gradients(posterior, x) if np.isfinite(x).all() else x)
        for x in draws.positions
    )
    rows = np.asarray(draws.sample_stats["n_row_evals"], float).mean(axis=0)[lengths - 1]
    log_ksd = _log_ksd_of_chains(list(chains), lengths, share, flipped_sign=False)
    return KsdPath(draws.settings["thin"] * lengths, log_ksd, rows, draws.n_row_evals_preparation)


def curves(panel: str, paths: Mapping[str, KsdPath], scale: float = 1.0) -> list[Curve]:
    """Return one curve per path, against steps times `scale`."""
    return [
        over_chains(panel, label, scale * path.steps, path.log_ksd) for label, path in paths.items()
    ]


def lower_end(
    paths: Mapping[str, KsdPath], better: str, worse: str, *, required: bool = False
) -> Claim:
    statement = f"{better} ends with a lower log₁₀ KSD than {worse}"
    return lower(
        statement, paths[better].log_ksd[:, -1], paths[worse].log_ksd[:, -1], required=required
    )


def rows_to_reach(paths: Mapping[str, KsdPath]) -> ResultTable:
    """Tabulate the rows per chain until the mean log₁₀ KSD stays at or below a level.

    The highest level is the worst final value or the best first value, whichever is larger. The
    lowest level is slightly above the best final value.
    """
    means = {label: np.nanmean(path.log_ksd, axis=0) for label, path in paths.items()}
    first, last = (np.array([mean[at] for mean in means.values()]) for at in (0, -1))
    levels = np.round(
        np.linspace(max(last.max(), first.min()), last.min() + 0.1, _N_LEVELS) + 0.005, 2
    )
    rows = []
    for label, path in paths.items():
        reached_at = [_start_of_final_run(means[label] <= level) for level in levels]
        reached = ["never" if first is None else f"{path.rows[first]:.3g}" for first in reached_at]
        rows.append([label, f"{path.preparation:.3g}", *reached])
    return ResultTable(
        "Rows touched per chain to reach a log₁₀ KSD",
        ["method", "preparation", *(f"≤ {level:g}" for level in levels)],
        rows,
    )


def _start_of_final_run(below: np.ndarray) -> int | None:
    """Return the index from which all entries are True. None if the last entry is False."""
    if not below[-1]:
        return None
    above = np.flatnonzero(~below)
    return int(above[-1]) + 1 if len(above) else 0


def _log_ksd_of_chains(
    chains: Sequence[tuple[np.ndarray, np.ndarray]],
    lengths: Int[np.ndarray, " k"],
    share: Share,
    *,
    flipped_sign: bool,
) -> Float[np.ndarray, "chains k"]:
    done = itertools.count(1)

    def of_chain(chain: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        if not all(np.isfinite(part).all() for part in chain):
            return np.full(len(lengths), np.nan)
        return diagnose.ksd_path(*chain, list(lengths), flipped_sign=flipped_sign)

    ksd = in_threads(of_chain, chains, lambda: share(next(done) / len(chains)))
    return np.log10(np.array(ksd))
