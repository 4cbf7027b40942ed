"""Arrays of pytrees: by path, for serialisation, and stacked, for `vmap`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .errors import InvalidInput

Tree = TypeVar("Tree")
Value = TypeVar("Value")


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


@dataclasses.dataclass(frozen=True)
class Uncompared(Generic[Value]):
    """A static value that no program depends on. All are equal, so programs are shared.

    >>> Uncompared("age") == Uncompared("income")
    True
    """

    value: Value = dataclasses.field(compare=False)


class Static:
    """The parts of a pytree that are not arrays, as a static argument of `jax.jit`.

    Its hash is computed once: equinox would compute it in every call, which takes a millisecond for
    a kernel.
    """

    def __init__(self, leaves: tuple[Any, ...], structure: Any):
        self._leaves, self._structure = leaves, structure
        self._hash = hash((leaves, structure))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Static)
            and self._hash == other._hash
            and self._leaves == other._leaves
            and self._structure == other._structure
        )

    def joined(self, arrays: Sequence[Any]) -> Any:
        """The pytree, with these arrays."""
        given = iter(arrays)
        leaves = [next(given) if leaf is _ARRAY else leaf for leaf in self._leaves]
        return jax.tree.unflatten(self._structure, leaves)


class _Array:
    """Marks the place of an array."""


_ARRAY = _Array()


def split(tree: Any) -> tuple[list[Any], Static]:
    """The arrays of `tree`, and all its other parts.

    >>> arrays, others = split({"a": np.ones(2), "b": "text"})
    >>> others.joined(arrays)
    {'a': array([1., 1.]), 'b': 'text'}
    """
    leaves, structure = jax.tree.flatten(tree)
    is_array = [eqx.is_array(leaf) for leaf in leaves]
    arrays = [leaf for leaf, array in zip(leaves, is_array, strict=True) if array]
    others = [_ARRAY if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
    return arrays, Static(tuple(others), structure)


def stacked(trees: Sequence[Tree]) -> tuple[Tree, Tree]:
    """Stack trees of the same structure; return the stack with its `in_axes` for `jax.vmap`.

    Arrays that all trees share are not copied. Equal scalars are not stacked either.

    >>> shared = jnp.ones(3)
    >>> both, axes = stacked([{"a": shared, "b": jnp.ones(2)}, {"a": shared, "b": jnp.zeros(2)}])
    >>> both["b"].shape, axes
    ((2, 2), {'a': None, 'b': 0})
    """
    columns = list(zip(*(jax.tree.leaves(tree) for tree in trees), strict=True))
    shared = [all(_same(leaf, column[0]) for leaf in column) for column in columns]
    leaves = [
        column[0] if same else jnp.stack(column)
        for column, same in zip(columns, shared, strict=True)
    ]
    structure = jax.tree.structure(trees[0])
    axes = jax.tree.unflatten(structure, [None if same else 0 for same in shared])
    return jax.tree.unflatten(structure, leaves), axes


def _same(leaf: Any, other: Any) -> bool:
    if leaf is other or isinstance(leaf, jax.core.Tracer):
        return leaf is other
    return eqx.is_array(leaf) and leaf.ndim == 0 and bool(leaf == other)


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
