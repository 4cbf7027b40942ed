"""The options and arguments of the commands."""

from __future__ import annotations

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


_TEXTS: dict[str | None, dict[str, str]] = {
    "Model": {
        "formula TEXT": 'A formula, such as "clicked ~ age * C(region) + (1 | shop)", instead of '
        "all columns. It is Python code: pass only formulas that you trust.",
        "response NAME": "Name of the response column, or surv(time, event). Without --formula all "
        "other columns are covariates. Default: y.",
        "family NAME": "bernoulli, binomial, gaussian, poisson, negative_binomial, categorical, "
        "ordinal, student_t, gamma, beta, tweedie, quantile, zero_inflated_poisson, "
        "zero_inflated_negative_binomial, hurdle_poisson, hurdle_negative_binomial; of survival "
        "times exponential, weibull, lognormal, loglogistic or piecewise_exponential.",
        "link NAME": "logit or probit for bernoulli; the others have one link.",
        "prior TEXT": 'Prior of all coefficients, such as "normal(2.5)", "student_t(3, 2.5)", '
        '"laplace(1)", "horseshoe()" or "r2d2(0.5, 2)"; or of a term, such as "age=normal(1)". '
        "May be repeated. Default: normal(2.5 sd(y)/sd(x)), as in rstanarm.",
        "prior_only": "Run no chain: simulate responses from the priors, and write prior.html, "
        "which shows them beside those of the table.",
        "noise_variance X": "Noise variance of a gaussian response. Default: sampled.",
        "quantile X": "Level of family quantile, between 0 and 1. Default: the median.",
        "breaks X": "Time between two intervals of constant hazard, for piecewise_exponential; may "
        "be repeated. Default: ten intervals with equal numbers of events.",
        "no_standardise": "Do not scale the columns to mean 0 and sd 1 for the sampler.",
        "no_intercept": "Do not add a column of ones.",
        "standardised": "Show coefficients of standardised columns instead of those of the table.",
    },
    "Columns": {
        "weights NAME": "Column that says how often each row counts.",
        "offset NAME": "Column that is added to the linear predictor.",
        "exposure NAME": "Column of positive numbers whose logarithm is added to the linear "
        "predictor.",
        "trials NAME": "Column with the number of trials; binomial only.",
        "exclude NAME": "Column to leave out; may be repeated.",
        "categorical NAME": "Column of numbers whose values are categories; may be repeated.",
        "level LEVEL": "Level of a binary response that counts as 1; repeated, the order of all "
        "classes.",
        "missing NAME": "raise: refuse missing values; drop: drop their rows; indicator: a level "
        "of its own for categories, the mean and a column of 0 and 1 for numbers; impute: numbers "
        "are integrated out. Default: raise.",
        "separator CHAR": "Character between the columns of a CSV file, or tab, space. Default: "
        "detected.",
    },
    "Sampling": {
        "method NAME": "A method listed by `tallmc methods`. Default: chosen for the data.",
        "step_size X": "Step size; requires --method. Default: chosen from the curvature.",
        "batch_size N": "Rows per step; requires --method. Default: a thousandth of the rows, at "
        "least 32.",
        "within LOW,HIGH": "LOW,HIGH of all parameters, for methods with a domain, such as "
        "projected_sgld; inf is no limit. Parameters are coefficients of standardised columns "
        "unless --no-standardise.",
        "exact": "Use exact methods only: draws without bias, at any cost.",
        "chains N": "Number of independent chains. Default: 32, or 8 if every step uses all rows; "
        "4 with --method.",
        "draws N": "Draws kept per chain, instead of --ess. Default with --method: 2000.",
        "ess N": "Sample until every coefficient has N effective draws. Default without --method: "
        "1000, and 3000 where draws cost little.",
        "max_seconds N": "Stop after N seconds, reading and preparation included, with the draws "
        "so far.",
        "thin N": "Steps per draw. Default: chosen from how fast the chains mix.",
        "burn_in N": "Steps discarded at the start of each chain. Default: a tenth of the steps "
        "kept; for methods without an anchor, as many as are kept.",
        "seed N": "Random seed. The same seed gives the same draws.",
        "no_progress": "Do not show progress.",
    },
    "Row stores": {
        "out_of_core": "Do not read a Parquet file or folder into memory: decode it in every pass. "
        "A row store is many times faster.",
        "workers N": "Read a row store with N processes. The draws do not depend on it.",
        "scheduler ADDRESS": "Read a row store with the workers of a Dask cluster, e.g. "
        "tcp://host:8786.",
    },
    None: {
        "methods.name [NAME]": "A method, to print its equations, bias, cost and references.",
        "ingest.tables TABLE...": "Files (.csv, .csv.gz, .parquet, .arrow, .feather, .npz), or "
        "folders of them.",
        "ingest.response NAME": "Name of the response column, which is stored as it is, after the "
        "others.",
        "ingest.no_standardise": "Do not scale the columns to mean 0 and sd 1.",
        "ingest.float64": "Store float64 instead of float32: twice the bytes.",
        "ingest.max_levels N": "Most levels that a column of text may have.",
        "ingest.missing NAME": "drop: leave out rows with missing values; indicator: mark missing "
        "values.",
        "ingest.append": "Add the rows to the finished store OUT, with its columns and scaling.",
        "fit.table TABLE": "A table (CSV, also .tsv and .gz; Parquet, Arrow, .npz; a folder; - for "
        "standard input), or a row store made by `tallmc ingest`.",
        "fit.store RUN": "New folder for the run itself, for `tallmc resume` and `tallmc report`.",
        "update.table TABLE": "New rows: a table with the columns of the fit; or the row store of "
        "the fit, after `tallmc ingest --append` has added rows to it.",
        "update.old_rows TABLE": "All rows of the fit, to check the draws on them too. A row store "
        "has them.",
        "compare.fits FIT...": "Folders of the results of `tallmc fit`, or of stored runs, of one "
        "table.",
        "compare.folds K": "Cross-validate: K new fits, each without one part of the rows.",
        "effects.column COLUMN": "Column whose effect is shown. Default: the average response.",
        "effects.by COLUMN": "One average per value of this column; may be repeated.",
        "effects.at COLUMN=X,...": "All rows with these values; may be repeated.",
        "effects.cluster COLUMN": "Robust errors of rows that depend by this column.",
        "predict.table TABLE": "New rows: a table with the columns of the fit; - for standard "
        "input.",
        "predict.kind NAME": "mean: the expected response, with the uncertainty of the "
        "coefficients; response: the response itself, with its noise; median: of a survival time.",
        "predict.times X": "Survival curves at these times instead; may be repeated.",
        "predict.interval X": "Probability of the central interval.",
        "predict.missing NAME": "nan: predict NaN for rows with missing values.",
        "predict.new_groups NAME": "draw: effects of groups that the fit has not seen are drawn.",
        "demo.columns N": "Number of coefficients, including the intercept.",
    },
}
"""The texts of options by the panel of `--help`; a name with a METAVAR takes a value.

Those without a panel belong to one command; arguments are among them.
"""
_OPTIONS = {
    name.partition(" ")[0]: (panel, name.partition(" ")[2], text)
    for panel, texts in _TEXTS.items()
    for name, text in texts.items()
}


def known(name: str, **limits: Any) -> Any:
    """An option of `_TEXTS`, whose name in the command is what follows the dot."""
    panel, metavar, text = _OPTIONS[name]
    if not metavar:
        return flag(f"--{name.rpartition('.')[2].replace('_', '-')}", text, panel)
    return option(metavar, text, panel, **limits)


def placed(name: str) -> Any:
    """An argument of `_TEXTS`."""
    _, metavar, text = _OPTIONS[name]
    return argument(metavar, text)


# Options and arguments of several commands.

FitFolder = Annotated[
    Path, argument("FIT", "Folder of the results of `tallmc fit`, or of its stored run.")
]
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
        "TEXT", "The formula of the fit, if it has code of its own, which is not taken from files."
    ),
]
Overwrite = Annotated[bool, flag("--overwrite", "Replace results that already exist in OUT.")]
Json = Annotated[bool, flag("--json", "Print JSON instead of text.")]
Chains = Annotated[int | None, known("chains", min=1)]
DrawsPerChain = Annotated[int | None, known("draws", min=4)]
Ess = Annotated[float | None, known("ess", min=1)]
MaxSeconds = Annotated[float | None, known("max_seconds", min=0)]
Seed = Annotated[int, known("seed", min=0, max=2**32 - 1)]
NoProgress = Annotated[bool, known("no_progress")]
Workers = Annotated[int | None, known("workers", min=1)]
Scheduler = Annotated[str | None, known("scheduler")]
