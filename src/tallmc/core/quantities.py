"""The named quantities that users see, computed from positions.

A sampler moves flat, unconstrained positions. Users see quantities: parameters by name, in their
constrained form, coefficients in the units of a table, deterministic functions of the parameters.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .layout import Layout

_BLOCK = 4096
"""Positions at which quantities are computed at once."""


class AbstractQuantities(abc.ABC):
    """Named arrays computed from positions, with names of their dimensions and entries."""

    shapes: dict[str, tuple[int, ...]]
    """The shape of each quantity, for one position."""
    dims: dict[str, tuple[str, ...]]
    """Names of the dimensions of a quantity. Quantities that are missing have default names."""
    coords: dict[str, tuple[str, ...]]
    """Names of the entries of a dimension. Dimensions that are missing are numbered."""
    structure: Any
    """The treedef of the quantities in the user's pytree; None if they are a dict by name."""

    @abc.abstractmethod
    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The quantities at positions (chains, draws, d); each (chains, draws, *shape)."""

    def entry_names(self) -> list[str]:
        """One name per entry of all quantities, such as `scale` or `beta[age]`."""
        return [
            f"{name}[{', '.join(entry)}]" if shape else name
            for name, shape in self.shapes.items()
            for entry in self._entries(name, shape)
        ]

    def _entries(self, name: str, shape: tuple[int, ...]) -> list[tuple[str, ...]]:
        dims = self.dims.get(name, (None,) * len(shape))
        axes = [
            self.coords.get(dim or "", tuple(map(str, range(size))))
            for dim, size in zip(dims, shape, strict=True)
        ]
        return [
            tuple(axis[at] for axis, at in zip(axes, index, strict=True))
            for index in np.ndindex(*shape)
        ]


class Parameters(AbstractQuantities):
    """The parameters as they lie in a position.

    >>> from tallmc.core.layout import layout_of
    >>> layout, _ = layout_of({"beta": np.zeros(2), "scale": 1.0})
    >>> Parameters(layout.labelled({"beta": ["age", "sex"]})).entry_names()
    ['beta[age]', 'beta[sex]', 'scale']
    """

    def __init__(self, layout: Layout):
        self.layout, self.structure = layout, layout.treedef
        self.shapes = dict(zip(layout.names, layout.shapes, strict=True))
        self.dims = {name: (f"{name}_dim",) for name in layout.entries}
        self.coords = {f"{name}_dim": entries for name, entries in layout.entries.items()}

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        return self.layout.split(positions)


class StoredQuantities(AbstractQuantities):
    """Quantities that were computed before, such as those of a stored run."""

    def __init__(
        self,
        values: Mapping[str, np.ndarray],
        dims: Mapping[str, tuple[str, ...]],
        coords: Mapping[str, tuple[str, ...]],
        structure: Any = None,
    ):
        self.values, self.structure = dict(values), structure
        self.shapes = {name: array.shape[2:] for name, array in values.items()}
        self.dims, self.coords = dict(dims), dict(coords)

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        for name, array in self.values.items():
            assert array.shape[:2] == positions.shape[:2], f"{name} belongs to other draws"
        return self.values


class ComputedQuantities(AbstractQuantities):
    """Quantities that a JAX function computes from one position.

    **Arguments:**

    - `function`: `function(position)`, a dict of arrays by name.
    - `dim`: d, the length of a position.
    - `dims`, `coords`: names of dimensions and of their entries.
    - `structure`: the treedef of the quantities in the user's pytree.
    - `names`: the order of the quantities, that of the leaves of `structure`. JAX sorts dicts.
    """

    def __init__(
        self,
        function: Callable[[Array], dict[str, Array]],
        dim: int,
        dims: Mapping[str, tuple[str, ...]],
        coords: Mapping[str, tuple[str, ...]],
        structure: Any = None,
        names: Sequence[str] | None = None,
    ):
        example = jax.eval_shape(function, jax.ShapeDtypeStruct((dim,), jnp.zeros(()).dtype))
        self.shapes = {name: example[name].shape for name in names or example}
        self.dims, self.coords, self.structure = dict(dims), dict(coords), structure
        self._of_block = jax.jit(jax.vmap(function))

    def of(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        chains, draws, d = positions.shape
        listed, n = positions.reshape(-1, d), chains * draws
        block = min(_BLOCK, max(n, 1))
        found = {
            name: np.empty((n, *shape), positions.dtype) for name, shape in self.shapes.items()
        }
        for start in range(0, n, block):
            part = listed[start : start + block]
            # The last block is as long as the others, so that there is one program.
            padded = np.concatenate([part, np.repeat(part[-1:], block - len(part), axis=0)])
            for name, values in self._of_block(jnp.asarray(padded)).items():
                found[name][start : start + len(part)] = np.asarray(values)[: len(part)]
        return {
            name: values.reshape(chains, draws, *values.shape[1:]) for name, values in found.items()
        }


def flat(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """All quantities side by side, (chains, draws, entries), in the order of `entry_names`."""
    arrays = list(values.values())
    if len(arrays) == 1 and arrays[0].ndim == 3:
        return arrays[0]
    return np.concatenate(
        [array.reshape(*array.shape[:2], math.prod(array.shape[2:])) for array in arrays], axis=-1
    )
