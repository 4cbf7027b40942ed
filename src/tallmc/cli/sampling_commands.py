"""Commands that sample: `tallmc fit`, `tallmc resume`, `tallmc demo`, and the options they share.

Function bodies import what they need, so that `--help` and `--version` stay fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .signals import exit_on_signals

EXIT_STATUSES = (
    "Exit status: 0 fine; 1 some chain failed; 2 bad input; "
    "3 the draws should not be trusted, for the reasons printed; "
    "4 the store could not be written, e.g. because the disk is full; 130 Ctrl-C; 143 SIGTERM. "
    "Except with status 2, the draws so far are written."
)

_MODEL_PANEL = "Model"
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
            help="A .csv, .parquet or .npz file, or a row store made by `tallmc ingest`.",
            show_default=False,
        ),
    ],
    *,
    response: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name of the response column. All other columns are covariates.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = "y",
    family: Annotated[
        Literal["bernoulli", "gaussian", "poisson"],
        typer.Option(
            metavar="NAME",
            help="bernoulli (0/1), gaussian or poisson (counts).",
            rich_help_panel=_MODEL_PANEL,
        ),
    ],
    prior_variance: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="Prior variance of each coefficient. The prior mean is 0.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = 10.0,
    noise_variance: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Noise variance of the response as modelled; gaussian only. Default: sampled.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = None,
    no_standardise: Annotated[
        bool,
        typer.Option(
            "--no-standardise",
            help="Do not scale the columns to mean 0 and sd 1.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = False,
    no_intercept: Annotated[
        bool,
        typer.Option(
            "--no-intercept",
            help="Do not add a column of ones.",
            rich_help_panel=_MODEL_PANEL,
        ),
    ] = False,
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
    """Fit a regression to a table; write draws.nc, summary.csv and scaling.json into a folder.

    A CSV or Parquet file has one column of numbers or booleans per variable.
    An .npz file has one 1-D array per variable, or a matrix X and y, optionally feature_names.

    Without --method, pilot runs choose all settings.
    The command prints the choice, the reasons for it and the possible error of the draws.
    With --method, the curvature at the mode determines step size and thinning unless given.
    """
    with exit_on_signals():
        from .fit import run_fit
        from .plan import Settings
        from .problem import FamilyModel
        from .readers import Readers

        model = FamilyModel(
            family=family,
            prior_variance=prior_variance,
            noise_variance=noise_variance,
            standardise=not no_standardise,
            intercept=not no_intercept,
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
        )
        status = run_fit(
            table,
            response,
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
