"""Figures 3 and 5: KSD, sizes and passes of control variates with fixed and adaptive size.

As run, n = ⌈c‖θ − θ̂‖²⌉ around an unconverged mode, so n follows the error of Adam as much as the
spread of the posterior. As meant, n follows eq. 19 around the converged mode, with a threshold
from pilot runs of fixed size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tallmc._anchor.anchor import find_anchor
from tallmc.methods import asgld_cv, asgld_cv_ps
from tallmc.methods.method import Method
from tallmc.models.posterior import AbstractPosterior

from ..published import published_curves
from ..results import (
    Claim,
    Curve,
    ExperimentSetting,
    Panel,
    Result,
    ResultTable,
    close,
    over_chains,
)
from .discrepancy import curves, lower_end, rows_to_reach
from .methods import AsRun, fixed, ours, paths_as_meant

_SHOWN_CHAIN = 2
_CURVE_INTERVAL = 50
_FIXED_SIZE_METHODS = ("SGLD-CV", "SGLD-CV-PS")


class Expected(NamedTuple):
    """What the authors found."""

    file: str
    ends: Mapping[str, tuple[float, float]]
    """Final log₁₀ KSD and tolerance per method."""
    order: Sequence[tuple[str, str]]
    """Pairs of methods. The first must end with the lower KSD."""
    shares: Mapping[str, float]
    """Upper bounds on the passes with adaptive size, relative to those with fixed size."""
    reported_order: Sequence[tuple[str, str]] = ()
    """Pairs whose order is reported but not required."""
    order_of_ten: Sequence[tuple[str, str]] = ()
    """Pairs whose order depends on the worst of ten chains; not required with fewer chains."""


def panels(title: str) -> list[Panel]:
    return [
        Panel("a", title, "iteration", "log₁₀ KSD"),
        Panel("b", "one chain", "iteration", "subsample size"),
        Panel("c", "mean over chains", "iteration", "passes through the data"),
    ]


def as_run(
    setting: ExperimentSetting,
    target: AbstractPosterior,
    title: str,
    *,
    step_size: float,
    size: int,
    expected: Expected,
) -> Result:
    run = AsRun.prepared(
        setting, target, step_size=step_size, size=size, chains=setting.pick(10, 3)
    )
    traces = {label: run.fixed(label) for label in _FIXED_SIZE_METHODS}
    traces |= {f"A{label}": run.adaptive(label, traces[label]) for label in _FIXED_SIZE_METHODS}
    paths = {label: run.path(label, trace) for label, trace in traces.items()}
    sizes = {label: trace.sizes for label, trace in traces.items()}
    claims = [
        *(
            close(f"final log₁₀ KSD of {label}", paths[label].end, *value)
            for label, value in expected.ends.items()
        ),
        *(lower_end(paths, *pair, required=True) for pair in expected.order),
        *(lower_end(paths, *pair, required=not setting.quick) for pair in expected.order_of_ten),
        *(lower_end(paths, *pair) for pair in expected.reported_order),
        *(_passes_claim(label, sizes, share) for label, share in expected.shares.items()),
    ]
    published_ksd = published_curves(expected.file, "a", {label: label for label in traces})
    drawn = [*curves("a", paths), *_size_curves(sizes, target.n_rows), *published_ksd]
    return Result(panels(title), drawn, claims, [_size_table(sizes, target.n_rows)])


def as_meant(
    setting: ExperimentSetting,
    target: AbstractPosterior,
    title: str,
    *,
    step_size: float,
    size: int,
    thin: int,
) -> Result:
    anchor = find_anchor(target)
    method_of: dict[str, Method] = {
        label: fixed(step_size, size)[label] for label in _FIXED_SIZE_METHODS
    }
    method_of |= {"ASGLD-CV": asgld_cv(step_size), "ASGLD-CV-PS": asgld_cv_ps(step_size)} | ours(
        target, anchor, step_size, size
    )
    paths, draws = paths_as_meant(
        setting, target, anchor, method_of, chains=setting.pick(10, 3), thin=thin
    )
    sizes = {
        label: np.asarray(method_draws.sample_stats["batch_size"])
        for label, method_draws in draws.items()
    }
    claims = [
        lower_end(paths, "SGLD-CV-PS", "SGLD-CV"),
        lower_end(paths, "ASGLD-CV", "SGLD-CV"),
        lower_end(paths, "ASGLD-CV-PS", "SGLD-CV-PS"),
        *(_passes_claim(label, sizes, 0.5, required=False) for label in _FIXED_SIZE_METHODS),
    ]
    drawn = [*curves("a", paths), *_size_curves(sizes, target.n_rows, thin)]
    return Result(
        panels(title),
        drawn,
        claims,
        [_size_table(sizes, target.n_rows, thin), rows_to_reach(paths)],
    )


def _passes(
    sizes: Int[np.ndarray, "chains draws"], n_rows: int, thin: int = 1
) -> Float[np.ndarray, "chains draws"]:
    """Return the passes up to each draw, as if all steps between draws had the size of the draw."""
    return thin * np.cumsum(sizes, axis=1, dtype=float) / n_rows


def _passes_claim(
    label: str, sizes: Mapping[str, np.ndarray], share: float, *, required: bool = True
) -> Claim:
    found = sizes[f"A{label}"].mean() / sizes[label].mean()
    statement = f"passes of A{label} relative to {label}"
    return Claim(statement, f"< {share:g}", f"{found:.3f}", bool(found < share), required)


def _size_table(sizes: Mapping[str, np.ndarray], n_rows: int, thin: int = 1) -> ResultTable:
    rows = [
        [
            label,
            str(method_sizes.min()),
            f"{method_sizes.mean():.3f}",
            str(method_sizes.max()),
            f"{_passes(method_sizes, n_rows, thin)[:, -1].mean():.3f}",
        ]
        for label, method_sizes in sizes.items()
    ]
    return ResultTable(
        "Subsample sizes over all chains, and passes per chain",
        ["method", "smallest", "mean", "largest", "passes"],
        rows,
    )


def _size_curves(sizes: Mapping[str, np.ndarray], n_rows: int, thin: int = 1) -> list[Curve]:
    every, found = max(1, _CURVE_INTERVAL // thin), []
    for label, method_sizes in sizes.items():
        x = thin * np.arange(every, method_sizes.shape[1] + 1, every)
        found += [
            Curve("b", label, x, method_sizes[_SHOWN_CHAIN, every - 1 :: every].astype(float)),
            over_chains("c", label, x, _passes(method_sizes, n_rows, thin)[:, every - 1 :: every]),
        ]
    return found
