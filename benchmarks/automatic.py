"""The error of the default method on real posteriors, and the error that it reports.

The references are full-data NUTS runs, in `shared/reference`.
"""

from __future__ import annotations

import re
from typing import Any

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
_HARD, _CHECKED = r"([\d,]+) hard rows", r"checked on all rows .* off by ([\d.e-]+)"


def main() -> None:
    """The largest real and reported errors over the parameters, for one default call per seed."""
    rows = []
    for name, make in POSTERIORS.items():
        posterior, reference = make(), np.load(REFERENCES / f"{name}.npz")
        found = [_errors(posterior, reference, seed) for seed in SEEDS]
        *spans, trusted = [_span(np.stack(values)) for values in zip(*found, strict=True)]
        size = f"{posterior.n_rows:,} × {posterior.dim}"
        rows.append((name if trusted == "True" else f"{name}, not trusted", size, *spans))
    columns = (
        "posterior",
        "N × d",
        "mean error, sds (≤ 0.06)",
        "sd ratio (0.96–1.04)",
        "reported: mean",
        "reported: sd",
        "log density off by",
        "hard rows",
        "passes beside sampling (≤ 8)",
    )
    print_table("The default against full-data NUTS", columns, rows)


def _errors(posterior: Any, reference: Any, seed: int) -> tuple[Any, ...]:
    draws = tallmc.sample(posterior, seed=seed)
    found, report = draws.positions[draws.ok].astype(float), draws.report
    mean = np.abs(found.mean(axis=(0, 1)) - reference["mean"]) / reference["sd"]
    ratio = found.std(axis=(0, 1)) / reference["sd"]
    said = [re.search(pattern, str(report)) for pattern in (_CHECKED, _HARD)]
    off, hard = (float(match[1].replace(",", "")) if match else np.nan for match in said)
    # The hard rows, or those of a plan that reads all, are what sampling reads.
    passes = (draws.n_row_evals_preparation + draws.n_row_evals_check) / posterior.n_rows
    ratios = np.array([ratio.min(), ratio.max()])
    errors = (mean.max(), ratios, report.mean_error, report.sd_error)
    return *errors, off, hard, passes, report.trusted


def _span(values: np.ndarray) -> str:
    """The least and the largest value over the seeds, in three digits; – where there is none."""
    if np.isnan(values.astype(float)).any():
        return "–"
    if values.dtype == bool:
        return str(values.all())
    ends = [f"{end:,.0f}" if end >= 100 else f"{end:.3g}" for end in (values.min(), values.max())]
    return "–".join(dict.fromkeys(ends))
