"""Many group effects that cannot be integrated out: crossed factors, players of a match.

Exact Hamiltonian Monte Carlo on all rows, in the coordinates of `StandardEffects` (`geometry.py`).
A gradient is one gather and one sum per group and factor, and ten leapfrog steps make a draw that
hardly remembers the last. Without these coordinates a crossed pair of 50 and 300 groups had 22
effective draws after 200 seconds: log sds and effects form a funnel, and the search for the mode
ends in its spike.

The search for the anchor takes quasi-Newton steps ζ ← ζ − CCᵀ∇ in these coordinates, then makes
new coordinates at the place that it found, and repeats both until steps are short. At η = 0 the
potential of the log sds is Laplace's approximation of their marginal. It has no spike, and its
minimum is nearly the estimate of lme4.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._anchor.anchor import Anchor, find_anchor
from ..._core.supervision import checkpoint, stage
from ..._rows.access import RowBlock
from ..._rows.law import Batch
from ...geometry import EffectMap, StandardEffects
from ...models.model import AbstractModel, rounded_sum
from ...models.posterior import AbstractPosterior

_LARGEST_CORE = 512
_KNOWN_BY_ROWS = 0.5
"""Effects belong to the core if the rows know this share of their precision. Two others have at
most this much of their precision in common."""
_ROUNDS, _STEPS = 6, 12
_NEAR = 0.5
"""Length of the last step of the search, in posterior sds; draws are √d from the mode."""
_LONGEST_STEP = 5.0
_PASSES = 4  # of new coordinates
_SMALLEST_STEP = 2.0**-6


class EffectAnchor(NamedTuple):
    """Where chains of group effects start, and their coordinates."""

    anchor: Anchor
    geometry: StandardEffects
    n_row_evals: int
    """Without those of the anchor."""


def standard_effects(posterior: AbstractPosterior) -> EffectAnchor:
    """The anchor in the coordinates of standardised effects, and these coordinates."""
    stage("finding the mode of the group effects")
    position, passes = posterior.init, 0
    for _ in range(_ROUNDS):
        geometry = _geometry_at(posterior, position)
        passes += _PASSES
        mapping = geometry.prepare(posterior, None)
        found = _descend(posterior, mapping, position)
        position, passes = found.position, passes + found.n_passes
        if found.first_step < _NEAR:
            break
    anchor = find_anchor(posterior, at=posterior.layout.unravel(position), hessian=False)
    return EffectAnchor(anchor, geometry, passes * posterior.n_rows)


class _Descent(NamedTuple):
    position: Float[Array, " d"]
    first_step: float
    """The length of the first step, in posterior sds."""
    n_passes: int


def _descend(
    posterior: AbstractPosterior, mapping: EffectMap, position: Float[Array, " d"]
) -> _Descent:
    """Quasi-Newton steps in fixed coordinates."""
    share, first, passes = 1.0, np.inf, 1
    value, step = _evaluated(posterior, mapping, position)
    for number in range(_STEPS):
        checkpoint()
        length = float(jnp.linalg.norm(step))
        first = length if number == 0 else first
        if length < _NEAR / 2:
            break
        reach = share * min(1.0, _LONGEST_STEP * len(position) ** 0.5 / length)
        there = _moved(mapping, position, step, jnp.asarray(-reach, position.dtype))
        new_value, new_step = _evaluated(posterior, mapping, there)
        passes += 1
        if np.isfinite(new_value) and new_value < value + 0.1:  # rounding of large sums
            position, value, step, share = there, new_value, new_step, min(1.0, 2 * share)
        elif share < _SMALLEST_STEP:
            break
        else:
            share /= 2
    return _Descent(position, first, passes)


@eqx.filter_jit
def _moved(
    mapping: EffectMap, position: Float[Array, " d"], step: Float[Array, " d"], length: Array
) -> Float[Array, " d"]:
    return mapping.moved(position, step, length)


def _evaluated(
    posterior: AbstractPosterior, mapping: EffectMap, position: Float[Array, " d"]
) -> tuple[float, Float[Array, " d"]]:
    """The potential in ζ, and Cᵀ∇ of it: the quasi-Newton step in units of the map."""
    value, gradient = posterior.model.potential_and_gradient(position, posterior.rows).float64()
    pulled, log_volume = _pulled(mapping, position, jnp.asarray(gradient, position.dtype))
    return float(value) - float(log_volume), pulled


@eqx.filter_jit
def _pulled(
    mapping: EffectMap, position: Float[Array, " d"], gradient: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Array]:
    return mapping.pull_at(position, gradient), mapping.log_volume(position)


def _geometry_at(posterior: AbstractPosterior, position: Float[Array, " d"]) -> StandardEffects:
    """The coordinates that fit the rows at this position."""
    model, rows, width = posterior.model, posterior.rows, posterior.rows.floats_per_row
    diagonal = rows.reduce(_diagonal, model, position, width=width).float64()
    _, gradient = model.potential_and_gradient(position, rows).float64()
    information, score = np.zeros(model.dim), np.zeros(model.dim)
    is_effect, shares = np.zeros(model.dim, bool), np.zeros(model.dim)
    at = np.asarray(position, np.float64)
    for term in model.effect_terms():
        places = term.effects
        is_effect[places] = True
        information[places] = np.maximum(diagonal[places], 0)
        precision = information[places] + np.exp(-2 * np.asarray(term.of_effects(position)))
        score[places] = precision * at[places] - gradient[places]
        shares[places] = information[places] / precision
    common = np.flatnonzero(~is_effect)
    ranked = np.argsort(-shares, kind="stable")[: np.sum(shares > _KNOWN_BY_ROWS)]
    core = np.sort(np.append(common, ranked[: max(0, _LARGEST_CORE - len(common))]))
    known = StandardEffects(
        information, score, core, np.zeros((model.dim, len(core))), np.ones(model.dim)
    )
    mapping = known.prepare(posterior, None)
    # Directions of log sds move all effects of a term; those of effects are units.
    directions = _directions(mapping, position, jnp.asarray(core))
    is_common = ~is_effect[core]
    products = np.empty(directions.shape, model.dtype)
    products[is_common] = rows.reduce(
        *(_products, model, position, directions[is_common]),
        width=max(width, int(is_common.sum())),
        finish=rounded_sum,
    )
    if not is_common.all():
        chosen = jnp.asarray(core[~is_common])
        columns = rows.reduce(_columns, model, position, chosen, width=width, finish=rounded_sum)
        at_effects = np.flatnonzero(~is_common)
        sizes = np.asarray(directions)[at_effects, core[at_effects]]
        products[at_effects] = sizes[:, None] * np.asarray(columns)
    found = _in_coordinates(
        model,
        mapping,
        position,
        jnp.asarray(gradient, model.dtype),
        directions,
        jnp.asarray(core),
        jnp.asarray(products),
    )
    return dataclasses.replace(known, columns=np.asarray(found).T)


def _diagonal(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Float[Array, " d"]
) -> Float[Array, " d"]:
    return model.hessian_diagonal(position, Batch(block, counted.astype(model.dtype)))


@eqx.filter_jit
def _directions(
    mapping: EffectMap, position: Float[Array, " d"], core: Array
) -> Float[Array, "k d"]:
    """∂θ/∂ζ of the core."""
    zeta = mapping.standardised(position)
    units = jax.nn.one_hot(core, len(zeta), dtype=zeta.dtype)
    return jax.vmap(lambda unit: jax.jvp(mapping.position, (zeta,), (unit,))[1])(units)


def _products(
    block: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    position: Float[Array, " d"],
    directions: Float[Array, "k d"],
) -> Float[Array, "k d"]:
    batch = Batch(block, counted.astype(model.dtype))
    return model.hessian_products(position, directions, batch)


def _columns(
    block: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    position: Float[Array, " d"],
    chosen: Int[Array, " k"],
) -> Float[Array, "k d"]:
    batch = Batch(block, counted.astype(model.dtype))
    return model.hessian_columns(position, chosen, batch)


@eqx.filter_jit
def _in_coordinates(
    model: AbstractModel,
    mapping: EffectMap,
    position: Float[Array, " d"],
    gradient: Float[Array, " d"],
    directions: Float[Array, "k d"],
    core: Array,
    products: Float[Array, "k d"],
) -> Float[Array, "k d"]:
    """The rows of the core in the Hessian in ζ, from ∇f and Σ ∇²f_i ∂θ/∂ζ of the rows."""
    zeta = mapping.standardised(position)
    units = jax.nn.one_hot(core, len(zeta), dtype=zeta.dtype)

    def row(
        unit: Float[Array, " d"], direction: Float[Array, " d"], product: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        prior = jax.jvp(model.prior_gradient, (position,), (direction,))[1]
        return jax.jvp(mapping.gradient, (zeta, gradient), (unit, product + prior))[1]

    return jax.vmap(row)(units, directions, products)
