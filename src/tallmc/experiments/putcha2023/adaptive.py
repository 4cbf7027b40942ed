"""What figures 3 and 5 share: control variates with fixed and adaptive size, their KSD, sizes and passes.

As run, n = ⌈c‖θ − θ̂‖²⌉ around an unconverged mode, so that n follows the error of Adam as much as the spread of the posterior. As
meant, n is eq. 19 around the converged mode, with the threshold that pilot runs of fixed size give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..._anchor import laplace
from ..._method import Method
from ..._posterior import AbstractPosterior
from ...methods import asgld_cv, asgld_cv_ps
from ..published import published_curves
from ..results import Claim, Curve, Panel, Result, Setting, Table, close, over_chains
from .discrepancy import curves, lower_end, rows_to_reach
from .methods import AsRun, fixed, ours, paths_as_meant

_SHOWN_CHAIN = 2
_EVERY = 50
_FIXED = ("SGLD-CV", "SGLD-CV-PS")


class Expected(NamedTuple):
    """What the authors found: final KSDs and how closely they must be met, pairs of which the first ends lower, and the part of
    the fixed size's passes below which adapting stays.
    """

    file: str
    ends: Mapping[str, tuple[float, float]]
    order: Sequence[tuple[str, str]]
    shares: Mapping[str, float]
    reported_order: Sequence[tuple[str, str]] = ()
    order_of_ten: Sequence[tuple[str, str]] = ()
    """Pairs whose order hangs on the worst of ten chains, and so is only reported of fewer."""


def panels(title: str) -> list[Panel]:
    return [
        Panel("a", title, "iteration", "log₁₀ KSD"),
        Panel("b", "one chain", "iteration", "subsample size"),
        Panel("c", "mean over chains", "iteration", "passes through the data"),
    ]


def as_run(
    setting: Setting,
    target: AbstractPosterior,
    title: str,
    *,
    step_size: float,
    size: int,
    expected: Expected,
) -> Result:
    run = AsRun.prepared(setting, target, step_size=step_size, size=size, chains=setting.pick(10, 3))
    traces = {label: run.fixed(label) for label in _FIXED}
    traces |= {f"A{label}": run.adaptive(label, traces[label]) for label in _FIXED}
    paths = {label: run.path(label, trace) for label, trace in traces.items()}
    sizes = {label: trace.sizes for label, trace in traces.items()}
    claims = [
        *(close(f"final log₁₀ KSD of {label}", paths[label].end, *value) for label, value in expected.ends.items()),
        *(lower_end(paths, *pair, required=True) for pair in expected.order),
        *(lower_end(paths, *pair, required=not setting.quick) for pair in expected.order_of_ten),
        *(lower_end(paths, *pair) for pair in expected.reported_order),
        *(_saves(label, sizes, share) for label, share in expected.shares.items()),
    ]
    theirs = published_curves(setting.folder, expected.file, "a", {label: label for label in traces})
    drawn = [*curves("a", paths), *_size_curves(sizes, target.n_rows), *theirs]
    return Result(panels(title), drawn, claims, [_size_table(sizes, target.n_rows)])


def as_meant(setting: Setting, target: AbstractPosterior, title: str, *, step_size: float, size: int, thin: int) -> Result:
    anchor = laplace(target)
    of: dict[str, Method] = {label: fixed(step_size, size)[label] for label in _FIXED}
    of |= {"ASGLD-CV": asgld_cv(step_size), "ASGLD-CV-PS": asgld_cv_ps(step_size)} | ours(target, anchor, step_size, size)
    paths, draws = paths_as_meant(setting, target, anchor, of, chains=setting.pick(10, 3), thin=thin)
    sizes = {label: np.asarray(of_label.sample_stats["batch_size"]) for label, of_label in draws.items()}
    claims = [
        lower_end(paths, "SGLD-CV-PS", "SGLD-CV"),
        lower_end(paths, "ASGLD-CV", "SGLD-CV"),
        lower_end(paths, "ASGLD-CV-PS", "SGLD-CV-PS"),
        *(_saves(label, sizes, 0.5, required=False) for label in _FIXED),
    ]
    drawn = [*curves("a", paths), *_size_curves(sizes, target.n_rows, thin)]
    return Result(panels(title), drawn, claims, [_size_table(sizes, target.n_rows, thin), rows_to_reach(paths)])


def _passes(sizes: Int[np.ndarray, "chains draws"], n_rows: int, thin: int = 1) -> Float[np.ndarray, "chains draws"]:
    """Passes by the end of each draw; of thinned draws the size of one stands for those between."""
    return thin * np.cumsum(sizes, axis=1, dtype=float) / n_rows


def _saves(label: str, sizes: Mapping[str, np.ndarray], share: float, *, required: bool = True) -> Claim:
    found = sizes[f"A{label}"].mean() / sizes[label].mean()
    statement = f"passes of A{label} over those of {label}"
    return Claim(statement, f"< {share:g}", f"{found:.3f}", bool(found < share), required)


def _size_table(sizes: Mapping[str, np.ndarray], n_rows: int, thin: int = 1) -> Table:
    rows = [
        [label, str(of.min()), f"{of.mean():.3f}", str(of.max()), f"{_passes(of, n_rows, thin)[:, -1].mean():.3f}"]
        for label, of in sizes.items()
    ]
    return Table("Subsample sizes over all chains, and passes of one", ["method", "least", "mean", "largest", "passes"], rows)


def _size_curves(sizes: Mapping[str, np.ndarray], n_rows: int, thin: int = 1) -> list[Curve]:
    every, found = max(1, _EVERY // thin), []
    for label, of in sizes.items():
        x = thin * np.arange(every, of.shape[1] + 1, every)
        found += [
            Curve("b", label, x, of[_SHOWN_CHAIN, every - 1 :: every].astype(float)),
            over_chains("c", label, x, _passes(of, n_rows, thin)[:, every - 1 :: every]),
        ]
    return found
