"""Build a posterior from a table and a model, or from the description in a stored run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import InvalidInput
from ..models import linear_regression, logistic_regression, poisson_regression
from ..models.posterior import AbstractPosterior
from .design import Design, Family, make_design
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
    """A table, the model fitted to it and the resulting posterior."""

    path: Path
    response: str
    n_rows: int
    n_columns: int
    model: FamilyModel
    design: Design
    posterior: AbstractPosterior

    @classmethod
    def read(cls, path: Path, response: str, model: FamilyModel) -> FitProblem:
        table = read_table(path, response)
        _check_noise(model, table.features)
        design = make_design(
            table, model.family, standardise=model.standardise, intercept=model.intercept
        )
        return cls(
            path,
            response,
            table.n_rows,
            len(table.features),
            model,
            design,
            _posterior(design, model),
        )

    @classmethod
    def of_run(cls, about: Mapping[str, Any], table: Path | None) -> FitProblem:
        """Rebuild the problem that `about` in a store describes; `table` replaces a moved file."""
        if about.get("kind") != _RUN_KIND:
            cure = "Resume it from Python: tallmc.resume(store, posterior)."
            raise InvalidInput(
                "RUN", "come from `tallmc fit --store`", "a run of another program", cure
            )
        model = FamilyModel(**about["model"])
        return cls.read(Path(about["table"]) if table is None else table, about["response"], model)

    @property
    def labels(self) -> dict[str, list[str]]:
        return {"beta": list(self.design.names)}

    def about(self) -> dict[str, Any]:
        model = dataclasses.asdict(self.model)
        return {
            "kind": _RUN_KIND,
            "table": str(self.path.resolve()),
            "response": self.response,
            "model": model,
        }


def _posterior(design: Design, model: FamilyModel) -> AbstractPosterior:
    if model.family == "gaussian":
        return linear_regression(design.x, design.y, model.prior_variance, model.noise_variance)
    regression = logistic_regression if model.family == "bernoulli" else poisson_regression
    return regression(design.x, design.y, model.prior_variance)


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
