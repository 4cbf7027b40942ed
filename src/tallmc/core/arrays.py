"""Convert user arrays to device arrays. A value that would overflow raises an error."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .errors import InvalidInput

_LARGE_ARRAY_BYTES, _CACHE_LINE_BYTES = 2**22, 64
_USE_FLOAT64 = 'Rescale, or use float64: jax.config.update("jax_enable_x64", True).'


def check_numeric(parameter: str, values: Any) -> np.ndarray | Array:
    """`values` as an array of real numbers; raises unless the library supports their dtype."""
    try:
        array = values if isinstance(values, jax.Array) else np.asarray(values)
        array = array.astype(float) if array.dtype == object else array
    except (TypeError, ValueError) as error:
        raise InvalidInput(parameter, "be numbers", str(error)) from None
    is_supported = (
        array.dtype == bool
        or np.issubdtype(array.dtype, np.integer)
        or array.dtype in (np.float32, np.float64)
    )
    if not is_supported:
        raise InvalidInput(
            parameter,
            "be real numbers: float32, float64, integers or booleans",
            f"dtype {array.dtype}",
        )
    return array


def to_device(parameter: str, values: Any) -> Array:
    """`values` on the device, in the device's precision; raises if a value overflows."""
    array = check_numeric(parameter, values)
    with np.errstate(over="ignore"):
        device = _copy_to_device(array)
    if device.dtype != array.dtype and array.size:
        if np.issubdtype(array.dtype, np.integer):
            limits = np.iinfo(device.dtype)
            if array.min() < limits.min or array.max() > limits.max:
                largest = max(abs(int(array.min())), abs(int(array.max())))
                raise InvalidInput(
                    parameter,
                    f"fit in {device.dtype}",
                    largest,
                    "Convert to float. " + _USE_FLOAT64,
                )
        else:
            _check_fits(parameter, np.asarray(device), np.asarray(array))
    return device


def _copy_to_device(array: np.ndarray | Array) -> Array:
    """A copy on the device; a JAX array is returned unchanged.

    On CPUs, NumPy allocates large copies: NumPy requests huge pages, XLA does not, and reading
    random rows then takes a quarter less time. XLA adopts NumPy's memory without another copy if
    it starts on a cache line.
    """
    if isinstance(array, jax.Array):
        return array
    if array.nbytes < _LARGE_ARRAY_BYTES or jax.default_backend() != "cpu":
        return jnp.array(array)  # a copy: the user may write to the original
    array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    aligned = aligned_empty(array.shape, array.dtype)
    aligned[...] = array
    return jax.device_put(aligned)


def on_device(values: Any, dtype: Any) -> Array:
    """Values of the library's own on the device. Unlike `jnp.asarray`, this compiles no program.

    On a CPU the array may share the memory of `values`, which must not be written to afterwards.
    """
    return jax.device_put(np.asarray(values, dtype))


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of NumPy that starts on a cache line. XLA on a CPU uses its memory as it is."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + _CACHE_LINE_BYTES, np.uint8)
    offset = -memory.ctypes.data % _CACHE_LINE_BYTES
    return memory[offset : offset + n_bytes].view(dtype).reshape(shape)


def to_floats(parameter: str, values: Any, dtype: Any = None) -> Float[Array, ...]:
    """`values` as floats on the device, in `dtype` if given, else in their own precision."""
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
    """Raise if a value that is finite in `wide` is infinite in `narrow`."""
    if not np.array_equal(np.isfinite(narrow), np.isfinite(wide)):
        largest = float(np.abs(wide[np.isfinite(wide)]).max())
        raise InvalidInput(parameter, f"fit in {narrow.dtype}", largest, _USE_FLOAT64)
