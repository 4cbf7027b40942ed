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
from ..models.groups import (
    EffectLaw,
    EffectNames,
    grouped_observations,
    regression_with_effects,
)
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
from .coefficients import Coefficients, DesignColumns, GroupScaling, without_intercept
from .columns import INTERCEPT
from .encoding import Design, DesignEncoding, ScaledTerms, smooths_of
from .formulas import FORMULA
from .model import RegressionModel
from .reading import Table, read_table
from .store_design import opened_rows, row_store_design, stored_table

DEFAULT_SCALE = 2.5  # prior sd of a coefficient in units of sd(y)/sd(x), as in rstanarm
_START_SD = 0.5
_OF_SCALE = half_student_t(SD_DEGREES, DEFAULT_SCALE)
FEW_LEVELS = 100
"""Groups up to which their effects are parameters, which a saved fit needs to predict."""
_MOST_SHOWN = 1000
"""Effects of groups up to which they are among the quantities of draws."""


@dataclasses.dataclass(frozen=True)
class TableEncoder:
    """Turns tables into rows of the model, with the columns, levels and scaling of the fit."""

    encoding: DesignEncoding
    has_intercept: bool
    model: RegressionModel

    def __call__(
        self,
        new_rows: Any,
        *,
        response: bool = False,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
        new_groups: bool = False,
    ) -> RegressionRows:
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
        x, y, weights, groups = model_rows(design, self.has_intercept)

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


def model_priors(
    chosen: Mapping[str, PriorChoice],
    columns: DesignColumns,
    column_sds: np.ndarray,
    response_sd: float,
    response_scale: float,
    effects: Sequence[Effects],
    dtype: Any,
    n_predictors: int = 1,
    response_mean: float = 0.0,
    n_rows: int = 1,
    sd_priors: Sequence[AbstractPrior] = (),
    noise_sd: float | None = 1.0,
) -> ModelPriors:
    """Turn the priors that users choose into priors of standardised coefficients.

    The coefficient of a column that was divided by s_j, for a response divided by s, is
    β' = β s_j/s: means and scales of its prior are multiplied by s_j/s. `noise_sd` is None if its
    log is the first parameter after the coefficients.
    """
    unknown = set(chosen) - set(columns.terms) - {""}
    if unknown:
        rule = f"name terms among {', '.join(columns.terms)}"
        raise InvalidInput("--prior (prior)", rule, sorted(unknown)[0])
    ratio = columns.sds / response_sd
    choices = _by_column(chosen, columns)
    parts: dict[str, list[int]] = {}
    scale, mean, degrees = (np.ones(len(choices)) for _ in range(3))
    in_smooths = {place for places in columns.wiggly.values() for place in places}
    for j, choice in enumerate(choices):
        if j in in_smooths:
            scale[j], mean[j] = response_scale, 0.0
            continue
        parts.setdefault(choice.name, []).append(j)
        mean[j] = choice.mean * ratio[j]
        if columns.names[j] == INTERCEPT and INTERCEPT in chosen:
            mean[j] -= response_mean * ratio[j]
        if choice.scale is None:
            scale[j] = DEFAULT_SCALE * response_scale / (column_sds[j] or 1.0)
        elif not choice.shares_scales:
            scale[j], degrees[j] = choice.scale * ratio[j], choice.degrees
    n_effects = sum(groups * each for _, (groups, each) in effects)

    def prior_of(kind: str, places: list[int]) -> AbstractPrior:
        def vector(values: np.ndarray) -> Any:
            return on_device(np.repeat(values[places], n_predictors), dtype)

        if kind == "normal":
            return NormalPrior(vector(scale**2), vector(mean) if mean[places].any() else None)
        if kind == "student_t":
            return StudentTPrior(vector(scale), vector(degrees), vector(mean))
        return LaplacePrior(vector(scale), vector(mean))

    found = {
        _entries(places, n_predictors): prior_of(kind, places)
        for kind, places in parts.items()
        if not choices[places[0]].shares_scales
    }
    of_smooths = {}
    for term, wiggly in columns.wiggly.items():
        default = half_student_t(SD_DEGREES, DEFAULT_SCALE * response_scale * response_sd)
        of_smooths[term] = of_scale = chosen.get(term, default)
        floor = _FLOOR * response_scale / math.sqrt(n_rows)
        of_places = _scale_mixture(of_scale, len(wiggly), response_sd, floor, dtype)
        for k in range(n_predictors):
            found[tuple(place * n_predictors + k for place in wiggly)] = of_places
    prior: AbstractPrior = PriorOfEntries(tuple(found.values()), tuple(found))
    if list(parts) == ["normal"] and not n_effects and not of_smooths:
        (prior,) = found.values()
    hyper = _effect_hyper(effects, len(choices), response_scale, sd_priors)
    for kind, places in parts.items():
        choice = choices[places[0]]
        if not choice.shares_scales:
            continue
        if len({choices[place] for place in places}) > 1:
            given = ", ".join(dict.fromkeys(choices[place].shown for place in places))
            cure = f"Give all terms with {kind} the same one: they share its global scale."
            raise InvalidInput("--prior (prior)", f"have one {kind}", given, cure)
        if kind == "horseshoe":
            hyper.append(_horseshoe(choice, _entries(places, n_predictors), dtype))
            continue
        if n_predictors > 1:
            cure = "Use a horseshoe, whose coefficients of all classes share a scale."
            rule = "not be r2d2 for several classes, which have no common R²"
            raise InvalidInput("--prior (prior)", rule, choice.shown, cure)
        sds = np.where(column_sds[places] > 0, column_sds[places], 1.0)
        hyper.append(_r2d2(choice, tuple(places), sds, noise_sd, len(choices) + n_effects, dtype))
    shown = {
        term: f"normal({scale[j] / ratio[j]:.4g})" if choices[j].scale is None else choices[j].shown
        for term, (j, *_) in columns.terms.items()
        if term not in of_smooths
    }
    shown |= {term: f"smooth with sd {choice.shown}" for term, choice in of_smooths.items()}
    if response_mean and INTERCEPT in shown and INTERCEPT not in chosen:
        sd = scale[0] / ratio[0]
        shown[INTERCEPT] = f"normal({mean[0] / ratio[0] + response_mean:.4g}, {sd:.4g})"
    if effects:
        shown |= _shown_of_effects(max(columns for _, (_, columns) in effects))
    return ModelPriors(prior, hyper, np.repeat(scale**2, n_predictors), shown)


def _shown_of_effects(n_columns: int) -> dict[str, str]:
    sds = f"half-t({SD_DEGREES:g}, {DEFAULT_SCALE:g} sd(y)/sd(x))"
    correlations = {"correlations of group effects": "lkj(1)"} if n_columns > 1 else {}
    return {"sds of group effects": sds} | correlations


_FLOOR = 0.03
"""Least sd of a smooth, in units of sd(y)/√N: far below what the rows can show."""


def _scale_mixture(
    choice: PriorChoice, n_effects: int, response_sd: float, floor: float, dtype: Any
) -> ScaleMixturePrior:
    """The prior of the penalised columns of a smooth, from that of their scale."""
    unit = choice.typical_scale / response_sd

    def log_density(scales: np.ndarray) -> np.ndarray:
        return choice.log_density(scales * response_sd)

    return ScaleMixturePrior.of(log_density, unit, floor, n_effects, dtype)


def _by_column(chosen: Mapping[str, PriorChoice], columns: DesignColumns) -> list[PriorChoice]:
    """The choice for each column. Shrinking priors do not apply to the intercept by default."""
    found = [normal()] * len(columns.names)
    for term, places in columns.terms.items():
        default = chosen.get("", normal())
        if (term == INTERCEPT and default.name != "normal") or term in columns.wiggly:
            default = normal()
        choice = default if term in columns.wiggly else chosen.get(term, default)
        if choice.of_scale or (term in columns.wiggly and not chosen.get(term, _OF_SCALE).of_scale):
            given, rule = chosen.get(term, choice).shown, "be a prior of coefficients"
            if term in columns.wiggly:
                rule = "be a prior of its sd: half_normal(1), half_student_t(4, 1), exponential(1)"
            raise InvalidInput(f"prior of {term or 'all terms'}", rule, given)
        for place in places:
            found[place] = choice
    return found


def _entries(places: Sequence[int], n_predictors: int) -> tuple[int, ...]:
    return tuple(place * n_predictors + k for place in places for k in range(n_predictors))


def _sd_prior(
    choice: PriorChoice | None,
    columns: DesignColumns,
    response_sd: float,
    response_scale: float,
    dtype: Any,
) -> AbstractPrior:
    """The prior of the log sds of group effects, in the units of the sampler."""
    if choice is None:
        scales = jnp.full(len(columns.names), DEFAULT_SCALE * response_scale, dtype)
        return LogHalfStudentTPrior(scales, jnp.asarray(SD_DEGREES, dtype))
    scales = jnp.asarray(choice.typical_scale * columns.sds / response_sd, dtype)
    if choice.name == "half_normal":
        return LogHalfNormalPrior(scales)
    if choice.name == "exponential":
        return LogGammaPrior(jnp.ones((), dtype), 1 / scales)
    return LogHalfStudentTPrior(scales, jnp.asarray(choice.degrees, dtype))


def _effect_hyper(
    effects: Sequence[Effects],
    start: int,
    response_scale: float,
    sd_priors: Sequence[AbstractPrior],
) -> list[Hyper]:
    """The hyper-priors of group effects, whose effects follow the common coefficients."""
    found = []
    for (name, (groups, columns)), sd_prior in zip(effects, sd_priors, strict=True):
        log_sd = np.full(columns, np.log(_START_SD * response_scale))
        hyperprior = GroupEffects(start, groups, columns, sd_prior)
        names, starts = [f"log sd of {name}"], [log_sd]
        if columns > 1:
            names.append(f"correlations of {name}")
            starts.append(np.zeros(columns * (columns - 1) // 2))
        found.append(Hyper(tuple(names), tuple(starts), hyperprior))
        start += groups * columns
    return found


def _horseshoe(choice: PriorChoice, entries: tuple[int, ...], dtype: Any) -> Hyper:
    assert choice.scale is not None, "a horseshoe has a global scale"
    hyperprior = Horseshoe(
        entries,
        jnp.asarray(choice.scale, dtype),
        jnp.asarray(choice.slab_scale, dtype),
        jnp.asarray(choice.degrees, dtype),
    )
    starts = (
        np.zeros(len(entries)),
        np.asarray(np.log(choice.scale)),
        np.asarray(2 * np.log(choice.slab_scale)),
    )
    names = ("log local scales", "log global scale", "log slab variance")
    return Hyper(names, starts, hyperprior)


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


def _r2d2(
    choice: PriorChoice,
    entries: tuple[int, ...],
    column_sds: np.ndarray,
    noise_sd: float | None,
    noise_at: int,
    dtype: Any,
) -> Hyper:
    assert choice.scale is not None, "R² has a mean"
    shape = choice.degrees * np.array([choice.scale, 1 - choice.scale])
    hyperprior = R2D2(
        entries,
        jnp.asarray(column_sds, dtype),
        None if noise_sd is None else jnp.asarray(noise_sd, dtype),
        noise_at,
        jnp.asarray(shape, dtype),
        jnp.asarray(choice.slab_scale, dtype),
    )
    starts = np.full(len(entries), np.log(choice.slab_scale)), np.log(shape[0] / shape[1])
    return Hyper(("log shares", "logit R2"), tuple(map(np.asarray, starts)), hyperprior)


@dataclasses.dataclass(frozen=True)
class RegressionForm:
    """A regression without rows."""

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
        has_times, known, n_classes = (
            self.family.response == "times",
            noise,
            len(self.classes or ()),
        )
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
        chosen = as_priors(self.model.prior)
        of_sds = {
            f"sd({group.group})": chosen.pop(f"sd({group.group})", None) for group in self.groups
        }
        for name, choice in of_sds.items():
            if choice is not None and not choice.of_scale:
                rule = "be a prior of an sd: half_normal(1), half_student_t(4, 1), exponential(1)"
                raise InvalidInput(f"prior of {name}", rule, choice.shown)
        sd_priors = [
            _sd_prior(
                of_sds[f"sd({group.group})"], group.columns, response.sd, response_scale, data.dtype
            )
            for group in self.groups
        ]
        priors = model_priors(
            chosen,
            columns,
            column_sds,
            response.sd,
            response_scale,
            effects if groups is None else (),
            data.dtype,
            likelihood.n_predictors,
            response.mean,
            n_rows,
            sd_priors if groups is None else (),
            self._noise_sd(noise),
        )
        start, shared = None, self.family.shared(data, n_classes)
        if noise is not None:
            shared = ()
        elif self.family.name == "gaussian" and search_start:
            start, log_scale = ridge_start(data, priors.variances)
            shared = [log_scale]
        others = tuple(
            place
            for place, name in enumerate(columns.names)
            if place not in self.imputed and name != INTERCEPT
        )
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
                sd_prior=sd_priors[0],
                start=start,
                shared=shared,
            )
            priors.shown.update(_shown_of_effects(effects[0].shape[1]))
            if search_start:
                of_rows = regression_with_effects(law, *self._effects(self.groups[0]))
        priors.shown.update({name: of.shown for name, of in of_sds.items() if of is not None})
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
            encoder = TableEncoder(self.encoding, self.family.has_intercept, self.model)
            places = plain.layout.split(np.arange(plain.layout.dim))
            predictive = RegressionPredictive(
                of_rows,
                encoder=encoder,
                complete=encoder.complete,
                view=None if self.groups else encoder.view,  # read as a table
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
        if not self.integrates_effects:
            times = self.family.response == "times"
            given = np.log(y)[:, None] * np.ones(3) if times else y
            data = design_data(x, given, names, groups=groups, times=times)
            return self.posterior(data, np.ones(len(names)), search_start=False)
        data = design_data(x, y, names)
        rows = grouped_observations(data, groups)
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


def saved_form(about: Mapping[str, Any], formula: str | None) -> RegressionForm | None:
    """The regression that a fit has saved; None if there is none."""
    if not isinstance(about.get("model"), Mapping) or not about.get("encoding"):
        return None
    try:
        encoding = DesignEncoding.from_json(about["encoding"], formula)
        model = RegressionModel.from_json(about["model"], encoding.formula)
        table = str(about.get("description", {}).get("table", about.get("table", "")))
        rows = about.get("rows")
        known = None if rows is None else (int(rows[0]), float(rows[1]))
    except (TypeError, AttributeError) as error:
        raise InvalidInput("fit", "describe a regression", str(error)) from None
    return RegressionForm(model, encoding, table, known)


def _columns(scaled: ScaledTerms) -> DesignColumns:
    terms = scaled.terms
    wiggly = {each.name: terms.terms[each.name][each.n_free :] for each in smooths_of(terms)}
    means, sds = np.array(scaled.means), np.array(scaled.sds)
    return DesignColumns(terms.names, terms.terms, means, sds, wiggly)
