"""A regression without rows: how a model and an encoding become a posterior, and what it shows.

The form follows from what the user chose (`RegressionModel`) and from what the fit remembers of its
table (`DesignEncoding`). Both are JSON, so a saved fit has its form, and predicts new rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._core.errors import InvalidInput
from ..models.design import (
    GroupedObservations,
    GroupTerm,
    Observations,
    RegressionData,
    RegressionRows,
    design_data,
)
from ..models.families.gaussian import ridge_start
from ..models.posterior import ModelPosterior
from ..models.predictive import RegressionPredictive
from ..models.regression import Effects, Family, regression_posterior
from ..priors import as_priors
from .coefficients import Coefficients, DesignColumns, GroupScaling, without_intercept
from .columns import INTERCEPT
from .encoding import Design, DesignEncoding, ScaledTerms
from .formulas import FORMULA
from .model import RegressionModel
from .model_priors import ModelPriors, model_priors
from .reading import read_table


@dataclasses.dataclass(frozen=True)
class TableEncoder:
    """Turns tables into rows of the model, with the columns, levels and scaling of the fit."""

    encoding: DesignEncoding
    has_intercept: bool

    def __call__(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> RegressionRows:
        for name, given in (("offset", offset), ("trials", trials)):
            if given is not None:
                cure = "The table has the columns that the fit used."
                raise InvalidInput(name, "be left out for draws from a table", "numbers", cure)
        design = self.encoding.apply(read_table(new_rows), need_response=response)
        x, y, weights, groups = model_rows(design, self.has_intercept)
        columns: list[Any] = [
            None if values is None else jnp.asarray(values, x.dtype)
            for values in (x, y, design.offset, weights)
        ]
        return GroupedObservations(*columns, groups) if groups else Observations(*columns)


def model_rows(
    design: Design, has_intercept: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[GroupTerm, ...]]:
    """The matrix, the response, the weights and the groups of a design as the model sees them.

    Unknown responses are NaN. A binomial response is a share, whose weight has the trials in it.
    Without `has_intercept`, cut points replace the column of ones.
    """
    first = int(not has_intercept and design.names[:1] == (INTERCEPT,))
    x = np.ascontiguousarray(design.x[:, first:])
    y = np.full(len(x), np.nan) if design.y is None else np.asarray(design.y, np.float64)
    weights = design.weights
    if design.trials is not None:
        y = y / design.trials
        weights = design.trials if weights is None else design.trials * weights
    groups = tuple(
        GroupTerm(jnp.asarray(group.codes), jnp.asarray(group.x), len(group.encoding.group.levels))
        for group in design.groups
    )
    return x, y, weights, groups


@dataclasses.dataclass(frozen=True)
class RegressionForm:
    """A regression without rows."""

    model: RegressionModel
    encoding: DesignEncoding
    table: str  # how messages call the table

    @property
    def family(self) -> Family:
        return self.model.families()[0]

    @property
    def link(self) -> str:
        return self.model.families()[1]

    @property
    def columns(self) -> DesignColumns:
        columns = _columns(self.encoding.scaled)
        return columns if self.family.has_intercept else without_intercept(columns)

    @property
    def groups(self) -> list[GroupScaling]:
        return [
            GroupScaling(
                f"effects of {group.name}",
                group.group.name,
                group.group.levels,
                _columns(group.scaled),
            )
            for group in self.encoding.groups
        ]

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of classes; None if the response is a number."""
        has_classes = self.family.response in ("classes", "ordered")
        return self.encoding.response.levels if has_classes else None

    def posterior(
        self, data: RegressionData, column_sds: np.ndarray, *, search_start: bool = True
    ) -> ModelPosterior:
        response, columns = self.encoding.response, self.columns
        noise = self.model.noise_variance
        if noise is not None:  # in the units of a response that was divided by its sd
            noise = jnp.asarray(noise / np.float64(response.sd) ** 2, data.dtype)
        likelihood = self.family.likelihood(self.link, len(self.classes or ()), noise)
        effects = [
            Effects(group.name, (len(group.levels), len(group.columns.names)))
            for group in self.groups
        ]
        if len({each.name for each in effects}) < len(effects):
            raise InvalidInput(FORMULA, "have each group term once", self.model.formula)
        priors = model_priors(
            as_priors(self.model.prior),
            columns,
            column_sds,
            response.sd,
            data.y_sd if self.family.response == "number" else 1.0,
            effects,
            data.dtype,
            likelihood.n_predictors,
            response.mean,
        )
        start, shared = None, self.family.shared(data, len(self.classes or ()))
        if noise is not None:
            shared = ()
        elif self.family.name == "gaussian" and search_start:
            start, log_scale = ridge_start(data, priors.variances)
            shared = [log_scale]
        plain = regression_posterior(
            data,
            likelihood,
            priors.prior,
            start=start,
            shared=shared,
            effects=effects,
            hyper=priors.hyper,
        )
        quantities = Coefficients(
            plain.layout,
            columns,
            self.groups,
            self.classes[1:] if self.classes and likelihood.n_predictors > 1 else None,
            response.name,
            response.mean,
            response.sd,
            standardised=self.model.standardised_results,
        )
        predictive = RegressionPredictive(
            plain.model,
            encoder=TableEncoder(self.encoding, self.family.has_intercept),
            classes=self.classes,
            response_name=response.name,
            shift=response.mean,
            scale=response.sd,
        )
        return ModelPosterior(
            plain.model, plain.rows, quantities, predictive, self._description(priors)
        )

    def without_rows(self) -> ModelPosterior:
        """A posterior with the parameters of the fit, whose two rows mean nothing."""
        dtype = np.dtype(self.encoding.dtype)
        groups = tuple(
            GroupTerm(
                jnp.zeros(2, jnp.int32),
                jnp.ones((2, len(group.columns.names)), dtype),
                len(group.levels),
            )
            for group in self.groups
        )
        names = self.columns.names
        x, y = np.ones((2, len(names)), dtype), np.array([1.0, 2.0])
        data = design_data(x, y, names, groups=groups)
        return self.posterior(data, np.ones(len(names)), search_start=False)

    def _description(self, priors: ModelPriors) -> dict[str, str]:
        model, family, response = self.model, self.family, self.encoding.response
        noise, classes = model.noise_variance, self.classes if response.one is None else None
        shared = "; ".join(f"{name}: {prior}" for name, prior in family.shared_prior.items())
        units = "standardised units" if model.standardised_results else "the units of the table"
        found = {
            "table": self.table,
            "family": family.name,
            "link": self.link,
            "response": response.name,
            "response level that counts as 1": response.one,
            "response levels": ", ".join(classes) if classes else None,
            "formula": model.formula,
            **{role: getattr(model, role) for role in ("weights", "offset", "exposure", "trials")},
            "prior": "; ".join(f"{term} ~ {shown}" for term, shown in priors.shown.items()),
            "prior of shared parameters": shared if shared and noise is None else None,
            "noise variance": None if noise is None else f"{noise:g}",
            "scaling": "columns are standardised for the sampler" if model.standardise else "none",
            "results": f"in {units}",
        }
        return {name: str(value) for name, value in found.items() if value is not None}


def _columns(scaled: ScaledTerms) -> DesignColumns:
    terms = scaled.terms
    return DesignColumns(terms.names, terms.terms, np.array(scaled.means), np.array(scaled.sds))
