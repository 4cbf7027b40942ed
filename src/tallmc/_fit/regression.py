"""A regression without rows: how a model and an encoding become a posterior, and what it shows.

The form follows from what the user chose (`RegressionModel`) and from what the fit remembers of its
table (`DesignEncoding`). Both are JSON, so a saved fit has its form, and predicts new rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from .._core.arrays import on_device
from .._core.errors import InvalidInput, counted, speaking_python
from .._core.files import from_json
from .._ingestion.errors import TableError
from .._rows.access import AbstractRows
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from .._rows.shards import View
from ..models.design import (
    CodedColumns,
    GroupedObservations,
    GroupTerm,
    Observations,
    RegressionData,
    RegressionRows,
    design_data,
)
from ..models.families.gaussian import ridge_start
from ..models.groups import EffectLaw, EffectNames, grouped_observations, regression_with_effects
from ..models.hierarchy import R2D2, GroupEffects, Horseshoe
from ..models.imputation import CovariatePrior, imputed
from ..models.model import AbstractModel
from ..models.posterior import ModelPosterior
from ..models.predictive import RegressionPredictive
from ..models.priors import (
    AbstractPrior,
    LaplacePrior,
    LogGammaPrior,
    LogHalfNormalPrior,
    LogHalfStudentTPrior,
    NormalPrior,
    PriorOfEntries,
    ScaleMixturePrior,
    StudentTPrior,
)
from ..models.regression import (
    MOST_EFFECTS,
    SD_DEGREES,
    Effects,
    Family,
    Hyper,
    group_posterior,
    regression_posterior,
)
from ..models.smooths import SmoothEffect
from ..priors import PriorChoice, as_priors, half_student_t, normal
from ..results.draws import Draws
from .coefficients import Coefficients, DesignColumns, GroupScaling, without_intercept
from .columns import INTERCEPT, ResponseEncoding
from .encoding import Design, DesignEncoding, ScaledTerms, smooths_of
from .formulas import FORMULA
from .model import RegressionModel
from .reading import Table, read_table
from .store_design import opened_rows, row_store_design, stored_table

DEFAULT_SCALE = 2.5  # prior sd of a coefficient in units of sd(y)/sd(x), as in rstanarm
_START_SD = 0.5
_OF_SCALE = half_student_t(SD_DEGREES, DEFAULT_SCALE)
_SCALES = "half_normal(1), half_student_t(4, 1), exponential(1)"
FEW_LEVELS = 100
"""Groups up to which their effects are parameters, which a saved fit needs to predict."""
_MOST_SHOWN = 1000
"""Effects of groups up to which they are among the quantities of draws."""


def model_rows(
    design: Design, has_intercept: bool
) -> tuple[Any, np.ndarray, np.ndarray | None, tuple[GroupTerm, ...]]:
    """The columns, the response, the weights and the groups of a design as the model sees them.

    Unknown responses are NaN. A binomial response is a share, whose weight has the trials in it.
    Without `has_intercept`, cut points replace the column of ones.
    """
    first = int(not has_intercept and design.names[:1] == (INTERCEPT,))
    x = design.x
    if first:
        x = x.without_first() if isinstance(x, CodedColumns) else np.ascontiguousarray(x[:, 1:])
    y = np.full(x.shape[0], np.nan) if design.y is None else np.asarray(design.y, np.float64)
    weights = design.weights
    if design.trials is not None:
        y = y / design.trials
        weights = design.trials if weights is None else design.trials * weights
    groups = []
    for group in design.groups:
        n_groups = len(group.encoding.group.levels)
        has_new = bool((group.codes >= n_groups).any())
        columns = jnp.asarray(group.codes), jnp.asarray(group.x)
        groups.append(GroupTerm(*columns, n_groups, has_new))
    return x, y, weights, tuple(groups)


def check_groups(design: Design, family: Family, integrated: bool) -> None:
    """Raise unless the rows can tell the effects of groups from everything else."""
    for group in design.groups:
        name, names = group.encoding.group.name, group.encoding.scaled.names
        counts = np.bincount(group.codes.ravel(), minlength=len(group.encoding.group.levels))
        parameter = f"column {name!r}"
        if len(counts) == 1:
            rule = "have at least two levels to be a group"
            cure = f"Leave ({group.encoding.name}) out of the formula."
            raise InvalidInput(parameter, rule, "one level", cure)
        if counts.max() == 1 and family.response != "count" and design.trials is None:
            found = f"{len(counts):,} levels in {len(group.codes):,} rows"
            cure = "Effects of single rows cannot be told from noise: leave the term out."
            raise InvalidInput(parameter, "have groups of several rows", found, cure)
        if integrated and len(names) > MOST_EFFECTS and family.name != "gaussian":
            rule = f"have at most {MOST_EFFECTS} columns before the bar, unless gaussian"
            raise InvalidInput(FORMULA, rule, f"{len(names)} in ({group.encoding.name})")
        if group.codes.ndim > 1:
            same = group.codes[:, 0] == group.codes[:, 1]
            if same.any():
                level = group.encoding.group.levels[group.codes[same.argmax(), 0]]
                found = f"{level!r} twice in row {same.argmax() + 1}"
                cure = "Leave such rows out."
                raise InvalidInput(f"columns {name}", "differ in every row", found, cure)
            continue
        if INTERCEPT not in names:
            continue
        first = np.zeros(len(counts), np.int64)
        first[group.codes[::-1]] = np.arange(len(group.codes))[::-1]
        same = np.all(group.x == group.x[first[group.codes]], axis=0)
        for column, is_same in zip(names, same, strict=True):
            if is_same and column != INTERCEPT:
                rule = f"vary within groups of {name!r} to have a slope per group"
                cure = f"Keep {column} as a common term only."
                raise InvalidInput(f"column {column!r}", rule, "one value per group", cure)


class ModelPriors(NamedTuple):
    """The prior of all coefficients, hyper-parameters, and all priors in words."""

    prior: AbstractPrior
    hyper: list[Hyper]
    variances: np.ndarray
    """Prior variances of the coefficients, where they are normal; a guess elsewhere."""
    shown: dict[str, str]


_FLOOR = 0.03
"""Least sd of a smooth, in units of sd(y)/√N: far below what the rows can show."""


@dataclasses.dataclass(frozen=True)
class PriorsInUnits:
    """Turns the priors that users choose into priors of standardised coefficients.

    The coefficient of a column that was divided by s_j, for a response divided by s, is
    β' = β s_j/s: means and scales of its prior are multiplied by s_j/s.
    """

    chosen: Mapping[str, PriorChoice]
    columns: DesignColumns
    column_sds: np.ndarray
    groups: Sequence[GroupScaling]
    response: ResponseEncoding
    response_scale: float
    """The sd of the response as the model sees it; 1 if it is no number."""
    n_rows: int
    n_predictors: int
    dtype: Any
    noise_sd: float | None
    """None if its log is the first parameter after the coefficients."""

    def made(self, effects: Sequence[Effects]) -> ModelPriors:
        """All priors, with `effects` of groups among the coefficients."""
        chosen, columns, response_sd = self._of_terms, self.columns, self.response.sd
        unknown = set(chosen) - set(columns.terms) - {""}
        if unknown:
            rule = f"name terms among {', '.join(columns.terms)}"
            raise InvalidInput("--prior (prior)", rule, sorted(unknown)[0])
        ratio, choices = columns.sds / response_sd, self._by_column()
        parts: dict[str, list[int]] = {}
        scale, mean, degrees = (np.ones(len(choices)) for _ in range(3))
        in_smooths = {place for places in columns.wiggly.values() for place in places}
        for j, choice in enumerate(choices):
            if j in in_smooths:
                scale[j], mean[j] = self.response_scale, 0.0
                continue
            parts.setdefault(choice.name, []).append(j)
            mean[j] = choice.mean * ratio[j]
            if columns.names[j] == INTERCEPT and INTERCEPT in chosen:
                mean[j] -= self.response.mean * ratio[j]
            if choice.scale is None:
                scale[j] = DEFAULT_SCALE * self.response_scale / (self.column_sds[j] or 1.0)
            elif not choice.shares_scales:
                scale[j], degrees[j] = choice.scale * ratio[j], choice.degrees

        def prior_of(kind: str, places: list[int]) -> AbstractPrior:
            def vector(values: np.ndarray) -> Any:
                return on_device(np.repeat(values[places], self.n_predictors), self.dtype)

            if kind == "normal":
                return NormalPrior(vector(scale**2), vector(mean) if mean[places].any() else None)
            if kind == "student_t":
                return StudentTPrior(vector(scale), vector(degrees), vector(mean))
            return LaplacePrior(vector(scale), vector(mean))

        found = {
            self._entries(places): prior_of(kind, places)
            for kind, places in parts.items()
            if not choices[places[0]].shares_scales
        }
        of_smooths = {}
        for term, wiggly in columns.wiggly.items():
            default = half_student_t(SD_DEGREES, DEFAULT_SCALE * self.response_scale * response_sd)
            of_smooths[term] = chosen.get(term, default)
            of_places = self._of_smooth(of_smooths[term], len(wiggly))
            for k in range(self.n_predictors):
                found[tuple(place * self.n_predictors + k for place in wiggly)] = of_places
        prior: AbstractPrior = PriorOfEntries(tuple(found.values()), tuple(found))
        if list(parts) == ["normal"] and not effects and not of_smooths:
            (prior,) = found.values()
        hyper = self._of_effects(effects)
        n_effects = sum(groups * each for _, (groups, each) in effects)
        for kind, places in parts.items():
            choice = choices[places[0]]
            if not choice.shares_scales:
                continue
            if len({choices[place] for place in places}) > 1:
                given = ", ".join(dict.fromkeys(choices[place].shown for place in places))
                cure = f"Give all terms with {kind} the same one: they share its global scale."
                raise InvalidInput("--prior (prior)", f"have one {kind}", given, cure)
            if kind == "horseshoe":
                hyper.append(self._horseshoe(choice, places))
            else:
                hyper.append(self._r2d2(choice, places, noise_at=len(choices) + n_effects))
        shown = {
            term: f"normal({scale[j] / ratio[j]:.4g})"
            if choices[j].scale is None
            else choices[j].shown
            for term, (j, *_) in columns.terms.items()
            if term not in of_smooths
        }
        shown |= {term: f"smooth with sd {choice.shown}" for term, choice in of_smooths.items()}
        if self.response.mean and INTERCEPT in shown and INTERCEPT not in chosen:
            centre, sd = mean[0] / ratio[0] + self.response.mean, scale[0] / ratio[0]
            shown[INTERCEPT] = f"normal({centre:.4g}, {sd:.4g})"
        if self.groups:
            sds = f"half-t({SD_DEGREES:g}, {DEFAULT_SCALE:g} sd(y)/sd(x))"
            shown["sds of group effects"] = sds
            if any(len(group.columns.names) > 1 for group in self.groups):
                shown["correlations of group effects"] = "lkj(1)"
            shown |= {name: self.chosen[name].shown for name in self._of_sds if name in self.chosen}
        return ModelPriors(prior, hyper, np.repeat(scale**2, self.n_predictors), shown)

    @property
    def _of_sds(self) -> list[str]:
        return [f"sd({group.group})" for group in self.groups]

    @property
    def _of_terms(self) -> dict[str, PriorChoice]:
        """The choices without those of sds of groups."""
        return {name: of for name, of in self.chosen.items() if name not in self._of_sds}

    def _by_column(self) -> list[PriorChoice]:
        """The choice for each column. By default the intercept has no shrinking prior."""
        chosen, columns = self._of_terms, self.columns
        found = [normal()] * len(columns.names)
        for term, places in columns.terms.items():
            default = chosen.get("", normal())
            is_smooth = term in columns.wiggly
            if (term == INTERCEPT and default.name != "normal") or is_smooth:
                default = normal()
            choice = default if is_smooth else chosen.get(term, default)
            if choice.of_scale or (is_smooth and not chosen.get(term, _OF_SCALE).of_scale):
                given, rule = chosen.get(term, choice).shown, "be a prior of coefficients"
                if is_smooth:
                    rule = f"be a prior of its sd: {_SCALES}"
                raise InvalidInput(f"prior of {term or 'all terms'}", rule, given)
            for place in places:
                found[place] = choice
        return found

    def _entries(self, places: Sequence[int]) -> tuple[int, ...]:
        n = self.n_predictors
        return tuple(place * n + k for place in places for k in range(n))

    def _number(self, value: Any) -> Any:
        return jnp.asarray(value, self.dtype)

    def _of_smooth(self, choice: PriorChoice, n_effects: int) -> ScaleMixturePrior:
        """The prior of the penalised columns of a smooth, from that of their scale."""
        sd, floor = self.response.sd, _FLOOR * self.response_scale / math.sqrt(self.n_rows)

        def log_density(scales: np.ndarray) -> np.ndarray:
            return choice.log_density(scales * sd)

        unit = choice.typical_scale / sd
        return ScaleMixturePrior.of(log_density, unit, floor, n_effects, self.dtype)

    def of_sds(self, group: GroupScaling) -> AbstractPrior:
        """The prior of the log sds of group effects, in the units of the sampler."""
        choice, columns = self.chosen.get(f"sd({group.group})"), group.columns
        if choice is None:
            scales = jnp.full(len(columns.names), DEFAULT_SCALE * self.response_scale, self.dtype)
            return LogHalfStudentTPrior(scales, self._number(SD_DEGREES))
        if not choice.of_scale:
            rule = f"be a prior of an sd: {_SCALES}"
            raise InvalidInput(f"prior of sd({group.group})", rule, choice.shown)
        scales = self._number(choice.typical_scale * columns.sds / self.response.sd)
        if choice.name == "half_normal":
            return LogHalfNormalPrior(scales)
        if choice.name == "exponential":
            return LogGammaPrior(self._number(1.0), 1 / scales)
        return LogHalfStudentTPrior(scales, self._number(choice.degrees))

    def _of_effects(self, effects: Sequence[Effects]) -> list[Hyper]:
        """The hyper-priors of group effects, whose effects follow the common coefficients."""
        found, start = [], len(self.columns.names)
        for (name, (n_groups, n_columns)), group in zip(effects, self.groups, strict=False):
            names = [f"log sd of {name}"]
            starts = [np.full(n_columns, np.log(_START_SD * self.response_scale))]
            if n_columns > 1:
                names.append(f"correlations of {name}")
                starts.append(np.zeros(n_columns * (n_columns - 1) // 2))
            hyperprior = GroupEffects(start, n_groups, n_columns, self.of_sds(group))
            found.append(Hyper(tuple(names), tuple(starts), hyperprior))
            start += n_groups * n_columns
        return found

    def _horseshoe(self, choice: PriorChoice, places: Sequence[int]) -> Hyper:
        assert choice.scale is not None, "a horseshoe has a global scale"
        entries = self._entries(places)
        scales = map(self._number, (choice.scale, choice.slab_scale, choice.degrees))
        logs = np.log(choice.scale), 2 * np.log(choice.slab_scale)
        starts = np.zeros(len(entries)), *map(np.asarray, logs)
        names = ("log local scales", "log global scale", "log slab variance")
        return Hyper(names, starts, Horseshoe(entries, *scales))

    def _r2d2(self, choice: PriorChoice, places: Sequence[int], noise_at: int) -> Hyper:
        if self.n_predictors > 1:
            cure = "Use a horseshoe, whose coefficients of all classes share a scale."
            rule = "not be r2d2 for several classes, which have no common R²"
            raise InvalidInput("--prior (prior)", rule, choice.shown, cure)
        assert choice.scale is not None, "R² has a mean"
        sds = self.column_sds[list(places)]
        shape = choice.degrees * np.array([choice.scale, 1 - choice.scale])
        hyperprior = R2D2(
            tuple(places),
            self._number(np.where(sds > 0, sds, 1.0)),
            None if self.noise_sd is None else self._number(self.noise_sd),
            noise_at,
            self._number(shape),
            self._number(choice.slab_scale),
        )
        starts = np.full(len(places), np.log(choice.slab_scale)), np.log(shape[0] / shape[1])
        return Hyper(("log shares", "logit R2"), tuple(map(np.asarray, starts)), hyperprior)


_SHOWN_OF_COVARIATES = (
    f"normal given the others, standardised: coefficients normal(0, {DEFAULT_SCALE:g}), "
    f"sds {_OF_SCALE.shown}, correlations lkj(1)"
)


def _covariates(n_missing: int, n_known: int, dtype: Any) -> Hyper:
    """The normal model of columns with missing values, given the complete ones and a one."""
    scale = jnp.asarray(DEFAULT_SCALE, dtype)
    sds = LogHalfStudentTPrior(scale, jnp.asarray(SD_DEGREES, dtype))
    names = ["imputation_coefficients", "log imputation sds"]
    starts = [np.zeros((n_missing, n_known)), np.zeros(n_missing)]
    if n_missing > 1:
        names.append("imputation_correlations")
        starts.append(np.zeros(n_missing * (n_missing - 1) // 2))
    prior = CovariatePrior(n_missing, n_known, scale, sds)
    return Hyper(tuple(names), tuple(starts), prior)


def _with_missing(rows: AbstractRows, absent: np.ndarray | None) -> AbstractRows:
    """Rows with NaN where numbers are missing."""
    if absent is None:
        return rows
    assert isinstance(rows, ResidentRows) and isinstance(rows.columns, Observations)
    x = jnp.where(jnp.asarray(absent), jnp.nan, rows.columns.x)
    return ResidentRows(rows.columns._replace(x=x))


@dataclasses.dataclass(frozen=True)
class RegressionForm:
    """A regression without rows, which turns tables into rows of its model."""

    model: RegressionModel
    encoding: DesignEncoding
    table: str  # how messages call the table
    rows: tuple[int, float] | None = None
    """How many rows there are, and the sd of their responses; a saved fit has other rows."""

    def to_json(self) -> dict[str, Any]:
        """What `tallmc.load` needs to predict; `saved_form` reads it."""
        found = {"model": self.model.to_json(), "encoding": self.encoding.to_json()}
        return found if self.rows is None else found | {"rows": list(self.rows)}

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

    @property
    def imputed(self) -> tuple[int, ...]:
        """The columns of the design whose missing values are integrated out."""
        return tuple(self.columns.names.index(name) for name in self.encoding.imputed)

    @property
    def integrates_effects(self) -> bool:
        """Whether group effects are integrated out: those of one term with many groups.

        With several terms a group of one is not independent of the groups of another. Few effects
        are sampled with the coefficients; the model is the same.
        """
        if len(self.encoding.groups) != 1 or self.family.response in ("classes", "times"):
            return False
        if self.encoding.groups[0].is_difference:
            return False
        shrunk = any(of.shares_scales for of in as_priors(self.model.prior).values())
        return len(self.encoding.groups[0].group.levels) > FEW_LEVELS and not shrunk

    def __call__(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
        new_groups: bool = False,
    ) -> RegressionRows:
        """Rows of the model from a table, with the columns, levels and scaling of the fit."""
        for name, given in (("offset", offset), ("trials", trials)):
            if given is not None:
                cure = "The table has the columns that the fit used."
                raise InvalidInput(name, "be left out for draws from a table", "numbers", cure)
        # The command has read its table.
        is_read = isinstance(new_rows, Table)
        with contextlib.nullcontext() if is_read else speaking_python("new rows"):
            rows = opened_rows(new_rows)
            if isinstance(rows, ShardedRows):
                needed = self.encoding.needed(need_response=response)
                grouping = [name for group in self.encoding.groups for name in group.columns]
                table = stored_table(rows, needed, grouping)
            else:
                table = read_table(rows)
            design = self.encoding.apply(table, need_response=response, new_groups=new_groups)
        x, y, weights, groups = model_rows(design, self.family.has_intercept)

        def floats(values: np.ndarray | None) -> Any:
            return None if values is None else jnp.asarray(values, x.dtype)

        columns = floats(x), floats(y), floats(design.offset), floats(weights)
        return GroupedObservations(*columns, groups) if groups else Observations(*columns)

    def complete(self, new_rows: Any) -> tuple[Table, np.ndarray]:
        """The table, and which of its rows have a value in every column that is needed."""
        with speaking_python("new rows"):
            table = read_table(new_rows)
        return table, self.encoding.complete(table)

    def view(self, rows: ShardedRows) -> View:
        """What shows the rows of the store of the fit as rows of the model."""
        with speaking_python("rows"):
            encoding, _, view = row_store_design(rows, self.model, self.encoding.scaled)
        if encoding.to_json() != self.encoding.to_json():
            cure = "Pass the store that it was made from, or a table."
            raise InvalidInput("rows", "be those of the fit", "another row store", cure)
        return view

    def posterior(
        self,
        data: RegressionData,
        column_sds: np.ndarray,
        *,
        search_start: bool = True,
        groups: GroupedObservations | None = None,
        absent: np.ndarray | None = None,
    ) -> ModelPosterior:
        """The posterior of these rows; `groups` are they with the term that is integrated out.

        `absent` says which numbers of the design are missing.
        """
        response, columns = self.encoding.response, self.columns
        noise: Any = self.model.noise_variance
        if noise is not None:  # in the units of a response that was divided by its sd
            noise = jnp.asarray(noise / np.float64(response.sd) ** 2, data.dtype)
        has_times, n_classes = self.family.response == "times", len(self.classes or ())
        known = noise
        if has_times:
            known = jnp.asarray(np.array(response.breaks) / math.exp(response.mean), data.dtype)
            n_classes = len(response.breaks) + 1
        elif self.model.quantile is not None:
            known = self.model.quantile
        likelihood = self.family.likelihood(self.link, n_classes, known)
        if search_start and noise is None and self.family.response == "number":
            self._check_rows(data)
        effects = [
            Effects(group.name, (len(group.levels), len(group.columns.names)))
            for group in self.groups
        ]
        if len({each.name for each in effects}) < len(effects):
            raise InvalidInput(FORMULA, "have each group term once", self.model.formula)
        n_rows, y_sd = self.rows or (data.rows.n_rows, float(data.y_sd))
        response_scale = y_sd if self.family.response == "number" else 1.0
        units = PriorsInUnits(
            as_priors(self.model.prior),
            columns,
            column_sds,
            self.groups,
            response,
            response_scale,
            n_rows,
            likelihood.n_predictors,
            data.dtype,
            self._noise_sd(noise),
        )
        priors = units.made(effects if groups is None else ())
        start, shared = None, self.family.shared(data, n_classes)
        if noise is not None:
            shared = ()
        elif self.family.name == "gaussian" and search_start:
            start, log_scale = ridge_start(data, priors.variances)
            shared = [log_scale]
        without = {INTERCEPT, *self.encoding.imputed}
        others = tuple(k for k, name in enumerate(columns.names) if name not in without)
        if self.imputed:
            priors.hyper.append(_covariates(len(self.imputed), 1 + len(others), data.dtype))
            priors.shown["columns with missing values"] = _SHOWN_OF_COVARIATES
        law: EffectLaw | None = None
        of_rows: AbstractModel | None = None
        if groups is None:
            plain = regression_posterior(
                data,
                likelihood,
                priors.prior,
                start=start,
                shared=shared,
                effects=effects,
                hyper=priors.hyper,
            )
            of_rows = plain.model
            if self.imputed:
                model = imputed(plain.model, self.imputed, others)
                plain, of_rows = ModelPosterior(model, _with_missing(plain.rows, absent)), model.law
        else:
            plain, law = group_posterior(
                data,
                groups,
                likelihood,
                priors.prior,
                name=effects[0].name,
                sd_scale=DEFAULT_SCALE * response_scale,
                sd_prior=units.of_sds(self.groups[0]),
                start=start,
                shared=shared,
            )
            if search_start:
                of_rows = regression_with_effects(law, *self._effects(self.groups[0]))
        is_shown = law is not None and math.prod(effects[0].shape) <= _MOST_SHOWN
        quantities = Coefficients(
            plain.layout,
            columns,
            self.groups,
            self.classes[1:] if self.classes and likelihood.n_predictors > 1 else None,
            response.name,
            response.mean,
            response.sd,
            standardised=self.model.standardised_results,
            effects=law.at if law is not None and is_shown else None,
        )
        predictive = None
        if of_rows is not None:  # a saved fit has no rows, so it does not know the effects
            places = plain.layout.split(np.arange(plain.layout.dim))
            predictive = RegressionPredictive(
                of_rows,
                encoder=self,
                complete=self.complete,
                view=None if self.groups else self.view,  # read as a table
                classes=self.classes,
                response_name=response.name,
                shift=0.0 if has_times else response.mean,
                scale=math.exp(response.mean) if has_times else response.sd,
                saved=self.to_json,
                smooths=self._smooths(likelihood.n_predictors),
                group_sds=tuple(int(places[f"log sd of {each.name}"][0]) for each in effects),
            )
        return ModelPosterior(
            plain.model, plain.rows, quantities, predictive, self._description(priors)
        )

    def _noise_sd(self, variance: Any) -> float | None:
        """The scale of the noise; 1 if there is none, and None if it is unknown."""
        if self.family.response != "number":
            return 1.0
        return None if variance is None else math.sqrt(variance)

    def of_rows(self, data: RegressionData) -> RegressionForm:
        """The form that knows its rows, so that priors of a saved fit are those of the fit."""
        return dataclasses.replace(self, rows=(data.rows.n_rows, float(data.y_sd)))

    def _smooths(self, n_predictors: int) -> tuple[SmoothEffect, ...]:
        """The smooth terms, one per class if there are several."""
        columns, found = self.columns, []
        scale = 1.0 if self.model.standardised_results else self.encoding.response.sd
        for smooth in smooths_of(self.encoding.scaled.terms):
            places, n_wiggly = columns.terms[smooth.name], len(columns.wiggly[smooth.name])
            for k in range(n_predictors):
                classes = self.classes or ()
                name = f"{smooth.name}, {classes[k + 1]}" if n_predictors > 1 else smooth.name
                at = tuple(place * n_predictors + k for place in places)
                found.append(
                    SmoothEffect(name, smooth.variables, smooth.basis, at, n_wiggly, scale)
                )
        return tuple(found)

    def _check_rows(self, data: RegressionData) -> None:
        """Raise if the columns fit all rows: the density then has a pole where the noise is 0."""
        n_rows, n_columns = data.rows.n_rows, data.n_columns
        if n_rows <= n_columns:
            rule = f"have more rows than coefficients ({n_columns}) if the noise is unknown"
            cure = "Use fewer columns."
            if self.family.name == "gaussian":
                cure = "Use fewer columns, or pass --noise-variance (noise_variance)."
            raise TableError("TABLE", rule, counted(n_rows, "row"), cure)

    def _effects(self, group: GroupScaling) -> tuple[np.ndarray, EffectNames]:
        """What turns effects into those of the columns as they are in the table; their names."""
        columns = group.columns
        is_plain = self.model.standardised_results
        unit = np.eye(len(columns.names))
        units = (
            unit if is_plain else columns.in_units_of_table(unit, 0.0, self.encoding.response.sd)
        )
        shown = ("1" if name == INTERCEPT else name for name in columns.names)
        terms = tuple(f"{name}|{group.group}" for name in shown)
        return units.T, EffectNames(group.group, group.levels, terms)

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
        x, y = np.ones((2, len(names)), dtype), np.array([0.25, 0.75])
        times, apart = self.family.response == "times", self.integrates_effects
        given = np.log(y)[:, None] * np.ones(3) if times else y
        data = design_data(x, given, names, groups=() if apart else groups, times=times)
        rows = grouped_observations(data, groups) if apart else None
        return self.posterior(data, np.ones(len(names)), search_start=False, groups=rows)

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
            "event": model.event,
            "entry": model.entry,
            "upper limit": model.upper,
            "intervals begin at": ", ".join(f"{at:g}" for at in response.breaks) or None,
            "prior": "; ".join(f"{term} ~ {shown}" for term, shown in priors.shown.items()),
            "prior of shared parameters": shared if shared and noise is None else None,
            "missing values": "; ".join(self.encoding.notes_on_missing) or None,
            "quantile": None if model.quantile is None else f"{model.quantile:g}",
            "noise variance": None if noise is None else f"{noise:g}",
            "scaling": "columns are standardised for the sampler" if model.standardise else "none",
            "results": f"in {units}",
        }
        return {name: str(value) for name, value in found.items() if value is not None}


def form_of(draws: Draws) -> RegressionForm | None:
    """The regression that draws of `fit` come from; None for others."""
    predictive = draws.predictive
    form = predictive.encoder.value if isinstance(predictive, RegressionPredictive) else None
    return form if isinstance(form, RegressionForm) else None


def saved_form(about: Mapping[str, Any], formula: str | None) -> RegressionForm | None:
    """The regression that a fit has saved; None if there is none."""
    if not isinstance(about.get("model"), Mapping) or not about.get("encoding"):
        return None
    try:
        encoding = DesignEncoding.from_json(about["encoding"], formula)
        model = RegressionModel.from_json(about["model"], encoding.formula)
        table = str(about.get("description", {}).get("table", about.get("table", "")))
        rows = from_json(tuple[int, float] | None, about.get("rows"))
    except InvalidInput:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInput("fit", "describe a regression", str(error)) from None
    return RegressionForm(model, encoding, table, rows)


def _columns(scaled: ScaledTerms) -> DesignColumns:
    terms = scaled.terms
    wiggly = {each.name: terms.terms[each.name][each.n_free :] for each in smooths_of(terms)}
    means, sds = np.array(scaled.means), np.array(scaled.sds)
    return DesignColumns(terms.names, terms.terms, means, sds, wiggly)
