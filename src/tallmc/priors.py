"""Priors of coefficients as users choose them: `tallmc.fit(..., prior=tallmc.priors.normal(2.5))`.

Scales are in the units of the coefficients: those of the response (or of its link) per unit of the
column. The prior of the intercept belongs to the intercept at the means of the columns, as in
rstanarm. If it is not chosen for the intercept itself, it is centred at the mean of a gaussian
or student_t response.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from ._core.errors import InvalidInput, check_number

__all__ = [
    "exponential",
    "half_normal",
    "half_student_t",
    "horseshoe",
    "laplace",
    "normal",
    "r2d2",
    "student_t",
]

_PARAMETER = "--prior (prior)"


@dataclasses.dataclass(frozen=True)
class PriorChoice:
    """A prior of coefficients; `name` is that of the function that made it."""

    name: str
    scale: float | None = None
    """The sd of a normal prior, None for rstanarm's rule; the global scale of a horseshoe; the mean
    of R²."""
    mean: float = 0.0
    degrees: float = 1.0
    """Of a Student-t prior, or of the slab of a horseshoe; the precision of R²."""
    slab_scale: float = 1.0
    """Of a horseshoe; the concentration of the shares of R²."""

    @property
    def shares_scales(self) -> bool:
        """Whether coefficients with this prior share unknown scales."""
        return self.name in ("horseshoe", "r2d2")

    @property
    def of_scale(self) -> bool:
        """Whether it is the prior of a standard deviation."""
        return self.name in ("half_normal", "half_student_t", "exponential")

    @property
    def typical_scale(self) -> float:
        """The size of a standard deviation that has this prior."""
        assert self.scale is not None
        return 1 / self.scale if self.name == "exponential" else self.scale

    def log_density(self, values: np.ndarray) -> np.ndarray:
        """The log density of standard deviations, up to a constant."""
        ratio = values / self.typical_scale
        if self.name == "exponential":
            return -ratio
        if self.name == "half_normal":
            return -0.5 * ratio**2
        return -0.5 * (self.degrees + 1) * np.log1p(ratio**2 / self.degrees)

    @property
    def shown(self) -> str:
        """The prior as text, which `parse_prior` understands and which loses no digit."""
        numbers = {
            "student_t": (self.degrees, self.scale),
            "half_student_t": (self.degrees, self.scale),
            "horseshoe": (self.scale, self.slab_scale, self.degrees),
            "r2d2": (self.scale, self.degrees, self.slab_scale),
        }.get(self.name, (self.scale,))
        if self.mean and self.scale is not None:
            numbers = (*numbers[:-1], self.mean, self.scale)
        given = [v for v in numbers if v is not None]
        shown = (f"{v:g}" if float(f"{v:g}") == v else repr(float(v)) for v in given)
        return f"{self.name}({', '.join(shown)})"


def normal(sd: float | None = None, *, mean: float = 0.0) -> PriorChoice:
    """A normal prior of coefficients.

    **Arguments:**

    - `sd`: its standard deviation, in the units of the coefficient. None chooses
      2.5 sd(y)/sd(x), rstanarm's rule; sd(y) is 1 unless the family is gaussian or student_t.
    - `mean`: its mean.
    """
    return PriorChoice(
        "normal", None if sd is None else _positive("sd", sd), check_number("mean", mean)
    )


def student_t(degrees: float, scale: float, *, mean: float = 0.0) -> PriorChoice:
    """A Student-t prior of coefficients.

    **Arguments:**

    - `degrees`: degrees of freedom.
    - `scale`: its scale, in the units of the coefficient.
    - `mean`: its centre.
    """
    degrees, scale = _positive("degrees", degrees), _positive("scale", scale)
    return PriorChoice("student_t", scale, check_number("mean", mean), degrees)


def laplace(scale: float, *, mean: float = 0.0) -> PriorChoice:
    """A Laplace prior of coefficients, whose mode is that of the lasso.

    **Arguments:**

    - `scale`: its scale, in the units of the coefficient.
    - `mean`: its centre.
    """
    return PriorChoice("laplace", _positive("scale", scale), check_number("mean", mean))


def horseshoe(
    global_scale: float = 0.1, slab_scale: float = 2.5, slab_degrees: float = 4.0
) -> PriorChoice:
    """The regularised horseshoe, for many coefficients of which most are near zero.

    Its scales refer to coefficients of standardised columns (Piironen and Vehtari, 2017).

    **Arguments:**

    - `global_scale`: the scale of the half-Cauchy prior of τ.
    - `slab_scale`, `slab_degrees`: scale and degrees of freedom of the slab.
    """
    return PriorChoice(
        "horseshoe",
        _positive("global_scale", global_scale),
        slab_scale=_positive("slab_scale", slab_scale),
        degrees=_positive("slab_degrees", slab_degrees),
    )


def r2d2(mean_r2: float = 0.5, precision: float = 2.0, concentration: float = 0.5) -> PriorChoice:
    """A prior of the share of variance that the columns explain, R², divided among them.

    R² ~ Beta with this mean and precision, and β_j ~ N(0, σ² φ_j R²/(1 − R²)/var(x_j)) with shares
    φ ~ Dirichlet (Zhang et al., 2022), in the order of brms. σ is the scale of the noise of
    gaussian, student_t and quantile responses, and 1 for others.

    **Arguments:**

    - `mean_r2`: the mean of R², between 0 and 1.
    - `precision`: the sum of the two parameters of Beta.
    - `concentration`: of the shares. Small values favour few columns.
    """
    return PriorChoice(
        "r2d2",
        check_number("mean_r2", mean_r2, 0, 1, low_open=True, high_open=True),
        degrees=_positive("precision", precision),
        slab_scale=_positive("concentration", concentration),
    )


def half_normal(scale: float) -> PriorChoice:
    """A half-normal prior of a standard deviation: of a smooth, `s(x)`, or of groups, `sd(g)`.

    **Arguments:**

    - `scale`: its scale, in the units of the response (or of its link).
    """
    return PriorChoice("half_normal", _positive("scale", scale))


def half_student_t(degrees: float, scale: float) -> PriorChoice:
    """A half-Student-t prior of a standard deviation; one degree is half-Cauchy.

    **Arguments:**

    - `degrees`: degrees of freedom.
    - `scale`: its scale, in the units of the response (or of its link).
    """
    degrees, scale = _positive("degrees", degrees), _positive("scale", scale)
    return PriorChoice("half_student_t", scale, degrees=degrees)


def exponential(rate: float) -> PriorChoice:
    """An exponential prior of a standard deviation.

    **Arguments:**

    - `rate`: one over its mean, which is in the units of the response (or of its link).
    """
    return PriorChoice("exponential", _positive("rate", rate))


def _positive(name: str, value: float) -> float:
    return check_number(name, value, 0, low_open=True)


_BY_NAME = {
    "normal": normal,
    "student_t": student_t,
    "laplace": laplace,
    "horseshoe": horseshoe,
    "r2d2": r2d2,
    "half_normal": half_normal,
    "half_student_t": half_student_t,
    "exponential": exponential,
}
_OF_TERM = re.compile(rf"(.+?)=\s*((?:{'|'.join(_BY_NAME)})\(.*\))")


_WITH_MEAN: dict[str, tuple[str, ...]] = {
    "normal": ("mean", "sd"),
    "laplace": ("mean", "scale"),
    "student_t": ("degrees", "mean", "scale"),
}


def parse_prior(text: str) -> PriorChoice:
    """A prior from text such as "normal(2.5)" or "normal(0, 2.5)". Nothing is evaluated as code.

    With a mean, numbers are in the order of Stan, brms and PyMC, the scale last.
    """
    rule = f"be one of {', '.join(_BY_NAME)} with numbers, such as normal(2.5)"
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        arguments = [ast.literal_eval(value) for value in call.args]
        options = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        named = _WITH_MEAN.get(call.func.id, ())
        if not options and len(named) == len(arguments) > 0:
            arguments, options = [], dict(zip(named, arguments, strict=True))
        return _BY_NAME[call.func.id](*arguments, **options)  # type: ignore[operator]
    except InvalidInput as error:
        raise error.renamed(f"{error.parameter} of {_PARAMETER}") from None
    except (SyntaxError, ValueError, KeyError, TypeError):
        raise InvalidInput(_PARAMETER, rule, text) from None


def parse_priors(texts: list[str]) -> dict[str, PriorChoice]:
    """Priors by term from texts such as "age=normal(1)"; without a term, of all coefficients."""
    found = {}
    for text in texts:
        of_term = _OF_TERM.fullmatch(text.strip())
        term, prior = of_term.groups() if of_term else ("", text)
        found[term.strip()] = parse_prior(prior)
    return found


def as_priors(
    prior: PriorChoice | str | Mapping[str, PriorChoice | str] | None,
) -> dict[str, PriorChoice]:
    """The priors by term; the name "" stands for all terms that are not named."""
    if prior is None:
        return {}
    named = prior if isinstance(prior, Mapping) else {"": prior}
    found = {}
    for term, choice in named.items():
        chosen = parse_prior(choice) if isinstance(choice, str) else choice
        if not isinstance(chosen, PriorChoice):
            cure = "For example prior=tallmc.priors.normal(2.5)."
            raise InvalidInput(_PARAMETER, "be a prior of tallmc.priors", choice, cure)
        found[str(term)] = chosen
    return found
