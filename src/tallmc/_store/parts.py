"""Methods, kernels and row weights as JSON and arrays."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._anchor.anchor import Anchor
from .._core.arrays import Layout, named_leaves, with_leaves
from .._core.part import parts_by_name, topic_of
from .._engine.kernel import AbstractKernel, Kernel
from .._rows.law import UniformLaw
from .._rows.values import ShardedValues
from ..methods.abstract import AbstractMethod
from ..models.design import Observations
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior

# Methods as JSON: the class and the settings of every part. Arrays are stored separately.
#
# Only the library's own parts are read back. A part that holds a function, such as `Recipe`, or
# that has a class of your own cannot be stored; pass such a method to `resume`.

_SCALARS = (bool, int, float, str, type(None))
_WEIGHTS_BESIDE_ROWS = {"weights": "beside the rows"}
"""Weights of a row store. The kernel of the run knows how to compute them; the method does not."""


class NotSerialisable(Exception):
    """A method cannot be stored; the message names the part."""


def encode_method(method: AbstractMethod) -> tuple[Any, dict[str, np.ndarray]]:
    """Encode a method as JSON, and the arrays that the JSON refers to by name."""
    arrays: dict[str, np.ndarray] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        is_infinite = isinstance(value, float) and not math.isfinite(value)  # JSON has no infinity
        if isinstance(value, _SCALARS) and not is_infinite:
            return value
        if isinstance(value, ShardedValues):
            return _WEIGHTS_BESIDE_ROWS
        if parts_by_name().get(type(value).__name__) is type(value):
            fields = {name: encode(setting) for name, setting in value.settings().items()}
            topic = topic_of(type(value))
            found = {"part": type(value).__name__, "fields": fields}
            return found if topic is None else {**found, "topic": topic}
        if isinstance(value, Mapping):
            return {"by_name": {str(name): encode(part) for name, part in value.items()}}
        if callable(value):
            raise NotSerialisable(f"the function {getattr(value, '__name__', value)!r}")
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "biuf":
            raise NotSerialisable(f"a {type(value).__name__}")
        name = f"{len(arrays)}"
        arrays[name] = numbers
        return {"array": name}

    return encode(method), arrays


def decode_method(content: Any, arrays: Mapping[str, np.ndarray]) -> AbstractMethod:
    """Decode the result of `encode_method`; raises ValueError for other content."""

    def decode(content: Any) -> Any:
        if isinstance(content, _SCALARS):
            return content
        if not isinstance(content, dict):
            raise ValueError("a setting is not a part, array, number or text")
        if content == _WEIGHTS_BESIDE_ROWS:
            return ShardedValues(())
        if set(content) == {"array"}:
            return arrays[content["array"]]
        if set(content) == {"by_name"} and isinstance(content["by_name"], dict):
            return {str(name): decode(value) for name, value in content["by_name"].items()}
        part: Any = parts_by_name(content.get("topic")).get(str(content.get("part")))
        if part is None or inspect.isabstract(part) or not isinstance(content.get("fields"), dict):
            raise ValueError(f"{content.get('part')!r} is not a part of tallmc")
        return part(**{str(name): decode(value) for name, value in content["fields"].items()})

    method = decode(content)
    if not isinstance(method, AbstractMethod):
        raise ValueError("the content is a part, not a method")
    return method


# Kernels as JSON: the class and fields of every part. Arrays are stored separately.
#
# A kernel is a tree of the library's own modules. Its model is not stored, because the model comes
# with the posterior. A function of the user, as in `Recipe`, is stored as its path in the method,
# and the user passes the method to `resume` again. If a part has a class of the user's own, only
# the arrays are stored. `resume` then prepares the method again and puts the arrays into the new
# kernel.

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
        is_scalar_type = isinstance(value, type) and issubclass(value, np.generic)
        if isinstance(value, np.dtype) or is_scalar_type:
            return {"dtype": np.dtype(value).name}
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, _SCALARS):
            return value
        if eqx.is_array(value) or isinstance(value, np.ndarray):
            arrays[path] = value
            return {"array": path}
        if isinstance(value, tuple):
            kind = "observations" if isinstance(value, Observations) else "tuple"
            return {kind: [encode(part, f"{path}.{k}") for k, part in enumerate(value)]}
        if _library_modules().get(type(value).__name__) is type(value):
            fields = {
                field.name: encode(getattr(value, field.name), f"{path}.{field.name}")
                for field in dataclasses.fields(value)
            }
            return {"part": type(value).__name__, "fields": fields}
        if id(value) in functions:
            return {"function": functions[id(value)]}
        name = f"{getattr(value, '__module__', '')}:{getattr(value, '__name__', '')}"
        if _library_function(name) is value:
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
        if kind not in decoders:
            raise ValueError(f"a field has the unknown kind {kind!r}")
        return decoders[kind](value)

    decoders: dict[str, Callable[[Any], Any]] = {
        "model": lambda _: posterior.model,
        "layout": lambda _: posterior.layout,
        "dtype": np.dtype,
        "array": lambda name: jnp.asarray(arrays[name]),
        "observations": lambda parts: Observations(*map(decode, parts)),
        "tuple": lambda parts: tuple(map(decode, parts)),
        "function": functions.__getitem__,
        "library_function": _library_function,
    }

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
        return [
            pair
            for field in dataclasses.fields(value)
            for pair in _functions_with_paths(getattr(value, field.name), f"{path}.{field.name}")
        ]
    return [(path, value)] if callable(value) else []


def _library_function(name: str) -> Any:
    """A function of this package by its name; None if there is no such function."""
    place, _, function = str(name).partition(":")
    module = sys.modules.get(place) if place.startswith(f"{_PACKAGE}.") else None
    found = vars(module).get(function) if module is not None else None
    return found if isinstance(found, FunctionType) and found.__module__ == place else None


@functools.cache
def _library_modules() -> dict[str, type[eqx.Module]]:
    found: dict[str, type[eqx.Module]] = {}
    waiting: list[type[eqx.Module]] = [eqx.Module]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith(f"{_PACKAGE}."):
                found[kind.__name__] = kind
    return found


_CURVE_POINTS = 101


def weight_curve(kernel: AbstractKernel) -> dict[str, Any] | None:
    """The share of draws of the most-drawn 0 %, 1 %, …, 100 % of the rows; None without a law."""
    selection = kernel.selection if isinstance(kernel, Kernel) else None
    selection = getattr(selection, "base", selection)
    stream = getattr(selection, "stream", None)
    law = getattr(stream, "law", None) or getattr(selection, "law", None)
    if law is None:
        return None
    certain = len(getattr(selection, "certain", ()))
    if isinstance(law, UniformLaw):
        rows = float(law.n_rows)
        return {"uniform": True, "certain": certain, "effective_rows": rows, "curve": []}
    p = np.sort(law.probabilities())[::-1]
    share = np.concatenate([[0.0], np.cumsum(p)]) / p.sum()
    at = np.linspace(0, len(p), _CURVE_POINTS).round().astype(int)
    return {
        "uniform": False,
        "certain": certain,
        "effective_rows": float(1 / np.sum((p / p.sum()) ** 2)),
        "curve": [round(float(value), 5) for value in share[at]],
    }
