"""Commands that sample: `tallmc fit`, `tallmc resume`, `tallmc demo`, and the options they share.

Function bodies import what they need, so that `--help` and `--version` stay fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import model_options as options
from .signals import exit_on_signals

EXIT_STATUSES = (
    "Exit status: 0 fine; 1 some chain failed; 2 bad input; "
    "3 the draws should not be trusted, for the reasons printed; "
    "4 the store could not be written, e.g. because the disk is full; 130 Ctrl-C; 143 SIGTERM. "
    "Except with status 2, the draws so far are written."
)

_SAMPLING_PANEL = "Sampling"
_ROWS_PANEL = "Row stores"

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a stored run.", show_default=False)
]
TablePath = Annotated[
    Path | None,
    typer.Option(
        metavar="TABLE",
        help="Path of the table, if it has moved since the run was started.",
        show_default=False,
    ),
]
_Chains = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of independent chains. Default: 8, or 4 with --method.",
        rich_help_panel=_SAMPLING_PANEL,
    ),
]
_Draws = Annotated[
    int | None,
    typer.Option(
        min=4,
        metavar="N",
        help="Draws kept per chain, instead of --ess. Default with --method: 2000.",
        rich_help_panel=_SAMPLING_PANEL,
    ),
]
_Ess = Annotated[
    float | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Sample until every coefficient has N effective draws. "
        "Default without --method: 1000.",
        rich_help_panel=_SAMPLING_PANEL,
    ),
]
_MaxSeconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Stop after N seconds, reading and preparation included, with the draws so far.",
        rich_help_panel=_SAMPLING_PANEL,
    ),
]
_Seed = Annotated[
    int,
    typer.Option(
        min=0,
        max=2**32 - 1,
        metavar="N",
        help="Random seed. The same seed gives the same draws.",
        rich_help_panel=_SAMPLING_PANEL,
    ),
]
_Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results that already exist in OUT.")
]
_Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Read a row store with N processes. The draws do not depend on it.",
        rich_help_panel=_ROWS_PANEL,
    ),
]
_Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Read a row store with the workers of a Dask cluster, e.g. tcp://host:8786.",
        rich_help_panel=_ROWS_PANEL,
    ),
]
_NoProgress = Annotated[
    bool,
    typer.Option("--no-progress", help="Do not show progress.", rich_help_panel=_SAMPLING_PANEL),
]


def fit(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="TABLE",
            help="A table (CSV, also .tsv and .gz; Parquet, Arrow, .npz; a folder; - for standard "
            "input), or a row store made by `tallmc ingest`.",
            show_default=False,
        ),
    ],
    *,
    formula: options.Formula = None,
    response: options.Response = None,
    family: options.FamilyName,
    link: options.Link = None,
    prior: options.Prior = None,
    noise_variance: options.NoiseVariance = None,
    no_standardise: options.NoStandardise = False,
    no_intercept: options.NoIntercept = False,
    standardised: options.Standardised = False,
    weights: options.Weights = None,
    offset: options.Offset = None,
    exposure: options.Exposure = None,
    trials: options.Trials = None,
    exclude: options.Exclude = None,
    categorical: options.Categorical = None,
    level: options.Level = None,
    drop_missing: options.DropMissing = False,
    separator: options.Separator = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A method listed by `tallmc methods`. Default: chosen for the data.",
            rich_help_panel=_SAMPLING_PANEL,
        ),
    ] = None,
    step_size: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Step size; requires --method. Default: chosen from the curvature.",
            rich_help_panel=_SAMPLING_PANEL,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Rows per step; requires --method. "
            "Default: a thousandth of the rows, at least 32.",
            rich_help_panel=_SAMPLING_PANEL,
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Use exact methods only: draws without bias, at any cost.",
            rich_help_panel=_SAMPLING_PANEL,
        ),
    ] = False,
    chains: _Chains = None,
    draws: _Draws = None,
    ess: _Ess = None,
    max_seconds: _MaxSeconds = None,
    thin: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Steps per draw. Default: chosen from how fast the chains mix.",
            rich_help_panel=_SAMPLING_PANEL,
        ),
    ] = None,
    burn_in: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Steps discarded at the start of each chain. Default: a tenth of the steps "
            "kept; for methods without an anchor, as many as are kept.",
            rich_help_panel=_SAMPLING_PANEL,
        ),
    ] = None,
    seed: _Seed = 0,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="OUT", help="Folder for the results.", show_default=False
        ),
    ],
    overwrite: _Overwrite = False,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="New folder for the run itself, for `tallmc resume` and `tallmc report`.",
        ),
    ] = None,
    out_of_core: Annotated[
        bool,
        typer.Option(
            "--out-of-core",
            help="Do not read a Parquet file or folder into memory: decode it in every pass. "
            "A row store is many times faster.",
            rich_help_panel=_ROWS_PANEL,
        ),
    ] = False,
    workers: _Workers = None,
    scheduler: _Scheduler = None,
    no_progress: _NoProgress = False,
) -> None:
    """Fit a regression to a table; write draws.nc, summary.csv and fit.json into a folder.

    Columns of text are categories; the first level is the baseline. The command prints what it
    chose: baselines, the level that counts as 1, priors.

    Without --method, pilot runs choose all settings.
    The command prints the choice, the reasons for it and the possible error of the draws.
    With --method, the curvature at the mode determines step size and thinning unless given.
    """
    with exit_on_signals():
        from ..frontends.priors import parse_priors
        from ..frontends.regression_model import RegressionModel
        from .fit import run_fit
        from .plan import Settings
        from .readers import Readers

        levels = tuple(level or ())
        model = RegressionModel(
            family=family,
            link=link,
            response=response or (None if formula else "y"),
            formula=formula,
            prior={term: found.shown for term, found in parse_priors(prior or []).items()},
            noise_variance=noise_variance,
            weights=weights,
            offset=offset,
            exposure=exposure,
            trials=trials,
            exclude=tuple(exclude or ()),
            categorical=tuple(categorical or ()),
            drop_missing=drop_missing,
            standardise=not no_standardise,
            intercept=not no_intercept,
            level=levels if len(levels) > 1 else (levels[0] if levels else None),
            standardised_results=standardised,
            separator=separator,
        )
        settings = Settings(
            method=method,
            step_size=step_size,
            size=size,
            chains=chains,
            draws=draws,
            ess=ess,
            burn_in=burn_in,
            thin=thin,
            seed=seed,
            exact=exact,
        )
        status = run_fit(
            table,
            model,
            settings,
            out,
            overwrite=overwrite,
            store=store,
            progress=not no_progress,
            max_seconds=max_seconds,
            readers=Readers(workers, scheduler),
            out_of_core=out_of_core,
        )
    raise typer.Exit(status)


def resume(
    run: RunFolder,
    *,
    table: TablePath = None,
    formula: options.FormulaAgain = None,
    draws: _Draws = None,
    ess: _Ess = None,
    max_seconds: _MaxSeconds = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="OUT", help="Folder for the results.", show_default=False
        ),
    ] = None,
    overwrite: _Overwrite = False,
    workers: _Workers = None,
    scheduler: _Scheduler = None,
    no_progress: _NoProgress = False,
) -> None:
    """Continue or extend a run of `tallmc fit --store`; the draws equal those of one long run."""
    with exit_on_signals():
        from .fit import run_resume
        from .readers import Readers

        status = run_resume(
            run,
            table=table,
            formula=formula,
            draws=draws,
            ess=ess,
            out=out,
            overwrite=overwrite,
            progress=not no_progress,
            max_seconds=max_seconds,
            readers=Readers(workers, scheduler),
        )
    raise typer.Exit(status)


def demo(
    rows: Annotated[
        int, typer.Option(min=100, metavar="N", help="Number of rows to simulate.")
    ] = 1_000_000,
    columns: Annotated[
        int,
        typer.Option(min=2, metavar="N", help="Number of coefficients, including the intercept."),
    ] = 20,
    seed: _Seed = 0,
    chains: _Chains = None,
    draws: _Draws = None,
    ess: _Ess = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="OUT",
            help="Folder for the results. Existing results are replaced.",
        ),
    ] = Path("tallmc-demo"),
) -> None:
    """Simulate a logistic regression, fit it and compare the posterior with the true values.

    A million rows take seconds. More than a gigabyte of rows is written to a row store in OUT, and
    fitted from there: memory does not grow with the number of rows.
    """
    with exit_on_signals():
        from .demo import run_demo
        from .plan import Settings

        settings = Settings(chains=chains, draws=draws, ess=ess, seed=seed)
        status = run_demo(rows=rows, columns=columns, settings=settings, out=out)
    raise typer.Exit(status)
