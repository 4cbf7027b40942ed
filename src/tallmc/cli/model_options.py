"""Options of `tallmc fit` that choose the model and the roles of columns."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Model"
_COLUMNS_PANEL = "Columns"

Formula = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help='A formula, such as "clicked ~ age * C(region) + (1 | shop)", instead of all columns. '
        "It is Python code: pass only formulas that you trust.",
        rich_help_panel=_PANEL,
    ),
]
Response = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the response column. Without --formula all other columns are covariates. "
        "Default: y.",
        rich_help_panel=_PANEL,
    ),
]
FamilyName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="bernoulli, binomial, gaussian, poisson, negative_binomial, categorical, ordinal, "
        "student_t or gamma.",
        rich_help_panel=_PANEL,
    ),
]
Link = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="logit or probit for bernoulli; the others have one link.",
        rich_help_panel=_PANEL,
    ),
]
Prior = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help='Prior of all coefficients, such as "normal(2.5)", "student_t(3, 2.5)", "laplace(1)" '
        'or "horseshoe()"; or of a term, such as "age=normal(1)". May be repeated. '
        "Default: normal(2.5 sd(y)/sd(x)), as in Bambi.",
        rich_help_panel=_PANEL,
    ),
]
NoiseVariance = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="Noise variance of a gaussian response. Default: sampled.",
        rich_help_panel=_PANEL,
    ),
]
NoStandardise = Annotated[
    bool,
    typer.Option(
        "--no-standardise",
        help="Do not scale the columns to mean 0 and sd 1 for the sampler.",
        rich_help_panel=_PANEL,
    ),
]
NoIntercept = Annotated[
    bool,
    typer.Option("--no-intercept", help="Do not add a column of ones.", rich_help_panel=_PANEL),
]
Standardised = Annotated[
    bool,
    typer.Option(
        "--standardised",
        help="Show coefficients of standardised columns instead of those of the table.",
        rich_help_panel=_PANEL,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column that says how often each row counts.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
Offset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column that is added to the linear predictor.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
Exposure = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column of positive numbers whose logarithm is added to the linear predictor.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
Trials = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Column with the number of trials; binomial only.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Column to leave out; may be repeated.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Column of numbers whose values are categories; may be repeated.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
Level = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LEVEL",
        help="Level of a binary response that counts as 1; repeated, the order of all classes.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
DropMissing = Annotated[
    bool,
    typer.Option(
        "--drop-missing",
        help="Drop rows with missing values instead of refusing the table.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        metavar="CHAR",
        help="Character between the columns of a CSV file, or tab, space. Default: detected.",
        rich_help_panel=_COLUMNS_PANEL,
    ),
]
FormulaAgain = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="The formula of the fit, again: formulas are code and are not taken from files.",
    ),
]
