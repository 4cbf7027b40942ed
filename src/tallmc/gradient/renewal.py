"""Memories that a pass over all rows renews.

A part of a chain's estimator may keep a memory that needs Σ ∇f_i over all rows from time to time.
The run ends a call of the compiled loop before each step for which the kernel's `due` is true. The
kernel then makes the pass on the host, and passes its result to `renew`.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from ..rows.base import AbstractRows


class AbstractRenewable(eqx.Module):
    """A part with one memory per chain. The memories of all chains are stacked."""

    @property
    @abc.abstractmethod
    def renewed_every(self) -> int | None:
        """A pass is due before each step t > 0 that is a multiple of this; None if never."""

    @abc.abstractmethod
    def start(self, positions: Float[Array, "chains d"], source: AbstractRows) -> Any:
        """The memories of chains that start at these positions. Called on the host."""

    @abc.abstractmethod
    def renew(
        self, memory: Any, positions: Float[Array, "chains d"], row_sums: Float[Array, "chains d"]
    ) -> Any:
        """The memories after a pass that computed Σ ∇f_i at the chains' positions."""

    @abc.abstractmethod
    def passes_before(self, step: np.ndarray) -> np.ndarray:
        """Number of passes made for the first `step` steps, including the pass of `start`."""


class AbstractUnrenewed(AbstractRenewable):
    """A part without memory."""

    @property
    def renewed_every(self) -> None:
        return None

    def start(self, positions: Float[Array, "chains d"], source: AbstractRows) -> None:
        return None

    def renew(
        self, memory: None, positions: Float[Array, "chains d"], row_sums: Float[Array, "chains d"]
    ) -> None:
        return None

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.zeros_like(step)


class AbstractPeriodic(AbstractRenewable):
    """A part whose memory is renewed every m steps."""

    every: eqx.AbstractVar[int]
    """m."""

    @property
    def renewed_every(self) -> int:
        return self.every

    def passes_before(self, step: np.ndarray) -> np.ndarray:
        return np.maximum(1, -(-step // self.every))
