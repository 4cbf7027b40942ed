"""The options and arguments of the commands."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer


def option(metavar: str, text: str, panel: str | None = None, *names: str, **limits: Any) -> Any:
    """An option that takes a value."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **limits)


def flag(name: str, text: str, panel: str | None = None) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text, rich_help_panel=panel)


def argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, show_default=False)


def out(metavar: str, text: str, *, show_default: bool = False) -> Any:
    """The option for the place of the results."""
    return option(metavar, text, None, "--out", "-o", show_default=show_default)


_TEXTS = {
    "formula": 'A formula, such as "clicked ~ age * C(region) + (1 | shop)", instead of all '
    "columns. It is Python code: pass only formulas that you trust.",
    "response": "Name of the response column, or surv(time, event). Without --formula all other "
    "columns are covariates. Default: y.",
    "family": "bernoulli, binomial, gaussian, poisson, negative_binomial, categorical, ordinal, "
    "student_t, gamma, beta, tweedie, quantile, zero_inflated_poisson, "
    "zero_inflated_negative_binomial, hurdle_poisson, hurdle_negative_binomial; of survival times "
    "exponential, weibull, lognormal, loglogistic or piecewise_exponential.",
    "link": "logit or probit for bernoulli; the others have one link.",
    "prior": 'Prior of all coefficients, such as "normal(2.5)", "student_t(3, 2.5)", "laplace(1)", '
    '"horseshoe()" or "r2d2(0.5, 2)"; or of a term, such as "age=normal(1)". May be repeated. '
    "Default: normal(2.5 sd(y)/sd(x)), as in rstanarm.",
    "prior_only": "Run no chain: simulate responses from the priors, and write prior.html, which "
    "shows them beside those of the table.",
    "noise_variance": "Noise variance of a gaussian response. Default: sampled.",
    "quantile": "Level of family quantile, between 0 and 1. Default: the median.",
    "breaks": "Time between two intervals of constant hazard, for piecewise_exponential; may be "
    "repeated. Default: ten intervals with equal numbers of events.",
    "no_standardise": "Do not scale the columns to mean 0 and sd 1 for the sampler.",
    "no_intercept": "Do not add a column of ones.",
    "standardised": "Show coefficients of standardised columns instead of those of the table.",
    "weights": "Column that says how often each row counts.",
    "offset": "Column that is added to the linear predictor.",
    "exposure": "Column of positive numbers whose logarithm is added to the linear predictor.",
    "trials": "Column with the number of trials; binomial only.",
    "exclude": "Column to leave out; may be repeated.",
    "categorical": "Column of numbers whose values are categories; may be repeated.",
    "level": "Level of a binary response that counts as 1; repeated, the order of all classes.",
    "missing": "raise: refuse missing values; drop: drop their rows; indicator: a level of its own "
    "for categories, the mean and a column of 0 and 1 for numbers; impute: numbers are integrated "
    "out. Default: raise.",
    "separator": "Character between the columns of a CSV file, or tab, space. Default: detected.",
    "method": "A method listed by `tallmc methods`. Default: chosen for the data.",
    "step_size": "Step size; requires --method. Default: chosen from the curvature.",
    "batch_size": "Rows per step; requires --method. Default: a thousandth of the rows, at least "
    "32.",
    "within": "LOW,HIGH of all parameters, for methods with a domain, such as projected_sgld; inf "
    "is no limit. Parameters are coefficients of standardised columns unless --no-standardise.",
    "exact": "Use exact methods only: draws without bias, at any cost.",
    "chains": "Number of independent chains. Default: 32, or 8 if every step uses all rows; "
    "4 with --method.",
    "draws": "Draws kept per chain, instead of --ess. Default with --method: 2000.",
    "ess": "Sample until every coefficient has N effective draws. Default without --method: 1000, "
    "and 3000 where draws cost little.",
    "max_seconds": "Stop after N seconds, reading and preparation included, with the draws so far.",
    "thin": "Steps per draw. Default: chosen from how fast the chains mix.",
    "burn_in": "Steps discarded at the start of each chain. Default: a tenth of the steps kept; "
    "for methods without an anchor, as many as are kept.",
    "seed": "Random seed. The same seed gives the same draws.",
    "no_progress": "Do not show progress.",
    "out_of_core": "Do not read a Parquet file or folder into memory: decode it in every pass. "
    "A row store is many times faster.",
    "workers": "Read a row store with N processes. The draws do not depend on it.",
    "scheduler": "Read a row store with the workers of a Dask cluster, e.g. tcp://host:8786.",
}


def _known(panel: str, name: str, metavar: str | None = None, **limits: int) -> Any:
    """An option of a panel of `--help`, with its text; a flag without `metavar`."""
    if metavar is None:
        return flag(f"--{name.replace('_', '-')}", _TEXTS[name], panel)
    return option(metavar, _TEXTS[name], panel, **limits)


model = functools.partial(_known, "Model")
columns = functools.partial(_known, "Columns")
sampling = functools.partial(_known, "Sampling")
rows = functools.partial(_known, "Row stores")

# Options and arguments of several commands.

RunFolder = Annotated[Path, argument("RUN", "Folder of a stored run.")]
TablePath = Annotated[
    Path | None,
    option(
        "TABLE", "Path of the table, if it has moved since the run was started.", show_default=False
    ),
]
FormulaAgain = Annotated[
    str | None,
    option(
        "TEXT",
        "The formula of the fit, if it has code of its own, which is not taken from files.",
    ),
]
Overwrite = Annotated[bool, flag("--overwrite", "Replace results that already exist in OUT.")]
Json = Annotated[bool, flag("--json", "Print JSON instead of text.")]
Chains = Annotated[int | None, sampling("chains", "N", min=1)]
DrawsPerChain = Annotated[int | None, sampling("draws", "N", min=4)]
Ess = Annotated[float | None, sampling("ess", "N", min=1)]
MaxSeconds = Annotated[float | None, sampling("max_seconds", "N", min=0)]
Seed = Annotated[int, sampling("seed", "N", min=0, max=2**32 - 1)]
NoProgress = Annotated[bool, sampling("no_progress")]
Workers = Annotated[int | None, rows("workers", "N", min=1)]
Scheduler = Annotated[str | None, rows("scheduler", "ADDRESS")]
