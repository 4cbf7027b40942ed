"""(De)serialise a pytree's arrays, keyed by tree path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .errors import InvalidInput

Tree = TypeVar("Tree")


def named_leaves(tree: Any) -> dict[str, Array]:
    """The arrays of `tree` by path. A random key is represented by its words.

    >>> named_leaves({"a": jnp.ones(2), "b": "text"})
    {"['a']": Array([1., 1.], dtype=float32)}
    """
    return {
        path: _without_key_type(leaf)
        for path, leaf in _leaves_with_paths(tree)
        if eqx.is_array(leaf)
    }


def with_leaves(tree: Tree, leaves: Mapping[str, np.ndarray]) -> Tree:
    """`tree` with the arrays at these paths replaced.

    Raises if a path is unknown, or a shape or dtype differs.
    """

    def replaced(path: str, leaf: Any) -> Any:
        if path not in leaves:
            return leaf
        plain, new = _without_key_type(leaf), leaves[path]
        if plain.shape != new.shape or plain.dtype != new.dtype:
            found = f"{new.dtype} {new.shape} for {path}, expected {plain.dtype} {plain.shape}"
            raise InvalidInput("store", "fit the method and the posterior", found)
        values = jnp.asarray(new)
        return (
            jax.random.wrap_key_data(values, impl=jax.random.key_impl(leaf))
            if plain is not leaf
            else values
        )

    known = _leaves_with_paths(tree)
    unknown = set(leaves) - {path for path, leaf in known if eqx.is_array(leaf)}
    if unknown:
        raise InvalidInput(
            "store",
            "fit the method and the posterior",
            f"unknown arrays {sorted(unknown)[:3]}",
        )
    return jax.tree.unflatten(
        jax.tree.structure(tree), [replaced(path, leaf) for path, leaf in known]
    )


def _leaves_with_paths(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of `tree` with their paths."""
    return [
        (jax.tree_util.keystr(path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _without_key_type(leaf: Any) -> Any:
    """The words of a random key; any other leaf unchanged."""
    is_key = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
