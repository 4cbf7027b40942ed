"""The anchor: the mode θ̂, ∇f(θ̂), the Hessian H = ∇²f(θ̂) and Σ̂ = H⁻¹, computed once and shared.

f is a negative log density, so H and Σ̂ must be positive definite; `find_anchor` checks this. (In
appendix A.4 of putcha-2023, H is the Hessian of the *log* density, hence the minus sign there.)
Passes over the rows run on the device, in the posterior's precision. Sums over blocks of rows and
computations with d×d matrices run in float64 on the host.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from .._core.arrays import HostMatrix, HostVector, Matrix, Vector, on_device
from .._core.errors import InvalidInput, PreparationError, warn
from .._core.supervision import found_anchor, stage, supervised_alone
from .._rows.access import RowAccess
from .._rows.workers import WorkerError
from ..models.model import PIECE_ROWS
from ..models.posterior import AbstractPosterior, ModelPosterior, check_posterior
from ..models.priors import ScaleMixturePrior
from .optimisers import (
    LBFGS,
    AbstractOptimiser,
    Adam,
    CountedPasses,
    Derivatives,
    Newton,
    descent_direction,
    double_passes,
    how_to_help_a_search,
    in_posterior_sds,
    not_finite,
    prior_derivatives,
)

# The default search for the mode: Newton, then L-BFGS, then Adam from several starts.
#
# Newton finds the mode of a well-behaved posterior, and nothing else runs. When Newton fails, the
# further searches start from the best point so far and from init, and Newton polishes what improves
# on the best point. If no search reaches the mode, for example because the density has kinks, the
# point with the lowest potential is taken.

NEWTON_MAX_DIM = 500
_PERTURBED_STARTS = 3
_WORTH_A_POLISH = 0.01
"""How much lower than at the last polish the potential must be for another one."""
_LARGEST_SHIFT = 0.01  # How far from the mode a polish may end, in posterior standard deviations
_POLISHED = 1e-5
_ROUNDS = 10


def further_search(passes: CountedPasses, first: HostVector) -> tuple[HostVector, bool]:
    """The lowest point of searches after `first`, and whether it is known to be the mode."""
    init = np.asarray(passes.posterior.init, np.float64)
    best, lowest = init, _potential(passes, init)
    if not np.isfinite(lowest):
        raise not_finite(passes, init, "at init")
    polished_from = np.inf
    for position in _further_ends(passes, first):
        potential = _potential(passes, position)
        if potential < lowest:
            best, lowest = position, potential
        if passes.posterior.dim <= NEWTON_MAX_DIM and lowest < polished_from - _WORTH_A_POLISH:
            polished_from = lowest
            mode = _polish(passes, best)
            if mode is not None:
                return mode, True
    return best, False


def _further_ends(passes: CountedPasses, first: HostVector) -> Iterator[HostVector]:
    """The end of the first search, then of others, each made when it is asked for."""
    posterior = passes.posterior
    init = np.asarray(posterior.init, np.float64)
    yield first
    for start in (first, init):
        if np.isfinite(start).all():
            yield LBFGS().search(passes, start).position
    spread = np.maximum(np.abs(init), 1.0)
    noise = np.random.default_rng(0).normal(size=(_PERTURBED_STARTS, posterior.dim))
    starts = [init, *(init + spread * noise)]
    in_memory = posterior.rows.access >= RowAccess.TAKE
    ends = [
        np.asarray(Adam(seed=seed).search(passes, jnp.asarray(start, posterior.dtype)), np.float64)
        if in_memory
        else LBFGS().search(passes, start).position
        for seed, start in enumerate(starts)
    ]
    best = min(ends, key=lambda end: _potential(passes, end))
    yield best
    if np.isfinite(best).all():
        yield LBFGS().search(passes, best).position


def _potential(passes: CountedPasses, position: HostVector) -> float:
    """f, or infinity where f or its gradient is not finite."""
    value, gradient = passes.value_and_gradient(position)
    return value if np.isfinite(value) and np.isfinite(gradient).all() else np.inf


def _polish(passes: CountedPasses, position: HostVector) -> HostVector | None:
    """The mode that Newton reaches from here in double precision, or None.

    Newton updates its Hessian with BFGS. In a curved valley, the updates may hide that the true
    Hessian is not positive definite, so Newton starts again from there.
    """
    double = double_passes(passes.posterior) or CountedPasses(passes.posterior)
    found = None
    for _ in range(_ROUNDS):
        end = Newton(tolerance=_POLISHED).descend(double, position)
        if end.problem is not None or np.array_equal(end.position, position):
            break
        position = end.position
        _, gradient = double.value_and_gradient(position)
        direction, definite = descent_direction(double.hessian(position), gradient)
        if definite and np.sqrt(direction @ gradient) < _LARGEST_SHIFT:
            found = position
            break
    passes.n_row_evals += double.n_row_evals
    return found


# The Gaussian at the anchor: the Hessian and its inverse, in double precision where needed.

_LARGEST_ROUNDING = 0.01
"""How much rounding may change a standard deviation, relatively, in single precision."""
_LARGEST_CHANGE = 0.05
"""How much double precision may change a standard deviation before the user is told."""


class AnchorCurvature(NamedTuple):
    """The curvature at the anchor, and what it says about the distance to the mode."""

    gradient: HostVector
    hessian: HostMatrix
    covariance: HostMatrix
    decrement: float
    definite: bool
    """Whether the Hessian is positive definite. If not, the covariance is that of its smooth part,
    Σ ∇²f_i plus the positive part of ∇²f₀."""
    warning: str | None


def anchor_curvature(
    passes: CountedPasses, position: HostVector, gradient: HostVector, hessian: HostMatrix | None
) -> AnchorCurvature:
    """The Hessian at `position`, if it is not known, and its inverse.

    `position` is in double precision. Rounding it may change the smallest eigenvalues as well.
    """
    hessian, warning = passes.hessian(position) if hessian is None else hessian, None
    inverse_root = _inverse_root(hessian)
    rounding = inverse_root is None or _may_be_rounding(hessian, inverse_root, passes)
    double = None
    if rounding and jnp.finfo(passes.posterior.dtype).bits < 64:
        double = double_passes(passes.posterior)
    if double is not None:
        _, gradient = double.value_and_gradient(position)
        accurate = double.hessian(position)
        accurate_root = _inverse_root(accurate)
        error = _error(inverse_root, accurate_root)
        if error is not None:
            warning = (
                f"single precision is too coarse for the curvature at the mode: {error}. "
                "The anchor was computed in double precision, but the chains run in single. Call "
                'jax.config.update("jax_enable_x64", True) first and pass the data as float64.'
            )
        hessian, inverse_root = accurate, accurate_root
        passes.n_row_evals += double.n_row_evals
    definite = inverse_root is not None
    if inverse_root is None:
        finite = np.isfinite(hessian).all()
        smallest = float(np.linalg.eigvalsh(hessian)[0]) if finite else np.nan
        hessian, smooth = _smooth_part(passes, position)
        inverse_root = _inverse_root(smooth)
        if inverse_root is None:
            raise PreparationError(
                "the Hessian at the mode must be positive definite; "
                f"its smallest eigenvalue is {smallest:.3g}. "
                "Use a proper prior, another init, or a method that needs no Hessian."
            )
    covariance = inverse_root.T @ inverse_root
    decrement = float(np.linalg.norm(inverse_root @ gradient))
    return AnchorCurvature(gradient, hessian, covariance, decrement, definite, warning)


def _inverse_root(matrix: HostMatrix) -> HostMatrix | None:
    """L⁻¹ with L Lᵀ = `matrix`, or None if the matrix is not positive definite."""
    try:
        return np.linalg.inv(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        return None


def _may_be_rounding(hessian: HostMatrix, inverse_root: HostMatrix, passes: CountedPasses) -> bool:
    """Whether rounding may change a standard deviation by one per cent.

    H_jj (H⁻¹)_jj, the variance inflation factor of parameter j, does not depend on its units. The
    Hessian is a sum over pieces of the rows. A piece has a relative error of some ε√n, n the rows
    of a piece, and the errors of the pieces average out.
    """
    inflation = np.diag(hessian) * np.sum(inverse_root**2, axis=0)
    epsilon = float(jnp.finfo(passes.posterior.dtype).eps)
    error = epsilon * PIECE_ROWS / np.sqrt(passes.posterior.n_rows)
    return bool(inflation.max() * error > _LARGEST_ROUNDING)


def _error(inverse_root: HostMatrix | None, accurate: HostMatrix | None) -> str | None:
    """What single precision makes of the curvature; None if it is right or double is no cure."""
    if accurate is None:
        return None
    if inverse_root is None:
        return "in it, the Hessian is not positive definite"
    ratio = np.linalg.norm(inverse_root, axis=0) / np.linalg.norm(accurate, axis=0)
    change = float(np.abs(ratio - 1).max())
    return f"standard deviations are {change:.0%} off" if change > _LARGEST_CHANGE else None


def _smooth_part(passes: CountedPasses, position: HostVector) -> tuple[HostMatrix, HostMatrix]:
    """The Hessian without infinite curvature of the prior, and without its negative curvature."""
    double = double_passes(passes.posterior) or CountedPasses(passes.posterior)
    rows, prior = double.hessian_parts(position)
    passes.n_row_evals += double.n_row_evals
    finite = np.where(np.isfinite(prior), prior, 0.0)
    values, vectors = np.linalg.eigh(finite)
    return rows + finite, rows + (vectors * np.maximum(values, 0.0)) @ vectors.T


_NEAR_ENOUGH = 0.1
"""Where the default search may end with many rows: no method needs the mode itself."""
_NEAR_THE_MODE = 0.1
"""An anchor within this many posterior standard deviations of the mode counts as the mode."""


class AnchorLevel(enum.IntEnum):
    """What must be known about the posterior before the first step. Levels are ordered."""

    NOTHING = 0
    MODE = 1
    HESSIAN = 2


class Anchor(eqx.Module):
    """A mode and, if requested, the Gaussian N(θ̂, Σ̂) around it. `find_anchor` computes it.

    An anchor need not be the mode. Where the Hessian is not positive definite, Σ̂ is the inverse of
    its smooth part, Σ ∇²f_i plus the positive part of the prior's curvature.

    **Attributes:**

    - `position`: θ̂.
    - `potential`: f(θ̂), which identifies the posterior: `check_anchor` computes it again.
    - `gradient`: ∇f(θ̂), small but not assumed to be zero.
    - `hessian`: H, or None.
    - `covariance`: Σ̂ = H⁻¹, or None. See above for an H that is not positive definite.
    - `factor`: lower triangular C with C Cᵀ = Σ̂, or None.
    - `decrement`: √(∇fᵀ H⁻¹ ∇f), the distance to the mode in posterior standard deviations, or
      None.
    - `n_row_evals`: how many rows were evaluated to find the anchor.
    - `converged`: whether the anchor is the mode, to within 0.1 posterior standard deviations.
      False for the best point of a search that did not reach the mode. None if this is not known,
      because there is no Hessian.
    """

    position: Vector
    potential: float
    gradient: Vector
    hessian: Matrix | None
    covariance: Matrix | None
    factor: Matrix | None
    decrement: float | None
    n_row_evals: int
    converged: bool | None = None
    accurate: tuple[np.ndarray, np.ndarray] | None = eqx.field(default=None, repr=False)
    """∇f and ∇²f in float64, unless the anchor comes from a store."""


def find_anchor(
    posterior: AbstractPosterior,
    *,
    hessian: bool = True,
    optimiser: AbstractOptimiser | None = None,
    at: PyTree | None = None,
) -> Anchor:
    """Find the mode of a posterior and the curvature at the mode.

    **Arguments:**

    - `hessian`: whether to compute the Hessian and its inverse, which need d² memory.
    - `optimiser`: by default `Newton()` in up to 500 dimensions and `LBFGS()` above.
      If they do not reach the mode, L-BFGS and Adam search from several starts, and the best point
      found is taken. An optimiser given here is not replaced. The papers used `Adam(...)`
      and `tallmc.anchor.SGD(...)`.
    - `at`: parameters to anchor at; skips the search.

    **Raises:** `PreparationError` if the potential is not finite at init or at the anchor, if the
    Hessian there and its smooth part are not positive definite, or if a given `optimiser` fails.
    """
    check_posterior(posterior)
    if optimiser is not None and not isinstance(optimiser, AbstractOptimiser):
        rule = "be Newton(), LBFGS(), Adam() or SGD(...)"
        raise InvalidInput("optimiser", rule, optimiser, "Pass an instance: write the brackets.")
    with supervised_alone():
        anchor, notes = _found(posterior, hessian, optimiser, at)
    found_anchor(anchor)
    for note in notes:
        warn(note)
    return anchor


def _found(
    posterior: AbstractPosterior,
    hessian: bool,
    optimiser: AbstractOptimiser | None,
    at: PyTree | None,
) -> tuple[Anchor, list[str]]:
    """The anchor, and what the user should know about it."""
    passes = CountedPasses(posterior)
    if at is not None:
        return _anchor_at(passes, posterior.layout.ravel(at, "at"), hessian, None)
    if optimiser is not None:
        stage("finding the mode")
        anchor, notes = _anchor_at(passes, optimiser.find(passes), hessian, None)
        if anchor.converged is False and anchor.decrement is not None:
            notes.append(
                f"the anchor is {in_posterior_sds(anchor.decrement)} from the "
                "mode; control variates stay unbiased but are noisier. "
                "Give the optimiser more steps."
            )
        return anchor, notes
    stage("finding the mode")
    if mixtures := posterior.model.scale_mixtures():
        return _anchor_given_scales(passes, mixtures, hessian)
    return _default_anchor(passes, hessian)


def _default_anchor(passes: CountedPasses, hessian: bool) -> tuple[Anchor, list[str]]:
    """The anchor of the default search, and what the user should know about it."""
    posterior = passes.posterior
    init = np.asarray(posterior.init, np.float64)
    if posterior.dim <= NEWTON_MAX_DIM:
        first = Newton().search(passes, init, near=_NEAR_ENOUGH)
    else:
        first = LBFGS().search(passes, init)
    if first.problem is None:
        try:
            anchor, notes = _anchor_at(passes, first.position, hessian, first.definite, first.known)
        except WorkerError:
            raise
        except PreparationError:
            pass
        else:
            if anchor.converged:
                return anchor, notes
    stage("searching for the mode from other starts")
    best, reached = further_search(passes, first.position)
    anchor, notes = _anchor_at(passes, best, hessian, reached)
    if not anchor.converged:
        distance = ""
        if anchor.decrement is not None:
            distance = f", {in_posterior_sds(anchor.decrement)} from the mode"
        notes.append(
            f"no search reached the mode: the anchor is the best point found{distance}. "
            "Control variates stay unbiased but are noisier. Kinks in the density need no cure. "
            f"Otherwise: {how_to_help_a_search(posterior)}."
        )
    return anchor, notes


# The anchor of a posterior with scales that are integrated out.
#
# Where effects are small, the density has a spike without mass at zero. The anchor is therefore the
# mode *given* the scales, and these are at the mode of their own posterior, by Laplace's method:
#
#     p(σ | y) ∝ p(σ) |P_σ|^½ |H + P_σ|^(−½) exp(−min_θ [½(θ − θ̂)ᵀH(θ − θ̂) + gᵀ(θ − θ̂) + ½θᵀP_σθ])
#
# with g and H of everything but the effects' prior, whose precision is P_σ. This is how mgcv finds
# smoothing parameters, by REML. The covariance is that given the scales.

_MOST_SCALE_ROUNDS, _MOST_SWEEPS = 8, 10
_ROWS_OF_PART, _NEAR_MODE = 32_768, 0.03
_Mixtures = list[tuple[np.ndarray, ScaleMixturePrior]]


def _anchor_given_scales(
    passes: CountedPasses, mixtures: _Mixtures, hessian: bool
) -> tuple[Anchor, list[str]]:
    """The anchor given the likeliest scales, with potential and gradient of the posterior."""
    posterior = passes.posterior
    start = np.asarray(posterior.init, np.float64)
    nodes = [int(np.argmax(of.log_weights)) for _, of in mixtures]
    known = None
    if posterior.dim <= NEWTON_MAX_DIM:
        if posterior.n_rows >= 2 * _ROWS_OF_PART:
            part = CountedPasses(posterior, _ROWS_OF_PART / posterior.n_rows)
            start, nodes, _ = _mode_and_scales(part, mixtures, start, nodes, part.scale**0.5)
            passes.n_row_evals += part.n_row_evals
        start, nodes, known = _mode_and_scales(passes, mixtures, start, nodes)
    for _ in range(_MOST_SCALE_ROUNDS):
        model = _given(posterior.model, nodes, on_device(start, posterior.dtype))
        given = CountedPasses(ModelPosterior(model, posterior.rows))
        if known is None:
            found, notes = _default_anchor(given, True)
        else:
            found, notes = _anchor_at(given, start, True, True, known)
        passes.n_row_evals += found.n_row_evals
        assert found.accurate is not None
        start, before, known = np.asarray(found.position, np.float64), nodes, None
        nodes = _likely_scales(mixtures, start, *found.accurate, nodes)
        if max(abs(one - other) for one, other in zip(nodes, before, strict=True)) <= 1:
            break
    assert found.accurate is not None
    of_given = Derivatives(found.potential, *found.accurate)
    whole = _with_prior(of_given, model, posterior.model, start)
    changed: dict[str, Any] = {"potential": whole.value, "accurate": whole[1:]}
    changed["gradient"] = on_device(whole.gradient, posterior.dtype)
    if not hessian:
        changed |= dict.fromkeys(("hessian", "covariance", "factor", "decrement"))
    return dataclasses.replace(found, n_row_evals=passes.n_row_evals, **changed), notes


def _given(model: Any, nodes: list[int], init: Vector) -> Any:
    """The model whose effects have these scales."""
    scales = iter(nodes)
    return jax.tree.map(
        lambda part: part.given(next(scales)) if isinstance(part, ScaleMixturePrior) else part,
        eqx.tree_at(lambda of: of.init, model, init),
        is_leaf=lambda part: isinstance(part, ScaleMixturePrior),
    )


def _with_prior(known: Derivatives, model: Any, other: Any, at: np.ndarray) -> Derivatives:
    """The derivatives of another model, which differs in its prior only."""
    position = np.asarray(at, model.dtype)
    value, gradient, hessian = (
        np.asarray(one, np.float64) - np.asarray(another, np.float64)
        for one, another in zip(
            prior_derivatives(other, position), prior_derivatives(model, position), strict=True
        )
    )
    return Derivatives(
        known.value + float(value), known.gradient + gradient, known.hessian + hessian
    )


def _mode_and_scales(
    passes: CountedPasses,
    mixtures: _Mixtures,
    position: HostVector,
    nodes: list[int],
    tolerance: float = _NEAR_MODE,
) -> tuple[np.ndarray, list[int], Derivatives | None]:
    """The mode given the likeliest scales, by Newton steps that have the scales of their pass.

    **Returns** the mode, the scales and the derivatives there; where steps lead away from it, the
    start and no derivatives.
    """
    model, dtype, last, start = passes.posterior.model, passes.posterior.dtype, np.inf, position
    first = nodes
    for _ in range(_MOST_SCALE_ROUNDS):
        position = np.asarray(np.asarray(position, dtype), np.float64)
        init = on_device(position, dtype)
        here = _with_prior(
            passes.derivatives(position), model, _given(model, nodes, init), position
        )
        if not here.finite:
            break
        nodes, before = _likely_scales(mixtures, position, *here[1:], nodes), nodes
        here = _with_prior(here, _given(model, before, init), _given(model, nodes, init), position)
        direction, definite = descent_direction(here.hessian, here.gradient)
        decrement = float(np.sqrt(direction @ here.gradient))
        if definite and decrement < tolerance:
            return position, nodes, here
        if decrement > last and nodes == before:
            break
        position, last = position - direction, decrement
    return start, first, None


def _likely_scales(
    mixtures: _Mixtures,
    effects: HostVector,
    gradient: HostVector,
    hessian: HostMatrix,
    nodes: list[int],
) -> list[int]:
    """The nodes of the likeliest scales, one mixture after the other until none changes.

    The derivatives are those given `nodes`.
    """
    logs = [np.asarray(of.log_scales, np.float64) for _, of in mixtures]
    precision = np.zeros(len(effects))
    for (places, _), log_scales, node in zip(mixtures, logs, nodes, strict=True):
        precision[places] = np.exp(-2 * log_scales[node])
    gradient, hessian = gradient - precision * effects, hessian - np.diag(precision)
    nodes = list(nodes)
    for _ in range(_MOST_SWEEPS):
        before = list(nodes)
        for k, (places, mixture) in enumerate(mixtures):
            found_logs = []
            for log_scale, log_weight in zip(logs[k], np.asarray(mixture.log_weights), strict=True):
                precision[places] = np.exp(-2 * log_scale)
                root = _inverse_root(hessian + np.diag(precision))
                if root is None:
                    found_logs.append(-np.inf)
                    continue
                pull = root @ (gradient + precision * effects)
                least = precision @ effects**2 - np.sum(pull**2)
                log_det = np.sum(np.log(np.diag(root)))
                found_logs.append(log_weight - len(places) * log_scale + log_det - least / 2)
            nodes[k] = int(np.argmax(found_logs))
            precision[places] = np.exp(-2 * logs[k][nodes[k]])
        if nodes == before:
            break
    return nodes


def _anchor_at(
    passes: CountedPasses,
    at: ArrayLike,
    hessian: bool,
    reached: bool | None,
    known: Derivatives | None = None,
) -> tuple[Anchor, list[str]]:
    """The anchor at a position, and what the user should know about its curvature.

    `reached` tells whether the position is the mode when there is no Hessian to tell.
    """

    def to_device(values: ArrayLike) -> Array:
        return on_device(values, passes.posterior.dtype)

    position = to_device(at)
    potential, gradient = passes.value_and_gradient(position) if known is None else known[:2]
    if not np.isfinite(potential) or not np.isfinite(gradient).all():
        raise not_finite(passes, position, f"at the anchor: f = {potential}")
    if not hessian:
        nothing = (None, None, None, None)  # of the Hessian
        rows = passes.n_row_evals
        return Anchor(position, potential, to_device(gradient), *nothing, rows, reached), []
    stage("computing the Hessian at the mode")
    of_position = None if known is None else known.hessian
    curvature = anchor_curvature(passes, np.asarray(at, np.float64), gradient, of_position)
    try:
        factor = np.linalg.cholesky(curvature.covariance)
    except np.linalg.LinAlgError:
        raise PreparationError(
            "the covariance at the mode must be positive definite; its directions differ too much "
            "in scale. Use another init, or a method that needs no Hessian."
        ) from None
    anchor = Anchor(
        position,
        potential,
        gradient=to_device(curvature.gradient),
        hessian=to_device(curvature.hessian),
        covariance=to_device(curvature.covariance),
        factor=to_device(factor),
        decrement=curvature.decrement,
        n_row_evals=passes.n_row_evals,
        converged=curvature.definite and curvature.decrement <= _NEAR_THE_MODE,
        accurate=(_gradient_at(position, at, gradient, curvature), curvature.hessian),
    )
    return anchor, [] if curvature.warning is None else [curvature.warning]


def _gradient_at(
    position: Vector, at: ArrayLike, gradient: HostVector, curvature: AnchorCurvature
) -> HostVector:
    """∇f at the rounded position; in double precision it is known before rounding only."""
    if curvature.gradient is gradient:
        return gradient
    rounding = np.asarray(position, np.float64) - np.asarray(at, np.float64)
    return curvature.gradient + curvature.hessian @ rounding


def check_anchor(anchor: Anchor, posterior: AbstractPosterior, needs: AnchorLevel) -> int:
    """Check that the anchor is of this posterior and has the level `needs`; returns rows read."""
    same = "come from find_anchor(posterior) of the same posterior"
    if not isinstance(anchor, Anchor) or anchor.position.shape != (posterior.dim,):
        raise InvalidInput("anchor", same, type(anchor).__name__)
    if anchor.position.dtype != posterior.dtype:
        rule = f"have the posterior's precision, {posterior.dtype}"
        raise InvalidInput("anchor", rule, str(anchor.position.dtype))
    passes = CountedPasses(posterior)
    potential, _ = passes.value_and_gradient(anchor.position)
    if not np.isclose(potential, anchor.potential, rtol=1e-5):
        found = f"one whose potential is {anchor.potential:.7g}; this posterior has {potential:.7g}"
        raise InvalidInput("anchor", same, found)
    if needs >= AnchorLevel.HESSIAN and anchor.hessian is None:
        cure = "Use find_anchor(posterior, hessian=True)."
        raise InvalidInput("anchor", "have a Hessian for this method", "none", cure)
    return passes.n_row_evals
