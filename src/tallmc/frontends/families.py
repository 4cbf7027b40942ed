"""Families of responses by name: what they need of a table, and how they become models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..core.errors import InvalidInput, check_number
from ..models.design import RegressionData
from ..models.families import (
    AbstractFamily,
    Bernoulli,
    BernoulliProbit,
    Binomial,
    Gaussian,
    Poisson,
)
from ..models.gamma import Gamma, log_shape
from ..models.likelihood import AbstractLikelihood
from ..models.negative_binomial import NegativeBinomial, log_dispersion
from ..models.noise_scale import GaussianScale
from ..models.ordinal import CumulativeLogit, cut_points_at_start
from ..models.regression import Shared
from ..models.softmax import Softmax
from ..models.student_t import StudentT, scale_and_degrees
from .tables import ResponseKind

Likelihood = AbstractFamily | AbstractLikelihood


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of responses.

    **Arguments:**

    - `name`: its name.
    - `links`: the link functions that it may have; the first is the default.
    - `response`: what its response must be.
    - `has_intercept`: whether a column of ones is a covariate. Cut points take its place.
    - `likelihood`: the likelihood, from the link, the number of classes and the noise variance.
    - `shared`: the parameters that all rows share, with their priors.
    - `shared_prior`: the priors of shared parameters, in words.
    """

    name: str
    links: tuple[str, ...]
    response: ResponseKind
    likelihood: Callable[[str, int, Any], Likelihood]
    shared: Callable[[RegressionData, int], Sequence[Shared]] = lambda data, classes: ()
    shared_prior: Mapping[str, str] = dataclasses.field(default_factory=dict)
    has_intercept: bool = True

    def link(self, chosen: str | None) -> str:
        """The link function; raises if the family does not have it."""
        if chosen is None:
            return self.links[0]
        if chosen not in self.links:
            raise InvalidInput(
                "--link (link)", f"be {' or '.join(self.links)} for {self.name}", chosen
            )
        return chosen


def _binary(link: str, classes: int, noise: Any) -> AbstractFamily:
    return Bernoulli() if link == "logit" else BernoulliProbit()


def _gaussian(link: str, classes: int, noise: Any) -> Likelihood:
    return GaussianScale() if noise is None else Gaussian(noise)


def _log_scale(data: RegressionData, classes: int) -> Sequence[Shared]:
    return scale_and_degrees(data)[:1]


_SCALE = "log-normal: log sigma has mean log sd(y) and sd 3"
_FAMILIES = (
    Family("bernoulli", ("logit", "probit"), "binary", _binary),
    Family("binomial", ("logit",), "count", lambda link, classes, noise: Binomial()),
    Family("gaussian", ("identity",), "number", _gaussian, _log_scale, {"sigma": _SCALE}),
    Family("poisson", ("log",), "count", lambda link, classes, noise: Poisson()),
    Family(
        "negative_binomial",
        ("log",),
        "count",
        lambda link, classes, noise: NegativeBinomial(),
        lambda data, classes: [log_dispersion(data)],
        {"alpha": "log-normal: log alpha has mean 0 and sd 2"},
    ),
    Family("categorical", ("softmax",), "classes", lambda link, classes, noise: Softmax(classes)),
    Family(
        "ordinal",
        ("logit",),
        "ordered",
        lambda link, classes, noise: CumulativeLogit(classes),
        lambda data, classes: [cut_points_at_start(classes)],
        {"threshold": "uniform class probabilities at the mean of the columns"},
        has_intercept=False,
    ),
    Family(
        "student_t",
        ("identity",),
        "number",
        lambda link, classes, noise: StudentT(),
        lambda data, classes: scale_and_degrees(data),
        {"sigma": _SCALE, "nu": "Gamma(2, 0.1)"},
    ),
    Family(
        "gamma",
        ("log",),
        "positive",
        lambda link, classes, noise: Gamma(),
        lambda data, classes: [log_shape(data)],
        {"alpha": "half-Cauchy(1)"},
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}
_OTHER_NAMES = {
    "logistic": "bernoulli",
    "logit": "bernoulli",
    "binary": "bernoulli",
    "probit": "bernoulli",
    "normal": "gaussian",
    "linear": "gaussian",
    "count": "poisson",
    "negativebinomial": "negative_binomial",
    "negbinomial": "negative_binomial",
    "nb": "negative_binomial",
    "softmax": "categorical",
    "multinomial": "categorical",
    "cumulative": "ordinal",
    "ordered": "ordinal",
    "t": "student_t",
    "studentt": "student_t",
    "robust": "student_t",
}


def find_family(name: str, link: str | None = None) -> tuple[Family, str]:
    """The family of this name or of one of its other names, and its link.

    >>> family, link = find_family("Logistic")
    >>> family.name, link
    ('bernoulli', 'logit')
    """
    plain = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    known = _OTHER_NAMES.get(plain.replace("_", ""), plain)
    if known not in FAMILIES:
        rule = f"be one of {', '.join(FAMILIES)}"
        raise InvalidInput("--family (family)", rule, name)
    if plain == "probit" and link is None:
        link = "probit"
    family = FAMILIES[known]
    return family, family.link(link)


def check_noise_variance(family: Family, noise_variance: float | None) -> float | None:
    """The known noise variance of the response; None if it is sampled."""
    if noise_variance is None:
        return None
    name = "--noise-variance (noise_variance)"
    if family.name != "gaussian":
        raise InvalidInput(name, "be left out unless the family is gaussian", noise_variance)
    return check_number(name, noise_variance, 0, low_open=True)


def known_noise(variance: float, response_sd: float, dtype: Any) -> Any:
    """The noise variance in the units of a response that was divided by its sd."""
    return jnp.asarray(variance / np.float64(response_sd) ** 2, dtype)
