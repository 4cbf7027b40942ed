"""The floor: the cost per step of a plain loop in C (`floor.c`), compiled when it is needed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .environment import FOLDER

_SOURCE = Path(__file__).with_name("floor.c")


def floor(
    x: np.ndarray,
    y: np.ndarray,
    size: int,
    steps: int,
    step_size: float,
    weights: np.ndarray | None = None,
) -> Callable[[], np.ndarray] | None:
    """A call that takes `steps` steps, with rows drawn uniformly or by `weights`.

    Returns None if there is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        print("the floor is skipped: there is no C compiler")
        return None
    FOLDER.mkdir(exist_ok=True)
    library = FOLDER / "floor.so"
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-lm"]
    subprocess.run([compiler, _SOURCE, *flags, "-o", library], check=True)
    sgld = ctypes.CDLL(str(library)).sgld
    n_rows, d = x.shape
    inverse_p, keep, other = (None, None, None) if weights is None else _alias(weights)

    def take_steps() -> np.ndarray:
        theta, draws = np.zeros(d, np.float32), np.empty((steps, d), np.float32)
        arrays = [x, y, inverse_p, keep, other]
        pointers = [
            None if array is None else array.ctypes.data_as(ctypes.c_void_p) for array in arrays
        ]
        counts = [ctypes.c_int64(count) for count in (n_rows, d, size, steps)]
        into = [array.ctypes.data_as(ctypes.c_void_p) for array in (theta, draws)]
        sgld(*pointers, *counts, ctypes.c_float(step_size), *into, ctypes.c_uint64(1))
        return draws

    return take_steps


def _alias(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """1/p and Vose's alias table of p: keep row i with probability keep/2³², else take `other`."""
    p = weights / weights.sum()
    share, other = p * len(p), np.arange(len(p), dtype=np.int32)
    small, large = list(np.flatnonzero(share < 1)), list(np.flatnonzero(share >= 1))
    while small and large:
        poor, rich = small.pop(), large[-1]
        other[poor] = rich
        share[rich] -= 1 - share[poor]
        if share[rich] < 1:
            small.append(large.pop())
    return (1 / p).astype(np.float32), np.minimum(share * 2**32, 2**32 - 1).astype(np.uint32), other
