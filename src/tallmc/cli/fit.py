"""`tallmc fit`: a table in, draws and a summary out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console

from .._errors import InvalidInput
from .._posterior import AbstractPosterior
from ..methods import METHODS
from ..models import linear_regression, logistic_regression, poisson_regression
from .design import Design, Family, make_design
from .plan import Settings
from .report import DIAGNOSTICS, print_coefficients, print_cost, print_plan, print_warnings, say, summarise
from .run import Finished, run
from .save import check_out, make_folder, save_draws, save_json
from .table import read_table

_COLUMNS = {"mean": "mean", "sd": "sd", "q05": "q05", "q95": "q95", **DIAGNOSTICS}


@dataclasses.dataclass(frozen=True)
class Model:
    family: Family
    prior_variance: float
    noise_variance: float | None
    standardise: bool
    intercept: bool


def run_fit(path: Path, response: str, model: Model, settings: Settings, out: Path, *, overwrite: bool) -> int:
    """Fit, print, save; returns the exit status."""
    console = Console(highlight=False, markup=False)
    check_out(out, overwrite=overwrite)
    _check_method(model.family, settings.method)
    table = read_table(path, response)
    design = make_design(table, model.family, standardise=model.standardise, intercept=model.intercept)
    posterior = _posterior(design, model)
    make_folder(out)

    read = f"{table.n_rows:,} rows, {len(table.features)} columns and the response {response}"
    say(console, f"read: {read} from {path}")
    finished = run(posterior, settings, console, lambda plan: print_plan(console, settings, plan))
    summary = summarise(finished.draws, design.names)
    files = save_draws(out, finished.draws, summary, design.names)
    files.append(save_json(out / "scaling.json", _scaling(path, response, design, model, settings, finished)))
    if summary is not None:
        print_coefficients(console, summary, _COLUMNS)
        if design.sds:
            say(console, "Coefficients are per standard deviation of their column; scaling.json has the means and deviations.")
    print_cost(console, finished.draws)
    print_warnings(console, finished, summary)
    say(console, f"saved: {', '.join(files)} in {out}")
    return 0 if finished.draws.ok.all() else 1


def _check_method(family: Family, method: str) -> None:
    if method not in METHODS:
        raise InvalidInput("--method", f"be one of {', '.join(METHODS)}", method, "See `tallmc methods`.")
    if family == "poisson" and METHODS[method].size == "adaptive":
        rule = "have a fixed size with --family poisson, whose curvature has no bound for a size to adapt to"
        raise InvalidInput("--method", rule, method, f"Use {method.removeprefix('a')}.")


def _posterior(design: Design, model: Model) -> AbstractPosterior:
    if model.family == "gaussian":
        noise = 1.0 if model.noise_variance is None else model.noise_variance
        return linear_regression(design.x, design.y, model.prior_variance, noise)
    if model.noise_variance is not None:
        raise InvalidInput("--noise-variance", "be left out unless --family is gaussian", model.noise_variance)
    regression = logistic_regression if model.family == "bernoulli" else poisson_regression
    return regression(design.x, design.y, model.prior_variance)


def _scaling(path: Path, response: str, design: Design, model: Model, settings: Settings, finished: Finished) -> dict[str, Any]:
    """How to read the draws, and how to make them again."""
    ran = finished.draws.settings
    noise = 1.0 if model.family == "gaussian" and model.noise_variance is None else model.noise_variance
    return {
        "table": str(path),
        "response": response,
        "coefficients": list(design.names),
        "means": design.means,
        "sds": design.sds,
        **dataclasses.asdict(model),
        "noise_variance": noise,
        "settings": {
            **dataclasses.asdict(settings),
            "step_size": finished.plan.step_size,
            "size": finished.plan.size,
            "draws": finished.draws.positions.shape[1],  # fewer than asked for after Ctrl-C
            "burn_in": ran["burn_in"],
            "thin": finished.plan.thin,
        },
        "tallmc_version": ran["tallmc_version"],
        "jax_version": ran["jax_version"],
    }
