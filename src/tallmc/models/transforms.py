"""Constrained parameters: the sampler moves in unconstrained space.

    θ = T(u),   log prior(u) = log prior(T(u)) + log |det ∂T/∂u|

The maps are NumPyro's bijectors; those of the most frequent constraints are here, so that they need
no NumPyro. The log density of u has the same normalising constant as that of θ, and draws of u are
shown as θ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._core.arrays import ComputedQuantities, Layout, Scalar, Vector, layout_of
from .._core.errors import InvalidInput
from .._core.packages import check_installed

_ALIASES = {"cholesky": "lower_cholesky"}
"""Shorter names of constraints."""
_ROUNDING = 1e-4
"""Relative difference of T(T⁻¹(θ)) from θ that float32 may cause."""


class Transform(NamedTuple):
    """A bijection, with the interface of NumPyro's transforms."""

    forward: Callable[[Array], Array]
    inv: Callable[[Array], Array]
    log_determinant: Callable[[Array, Array], Array]

    def __call__(self, u: Array) -> Array:
        return self.forward(u)

    def log_abs_det_jacobian(self, u: Array, theta: Array) -> Array:
        return self.log_determinant(u, theta)


def _ordered(u: Array) -> Array:
    steps = jnp.concatenate([u[..., :1], jnp.exp(u[..., 1:])], axis=-1)
    return jnp.cumsum(steps, axis=-1)


def _from_ordered(theta: Array) -> Array:
    return jnp.concatenate([theta[..., :1], jnp.log(jnp.diff(theta, axis=-1))], axis=-1)


def _log_odds(u: Array) -> Array:
    # Of the share of the rest that the k-th of n + 1 parts takes; equal parts have u = 0.
    return u - jnp.log(jnp.arange(u.shape[-1], 0, -1, dtype=u.dtype))


def _broken_stick(u: Array) -> Array:
    odds = _log_odds(u)
    log_rest = jnp.cumsum(jax.nn.log_sigmoid(-odds), axis=-1)
    parts = jnp.concatenate([jax.nn.log_sigmoid(odds), jnp.zeros_like(u[..., :1])], axis=-1)
    return jnp.exp(parts + jnp.concatenate([jnp.zeros_like(u[..., :1]), log_rest], axis=-1))


def _from_broken_stick(theta: Array) -> Array:
    # What is left after each part, without the cancellation of 1 − Σ.
    rest = jnp.cumsum(theta[..., ::-1], axis=-1)[..., ::-1][..., 1:]
    return jnp.log(theta[..., :-1]) - jnp.log(rest) - _log_odds(jnp.zeros_like(rest))


def _stick_determinant(u: Array, theta: Array) -> Array:
    odds = _log_odds(u)
    # θ_k is the rest before it times the share σ, so ∂θ_k/∂u_k = θ_k(1 − σ).
    return jnp.sum(jnp.log(theta[..., :-1]) + jax.nn.log_sigmoid(-odds), axis=-1)


_TRANSFORMS = {
    "positive": Transform(jnp.exp, jnp.log, lambda u, theta: u),
    "unit_interval": Transform(
        jax.nn.sigmoid,
        lambda theta: jnp.log(theta) - jnp.log1p(-theta),
        lambda u, theta: jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u),
    ),
    "ordered_vector": Transform(
        _ordered, _from_ordered, lambda u, theta: jnp.sum(u[..., 1:], axis=-1)
    ),
    "positive_ordered_vector": Transform(
        lambda u: jnp.exp(_ordered(u)),
        lambda theta: _from_ordered(jnp.log(theta)),
        lambda u, theta: jnp.sum(u[..., 1:], axis=-1) + jnp.sum(_ordered(u), axis=-1),
    ),
    "simplex": Transform(_broken_stick, _from_broken_stick, _stick_determinant),
}


class Constraints(eqx.Module):
    """Maps unconstrained parameters to constrained ones, leaf by leaf."""

    transforms: dict[str, Any] = eqx.field(static=True)
    """Transforms by the name of the leaf. The other leaves are unconstrained."""
    layout: Layout = eqx.field(static=True)
    """The layout of the unconstrained parameters."""

    def __call__(self, unconstrained: PyTree) -> PyTree:
        """T(u)."""
        leaves = zip(self.layout.names, jax.tree.leaves(unconstrained), strict=True)
        found = [
            self.transforms[name](leaf) if name in self.transforms else leaf
            for name, leaf in leaves
        ]
        return jax.tree.unflatten(self.layout.treedef, found)

    def log_determinant(self, unconstrained: PyTree) -> Scalar:
        """Log |det ∂T/∂u|."""
        leaves = zip(self.layout.names, jax.tree.leaves(unconstrained), strict=True)
        terms = [
            jnp.sum(self.transforms[name].log_abs_det_jacobian(leaf, self.transforms[name](leaf)))
            for name, leaf in leaves
            if name in self.transforms
        ]
        return sum(terms, jnp.zeros(()))


class ConstrainedLikelihood(eqx.Module):
    """A log-likelihood of constrained parameters as a function of unconstrained ones."""

    function: Callable[[PyTree, PyTree], Any]
    constraints: Constraints

    def __call__(self, unconstrained: PyTree, rows: PyTree) -> Any:
        return self.function(self.constraints(unconstrained), rows)


class ConstrainedPrior(eqx.Module):
    """A log prior of constrained parameters as a density of unconstrained ones."""

    function: Callable[[PyTree], Any]
    constraints: Constraints

    def __call__(self, unconstrained: PyTree) -> Any:
        log_prior = self.function(self.constraints(unconstrained))
        return log_prior + self.constraints.log_determinant(unconstrained)


def constrained_parameters(constraints: Constraints) -> ComputedQuantities:
    """The constrained parameters at unconstrained positions."""
    layout = constraints.layout

    def at(position: Vector) -> dict[str, Array]:
        leaves = jax.tree.leaves(constraints(layout.unravel(position)))
        return dict(zip(layout.names, leaves, strict=True))

    return ComputedQuantities(
        at,
        layout.dim,
        {name: (f"{name}_dim",) for name in layout.entries},
        {f"{name}_dim": entries for name, entries in layout.entries.items()},
        layout.treedef,
        layout.names,
    )


def constrained(
    init: PyTree, transforms: Mapping[str, Any], labels: Mapping[str, Sequence[str]]
) -> tuple[Constraints, PyTree]:
    """The constraints, and the unconstrained starting point from constrained parameters `init`.

    `transforms` has, by the name of a leaf, a NumPyro transform, a constraint or the name of one.
    """
    layout = layout_of(init)[0].labelled(labels)
    found: dict[str, Any] = {}
    for name, given in transforms.items():
        if name not in layout.names:
            known = ", ".join(layout.names)
            raise InvalidInput("transforms", f"name leaves of init ({known})", name)
        found[name] = _transform(name, given)
    leaves = []
    for name, leaf in zip(layout.names, jax.tree.leaves(init), strict=True):
        value = jnp.asarray(leaf)
        free = found[name].inv(value) if name in found else value
        if name in found and not _goes_back(found[name], free, value):
            rule = f"satisfy its constraint ({transforms[name]})"
            raise InvalidInput(f"init, leaf {name}", rule, np.asarray(value))
        leaves.append(free)
    unconstrained = jax.tree.unflatten(layout.treedef, leaves)
    free_layout = dataclasses.replace(layout_of(unconstrained)[0], entries=layout.entries)
    return Constraints(found, free_layout), unconstrained


def _goes_back(transform: Any, free: Array, value: Array) -> bool:
    """Whether T(u) is the value that u = T⁻¹(θ) came from: the value is in the image of T.

    The inverse of a map into a simplex or a triangle also takes values outside of it.
    """
    if not bool(jnp.all(jnp.isfinite(free))):
        return False
    back = np.asarray(transform(free))
    scale = np.abs(np.asarray(value)).max(initial=0)
    return back.shape == value.shape and bool(
        np.all(np.abs(back - np.asarray(value)) <= _ROUNDING * scale)
    )


def _transform(name: str, given: Any) -> Any:
    """A transform from a NumPyro transform, a constraint, or the name of a constraint."""
    if isinstance(given, str) and given in _TRANSFORMS:
        return _TRANSFORMS[given]
    known = ", ".join(map(repr, _TRANSFORMS))
    check_installed("numpyro", needed_by=f"transforms[{name!r}] = {given!r}, unlike {known},")
    from numpyro.distributions import biject_to, constraints
    from numpyro.distributions.transforms import Transform as NumPyroTransform

    if isinstance(given, NumPyroTransform):
        return given
    parameter = f"transforms[{name!r}]"
    wanted = given
    if isinstance(given, str):
        wanted = getattr(constraints, _ALIASES.get(given, given), None)
    rule = "be a NumPyro transform, a NumPyro constraint or the name of one"
    if not isinstance(wanted, constraints.Constraint):
        cure = (
            "It has settings: pass an instance, such as constraints.interval(0.0, 1.0)."
            if isinstance(wanted, type)
            else 'For example "positive" or "simplex".'
        )
        raise InvalidInput(parameter, rule, given, cure)
    try:
        return biject_to(wanted)
    except NotImplementedError:
        raise InvalidInput(parameter, f"{rule}, with a bijection", given) from None
