"""Kernels as JSON: the class and fields of every part. Arrays are stored separately.

A kernel is a tree of the library's own modules. Its model is not stored, because the model comes
with the posterior. A function of the user, as in `Recipe`, is stored as its path in the method, and
the user passes the method to `resume` again. If a part has a class of the user's own, only the
arrays are stored. `resume` then prepares the method again and puts the arrays into the new kernel.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..anchor.anchor import Anchor
from ..core.layout import Layout
from ..core.pytrees import named_leaves, with_leaves
from ..engine.kernel import AbstractKernel
from ..methods.base import AbstractMethod
from ..models.base import AbstractModel
from ..models.observations import Observations
from ..models.posterior import AbstractPosterior
from .methods import NotSerialisable

_SCALARS = (bool, int, float, str, type(None))
_PREPARED_AGAIN = "prepared_again"
_PACKAGE = __package__.split(".")[0]


def encode_kernel(
    kernel: AbstractKernel, method: AbstractMethod
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Encode a kernel as JSON, and the arrays that the JSON refers to by name."""
    arrays: dict[str, Any] = {}
    functions = {id(function): path for path, function in _functions_with_paths(method, "")}

    def encode(value: Any, path: str) -> Any:
        if isinstance(value, AbstractModel):
            return {"model": True}
        if isinstance(value, Layout):
            return {"layout": True}
        if isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            return {"dtype": np.dtype(value).name}
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, _SCALARS):
            return value
        if eqx.is_array(value) or isinstance(value, np.ndarray):
            arrays[path] = value
            return {"array": path}
        if isinstance(value, Observations):
            return {"observations": [encode(part, f"{path}.{k}") for k, part in enumerate(value)]}
        if isinstance(value, tuple):
            return {"tuple": [encode(part, f"{path}.{k}") for k, part in enumerate(value)]}
        if _library_modules().get(type(value).__name__) is type(value):
            fields = {
                field.name: encode(getattr(value, field.name), f"{path}.{field.name}")
                for field in dataclasses.fields(value)
            }
            return {"part": type(value).__name__, "fields": fields}
        if id(value) in functions:
            return {"function": functions[id(value)]}
        if _library_function(name := _name_of(value)) is value:
            return {"library_function": name}
        raise NotSerialisable(f"a {type(value).__name__}")

    try:
        return encode(kernel, "kernel"), arrays
    except NotSerialisable:
        without_model = jax.tree.map(
            lambda node: None if isinstance(node, AbstractModel) else node,
            kernel,
            is_leaf=lambda node: isinstance(node, AbstractModel),
        )
        return {_PREPARED_AGAIN: True}, dict(named_leaves(without_model))


def decode_kernel(
    content: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    posterior: AbstractPosterior,
    method: AbstractMethod,
    anchor: Anchor | None,
    seed: int,
) -> AbstractKernel:
    """Decode the result of `encode_kernel`; raises ValueError for other content."""
    if content.get(_PREPARED_AGAIN):
        return with_leaves(method.prepare(posterior, anchor, seed=seed).kernel.kernel, arrays)
    functions = dict(_functions_with_paths(method, ""))

    def decode(content: Any) -> Any:
        if isinstance(content, _SCALARS):
            return content
        if not isinstance(content, dict):
            raise ValueError("a field is not a part, array, number or text")
        if "part" in content:
            return _decode_module(content, decode)
        if len(content) != 1:
            raise ValueError(f"a field has several kinds: {sorted(content)}")
        ((kind, value),) = content.items()
        match kind:
            case "model":
                return posterior.model
            case "layout":
                return posterior.layout
            case "dtype":
                return np.dtype(value)
            case "array":
                return jnp.asarray(arrays[value])
            case "observations":
                return Observations(*map(decode, value))
            case "tuple":
                return tuple(map(decode, value))
            case "function":
                return functions[value]
            case "library_function":
                return _library_function(value)
        raise ValueError(f"a field has the unknown kind {kind!r}")

    kernel = decode(content)
    if not isinstance(kernel, AbstractKernel):
        raise ValueError("the content is a part, not a kernel")
    return kernel


def _decode_module(content: Mapping[str, Any], decode: Callable[[Any], Any]) -> eqx.Module:
    """Make a module without its constructor, as `jax.tree.unflatten` does."""
    kind, fields = _library_modules().get(str(content["part"])), content.get("fields")
    if kind is None or not isinstance(fields, dict):
        raise ValueError(f"{content['part']!r} is not a part of tallmc")
    if set(fields) != {field.name for field in dataclasses.fields(kind)}:
        raise ValueError(f"the fields are not those of {content['part']}")
    module = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(module, name, decode(value))
    return module


def _functions_with_paths(value: Any, path: str) -> list[tuple[str, Any]]:
    """The functions in the settings of a method, with their paths."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = [
            (f"{path}.{field.name}", getattr(value, field.name))
            for field in dataclasses.fields(value)
        ]
        return [pair for place, part in found for pair in _functions_with_paths(part, place)]
    return [(path, value)] if callable(value) else []


def _name_of(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__name__', '')}"


def _library_function(name: str) -> Any:
    """A function of this package by its name; None if there is no such function."""
    place, _, function = str(name).partition(":")
    module = sys.modules.get(place) if place.startswith(f"{_PACKAGE}.") else None
    found = vars(module).get(function) if module is not None else None
    return found if isinstance(found, FunctionType) and found.__module__ == place else None


@functools.cache
def _library_modules() -> dict[str, type[eqx.Module]]:
    """The library's own modules, by name."""
    found: dict[str, type[eqx.Module]] = {}
    waiting: list[type[eqx.Module]] = [eqx.Module]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith(f"{_PACKAGE}."):
                found[kind.__name__] = kind
    return found
