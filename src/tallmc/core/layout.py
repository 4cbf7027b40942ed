"""The layout of a pytree of parameters in one flat vector."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .arrays import to_device
from .errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Layout:
    """Names and shapes of the leaves. Hashable: equal layouts share compiled programs."""

    treedef: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def dim(self) -> int:
        """d, the length of the vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def coordinate_names(self) -> list[str]:
        """One name per entry of the vector, such as `beta[3]`."""
        return [
            f"{name}[{', '.join(map(str, index))}]" if shape else name
            for name, shape in zip(self.names, self.shapes, strict=True)
            for index in np.ndindex(*shape)
        ]

    def unravel(self, vector: Float[Array | np.ndarray, "*batch d"]) -> PyTree:
        """The parameters as a pytree. Each leaf has the batch axes of `vector` in front."""
        return jax.tree.unflatten(self.treedef, list(self.split(vector).values()))

    def split(self, vector: Any) -> dict[str, Any]:
        """The leaves by name. `vector` is a NumPy or a JAX array."""
        batch, start, leaves = vector.shape[:-1], 0, {}
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = math.prod(shape)
            leaves[name] = vector[..., start : start + size].reshape(batch + shape)
            start += size
        return leaves

    def ravel(self, params: PyTree, parameter: str = "init") -> Float[Array, " d"]:
        """The parameters as one vector; raises if they do not fit this layout."""
        leaves, treedef = jax.tree.flatten(params)
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        if treedef != self.treedef or shapes != self.shapes:
            wanted = ", ".join(
                f"{name} {shape}" for name, shape in zip(self.names, self.shapes, strict=True)
            )
            raise InvalidInput(
                parameter,
                f"have the structure and shapes of init ({wanted})",
                f"{treedef} with shapes {shapes}",
            )
        return jnp.concatenate([jnp.ravel(jnp.asarray(leaf)) for leaf in leaves])


def layout_of(params: PyTree) -> tuple[Layout, Float[Array, " d"]]:
    """The layout of `params`, and their values as one vector."""
    leaves_with_paths, treedef = jax.tree.flatten_with_path(params)
    if not leaves_with_paths:
        raise InvalidInput("init", "hold at least one parameter", params)
    names, shapes, flat = [], [], []
    for path, leaf in leaves_with_paths:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "theta"
        values = to_device(f"init, leaf {name}", leaf)
        if not jnp.issubdtype(values.dtype, jnp.floating):
            raise InvalidInput(
                f"init, leaf {name}",
                "be floating point",
                f"dtype {values.dtype}",
                "Write 0.0 instead of 0.",
            )
        if not bool(jnp.all(jnp.isfinite(values))):
            raise InvalidInput(
                f"init, leaf {name}",
                "be finite",
                "NaN or infinity",
                "Start where the density is positive.",
            )
        names.append(name)
        shapes.append(values.shape)
        flat.append(jnp.ravel(values))
    if len(set(names)) < len(names):
        raise InvalidInput("init", "give its leaves different names", names)
    return Layout(treedef, tuple(names), tuple(shapes)), jnp.concatenate(flat)
