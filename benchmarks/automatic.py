"""The error of the default method on real posteriors, and the error that it reports.

The references are full-data NUTS runs, in `shared/reference`.
"""

from __future__ import annotations

import numpy as np

import tallmc

from . import problems
from .report import print_table

REFERENCES = problems.DATA.parent / "reference"
POSTERIORS = {
    "covertype": problems.covertype,
    "review10": lambda: problems.review(10),
    "review50": lambda: problems.review(50),
    "review100": lambda: problems.review(100),
    "pima": lambda: problems.small("pima"),
    "parkinsons": lambda: problems.small("parkinsons"),
}
SEEDS = (0, 1, 2)
EFFECTIVE = 4000


def main() -> None:
    """The largest real and reported errors over the parameters, for one default call per seed."""
    rows = []
    for name, make in POSTERIORS.items():
        posterior, reference = make(), np.load(REFERENCES / f"{name}.npz")
        for seed in SEEDS:
            draws = tallmc.sample(posterior, ess=EFFECTIVE, seed=seed)
            found, report = draws.positions[draws.ok].astype(float), draws.report
            mean = np.abs(found.mean(axis=(0, 1)) - reference["mean"]) / reference["sd"]
            ratio = found.std(axis=(0, 1)) / reference["sd"]
            passes = draws.n_row_evals / posterior.n_rows
            real = (f"{mean.max():.3f}", f"{ratio.min():.3f}–{ratio.max():.3f}")
            reported = (f"{report.mean_error:.3f}", f"{report.sd_error:.3f}")
            rows.append(
                (
                    name,
                    seed,
                    f"{report.ess:,.0f}",
                    *real,
                    *reported,
                    f"{passes:,.0f}",
                    report.trusted,
                )
            )
    real_columns = ("mean error (≤ 0.1)", "sd ratio (0.95–1.05)")
    columns = (
        "posterior",
        "seed",
        "ESS",
        *real_columns,
        "mean, reported",
        "sd, reported",
        "passes",
        "trusted",
    )
    print_table("The default against full-data NUTS", columns, rows)
