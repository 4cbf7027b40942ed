"""Priors of coefficients as users choose them: `tallmc.priors.normal(2.5)`.

Scales are in the units of the coefficients: those of the response (or of its link) per unit of the
column. The prior of the intercept belongs to the intercept at the means of the columns, as in Bambi
and rstanarm. If it is not chosen for the intercept itself, it is centred at the mean of a gaussian
or student_t response.
"""

from __future__ import annotations

import abc
import ast
import dataclasses
import re
from collections.abc import Mapping

from ..core.errors import InvalidInput, check_number

__all__ = ["horseshoe", "laplace", "normal", "student_t"]

_PARAMETER = "--prior (prior)"


@dataclasses.dataclass(frozen=True)
class AbstractPriorChoice(abc.ABC):
    """A prior that a user chooses for coefficients."""

    @property
    @abc.abstractmethod
    def shown(self) -> str:
        """The prior as text, which `parse_prior` understands."""


@dataclasses.dataclass(frozen=True)
class Normal(AbstractPriorChoice):
    """A normal prior; `sd=None` chooses 2.5 sd(y)/sd(x), Bambi's rule."""

    sd: float | None = None
    mean: float = 0.0

    @property
    def shown(self) -> str:
        if self.sd is None:
            return "normal()"
        return _as_text("normal", self.sd, *([self.mean] if self.mean else []))


@dataclasses.dataclass(frozen=True)
class StudentTChoice(AbstractPriorChoice):
    """A Student-t prior."""

    degrees: float
    scale: float
    mean: float = 0.0

    @property
    def shown(self) -> str:
        mean = [self.mean] if self.mean else []
        return _as_text("student_t", self.degrees, self.scale, *mean)


@dataclasses.dataclass(frozen=True)
class LaplaceChoice(AbstractPriorChoice):
    """A Laplace (double exponential) prior."""

    scale: float
    mean: float = 0.0

    @property
    def shown(self) -> str:
        return _as_text("laplace", self.scale, *([self.mean] if self.mean else []))


@dataclasses.dataclass(frozen=True)
class HorseshoeChoice(AbstractPriorChoice):
    """The regularised horseshoe over all coefficients that have it."""

    global_scale: float
    slab_scale: float
    slab_degrees: float

    @property
    def shown(self) -> str:
        return _as_text("horseshoe", self.global_scale, self.slab_scale, self.slab_degrees)


def _as_text(name: str, *values: float) -> str:
    """A prior as text that loses no digit.

    >>> _as_text("normal", 2.5, 1234567.5)
    'normal(2.5, 1234567.5)'
    """
    shown = (f"{v:g}" if float(f"{v:g}") == v else repr(float(v)) for v in values)
    return f"{name}({', '.join(shown)})"


def normal(sd: float | None = None, mean: float = 0.0) -> Normal:
    """A normal prior of coefficients.

    **Arguments:**

    - `sd`: its standard deviation, in the units of the coefficient. None chooses
      2.5 sd(y)/sd(x), Bambi's rule; sd(y) is 1 unless the family is gaussian or student_t.
    - `mean`: its mean.

    **Returns:** the prior, for `tallmc.fit(..., prior=...)`.

    >>> normal(2.5).shown
    'normal(2.5)'
    """
    if sd is not None:
        sd = check_number("sd", sd, 0, low_open=True)
    return Normal(sd, check_number("mean", mean))


def student_t(degrees: float, scale: float, mean: float = 0.0) -> StudentTChoice:
    """A Student-t prior of coefficients.

    **Arguments:**

    - `degrees`: degrees of freedom.
    - `scale`: its scale, in the units of the coefficient.
    - `mean`: its centre.

    **Returns:** the prior, for `tallmc.fit(..., prior=...)`.

    >>> student_t(3, 2.5).shown
    'student_t(3, 2.5)'
    """
    return StudentTChoice(
        check_number("degrees", degrees, 0, low_open=True),
        check_number("scale", scale, 0, low_open=True),
        check_number("mean", mean),
    )


def laplace(scale: float, mean: float = 0.0) -> LaplaceChoice:
    """A Laplace prior of coefficients, whose mode is that of the lasso.

    **Arguments:**

    - `scale`: its scale, in the units of the coefficient.
    - `mean`: its centre.

    **Returns:** the prior, for `tallmc.fit(..., prior=...)`.

    >>> laplace(0.5).shown
    'laplace(0.5)'
    """
    return LaplaceChoice(check_number("scale", scale, 0, low_open=True), check_number("mean", mean))


def horseshoe(
    global_scale: float = 0.1, slab_scale: float = 2.5, slab_degrees: float = 4.0
) -> HorseshoeChoice:
    """The regularised horseshoe, for many coefficients of which most are near zero.

    Its scales refer to coefficients of standardised columns (Piironen and Vehtari, 2017).

    **Arguments:**

    - `global_scale`: the scale of the half-Cauchy prior of τ.
    - `slab_scale`, `slab_degrees`: scale and degrees of freedom of the slab.

    **Returns:** the prior, for `tallmc.fit(..., prior=...)`.

    >>> horseshoe().shown
    'horseshoe(0.1, 2.5, 4)'
    """
    values = {"global_scale": global_scale, "slab_scale": slab_scale, "slab_degrees": slab_degrees}
    return HorseshoeChoice(
        *(check_number(name, value, 0, low_open=True) for name, value in values.items())
    )


_BY_NAME = {
    "normal": normal,
    "student_t": student_t,
    "laplace": laplace,
    "horseshoe": horseshoe,
}
_OF_TERM = re.compile(rf"(.+?)=\s*((?:{'|'.join(_BY_NAME)})\(.*\))")


def parse_prior(text: str) -> AbstractPriorChoice:
    """A prior from text such as "normal(2.5)". Nothing is evaluated as code.

    >>> parse_prior("student_t(3, scale=2)").shown
    'student_t(3, 2)'
    """
    rule = f"be one of {', '.join(_BY_NAME)} with numbers, such as normal(2.5)"
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        arguments = [ast.literal_eval(value) for value in call.args]
        options = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        return _BY_NAME[call.func.id](*arguments, **options)  # type: ignore[operator]
    except InvalidInput as error:
        raise error.renamed(f"{error.parameter} of {_PARAMETER}") from None
    except (SyntaxError, ValueError, KeyError, TypeError):
        raise InvalidInput(_PARAMETER, rule, text) from None


def parse_priors(texts: list[str]) -> dict[str, AbstractPriorChoice]:
    """Priors by term from texts such as "age=normal(1)"; without a term, of all coefficients.

    >>> {term: prior.shown for term, prior in parse_priors(["normal(2)", "age=laplace(1)"]).items()}
    {'': 'normal(2)', 'age': 'laplace(1)'}
    """
    found = {}
    for text in texts:
        of_term = _OF_TERM.fullmatch(text.strip())
        term, prior = of_term.groups() if of_term else ("", text)
        found[term.strip()] = parse_prior(prior)
    return found


def as_priors(
    prior: AbstractPriorChoice | str | Mapping[str, AbstractPriorChoice | str] | None,
) -> dict[str, AbstractPriorChoice]:
    """The priors by term; the name "" stands for all terms that are not named."""
    if prior is None:
        return {}
    named = prior if isinstance(prior, Mapping) else {"": prior}
    found = {}
    for term, choice in named.items():
        chosen = parse_prior(choice) if isinstance(choice, str) else choice
        if not isinstance(chosen, AbstractPriorChoice):
            cure = "For example prior=tallmc.priors.normal(2.5)."
            raise InvalidInput(_PARAMETER, "be a prior of tallmc.priors", choice, cure)
        found[str(term)] = chosen
    return found
