"""The layout of a pytree of parameters in one flat vector."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
    entries: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, compare=False)
    """Names for the entries of vectors, by leaf. Not compared: programs do not depend on them."""

    def labelled(self, entries: Mapping[str, Sequence[str]]) -> Layout:
        """The same layout with names for the entries of some vectors."""
        check_labels(entries, dict(zip(self.names, self.shapes, strict=True)))
        named = {name: tuple(map(str, labels)) for name, labels in entries.items()}
        return dataclasses.replace(self, entries={**self.entries, **named})

    @property
    def dim(self) -> int:
        """d, the length of the vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def coordinate_names(self) -> list[str]:
        """One name per entry of the vector, such as `beta[3]` or, with labels, `beta[age]`."""
        found = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            entries = self.entries.get(name) or [
                ", ".join(map(str, index)) for index in np.ndindex(*shape)
            ]
            found += [f"{name}[{entry}]" for entry in entries] if shape else [name]
        return found

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


def check_labels(
    labels: Mapping[str, Sequence[str]], shapes: Mapping[str, tuple[int, ...]]
) -> Mapping[str, Sequence[str]]:
    """The labels; raises unless they give one name per entry of vectors with these shapes."""
    for name, entries in labels.items():
        if name not in shapes:
            raise InvalidInput("labels", f"name parameters among {', '.join(shapes)}", name)
        if shapes[name] != (len(entries),):
            rule = f"have one name per entry {shapes[name]}".replace(",)", ")")
            raise InvalidInput(f"labels[{name!r}]", rule, len(entries))
    return labels


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
