"""Methods as data: the class and the settings of every part, its arrays apart. Only the library's own parts are read back.

A part that holds a function, as `Recipe` does, or that is of a class of your own, cannot be written down; such a method is given
to `resume` again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import dynamics, geometry, gradient, schedule, subsample
from .._method import AbstractMethod, Method
from ..automatic import Automatic
from ..correction import NoiseCorrection
from ..firefly import FlyMC

_PLAIN = (bool, int, float, str, type(None))


class NotData(Exception):
    """A method that cannot be written down; says which part of it."""


def encode_method(method: AbstractMethod) -> tuple[Any, dict[str, np.ndarray]]:
    """The method as JSON, and the arrays that it refers to by name.

    >>> encode_method(FlyMC(step_size=0.02))[0]["fields"]["geometry"]
    {'part': 'Identity', 'fields': {}}
    """
    arrays: dict[str, np.ndarray] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, _PLAIN):
            return value
        if _parts().get(type(value).__name__) is type(value):
            fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
            return {"part": type(value).__name__, "fields": fields}
        if callable(value):
            raise NotData(f"the function {getattr(value, '__name__', value)!r}")
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "biuf":
            raise NotData(f"a {type(value).__name__}")
        name = f"{len(arrays)}"
        arrays[name] = numbers
        return {"array": name}

    return encode(method), arrays


def decode_method(content: Any, arrays: Mapping[str, np.ndarray]) -> AbstractMethod:
    """What `encode_method` wrote down; raises ValueError where it is something else."""

    def decode(content: Any) -> Any:
        if isinstance(content, _PLAIN):
            return content
        if not isinstance(content, dict):
            raise ValueError("a setting that is no part, array, number or text")
        if set(content) == {"array"}:
            return arrays[content["array"]]
        part = _parts().get(str(content.get("part")))
        if part is None or not isinstance(content.get("fields"), dict):
            raise ValueError(f"{content.get('part')!r}, which is no part of tallmc")
        return part(**{str(name): decode(value) for name, value in content["fields"].items()})

    method = decode(content)
    if not isinstance(method, AbstractMethod):
        raise ValueError("a part in place of a method")
    return method


@functools.cache
def _parts() -> dict[str, Any]:
    """The classes that methods are made of."""
    kinds = (
        dynamics.DynamicsChoice,
        gradient.GradientChoice,
        subsample.SubsampleChoice,
        subsample.SizeChoice,
        geometry.GeometryChoice,
        schedule.AbstractSchedule,
    )
    found: list[Any] = [
        value
        for module in (dynamics, gradient, subsample, geometry, schedule)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, kinds) and dataclasses.is_dataclass(value)
    ]
    return {part.__name__: part for part in (*found, Method, Automatic, FlyMC, NoiseCorrection)}
