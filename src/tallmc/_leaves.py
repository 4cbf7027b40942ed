"""The arrays of a pytree by their path in it: how a state is written down and put back, without a word about its classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._errors import InvalidInput

Tree = TypeVar("Tree")


def named_leaves(tree: Any) -> dict[str, Array]:
    """Arrays by path; keys as the words they are made of.

    >>> named_leaves({"a": jnp.ones(2), "b": "text"})
    {"['a']": Array([1., 1.], dtype=float32)}
    """
    return {path: _plain(leaf) for path, leaf in _paths(tree) if eqx.is_array(leaf)}


def with_leaves(tree: Tree, leaves: Mapping[str, np.ndarray]) -> Tree:
    """The same tree with these arrays in their places; other arrays stay. Raises unless shapes and types are the same."""

    def chosen(path: str, leaf: Any) -> Any:
        if path not in leaves:
            return leaf
        plain, new = _plain(leaf), leaves[path]
        if plain.shape != new.shape or plain.dtype != new.dtype:
            found = f"{new.dtype} {new.shape} for {path}, which is {plain.dtype} {plain.shape} here"
            raise InvalidInput("store", "fit the method and the posterior", found)
        values = jnp.asarray(new)
        return jax.random.wrap_key_data(values, impl=jax.random.key_impl(leaf)) if plain is not leaf else values

    known = _paths(tree)
    unknown = set(leaves) - {path for path, leaf in known if eqx.is_array(leaf)}
    if unknown:
        raise InvalidInput("store", "fit the method and the posterior", f"arrays that are not there: {sorted(unknown)[:3]}")
    return jax.tree.unflatten(jax.tree.structure(tree), [chosen(path, leaf) for path, leaf in known])


def _paths(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _plain(leaf: Any) -> Any:
    is_key = eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf
