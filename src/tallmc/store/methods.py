"""Methods as JSON: the class and the settings of every part. Arrays are stored separately.

Only the library's own parts are read back. A part that holds a function, such as `Recipe`, or that
has a class of your own cannot be stored; pass such a method to `resume`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import dynamics, geometry, gradient, schedule, subsample
from ..correction import NoiseCorrection
from ..methods.automatic import Automatic
from ..methods.base import AbstractMethod
from ..methods.firefly import FlyMC
from ..methods.local import LocalSGLD
from ..methods.method import Method
from ..methods.network import CommunitySampler
from ..methods.simplex import SimplexSampler
from ..methods.subsampled import Austerity, PseudoMarginal, SubsampledMH
from ..methods.zig_zag import ZigZag
from ..rows.values import ShardedValues

_SCALARS = (bool, int, float, str, type(None))
_WEIGHTS_BESIDE_ROWS = {"weights": "beside the rows"}
"""Weights of a row store. The kernel of the run knows how to compute them; the method does not."""


class NotSerialisable(Exception):
    """A method cannot be stored; the message names the part."""


def encode_method(method: AbstractMethod) -> tuple[Any, dict[str, np.ndarray]]:
    """Encode a method as JSON, and the arrays that the JSON refers to by name.

    >>> encode_method(FlyMC(step_size=0.02))[0]["fields"]["geometry"]
    {'part': 'Identity', 'fields': {}}
    """
    arrays: dict[str, np.ndarray] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        is_infinite = isinstance(value, float) and not math.isfinite(value)  # JSON has no infinity
        if isinstance(value, _SCALARS) and not is_infinite:
            return value
        if isinstance(value, ShardedValues):
            return _WEIGHTS_BESIDE_ROWS
        if _library_parts().get(type(value).__name__) is type(value):
            fields = {
                field.name: encode(getattr(value, field.name))
                for field in dataclasses.fields(value)
                if field.init
            }
            return {"part": type(value).__name__, "fields": fields}
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
        part = _library_parts().get(str(content.get("part")))
        if part is None or not isinstance(content.get("fields"), dict):
            raise ValueError(f"{content.get('part')!r} is not a part of tallmc")
        return part(**{str(name): decode(value) for name, value in content["fields"].items()})

    method = decode(content)
    if not isinstance(method, AbstractMethod):
        raise ValueError("the content is a part, not a method")
    return method


@functools.cache
def _library_parts() -> dict[str, Any]:
    """The library's classes that methods consist of, by name."""
    kinds = (
        dynamics.DynamicsChoice,
        dynamics.Domain,
        dynamics.MirrorMap,
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
    own = (
        Method,
        Automatic,
        FlyMC,
        CommunitySampler,
        LocalSGLD,
        SubsampledMH,
        ZigZag,
        Austerity,
        PseudoMarginal,
        SimplexSampler,
        NoiseCorrection,
    )
    return {part.__name__: part for part in (*found, *own)}
