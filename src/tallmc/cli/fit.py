"""`tallmc fit`: a table in, draws and a summary out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from .._errors import InvalidInput
from .._method import Method
from .._posterior import AbstractPosterior
from ..methods import METHODS
from ..models import linear_regression, logistic_regression, poisson_regression
from ..subsample import SizeChoice
from .design import Design, Family, make_design
from .plan import Settings
from .report import DIAGNOSTICS, print_coefficients, print_cost, print_health, print_plan, print_warnings, say, summarise
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
    given_noise = model.noise_variance
    model = _with_noise(model, design)
    posterior = _posterior(design, model)
    make_folder(out)

    read = f"{table.n_rows:,} rows, {len(table.features)} columns and the response {response}"
    say(console, f"read: {read} from {path}")
    if model.family == "gaussian" and given_noise is None:
        unit = " of the standardised response" if model.standardise else ""
        say(console, f"noise variance{unit}: {model.noise_variance:.4g}, that of the least-squares residuals")
    finished = run(posterior, settings, console, lambda plan: print_plan(console, settings, plan))
    summary = summarise(finished.draws, design.names)
    files = save_draws(out, finished.draws, summary, design.names)
    files.append(save_json(out / "scaling.json", _scaling(path, response, design, model, settings, finished)))
    if summary is not None:
        print_coefficients(console, summary, _COLUMNS)
        if design.sds:
            unit = "in standard deviations of the response " if model.family == "gaussian" else ""
            say(console, f"Coefficients are {unit}per standard deviation of their column; scaling.json has both.")
    print_cost(console, finished.draws)
    print_warnings(console, finished, summary)
    status = print_health(console, finished)
    say(console, f"saved: {', '.join(files)} in {out}")
    return status


def _check_method(family: Family, method: str | None) -> None:
    if method is None:
        return
    if method not in METHODS:
        raise InvalidInput("--method", f"be one of {', '.join(METHODS)}", method, "See `tallmc methods`.")
    if family == "poisson" and METHODS[method].axes["size"] == "adaptive":
        rule = "have a fixed size with --family poisson, whose curvature has no bound for a size to adapt to"
        raise InvalidInput("--method", rule, method, f"Use {method.removeprefix('a')}.")


def _posterior(design: Design, model: Model) -> AbstractPosterior:
    if model.family == "gaussian":
        assert model.noise_variance is not None, "settled before the posterior is made"
        return linear_regression(design.x, design.y, model.prior_variance, model.noise_variance)
    regression = logistic_regression if model.family == "bernoulli" else poisson_regression
    return regression(design.x, design.y, model.prior_variance)


def _with_noise(model: Model, design: Design) -> Model:
    """The model with its noise variance settled: the one given, or that of the least-squares residuals."""
    if model.family != "gaussian":
        if model.noise_variance is not None:
            raise InvalidInput("--noise-variance", "be left out unless --family is gaussian", model.noise_variance)
        return model
    if model.noise_variance is not None:
        return model
    x = design.x.astype(np.float64)
    residuals = design.y - x @ np.linalg.lstsq(x, design.y, rcond=None)[0]
    freedom = len(design.y) - x.shape[1]
    variance = float(residuals @ residuals) / freedom if freedom > 0 else 0.0
    if variance <= 1e-12 * float(np.var(design.y)):
        cure = "Is the response a function of the other columns? Otherwise pass --noise-variance."
        raise InvalidInput("the least-squares residuals", "leave some noise to estimate its variance from", variance, cure)
    return dataclasses.replace(model, noise_variance=variance)


def _scaling(path: Path, response: str, design: Design, model: Model, settings: Settings, finished: Finished) -> dict[str, Any]:
    """How to read the draws, and how to make them again."""
    ran = finished.draws.settings
    size = ran["method"].size if isinstance(ran["method"], Method) else finished.plan.size
    return {
        "table": str(path),
        "response": response,
        "coefficients": list(design.names),
        "means": design.means,
        "sds": design.sds,
        **dataclasses.asdict(model),
        "settings": {
            **dataclasses.asdict(settings),
            "chains": finished.draws.positions.shape[0],
            "step_size": finished.plan.step_size if finished.plan.step_size else ran["method"].step_size,
            "size": size.size if isinstance(size, SizeChoice) else size,
            "draws": finished.draws.positions.shape[1],  # fewer than asked for after Ctrl-C
            "burn_in": ran["burn_in"],
            "thin": ran["thin"],
        },
        "tallmc_version": ran["tallmc_version"],
        "jax_version": ran["jax_version"],
    }
