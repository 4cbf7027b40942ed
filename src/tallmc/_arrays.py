"""Users' numbers to device arrays, without changing them in silence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._errors import InvalidInput

_MANY_BYTES, _CACHE_LINE = 2**22, 64
_DOUBLE = 'Rescale, or use 64 bits: jax.config.update("jax_enable_x64", True).'


def check_numeric(parameter: str, values: Any) -> np.ndarray | Array:
    """`values` as an array of real numbers in a precision that the library works in."""
    try:
        array = values if isinstance(values, jax.Array) else np.asarray(values)
        array = array.astype(float) if array.dtype == object else array
    except (TypeError, ValueError) as error:
        raise InvalidInput(parameter, "be numbers", str(error)) from None
    fine = array.dtype == bool or np.issubdtype(array.dtype, np.integer) or array.dtype in (np.float32, np.float64)
    if not fine:
        raise InvalidInput(parameter, "be real numbers: float32, float64, integers or booleans", f"dtype {array.dtype}")
    return array


def to_device(parameter: str, values: Any) -> Array:
    """`values` on the device as they are, in the device's precision; raises where a number would not survive that."""
    array = check_numeric(parameter, values)
    with np.errstate(over="ignore"):
        device = _placed(array)
    if device.dtype != array.dtype and array.size:
        if np.issubdtype(array.dtype, np.integer):
            limits = np.iinfo(device.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                largest = max(abs(int(array.min())), abs(int(array.max())))
                raise InvalidInput(parameter, f"fit in {device.dtype}", largest, "Convert to float. " + _DOUBLE)
        else:
            _check_fits(parameter, np.asarray(device), np.asarray(array))
    return device


def _placed(array: np.ndarray | Array) -> Array:
    """A copy on the device; on a CPU, if it is large, where rows taken at random are found a quarter sooner.

    NumPy asks the system for large pages and XLA does not, but takes NumPy's memory as its own if it begins on a cache line.
    """
    if isinstance(array, jax.Array):
        return array
    if array.nbytes < _MANY_BYTES or jax.default_backend() != "cpu":
        return jnp.array(array)  # never the memory of the user, who may write to it
    array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    memory = np.empty(array.nbytes + _CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % _CACHE_LINE
    placed = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return jax.device_put(placed)


def to_floats(parameter: str, values: Any, dtype: Any = None) -> Float[Array, ...]:
    """`values` as floating-point numbers on the device, in their own precision or the one given."""
    array = check_numeric(parameter, values)
    if dtype is None and np.issubdtype(array.dtype, np.floating):
        return to_device(parameter, array)
    wanted = jnp.result_type(float) if dtype is None else dtype
    double = np.asarray(array, np.float64)
    with np.errstate(over="ignore"):
        narrow = double.astype(wanted)
    _check_fits(parameter, narrow, double)
    return to_device(parameter, narrow)


def _check_fits(parameter: str, narrow: np.ndarray, wide: np.ndarray) -> None:
    if not np.array_equal(np.isfinite(narrow), np.isfinite(wide)):
        largest = float(np.abs(wide[np.isfinite(wide)]).max())
        raise InvalidInput(parameter, f"fit in {narrow.dtype}", largest, _DOUBLE)
