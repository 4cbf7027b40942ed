"""Settings for a named method that fit a posterior: its curvature and the method's gradient noise.

The step size is the largest whose predicted inflation of a variance by gradient noise is within a
budget, and which is far enough below the stability limit of the dynamics.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from .._anchor.anchor import Anchor, find_anchor
from .._core.arrays import HostMatrix, Vector
from .._core.errors import InvalidInput, check_int, check_number
from .._core.programs import quickly_compiled
from .._core.random import new_key, standard_normal
from .._engine.kernel import AbstractKernel, BoundKernel, Drawn, Gathered, Kernel
from .._engine.run import chain_keys
from .._engine.supply import Supply
from .._rows.access import AbstractRows
from ..dynamics.dynamics import Curvature, Suggestion
from ..models.posterior import AbstractPosterior, check_posterior
from ..subsample import ExponentiallyWeighted, Uniform
from ..subsample.selection import Carried
from .abstract import CHOSEN_BUDGET, AbstractMethod
from .method import Method
from .registry import method_named

# Gradient noise near the mode, and how much it inflates the variances of Langevin dynamics.
#
# On a Gaussian with precision H, Langevin steps of size ε with gradient noise of covariance V have
# a stationary covariance of H⁻¹ + X to first order in ε, where X solves HX + XH = (ε/2) V.


_POSITIONS = 8
_BATCHES = 64  # per position
_NOISE_PURPOSE = 3  # separates the keys from those of the run


def gradient_noise(bound: BoundKernel, anchor: Anchor, seed: int = 0) -> tuple[HostMatrix, int]:
    """The covariance of a kernel's gradient estimates, and the rows touched to measure it.

    It is averaged over draws of the anchor's Gaussian. An estimator that carries a state has
    learned it at other draws.
    """
    kernel, rows = bound.composition, bound.rows
    assert anchor.factor is not None, "the anchor has a Hessian"
    key = jax.random.fold_in(new_key(seed), _NOISE_PURPOSE)
    shape = (2, _POSITIONS, anchor.position.shape[0])
    normal = standard_normal(key, shape, anchor.position.dtype)
    here, elsewhere = anchor.position + jnp.einsum("ij,pkj->pki", anchor.factor, normal)
    carried = kernel.start_memory(elsewhere, rows)
    supply = Supply(kernel, rows, [chain_keys(seed, _POSITIONS, _NOISE_PURPOSE)])
    steps = min(supply.steps, _BATCHES)
    n_blocks = -(-_BATCHES // steps)
    gradients, touched = [], 0
    for number in range(n_blocks):
        supply.prepare(number, n_blocks)
        made = jax.tree.map(lambda leaf: leaf[:steps], supply.block(0, number))
        found, n_rows = _estimates(supply.stepper, supply.rows_of_steps, made, here, carried)
        gradients.append(np.asarray(found, np.float64))
        touched += int(np.asarray(n_rows).sum())
    errors = np.concatenate(gradients)
    batches = len(errors)
    errors = (errors - errors.mean(axis=0)).reshape(-1, errors.shape[2])
    covariance = errors.T @ errors / (_POSITIONS * (batches - 1))
    passes = int(kernel.passes_before(np.asarray(1)))
    return covariance, touched + _POSITIONS * passes * rows.n_rows


@quickly_compiled
def _estimates(
    kernel: AbstractKernel,
    rows: AbstractRows,
    supply: Drawn | Gathered,
    positions: Float[Array, "k d"],
    carried: Carried,
) -> tuple[Float[Array, "batches k d"], Int[Array, "batches k"]]:
    """Gradient estimates from independent batches at each position, and the rows they touched."""
    assert isinstance(kernel, Kernel), "the kernel of a composition"

    def at_position(made: Any, position: Vector, learned: Carried) -> tuple[Vector, Int[Array, ""]]:
        gathered = made if isinstance(made, Gathered) else kernel.gather(made, rows)
        known = Carried(learned.gradient, kernel.selection.start(gathered.selection), learned.noise)
        estimate = kernel.estimate(position, gathered.selection, rows, known)
        return estimate.gradient, jnp.asarray(estimate.n_rows)

    return lax.map(lambda made: jax.vmap(at_position)(made, positions, carried), supply)


def inflation_rate(hessian: HostMatrix, noise: HostMatrix, coordinates: HostMatrix | None) -> float:
    """Relative inflation of the worst parameter's variance, the largest X_jj/(H⁻¹)_jj for ε = 1.

    `coordinates` is C, if the dynamics moves in coordinates u with θ = Cu.
    """
    C = np.eye(len(hessian)) if coordinates is None else coordinates
    values, vectors = np.linalg.eigh(C.T @ hessian @ C)
    axes = C @ vectors
    in_axes = axes.T @ noise @ axes
    added = in_axes / (2 * (values[:, None] + values[None, :]))
    variances = np.einsum("ja,a,ja->j", axes, 1 / values, axes)
    return float(np.max(np.einsum("ja,ab,jb->j", axes, added, axes) / variances))


_MOST_STEPS_PER_DRAW = 100
_DRAWS_PER_CYCLE = 10


@dataclasses.dataclass(frozen=True)
class Suggested:
    """A named method with settings for one posterior."""

    method: AbstractMethod
    step_size: float
    rule: str | None
    """How the step size was chosen; None if it was given."""
    batch_size: int | None
    """Rows per step; None if the method uses all rows or chooses the size itself."""
    thin: int
    inflation: float
    """Predicted relative inflation of the worst parameter's variance by gradient noise."""
    warnings: tuple[str, ...]
    """What to expect of these settings, with cures."""
    anchor: Anchor
    """The anchor that the settings come from."""
    n_row_evals: int
    """Rows touched, including those of the anchor."""


def suggest(
    posterior: AbstractPosterior,
    name: str,
    *,
    batch_size: int | None = None,
    step_size: float | None = None,
    thin: int | None = None,
    inflation: float = CHOSEN_BUDGET.inflation,
    anchor: Anchor | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Suggested:
    """Suggest settings of a named method for a posterior.

    **Arguments:**

    - `name`: the name of the method; `tallmc methods` lists them.
    - `batch_size`: rows per step; by default a thousandth of the rows, and at least 32.
    - `step_size`: a step size of your own; the other settings are still suggested.
    - `thin`: steps per draw of your own.
    - `inflation`: the largest relative inflation of a variance by gradient noise.
    - `anchor`: the result of `find_anchor(posterior)`, to reuse it.
    - `seed`: the seed of the measurement of the noise.
    - `settings`: further settings of the method, such as `{"within": (0.0, 1.0)}`.

    **Returns:** a `Suggested`: the method with its settings, and what to expect of them.

    **Raises:** `PreparationError` if there is no anchor with a Hessian.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(2000, 2))
    >>> y = x @ [1.0, -1.0] + np.random.default_rng(1).normal(size=2000)
    >>> posterior = tallmc.models.linear_regression(x, y, 10.0, noise_variance=1.0)
    >>> tallmc.suggest(posterior, "sgld", batch_size=10).rule
    'the gradient noise that the error budget allows'
    """
    check_posterior(posterior)
    named = method_named(name)
    example = named.build()
    check_number("inflation", inflation, 0, 1, low_open=True)
    if step_size is not None:
        check_number("step_size", step_size, 0, low_open=True)
    if not example.uses_gradients:
        cure = f"Call {named.path}(step_size=..., batch_size=...)."
        task = "be a method that evaluates gradients, not one for models of counts or of networks"
        raise InvalidInput("name", task, name, cure)
    batch_size = checked_size(name, posterior.n_rows, batch_size)
    parameters = set(inspect.signature(named.make).parameters)
    given = dict(settings or {})
    for setting in given:
        if setting not in parameters:
            raise InvalidInput(setting, f"be a setting of {name}", given[setting])
    anchor = find_anchor(posterior) if anchor is None else anchor
    if anchor.hessian is None:
        raise InvalidInput("anchor", "have a Hessian", None, "Use find_anchor(posterior).")
    hessian = np.asarray(anchor.hessian, np.float64)

    def make(suggestion: Suggestion, step_size: float) -> AbstractMethod:
        steps_between = _steps_per_draw(suggestion)
        known = {
            **suggestion.others,
            "batch_size": batch_size,
            "every": -(-posterior.n_rows // (batch_size or posterior.n_rows)),
            "cycle": 4 * _DRAWS_PER_CYCLE * (steps_between if thin is None else thin),
        }
        chosen = {key: value for key, value in known.items() if key in parameters}
        return named.make(step_size, **chosen, **given)

    without_noise = _suggestion(example, hessian, np.zeros_like(hessian), posterior, inflation)
    noise, rows = np.zeros_like(hessian), anchor.n_row_evals
    # The noise of other methods is not that of a gradient.
    if isinstance(example, Method) and not example.exact and named.axes["size"] != "all rows":
        # An adaptive size makes pilot runs, which need a stable step size.
        measured = make(without_noise, without_noise.step_size)
        assert isinstance(measured, Method), "as the example"
        if isinstance(measured.subsample, ExponentiallyWeighted):  # depends on the move
            measured = dataclasses.replace(measured, subsample=Uniform())
        prepared = measured.prepare(posterior, anchor, seed=seed)
        noise, touched = gradient_noise(prepared.kernel, anchor, seed)
        rows += touched
    suggestion = _suggestion(example, hessian, noise, posterior, inflation)
    step, rule = (suggestion.step_size, suggestion.rule) if step_size is None else (step_size, None)
    coordinates = _coordinates(example, hessian, noise, posterior)
    langevin_step = suggestion.langevin_step * step / suggestion.step_size
    return Suggested(
        method=make(suggestion, step),
        step_size=step,
        rule=rule,
        batch_size=batch_size,
        thin=_steps_per_draw(suggestion) if thin is None else check_int("thin", thin, 1),
        inflation=langevin_step * inflation_rate(hessian, noise, coordinates),
        warnings=_warnings(name, suggestion, batch_size, step),
        anchor=anchor,
        n_row_evals=rows,
    )


def checked_size(name: str, n_rows: int, batch_size: int | None) -> int | None:
    """Return the given or the default size; None for a method without the argument."""
    named = method_named(name)
    if "batch_size" in inspect.signature(named.make).parameters:
        if batch_size is None:
            return min(n_rows, max(32, n_rows // 1000))
        return check_int("batch_size", batch_size, 1, n_rows, high_name="n_rows")
    if batch_size is not None:
        takes_all = named.axes["size"] == "all rows"
        reason = "uses every row in every step" if takes_all else "chooses its size from the state"
        rule = f"be left out with {name}, which {reason}"
        cure = "`tallmc methods` lists the methods with a fixed size."
        raise InvalidInput("batch_size", rule, batch_size, cure)
    return None


def _steps_per_draw(suggestion: Suggestion) -> int:
    return min(_MOST_STEPS_PER_DRAW, math.ceil(suggestion.steps_between))


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
