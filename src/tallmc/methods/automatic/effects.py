"""Many group effects that cannot be integrated out: crossed factors, players of a match.

Exact Hamiltonian Monte Carlo on all rows, in the coordinates of `StandardEffects` (`geometry.py`).
A gradient is one gather and one sum per group and factor, and two to four gradients make a draw
that hardly remembers the last. Without these coordinates a crossed pair of 50 and 300 groups had 22
effective draws after 200 seconds: log sds and effects form a funnel, and the search for the mode
ends in its spike.

Products with the Hessian, one pass each, give the map of these coordinates: conjugate gradients for
the directions of coefficients and log sds, and Lanczos' iteration for the modes of effects. Of
5,832 tennis players, 11 modes have curvatures below 0.7, down to 0.04, and all others are near 1.

The search for the anchor takes quasi-Newton steps ζ ← ζ − CCᵀ∇ in these coordinates, then makes
new coordinates at the place that it found, and repeats both until steps are short. At η = 0 the
potential of the log sds is Laplace's approximation of their marginal. It has no spike, and its
minimum is nearly the estimate of lme4.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._anchor.anchor import Anchor, find_anchor
from ..._core.arrays import Vector
from ..._core.programs import quickly_compiled
from ..._core.supervision import checkpoint, stage
from ..._rows.access import RowBlock
from ..._rows.law import Batch
from ...geometry import EffectMap, StandardEffects
from ...models.model import AbstractModel, EffectTerm, rounded_sum
from ...models.posterior import AbstractPosterior

_ROUNDS, _STEPS = 6, 12
_NEAR = 0.5
"""Length of the last step of the search, in posterior sds; draws are √d from the mode."""
_LONGEST_STEP = 5.0
PASSES = 50
"""Over all rows for new coordinates, about."""
_SOLVER_STEPS, _SOLVED = 30, 0.01
_LANCZOS_STEPS, _MODES, _ROUNDING = 40, 16, 1e-4
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
        geometry = geometry_at(posterior, position)
        passes += PASSES
        mapping = geometry.prepare(posterior, None)
        found = _descend(posterior, mapping, position)
        position, passes = found.position, passes + found.n_passes
        if found.first_step < _NEAR:
            break
    anchor = find_anchor(posterior, at=posterior.layout.unravel(position), hessian=False)
    geometry = dataclasses.replace(geometry, centre=np.asarray(_standardised(mapping, position)))
    return EffectAnchor(anchor, geometry, passes * posterior.n_rows)


class _Descent(NamedTuple):
    position: Vector
    first_step: float
    """The length of the first step, in posterior sds."""
    n_passes: int


def _descend(posterior: AbstractPosterior, mapping: EffectMap, position: Vector) -> _Descent:
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


@quickly_compiled
def _moved(mapping: EffectMap, position: Vector, step: Vector, length: Array) -> Vector:
    return mapping.position(mapping.standardised(position) + length * mapping.push(step))


def _evaluated(
    posterior: AbstractPosterior, mapping: EffectMap, position: Vector
) -> tuple[float, Vector]:
    """The potential in ζ, and Cᵀ∇ of it: the quasi-Newton step in units of the map."""
    value, gradient = posterior.model.potential_and_gradient(position, posterior.rows).float64()
    pulled, log_volume = _pulled(mapping, position, jnp.asarray(gradient, position.dtype))
    return float(value) - float(log_volume), pulled


@quickly_compiled
def _pulled(mapping: EffectMap, position: Vector, gradient: Vector) -> tuple[Vector, Array]:
    return mapping.pull_at(position, gradient), mapping.log_volume(position)


def geometry_at(posterior: AbstractPosterior, position: Vector) -> StandardEffects:
    """The coordinates that fit the rows at this position."""
    model, rows, width = posterior.model, posterior.rows, posterior.rows.floats_per_row
    information = rows.reduce(_effect_hessians, model, position, width=width).float64()
    _, gradient = model.potential_and_gradient(position, rows).float64()
    is_effect, zeros = np.zeros(model.dim, bool), np.zeros(model.dim)
    for term in model.effect_terms():
        is_effect[term.effects] = True
    effects, core = np.flatnonzero(is_effect), np.flatnonzero(~is_effect)
    plain = StandardEffects(
        *(_convex(information, model.effect_terms()), zeros),
        *(np.zeros((len(effects), len(core))), np.eye(len(core))),
        *(np.zeros((len(effects), 0)), np.ones(0), zeros, np.ones(model.dim)),
    )
    score, at = zeros.copy(), np.asarray(position, np.float64)
    precisions = _precisions(plain.prepare(posterior, None), position)
    for term, precision in zip(model.effect_terms(), precisions, strict=True):
        products = np.einsum("grs,gs->gr", np.asarray(precision, np.float64), term.by_group(at))
        score[term.effects] = products.ravel() - gradient[term.effects]
    plain = dataclasses.replace(plain, score=score)
    mapping = plain.prepare(posterior, None)
    hessian = _Hessian(posterior, mapping, position, jnp.asarray(gradient, model.dtype))
    of_core = hessian.times(jax.nn.one_hot(jnp.asarray(core), model.dim))
    coupling = _solved(hessian, np.where(is_effect, of_core, 0), is_effect)
    curvatures, modes = _modes(hessian, is_effect)
    return dataclasses.replace(
        plain,
        coupling=coupling[:, effects].T,
        precision=of_core[:, core] - coupling @ of_core.T,
        modes=modes[:, effects].T,
        curvatures=curvatures,
        centre=np.asarray(_standardised(mapping, position)),
    )


class _Hessian(NamedTuple):
    """The Hessian in ζ at a position."""

    posterior: AbstractPosterior
    mapping: EffectMap
    position: Vector
    gradient: Vector

    def times(self, moves: Float[Any, "k d"]) -> Float[np.ndarray, "k d"]:
        posterior, mapping, position, gradient = self
        model, rows = posterior.model, posterior.rows
        # One move a call: one program serves any number of moves.
        moves = jnp.asarray(moves, model.dtype)
        along = jnp.stack([_pushed(mapping, position, move) for move in moves])
        width = max(rows.floats_per_row, len(moves))
        products = rows.reduce(_products, model, position, along, width=width, finish=rounded_sum)
        found = [
            _in_coordinates(model, mapping, position, gradient, *of)
            for of in zip(moves, along, products, strict=True)
        ]
        return np.asarray(found, np.float64)


def _solved(
    hessian: _Hessian, target: Float[np.ndarray, "k d"], among: Bool[np.ndarray, " d"]
) -> Float[np.ndarray, "k d"]:
    """Solutions of Hx = target among some parameters, by conjugate gradients."""
    found, rest, move = np.zeros_like(target), target, target
    size = goal = np.sum(target**2, axis=1)
    for _ in range(_SOLVER_STEPS):
        product = np.where(among, hessian.times(move), 0)
        curvature = np.sum(move * product, axis=1)
        length = np.divide(size, curvature, out=np.zeros_like(size), where=curvature > 0)[:, None]
        found, rest = found + length * move, rest - length * product
        new = np.sum(rest**2, axis=1)
        if (new <= _SOLVED**2 * goal).all():
            break
        share = np.divide(new, size, out=np.zeros_like(size), where=size > 0)
        move, size = rest + share[:, None] * move, new
    return found


def _modes(
    hessian: _Hessian, among: Bool[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m d"]]:
    """Curvatures farthest from 1 among some parameters, and their directions, by Lanczos."""
    basis = np.zeros((0, len(among)))
    products, start = basis, np.where(among, np.random.default_rng(0).normal(size=len(among)), 0)
    for _ in range(min(_LANCZOS_STEPS, int(among.sum()))):
        for _ in range(2):  # one pass loses orthogonality by rounding
            start = start - (basis @ start) @ basis
        if (length := np.linalg.norm(start)) < _ROUNDING * len(among) ** 0.5:
            break
        basis = np.vstack([basis, start / length])
        start = np.where(among, hessian.times(basis[-1:])[0], 0)
        products = np.vstack([products, start])
    inner = basis @ products.T
    curvatures, vectors = np.linalg.eigh((inner + inner.T) / 2)
    far = np.argsort(-np.abs(np.log(np.maximum(curvatures, _ROUNDING))))[:_MODES]
    return curvatures[far], vectors.T[far] @ basis


def _effect_hessians(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Vector
) -> Float[Array, " b"]:
    return model.effect_hessians(position, Batch(block, counted.astype(model.dtype)))


def _convex(
    information: Float[np.ndarray, " b"], terms: Sequence[EffectTerm]
) -> Float[np.ndarray, " b"]:
    """The blocks of each group without their negative curvatures: some potentials have such."""
    found, at = [], 0
    for term in terms:
        shape = term.n_groups, term.n_columns, term.n_columns
        blocks = information[at : at + math.prod(shape)].reshape(shape)
        values, vectors = np.linalg.eigh(blocks)
        blocks = (vectors * np.maximum(values, 0)[:, None]) @ vectors.mT
        found.append(blocks.ravel())
        at += blocks.size
    return np.concatenate(found)


@quickly_compiled
def _standardised(mapping: EffectMap, position: Vector) -> Vector:
    return mapping.standardised(position)


@quickly_compiled
def _precisions(mapping: EffectMap, position: Vector) -> list[Float[Array, "G r r"]]:
    return [precision for _, precision in mapping.precisions(position)]


@quickly_compiled
def _pushed(mapping: EffectMap, position: Vector, move: Vector) -> Vector:
    """∂θ/∂ζ v."""
    return jax.jvp(mapping.position, (mapping.standardised(position),), (move,))[1]


def _products(
    block: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    position: Vector,
    directions: Float[Array, "k d"],
) -> Float[Array, "k d"]:
    batch = Batch(block, counted.astype(model.dtype))
    return model.hessian_products(position, directions, batch)


@quickly_compiled
def _in_coordinates(
    model: AbstractModel,
    mapping: EffectMap,
    position: Vector,
    gradient: Vector,
    move: Vector,
    pushed: Vector,
    product: Vector,
) -> Vector:
    """The Hessian in ζ times a move, from ∇f and the product of the rows with ∂θ/∂ζ v."""
    zeta = mapping.standardised(position)
    prior = jax.jvp(model.prior_gradient, (position,), (pushed,))[1]
    return jax.jvp(mapping.gradient, (zeta, gradient), (move, product + prior))[1]
