"""Settings for a named method that fit a posterior: its curvature and the method's gradient noise.

The step size is the largest whose predicted inflation of a variance by gradient noise is within a
budget, and which is far enough below the stability limit of the dynamics.
"""

from __future__ import annotations

import dataclasses
import inspect
import math

import numpy as np

from ..anchor.anchor import Anchor, laplace
from ..core.errors import InvalidInput, check_int, check_number
from ..dynamics.base import Curvature, Suggestion
from ..models.posterior import AbstractPosterior, check_posterior
from ..subsample import ExponentiallyWeighted, Uniform
from .account import CHOSEN_BUDGET
from .base import AbstractMethod
from .method import Method
from .named import METHODS
from .noise import gradient_noise, inflation_rate
from .simplex import SimplexSampler

_MOST_STEPS_PER_DRAW = 100
_DRAWS_PER_CYCLE = 10


@dataclasses.dataclass(frozen=True)
class Suggested:
    """A named method with settings for one posterior.

    **Arguments:**

    - `method`: the method.
    - `step_size`: its step size.
    - `rule`: how the step size was chosen; None if it was given.
    - `size`: rows per step; None if the method uses all rows or chooses the size itself.
    - `thin`: steps per draw.
    - `inflation`: predicted relative inflation of the worst parameter's variance by gradient noise.
    - `warnings`: what to expect of these settings, with cures.
    - `anchor`: the anchor that the settings come from.
    - `n_row_evals`: rows touched, including those of the anchor.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(2000, 2))
    >>> y = x @ [1.0, -1.0]
    >>> posterior = tallmc.models.linear_regression(x, y, 10.0, noise_variance=1.0)
    >>> suggested = tallmc.suggest(posterior, "sgld_cv", size=100)
    >>> suggested.method.size, suggested.inflation < 0.1
    (100, True)
    """

    method: AbstractMethod
    step_size: float
    rule: str | None
    size: int | None
    thin: int
    inflation: float
    warnings: tuple[str, ...]
    anchor: Anchor
    n_row_evals: int


def suggest(
    posterior: AbstractPosterior,
    name: str,
    *,
    size: int | None = None,
    step_size: float | None = None,
    thin: int | None = None,
    inflation: float = CHOSEN_BUDGET.inflation,
    anchor: Anchor | None = None,
    seed: int = 0,
) -> Suggested:
    """Suggest settings of a named method for a posterior.

    **Arguments:**

    - `posterior`: the posterior.
    - `name`: the name of the method, one of `tallmc.METHODS`.
    - `size`: rows per step; by default a thousandth of the rows, and at least 32.
    - `step_size`: a step size of your own; the other settings are still suggested.
    - `thin`: steps per draw of your own.
    - `inflation`: the largest relative inflation of a variance by gradient noise.
    - `anchor`: the result of `laplace(posterior)`, to reuse it.
    - `seed`: the seed of the measurement of the noise.

    **Returns:** a `Suggested`: the method with its settings, and what to expect of them.

    **Raises:** `InvalidInput` if an argument is invalid; `PreparationError` if there is no anchor
    with a Hessian.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(2000, 2))
    >>> y = x @ [1.0, -1.0] + np.random.default_rng(1).normal(size=2000)
    >>> posterior = tallmc.models.linear_regression(x, y, 10.0, noise_variance=1.0)
    >>> tallmc.suggest(posterior, "sgld", size=10).rule
    'the gradient noise that the error budget allows'
    """
    check_posterior(posterior)
    if name not in METHODS:
        raise InvalidInput("name", f"be one of {', '.join(METHODS)}", name)
    check_number("inflation", inflation, 0, 1, low_open=True)
    if step_size is not None:
        check_number("step_size", step_size, 0, low_open=True)
    if isinstance(METHODS[name].make(1.0, **METHODS[name].example), SimplexSampler):
        cure = f"Call tallmc.{name}(step_size=..., size=...)."
        raise InvalidInput(
            "name", "be a method that evaluates gradients, not one for models of counts", name, cure
        )
    named, size = METHODS[name], checked_size(name, posterior.n_rows, size)
    parameters = set(inspect.signature(named.make).parameters)
    anchor = laplace(posterior) if anchor is None else anchor
    if anchor.hessian is None:
        raise InvalidInput("anchor", "have a Hessian", None, "Use laplace(posterior).")
    hessian = np.asarray(anchor.hessian, np.float64)

    def make(suggestion: Suggestion, step_size: float) -> AbstractMethod:
        steps_between = _steps_per_draw(suggestion)
        known = {
            **suggestion.others,
            "size": size,
            "every": -(-posterior.n_rows // (size or posterior.n_rows)),
            "cycle": 4 * _DRAWS_PER_CYCLE * (steps_between if thin is None else thin),
        }
        chosen = {key: value for key, value in known.items() if key in parameters}
        return named.make(step_size, **chosen)

    example = named.make(1.0, **named.example)
    without_noise = _suggestion(example, hessian, np.zeros_like(hessian), posterior, inflation)
    noise, rows = np.zeros_like(hessian), anchor.n_row_evals
    # The noise of other methods is not that of a gradient.
    if isinstance(example, Method) and not example.exact and named.axes["size"] != "all rows":
        # An adaptive size makes pilot runs, which need a stable step size.
        measured = _measurable(make(without_noise, without_noise.step_size))
        prepared = measured.prepare(posterior, anchor, seed=seed)
        found = gradient_noise(prepared.kernel, anchor, seed)
        noise, rows = found.covariance, rows + found.n_row_evals
    suggestion = _suggestion(example, hessian, noise, posterior, inflation)
    step, rule = (suggestion.step_size, suggestion.rule) if step_size is None else (step_size, None)
    coordinates = _coordinates(example, hessian, noise, posterior)
    langevin_step = suggestion.langevin_step * step / suggestion.step_size
    return Suggested(
        method=make(suggestion, step),
        step_size=step,
        rule=rule,
        size=size,
        thin=_steps_per_draw(suggestion) if thin is None else check_int("thin", thin, 1),
        inflation=langevin_step * inflation_rate(hessian, noise, coordinates),
        warnings=_warnings(name, suggestion, size, step),
        anchor=anchor,
        n_row_evals=rows,
    )


def checked_size(name: str, n_rows: int, size: int | None) -> int | None:
    """Return the given or the default size; None for a method without a `size` argument."""
    named = METHODS[name]
    if "size" in inspect.signature(named.make).parameters:
        if size is None:
            return min(n_rows, max(32, n_rows // 1000))
        return check_int("size", size, 1, n_rows, high_name="n_rows")
    if size is not None:
        reason = (
            "uses every row in every step"
            if named.axes["size"] == "all rows"
            else "chooses its size from the state"
        )
        rule = f"be left out with {name}, which {reason}"
        raise InvalidInput(
            "size", rule, size, "`tallmc methods` lists the methods with a fixed size."
        )
    return None


def _steps_per_draw(suggestion: Suggestion) -> int:
    return min(_MOST_STEPS_PER_DRAW, math.ceil(suggestion.steps_between))


def _measurable(method: AbstractMethod) -> Method:
    """The method with rows drawn by a rule that does not depend on the move."""
    assert isinstance(method, Method), "methods with gradient noise are compositions"
    if isinstance(method.subsample, ExponentiallyWeighted):
        return dataclasses.replace(method, subsample=Uniform())
    return method


def _coordinates(
    method: AbstractMethod, hessian: np.ndarray, noise: np.ndarray, posterior: AbstractPosterior
) -> np.ndarray | None:
    if not isinstance(method, Method):
        return None
    own = method.dynamics.own_coordinates
    return None if own is None else own(hessian, np.diag(noise), posterior.n_rows)


def _suggestion(
    method: AbstractMethod,
    hessian: np.ndarray,
    noise: np.ndarray,
    posterior: AbstractPosterior,
    inflation: float,
) -> Suggestion:
    C = _coordinates(method, hessian, noise, posterior)
    seen = np.linalg.eigvalsh(hessian if C is None else C.T @ hessian @ C)
    metric = np.ones(1) if C is None else np.linalg.eigvalsh(C @ C.T) ** -1.0
    rate = inflation_rate(hessian, noise, C)
    suggestion = method.suggest(
        Curvature(
            smallest=float(seen[0]),
            largest=float(seen[-1]),
            dim=len(hessian),
            noise_limit=inflation / rate if rate > 0 else math.inf,
            metric_smallest=float(metric.min()),
            metric_largest=float(metric.max()),
        )
    )
    assert suggestion is not None, "every named method suggests settings"
    return suggestion


def _warnings(
    name: str, suggestion: Suggestion, size: int | None, step_size: float
) -> tuple[str, ...]:
    if suggestion.steps_between <= _MOST_STEPS_PER_DRAW or step_size != suggestion.step_size:
        return ()
    rows = "" if size is None else f" of {size:,} rows"
    return (
        f"{name} is slow here: with {suggestion.rule}, about {suggestion.steps_between:,.0f} "
        f"steps{rows} make one independent draw. The default method or one with control variates, "
        "such as sgld_cv_ps, needs far fewer.",
    )
