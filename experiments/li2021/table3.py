"""Table 3: EWSG with b rows and M + 1 batches against SGHMC with b(M + 1) rows, equal passes.

The network is the perceptron of Figure 3 with h = 10/(b(M + 1)), a step of V/N (`networks.py`). The
friction is not given; it is that of Figure 3. The paper has one run per cell, and ten samples.
"""

from __future__ import annotations

import numpy as np

from ..predictive_runs import PredictiveRun
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
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


def as_works(setting: ExperimentSetting) -> Result:
    cells = [(100, 2)] if setting.quick else list(PUBLISHED)
    problem = digits(
        "MLP",
        setting.folder,
        setting.pick(4, 1),
        n_train=setting.pick(N_TRAIN, 6_000),
        n_test=setting.pick(N_TEST, 2_000),
    )
    found = {
        cell: run_pair(
            problem,
            *cell,
            epochs=setting.pick(EPOCHS, 2),
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
        cell: [float(run.averaged["error"][:, -1].mean()) for run in pair]
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
    finite = min(finite_share(run) for pair in found.values() for run in pair)
    claims = [Claim("all chains stay finite", "100 %", f"{100 * finite:.0f} %", finite == 1)]
    if not reduced:
        statement = "EWSG has a lower test error than SGHMC with as many rows"
        claims.append(Claim(statement, "8 of 9 cells", f"{wins} of 9 cells", wins >= 8, False))
    columns = ("b", "M + 1", "published EWSG / SGHMC", "found EWSG / SGHMC")
    return Result([panel], curves, claims, [ResultTable("test error in %", columns, rows)])
