"""Turn the priors that users choose into priors of standardised coefficients.

The coefficient of a column that was divided by s_j, for a response divided by s, is β' = β s_j/s:
means and scales of its prior are multiplied by s_j/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .._core.errors import InvalidInput
from ..models.hierarchy import GroupEffects, Horseshoe
from ..models.priors import (
    AbstractPrior,
    LaplacePrior,
    LogHalfStudentTPrior,
    NormalPrior,
    PriorOfEntries,
    StudentTPrior,
)
from ..models.regression import Effects, Hyper
from ..priors import PriorChoice, normal
from .coefficients import DesignColumns
from .columns import INTERCEPT

DEFAULT_SCALE = 2.5  # prior sd of a coefficient in units of sd(y)/sd(x), as in Bambi and rstanarm
_SD_DEGREES = 4.0
_START_SD = 0.5


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
) -> ModelPriors:
    """The priors of a model."""
    unknown = set(chosen) - set(columns.terms) - {""}
    if unknown:
        rule = f"name terms among {', '.join(columns.terms)}"
        raise InvalidInput("--prior (prior)", rule, sorted(unknown)[0])
    ratio = columns.sds / response_sd
    choices = _by_column(chosen, columns)
    parts: dict[str, list[int]] = {}
    scale, mean, degrees = (np.ones(len(choices)) for _ in range(3))
    for j, choice in enumerate(choices):
        parts.setdefault(choice.name, []).append(j)
        mean[j] = choice.mean * ratio[j]
        if columns.names[j] == INTERCEPT and INTERCEPT in chosen:
            mean[j] -= response_mean * ratio[j]
        if choice.scale is None:
            scale[j] = DEFAULT_SCALE * response_scale / (column_sds[j] or 1.0)
        elif choice.name != "horseshoe":
            scale[j], degrees[j] = choice.scale * ratio[j], choice.degrees
    n_effects = sum(groups * each for _, (groups, each) in effects)

    def prior_of(kind: str, places: list[int]) -> AbstractPrior:
        def vector(values: np.ndarray) -> Any:
            return jnp.asarray(np.repeat(values[places], n_predictors), dtype)

        if kind == "normal":
            return NormalPrior(vector(scale**2), vector(mean) if mean[places].any() else None)
        if kind == "student_t":
            return StudentTPrior(vector(scale), vector(degrees), vector(mean))
        return LaplacePrior(vector(scale), vector(mean))

    found = {
        _entries(places, n_predictors): prior_of(kind, places)
        for kind, places in parts.items()
        if kind != "horseshoe"
    }
    prior: AbstractPrior = PriorOfEntries(tuple(found.values()), tuple(found))
    if list(parts) == ["normal"] and not n_effects:
        (prior,) = found.values()
    hyper = _effect_hyper(effects, len(choices), response_scale, dtype)
    if "horseshoe" in parts:
        places = parts["horseshoe"]
        if len({choices[place] for place in places}) > 1:
            given = ", ".join(dict.fromkeys(choices[place].shown for place in places))
            cure = "Give all terms with a horseshoe the same one: they share its global scale."
            raise InvalidInput("--prior (prior)", "have one horseshoe", given, cure)
        hyper.append(_horseshoe(choices[places[0]], _entries(places, n_predictors), dtype))
    shown = {
        term: f"normal({scale[j] / ratio[j]:.4g})" if choices[j].scale is None else choices[j].shown
        for term, (j, *_) in columns.terms.items()
    }
    if response_mean and INTERCEPT in shown and INTERCEPT not in chosen:
        sd = scale[0] / ratio[0]
        shown[INTERCEPT] = f"normal({sd:.4g}, {mean[0] / ratio[0] + response_mean:.4g})"
    if effects:
        shown["sds of group effects"] = f"half-t({_SD_DEGREES:g}, {DEFAULT_SCALE:g} sd(y)/sd(x))"
    return ModelPriors(prior, hyper, np.repeat(scale**2, n_predictors), shown)


def _by_column(chosen: Mapping[str, PriorChoice], columns: DesignColumns) -> list[PriorChoice]:
    """The choice for each column. Shrinking priors do not apply to the intercept by default."""
    found = [normal()] * len(columns.names)
    for term, places in columns.terms.items():
        default = chosen.get("", normal())
        if term == INTERCEPT and default.name != "normal":
            default = normal()
        for place in places:
            found[place] = chosen.get(term, default)
    return found


def _entries(places: Sequence[int], n_predictors: int) -> tuple[int, ...]:
    return tuple(place * n_predictors + k for place in places for k in range(n_predictors))


def _effect_hyper(
    effects: Sequence[Effects], start: int, response_scale: float, dtype: Any
) -> list[Hyper]:
    """The hyper-priors of group effects, whose effects follow the common coefficients."""
    found = []
    for name, (groups, columns) in effects:
        scales = jnp.full(columns, DEFAULT_SCALE * response_scale, dtype)
        sd_prior = LogHalfStudentTPrior(scales, jnp.asarray(_SD_DEGREES, dtype))
        log_sd = np.full(columns, np.log(_START_SD * response_scale))
        hyperprior = GroupEffects((start,), ((groups, columns),), sd_prior)
        found.append(Hyper((f"log sd of {name}",), (log_sd,), hyperprior))
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
