"""What a user chooses about a regression: family, priors, and the roles of columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._core.errors import InvalidInput, check_number
from .._core.files import from_json
from ..models.families import FAMILIES
from ..models.regression import Family
from .formulas import take_roles, take_survival

_OTHER_NAMES = {other: family.name for family in FAMILIES.values() for other in family.other_names}


MISSING = ("raise", "drop", "indicator", "impute")
"""What may be done about missing values."""


@dataclasses.dataclass(frozen=True)
class RegressionModel:
    """What the user chose: the model, and the roles of columns.

    Everything is text and numbers, so that it can be stored as JSON. `prior` has priors by term,
    as text; the name "" stands for all other terms.
    """

    family: str
    link: str | None = None
    response: str | None = None
    formula: str | None = None
    prior: Mapping[str, str] = dataclasses.field(default_factory=dict)
    noise_variance: float | None = None
    weights: str | None = None
    offset: str | None = None
    exposure: str | None = None
    trials: str | None = None
    event: str | None = None
    entry: str | None = None
    upper: str | None = None
    breaks: tuple[float, ...] | None = None
    quantile: float | None = None
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    missing: str = "raise"
    standardise: bool = True
    intercept: bool = True
    level: str | tuple[str, ...] | None = None
    standardised_results: bool = False
    separator: str | None = None

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            rule = f"be one of {', '.join(MISSING)}"
            raise InvalidInput("--missing (missing)", rule, self.missing)
        roles = take_survival(self.response or "") or {}
        if self.formula is not None:
            formula, others = take_roles(self.formula)
            for role in set(others) & {"offset", "exposure"}:
                if (given := getattr(self, role)) is not None:
                    rule = "be left out, as the formula has one"
                    raise InvalidInput(f"--{role} ({role})", rule, given)
            roles |= others | {"formula": formula}
        for role, name in roles.items():
            object.__setattr__(self, role, name)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any], formula: str | None) -> RegressionModel:
        """The model that `to_json` wrote; `formula` is that of its encoding."""
        stored = content.get("formula")
        if "".join(str(stored).split()) != "".join(str(formula).split()):
            raise InvalidInput("fit", "have one formula", f"{stored} and {formula}")
        return from_json(cls, {**content, "formula": formula})

    def families(self) -> tuple[Family, str]:
        """The family and its link, checked."""
        plain = str(self.family).strip().lower().replace("-", "_").replace(" ", "_")
        known = _OTHER_NAMES.get(plain.replace("_", ""), plain)
        if known not in FAMILIES:
            rule = f"be one of {', '.join(FAMILIES)}"
            raise InvalidInput("--family (family)", rule, self.family)
        family = FAMILIES[known]
        link = family.link("probit" if plain == "probit" and self.link is None else self.link)
        if (family.name == "binomial") != (self.trials is not None):
            rule = "name a column for family binomial, and be left out for others"
            raise InvalidInput("--trials (trials)", rule, self.trials)
        if self.trials is not None and self.weights is not None:
            cure = "Multiply the response and the trials by the weights."
            rule = "be left out for family binomial"
            raise InvalidInput("--weights (weights)", rule, self.weights, cure)
        if self.offset is not None and family.response == "classes":
            rule = "be left out for family categorical, whose classes have predictors of their own"
            raise InvalidInput("--offset (offset)", rule, self.offset)
        role = next((role for role in ("event", "entry", "upper") if getattr(self, role)), None)
        if role is not None and family.response != "times":
            names = [each.name for each in FAMILIES.values() if each.response == "times"]
            rule = f"be one of {', '.join(names)} for surv(…)"
            raise InvalidInput("--family (family)", rule, family.name)
        if self.breaks is not None:
            given = np.asarray(self.breaks, np.float64)
            increasing = np.all(np.diff(given, prepend=0.0) > 0) and np.isfinite(given).all()
            if family.name != "piecewise_exponential" or not increasing:
                rule = "be increasing positive times, for family piecewise_exponential only"
                raise InvalidInput("--breaks (breaks)", rule, self.breaks)
        for option, of, most in (
            ("quantile", "quantile", 1.0),
            ("noise_variance", "gaussian", math.inf),
        ):
            given, name = getattr(self, option), f"--{option.replace('_', '-')} ({option})"
            if given is not None and family.name != of:
                raise InvalidInput(name, f"be left out unless the family is {of}", given)
            if given is not None:
                check_number(name, given, 0, most, low_open=True, high_open=True)
        if self.exposure is not None and link != "log":
            rule = "be left out unless the family has the link log"
            raise InvalidInput("--exposure (exposure)", rule, self.exposure)
        return family, link
