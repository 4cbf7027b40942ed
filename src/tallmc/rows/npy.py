"""Files in NumPy's .npy format whose shape is known.

NumPy parses the header of a file with `ast.literal_eval`, which fails at random when several
threads call it in Python 3.11. Here the header is compared with the one that the file must have.
"""

from __future__ import annotations

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np


@functools.lru_cache(maxsize=256)
def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The first bytes of the file of an array in row-major order.

    >>> len(npy_header((2, 3), np.dtype("float32")))
    128
    """
    file = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    content = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, content)
    return file.getvalue()


def mapped_npy(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.memmap:
    """The array in a file, mapped; raises ValueError if the file is another one."""
    header = npy_header(shape, dtype)
    with open(path, "rb") as file:
        if file.read(len(header)) != header:
            raise ValueError(f"{path.name} does not hold {dtype} of shape {shape}")
        return np.memmap(file, dtype, "r", len(header), shape)
