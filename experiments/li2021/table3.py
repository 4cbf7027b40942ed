"""Table 3: EWSG with b rows and M + 1 batches against SGHMC with b(M + 1) rows, equal passes.

The network is the perceptron of Figure 3, with h = 10/(b(M + 1)) as the learning rate of the
momentum form (`networks.py`). The ten samples of the paper are the ends of ten chains, whose
predictions are averaged. The paper has one repetition per cell, here are three.
"""

from __future__ import annotations

import numpy as np

from ..predictive_runs import PredictiveRun
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable, lower
from .networks import EPOCHS, N_TEST, N_TRAIN, digits, finite_share, run_pair

PUBLISHED = {
    (100, 2): (1.86, 1.94),
    (100, 5): (1.83, 1.92),
    (100, 10): (1.80, 1.97),
    (200, 2): (1.90, 1.87),
    (200, 5): (1.87, 1.97),
    (200, 10): (1.80, 2.07),
    (500, 2): (1.79, 1.97),
    (500, 5): (2.01, 2.17),
    (500, 10): (2.36, 2.37),
}
"""Test errors in % of EWSG and SGHMC, by b and M + 1."""
POOL, REPETITIONS = 10, 3


def as_works(setting: ExperimentSetting) -> Result:
    cells = [(100, 2)] if setting.quick else list(PUBLISHED)
    problem = digits(
        "MLP",
        setting.folder,
        setting.pick(REPETITIONS * POOL, 2),
        n_train=setting.pick(N_TRAIN, 6_000),
        n_test=setting.pick(N_TEST, 2_000),
    )
    found = {
        cell: run_pair(
            problem,
            *cell,
            epochs=setting.pick(EPOCHS, 2),
            pool=setting.pick(POOL, 2),
            share=setting.part(f"b = {cell[0]}, M + 1 = {cell[1]}"),
        )
        for cell in cells
    }
    return result_of(found, reduced=setting.quick)


def result_of(
    found: dict[tuple[int, int], tuple[PredictiveRun, PredictiveRun]], *, reduced: bool
) -> Result:
    """Errors by b(M + 1), a table and claims."""
    panel = Panel(
        "error", "perceptron on MNIST", "rows per step, b(M + 1)", "test error in %", log_x=True
    )
    rows, wins = [], 0
    errors = {
        cell: [float(run.current["error"][:, -1].mean()) for run in pair]
        for cell, pair in found.items()
    }
    for (batch, proposals), (weighted, uniform) in errors.items():
        published = PUBLISHED[batch, proposals]
        wins += weighted < uniform
        rows.append(
            [
                str(batch),
                str(proposals),
                f"{published[0]:.2f} / {published[1]:.2f}",
                f"{weighted:.2f} / {uniform:.2f}",
            ]
        )
    order = sorted(errors, key=lambda cell: cell[0] * cell[1])
    x = np.array([batch * proposals for batch, proposals in order], float)
    curves = [
        Curve("error", name, x, np.array([errors[cell][side] for cell in order]), kind="cloud")
        for side, name in enumerate(("EWSG", "SGHMC"))
    ]
    curves += [
        Curve(
            "error",
            name,
            x,
            np.array([PUBLISHED[cell][side] for cell in order]),
            kind="published marks",
        )
        for side, name in enumerate(("EWSG", "SGHMC"))
    ]
    finite = min(finite_share(run) for pair in found.values() for run in pair)
    claims = [Claim("all chains stay finite", "100 %", f"{100 * finite:.0f} %", finite == 1)]
    if not reduced:
        means = [
            np.mean([pair[side].current["error"][:, -1] for pair in found.values()], axis=0)
            for side in (0, 1)
        ]
        claims.append(lower("EWSG has a lower test error than SGHMC, mean over cells", *means))
        statement = "EWSG has a lower test error than SGHMC with as many rows"
        claims.append(Claim(statement, "8 of 9 cells", f"{wins} of 9 cells", wins >= 8, False))
    columns = ("b", "M + 1", "published EWSG / SGHMC", "found EWSG / SGHMC")
    return Result([panel], curves, claims, [ResultTable("test error in %", columns, rows)])
