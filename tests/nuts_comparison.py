"""Compare draws of chains with draws of other chains by Monte-Carlo errors."""

from collections.abc import Mapping

import numpy as np

LIMIT = 4.6


def assert_same_moments(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]):
    """The first two moments of each quantity agree within |z| <= 4.6.

    Arrays are (chains, draws, ...). Standard errors come from the spread of the averages of chains.
    Entries that never change must be equal.
    """
    for name, draws in found.items():
        reference = np.asarray(expected[name], np.float64)
        centre = reference.mean((0, 1))
        for power in (1, 2):
            ours, theirs = (
                ((np.asarray(values, np.float64) - centre) ** power).mean(1)
                for values in (draws, reference)
            )
            error = np.sqrt(ours.var(0, ddof=1) / len(ours) + theirs.var(0, ddof=1) / len(theirs))
            difference = np.abs(ours.mean(0) - theirs.mean(0))
            assert (difference <= LIMIT * error + 1e-12).all(), (name, power, difference, error)
