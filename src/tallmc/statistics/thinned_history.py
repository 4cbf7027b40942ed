"""A bounded number of draws, evenly spaced along chains of any length."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


class ThinnedHistory:
    """Evenly spaced draws of a run of any length.

    Each chain keeps fewer than 2 · `most` draws and, once the run is long enough, at least `most`.
    """

    def __init__(self, most: int, n_chains: int, dim: int):
        self.most, self.every, self.seen = most, 1, 0
        self.kept = np.zeros((n_chains, 0, dim))

    def add(self, positions: Float[np.ndarray, "chains k d"]) -> None:
        """Add the next draws of every chain."""
        number = self.seen + 1 + np.arange(positions.shape[1])
        self.kept = np.concatenate([self.kept, positions[:, number % self.every == 0]], axis=1)
        self.seen += positions.shape[1]
        while self.kept.shape[1] >= 2 * self.most:
            self.kept, self.every = self.kept[:, 1::2], 2 * self.every


def evenly(count: int, most: int) -> np.ndarray:
    """At most `most` evenly spaced indices below `count`; the last index is one of them."""
    kept = min(count, most)
    return np.arange(1, kept + 1) * count // max(kept, 1) - 1
