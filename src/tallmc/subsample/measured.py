"""A size that follows the noise measured during the run; see `measured_selection.py`."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from ..anchor.anchor import AnchorLevel
from ..core.errors import check_int, check_number
from ..rows.base import RowAccess
from ..rows.stream import AbstractStream
from .base import SizeChoice, SubsampleContext
from .measured_selection import MeasuredSelection
from .size import Fixed


@dataclasses.dataclass(frozen=True)
class Measured(SizeChoice):
    """A number of rows that keeps the measured noise at a target.

    The statistics of the draws contain `grad_noise`, the measured trace of Cov(Cᵀ∇f̂), and
    `batch_size`.

    **Arguments:**

    - `size`: the least number of rows per step.
    - `noise`: v, the target noise per coordinate of the geometry.
    - `max_size`: the largest number of rows per step; the number of rows of the data by default.

    **Raises:** `InvalidInput` if `size` is less than 2, `noise` is not positive or `max_size` is
    less than `size`.

    >>> Measured(size=64, noise=0.03).max_size is None
    True
    """

    size: int
    noise: float
    max_size: int | None = None
    needs = AnchorLevel.NOTHING
    row_access = RowAccess.STREAM

    def __post_init__(self) -> None:
        check_int("size", self.size, 2)
        check_number("noise", self.noise, 0, low_open=True)
        if self.max_size is not None:
            check_int("max_size", self.max_size, self.size)

    def select(
        self, stream: AbstractStream, context: SubsampleContext, certain: np.ndarray
    ) -> MeasuredSelection:
        posterior = context.posterior
        return MeasuredSelection(
            base=Fixed(self.size).select(stream, context, certain),
            geometry=context.geometry,
            noise=jnp.asarray(self.noise, posterior.dtype),
            largest=posterior.n_rows
            if self.max_size is None
            else min(self.max_size, posterior.n_rows),
            dim=posterior.dim,
        )
