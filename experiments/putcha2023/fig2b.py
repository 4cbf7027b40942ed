"""Figure 2(b): logistic regression on covertype with 0.1 % of the rows per step.

(i) KSD, (ii) log-loss on held-out rows. The log-loss is that of the current draw alone, averaged
over chains. As run, SGLD starts at 0 and the other methods start at the mode, so most of the
difference between SGLD and SGLD-PS is burn-in. As meant, all methods start at the mode, which
removes this part of the difference.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from tallmc import diagnose
from tallmc._anchor.anchor import find_anchor
from tallmc.models.posterior import AbstractPosterior

from ..data import Split
from ..published import published_curves
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, close, lower, over_chains
from .covertype import STEP_SIZE, load
from .discrepancy import THOUSANDS, curves, lower_end, rows_to_reach
from .methods import STEPS, AsRun, fixed, ours, paths_as_meant

SIZE = 435
PANELS = [
    Panel("i", "covertype, 0.1 % subsample", "passes through the data", "log₁₀ KSD"),
    Panel(
        "ii", "covertype, 0.1 % subsample", "passes through the data", "log-loss on held-out rows"
    ),
]
REMARKS = [
    "As meant: 5 chains instead of 10, and every 20th draw, because each exact gradient is a pass "
    "over the data."
]
KSD_TARGETS = {"SGLD": 2.485, "SGLD-PS": 2.139, "SGLD-CV": 2.141, "SGLD-CV-PS": 2.116}
LOSS_TARGETS = {"SGLD-PS": 0.514403, "SGLD-CV": 0.514285, "SGLD-CV-PS": 0.514275}


def as_run(setting: ExperimentSetting) -> Result:
    target, split = load(setting)
    run = AsRun.prepared(
        setting, target, step_size=STEP_SIZE, size=SIZE, chains=setting.pick(10, 2)
    )
    every, paths, losses = setting.pick(10, 100), {}, {}
    for label in KSD_TARGETS:
        trace = run.fixed(label)
        losses[label] = _losses(trace.positions[:, every - 1 :: every], target, split)
        paths[label] = run.path(label, trace)
    after_one_pass = slice(STEPS // (10 * every), None)
    claims = [
        *(
            close(f"log₁₀ KSD of {label} at 10 passes", paths[label].end, value, 0.12)
            for label, value in KSD_TARGETS.items()
        ),
        *(
            close(
                f"log-loss of {label}, passes 1 to 10",
                float(losses[label][:, after_one_pass].mean()),
                value,
                2e-4,
            )
            for label, value in LOSS_TARGETS.items()
        ),
    ]
    published_lines = [
        *published_curves("fig2b_i_covtype_log10KSD", "i", {label: label for label in KSD_TARGETS}),
        *published_curves(
            "fig2b_ii_covtype_logloss",
            "ii",
            {label: label for label in LOSS_TARGETS},
        ),
    ]
    return Result(
        PANELS, [*curves("i", paths, 1e-3), *_loss_curves(losses, every), *published_lines], claims
    )


def as_meant(setting: ExperimentSetting) -> Result:
    target, split = load(setting)
    anchor, thin = find_anchor(target), 20
    method_of = fixed(STEP_SIZE, SIZE) | ours(target, anchor, STEP_SIZE, SIZE)
    paths, draws = paths_as_meant(
        setting, target, anchor, method_of, chains=setting.pick(5, 2), thin=thin
    )
    every = setting.pick(1, 10)
    losses = {
        label: _losses(method_draws.positions[:, every - 1 :: every], target, split)
        for label, method_draws in draws.items()
    }
    claims = [
        lower_end(paths, "SGLD-PS", "SGLD"),
        lower_end(paths, "SGLD-CV", "SGLD"),
        lower_end(paths, "SGLD-CV-PS", "SGLD-CV"),
        _lower_loss(losses, "SGLD-PS", "SGLD"),
        _lower_loss(losses, "SGLD-CV-PS", "SGLD-CV"),
    ]
    drawn = [*curves("i", paths, 1e-3), *_loss_curves(losses, thin * every)]
    panels = [panel._replace(x=THOUSANDS) for panel in PANELS]  # not passes: the sizes differ
    return Result(panels, drawn, claims, [rows_to_reach(paths)], REMARKS)


def _losses(
    positions: Float[np.ndarray, "chains k d"], target: AbstractPosterior, split: Split
) -> Float[np.ndarray, "chains k"]:
    return diagnose.log_losses(positions, target, (split.X_held_out, split.y_held_out))


def _loss_curves(losses: Mapping[str, Float[np.ndarray, "chains k"]], every: int) -> list[Curve]:
    return [
        over_chains("ii", label, 1e-3 * every * np.arange(1, values.shape[1] + 1), values)
        for label, values in losses.items()
    ]


def _lower_loss(
    losses: Mapping[str, Float[np.ndarray, "chains k"]], better: str, worse: str
) -> Claim:
    statement = f"{better} has a lower log-loss than {worse}"
    return lower(statement, losses[better].mean(axis=1), losses[worse].mean(axis=1), digits=6)
