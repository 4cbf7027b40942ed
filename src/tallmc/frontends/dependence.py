"""Which results of a function depend on which arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Var
from jaxtyping import PyTree


def depends_on_last(
    function: Callable[[Any, Any], dict[str, Any]], fixed: PyTree, varied: PyTree
) -> dict[str, bool]:
    """For each result of `function(fixed, varied)`: whether it depends on `varied`.

    The function is traced, not run, so the arguments may be shapes. The shape of `varied` does not
    count. A program called inside counts as if each of its results depended on all its arguments.

    >>> import jax.numpy as jnp
    >>> depends_on_last(lambda a, x: {"a": a + x.shape[0], "ax": a * x.sum()}, 1.0, jnp.ones(3))
    {'a': False, 'ax': True}
    """
    program, shapes = jax.make_jaxpr(function, return_shape=True)(fixed, varied)
    n_fixed = len(jax.tree.leaves(fixed))
    touched = set(program.jaxpr.invars[n_fixed:])
    for equation in program.jaxpr.eqns:
        inputs = {entry for entry in equation.invars if isinstance(entry, Var)}
        if inputs & touched:
            touched.update(equation.outvars)
    found = [isinstance(out, Var) and out in touched for out in program.jaxpr.outvars]
    by_name = jax.tree.unflatten(jax.tree.structure(shapes), found)
    return {name: any(jax.tree.leaves(value)) for name, value in by_name.items()}
