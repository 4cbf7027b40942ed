"""Build a posterior from a table and a model, or from the description in a stored run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InvalidInput
from ..models import linear_regression, logistic_regression, poisson_regression
from ..models.posterior import AbstractPosterior
from .design import Design, Family, make_design
from .table import read_table

_RUN_KIND = "tallmc fit"


@dataclasses.dataclass(frozen=True)
class FamilyModel:
    """The regression model that the user chose."""

    family: Family
    prior_variance: float
    noise_variance: float | None
    standardise: bool
    intercept: bool


@dataclasses.dataclass(frozen=True)
class FitProblem:
    """A table, the model fitted to it and the resulting posterior."""

    path: Path
    response: str
    n_rows: int
    n_columns: int
    model: FamilyModel
    """With its noise variance set."""
    design: Design
    posterior: AbstractPosterior

    @classmethod
    def read(cls, path: Path, response: str, model: FamilyModel) -> FitProblem:
        table = read_table(path, response)
        design = make_design(
            table, model.family, standardise=model.standardise, intercept=model.intercept
        )
        model = _with_noise(model, design)
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
        assert model.noise_variance is not None, "set before the posterior is built"
        return linear_regression(design.x, design.y, model.prior_variance, model.noise_variance)
    regression = logistic_regression if model.family == "bernoulli" else poisson_regression
    return regression(design.x, design.y, model.prior_variance)


def _with_noise(model: FamilyModel, design: Design) -> FamilyModel:
    """Set the noise variance: the given one, or that of the least-squares residuals."""
    if model.family != "gaussian":
        if model.noise_variance is not None:
            raise InvalidInput(
                "--noise-variance", "be left out unless --family is gaussian", model.noise_variance
            )
        return model
    if model.noise_variance is not None:
        return model
    x = design.x.astype(np.float64)
    residuals = design.y - x @ np.linalg.lstsq(x, design.y, rcond=None)[0]
    degrees_of_freedom = len(design.y) - x.shape[1]
    variance = float(residuals @ residuals) / degrees_of_freedom if degrees_of_freedom > 0 else 0.0
    if variance <= 1e-12 * float(np.var(design.y)):
        cure = "Check whether the response is a function of the columns, or pass --noise-variance."
        raise InvalidInput(
            "the least-squares residuals",
            "leave some noise, from which to estimate the noise variance",
            variance,
            cure,
        )
    return dataclasses.replace(model, noise_variance=variance)
