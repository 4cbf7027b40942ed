"""Figure 4(b): SGLD and SGLD-PS on covertype with 1, 5 and 10 % of the rows a step, for 500 passes after 500 of burn-in.

A fixed number of passes is fewer steps for a larger size, and SGLD is still on its way from 0: what it shows is burn-in. SGLD's
published curves look like those of a shorter one than the 500 passes that the code asks for: compared, but not required.

The authors' KSDs took 56 hours. Here all prefixes of a chain come from one sum over its pairs of draws, in blocks, and what is
reduced is the number of chains: 1 for 10 (their sd over chains is 0.004 to 0.044). As meant, all start at the mode: 3 chains of
50 passes, draws thinned to 500 a chain, with exact gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..._anchor import laplace
from ..._posterior import AbstractPosterior
from ...methods import sgld, sgld_ps
from ..published import published_curves
from ..results import Curve, Panel, Result, Setting, close
from .covertype import STEP_SIZE, load
from .discrepancy import Path, as_run_path, curves, lower_end, prefixes, rows_to_reach
from .methods import burnt_in, paths_as_meant

PER_CENT, PASSES, SEED = (1, 5, 10), 500, 0
TARGETS = {
    "SGLD, 1 %": 2.216,
    "SGLD-PS, 1 %": 1.747,
    "SGLD, 5 %": 2.836,
    "SGLD-PS, 5 %": 2.054,
    "SGLD, 10 %": 3.158,
    "SGLD-PS, 10 %": 2.369,
}
REMARKS = [
    "Reduced: one chain for 10, as run. As meant 3 chains of 50 passes for 10 of 500, thinned to at most 500 draws.",
    "In --quick 50 passes as run, 10 as meant.",
]
PANEL = Panel("b", "covertype", "passes through the data", "log₁₀ KSD")


def as_run(setting: Setting) -> Result:
    target, _ = load(setting)
    chains, passes = 1, setting.pick(PASSES, 50)
    paths: dict[str, Path] = {}
    for per_cent in PER_CENT:
        paths |= _paths_as_run(setting, target, per_cent, passes, chains)
    met = (1,) if setting.quick else PER_CENT  # the sizes with steps enough for Adam to get near the mode
    claims = [lower_end(paths, f"SGLD-PS, {per_cent} %", f"SGLD, {per_cent} %", required=True) for per_cent in met]
    claims += [lower_end(paths, f"{label}, 1 %", f"{label}, 10 %", required=True) for label in ("SGLD", "SGLD-PS")]
    if not setting.quick:
        claims += [
            close(f"final log₁₀ KSD of {label}", paths[label].end, value, 0.15, required=label.startswith("SGLD-PS"))
            for label, value in TARGETS.items()
        ]
    names = {f"{label}_{per_cent}": f"{label}, {per_cent} %" for label in ("SGLD", "SGLD-PS") for per_cent in PER_CENT}
    theirs = published_curves(setting.folder, "fig4b_covtype_log10KSD", "b", names)
    return Result([PANEL], [*_in_passes(paths), *theirs], claims, remarks=REMARKS)


def as_meant(setting: Setting) -> Result:
    target, _ = load(setting)
    anchor, passes = laplace(target), setting.pick(50, 10)
    paths: dict[str, Path] = {}
    for per_cent in PER_CENT:
        steps, size = passes * 100 // per_cent, target.n_rows * per_cent // 100
        of = {f"SGLD, {per_cent} %": sgld(STEP_SIZE, size), f"SGLD-PS, {per_cent} %": sgld_ps(STEP_SIZE, size)}
        thin = max(1, steps // 500)
        found, _ = paths_as_meant(setting, target, anchor, of, chains=setting.pick(3, 2), thin=thin, steps=steps)
        paths |= found
    claims = [lower_end(paths, f"SGLD-PS, {per_cent} %", f"SGLD, {per_cent} %") for per_cent in PER_CENT]
    claims += [lower_end(paths, f"{label}, 10 %", f"{label}, 1 %") for label in ("SGLD", "SGLD-PS")]
    return Result([PANEL], _in_passes(paths), claims, [rows_to_reach(paths)], REMARKS)


def _paths_as_run(setting: Setting, target: AbstractPosterior, per_cent: int, passes: int, chains: int) -> dict[str, Path]:
    """Every ten passes. The gradients of SGLD are those at its draws, in this figure alone."""
    starts = np.zeros((chains, target.dim))
    traces = burnt_in(setting, target, starts, per_cent=per_cent, passes=passes, step_size=STEP_SIZE, seed=SEED)
    lengths = prefixes(passes * 100 // per_cent, every=1000 // per_cent)
    return {
        f"{label}, {per_cent} %": as_run_path(of, lengths, setting.part(f"KSD of {label}, {per_cent} %"), lagged=label != "SGLD")
        for label, of in traces.items()
    }


def _in_passes(paths: Mapping[str, Path]) -> list[Curve]:
    """Against passes since the burn-in: a label ends in the per cent of the rows that a step takes."""
    by_share = [(float(label.split()[-2]) / 100, {label: path}) for label, path in paths.items()]
    return [curve for share, one in by_share for curve in curves("b", one, scale=share)]
