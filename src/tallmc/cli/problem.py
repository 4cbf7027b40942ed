"""A table and a model made into a posterior; and the same again from what a stored run says of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import InvalidInput
from .._posterior import AbstractPosterior
from ..models import linear_regression, logistic_regression, poisson_regression
from .design import Design, Family, make_design
from .table import read_table

_KIND = "tallmc fit"


@dataclasses.dataclass(frozen=True)
class Model:
    family: Family
    prior_variance: float
    noise_variance: float | None
    standardise: bool
    intercept: bool


@dataclasses.dataclass(frozen=True)
class Problem:
    path: Path
    response: str
    n_rows: int
    n_columns: int
    model: Model
    """With its noise variance settled."""
    design: Design
    posterior: AbstractPosterior

    @classmethod
    def read(cls, path: Path, response: str, model: Model) -> Problem:
        table = read_table(path, response)
        design = make_design(table, model.family, standardise=model.standardise, intercept=model.intercept)
        model = _with_noise(model, design)
        return cls(path, response, table.n_rows, len(table.features), model, design, _posterior(design, model))

    @classmethod
    def of_run(cls, about: Mapping[str, Any], table: Path | None) -> Problem:
        """What `about` in a store says; from another `table` where the first one has moved."""
        if about.get("kind") != _KIND:
            cure = "Go on from Python: tallmc.resume(store, posterior)."
            raise InvalidInput("RUN", "come from `tallmc fit --store`", "a run of another program", cure)
        model = Model(**about["model"])
        return cls.read(Path(about["table"]) if table is None else table, about["response"], model)

    @property
    def labels(self) -> dict[str, list[str]]:
        return {"beta": list(self.design.names)}

    def about(self) -> dict[str, Any]:
        model = dataclasses.asdict(self.model)
        return {"kind": _KIND, "table": str(self.path.resolve()), "response": self.response, "model": model}


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
