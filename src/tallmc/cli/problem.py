"""Build a posterior from a table or a row store, or from the description in a stored run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InvalidInput
from ..core.quantities import Parameters
from ..models import linear_regression, logistic_regression, poisson_regression
from ..models.design import observations
from ..models.posterior import AbstractPosterior, ModelPosterior
from ..rows.manifest import MANIFEST
from ..rows.opening import open_rows
from ..rows.sharded import ShardedRows
from .design import INTERCEPT, Family, make_design
from .in_place import parquet_in_place
from .table import read_table

_RUN_KIND = "tallmc fit"
LOG_SCALE = "log_scale"
"""The name of the log of the noise sd in the posterior."""


@dataclasses.dataclass(frozen=True)
class FamilyModel:
    """The regression model that the user chose."""

    family: Family
    prior_variance: float
    noise_variance: float | None
    standardise: bool
    intercept: bool

    @property
    def has_unknown_noise(self) -> bool:
        """Whether the posterior has the noise scale as a parameter."""
        return self.family == "gaussian" and self.noise_variance is None


@dataclasses.dataclass(frozen=True)
class FitProblem:
    """A table or row store, the model fitted to it and the resulting posterior."""

    path: Path
    response: str
    model: FamilyModel
    posterior: AbstractPosterior
    names: tuple[str, ...]
    """Names of the coefficients."""
    means: dict[str, float]
    """Mean subtracted from each column and from a gaussian response. Empty if not standardised."""
    sds: dict[str, float]
    """Standard deviations that divided the same columns."""

    @classmethod
    def read(
        cls, path: Path, response: str, model: FamilyModel, out_of_core: bool = False
    ) -> FitProblem:
        """Read a table into memory, or open a row store; `out_of_core` opens Parquet in place."""
        if (path / MANIFEST).is_file():
            return cls._of_rows(open_rows(path), path, response, model)
        if out_of_core:
            rows = parquet_in_place(path, response, model.standardise, model.intercept)
            return cls._of_rows(rows, path, response, model)
        table = read_table(path, response)
        _check_noise(model, table.features)
        design = make_design(
            table, model.family, standardise=model.standardise, intercept=model.intercept
        )
        posterior = _posterior(design.x, design.y, model, design.names)
        return cls(path, response, model, posterior, design.names, design.means, design.sds)

    @classmethod
    def _of_rows(
        cls, rows: ShardedRows, path: Path, response: str, model: FamilyModel
    ) -> FitProblem:
        manifest = rows.shards.manifest
        columns = {column.name: column for column in manifest.columns}
        scaled = [column for column in manifest.columns if column.standardised]
        if scaled and not model.standardise:
            rule = "be left out with a row store whose columns are standardised"
            cure = "Ingest the table again with --no-standardise."
            raise InvalidInput("--no-standardise", rule, path.name, cure)
        without = () if model.intercept or INTERCEPT not in columns else (INTERCEPT,)
        scale_response = bool(scaled) and model.family == "gaussian"
        designed = observations(rows, response, without=without, standardise=scale_response)
        names = tuple(name for name in manifest.names if name not in (response, *without))
        _check_noise(model, names)
        if scale_response:
            scaled.append(columns[response])
        return cls(
            path,
            response,
            model,
            _posterior(designed, None, model, names),
            names,
            {column.name: column.mean for column in scaled},
            {column.name: column.sd for column in scaled},
        )

    @classmethod
    def of_run(cls, about: Mapping[str, Any], table: Path | None) -> FitProblem:
        """Rebuild the problem that `about` in a store describes; `table` replaces a moved file."""
        if about.get("kind") != _RUN_KIND:
            cure = "Resume it from Python: tallmc.resume(store, posterior)."
            raise InvalidInput(
                "RUN", "come from `tallmc fit --store`", "a run of another program", cure
            )
        path = Path(about["table"]) if table is None else table
        model = FamilyModel(**about["model"])
        return cls.read(path, about["response"], model, about.get("out_of_core", False))

    @property
    def n_rows(self) -> int:
        return self.posterior.n_rows

    @property
    def n_columns(self) -> int:
        return len(set(self.names) - {INTERCEPT})

    def about(self) -> dict[str, Any]:
        model = dataclasses.asdict(self.model)
        return {
            "kind": _RUN_KIND,
            "table": str(self.path.resolve()),
            "response": self.response,
            "model": model,
            "out_of_core": isinstance(self.posterior.rows, ShardedRows),
        }


def _posterior(
    x: np.ndarray | ShardedRows,
    y: np.ndarray | None,
    model: FamilyModel,
    names: tuple[str, ...],
) -> AbstractPosterior:
    if model.family == "gaussian":
        found = linear_regression(x, y, model.prior_variance, model.noise_variance)
    else:
        regression = logistic_regression if model.family == "bernoulli" else poisson_regression
        found = regression(x, y, model.prior_variance)
    quantities = Parameters(found.layout.labelled({"beta": names}))
    return ModelPosterior(found.model, found.rows, quantities)


def _check_noise(model: FamilyModel, features: Iterable[str]) -> None:
    """Check that the noise is known only where there is one, and its name is free if unknown."""
    if model.family != "gaussian" and model.noise_variance is not None:
        raise InvalidInput(
            "--noise-variance", "be left out unless --family is gaussian", model.noise_variance
        )
    if model.has_unknown_noise and LOG_SCALE in features:
        raise InvalidInput(
            "column names",
            f"differ from {LOG_SCALE!r}, the name of the log of the noise sd",
            LOG_SCALE,
            "Rename the column or pass --noise-variance.",
        )
