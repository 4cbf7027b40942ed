"""Constrained parameters: the sampler moves in unconstrained space.

    θ = T(u),   log prior(u) = log prior(T(u)) + log |det ∂T/∂u|

The maps are NumPyro's bijectors. The log density of u has the same normalising constant as that of
θ, and draws of u are shown as θ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._core.arrays import ComputedQuantities, Layout, Scalar, Vector, layout_of
from .._core.errors import InvalidInput

_ALIASES = {"cholesky": "lower_cholesky"}
"""Shorter names of constraints."""
_ROUNDING = 1e-4
"""Relative difference of T(T⁻¹(θ)) from θ that float32 may cause."""


class Constraints(eqx.Module):
    """Maps unconstrained parameters to constrained ones, leaf by leaf."""

    transforms: dict[str, Any] = eqx.field(static=True)
    """NumPyro transforms, by the name of the leaf. The other leaves are unconstrained."""
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
    """A NumPyro transform from a transform, a constraint, or the name of a constraint."""
    try:
        from numpyro.distributions import biject_to, constraints
        from numpyro.distributions.transforms import Transform
    except ImportError:
        raise ImportError(
            'transforms need NumPyro: pip install "tallmc[numpyro]"', name="numpyro"
        ) from None
    if isinstance(given, Transform):
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
