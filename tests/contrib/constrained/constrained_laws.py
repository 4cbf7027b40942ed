"""Exact stationary laws of constrained chains in one dimension, by quadrature of their transitions.

The rows of a model move a chain by the same drift up to a constant, so a step that reads one row is
a mixture of Gaussian moves, one per row. All formulas are transcribed from the papers here.
"""

from typing import NamedTuple

import numpy as np
from scipy.stats import norm


class GridLaw(NamedTuple):
    """A law on points: the nodes of a quadrature and, for projected chains, the ends of a box."""

    points: np.ndarray
    weights: np.ndarray

    def expect(self, function) -> float:
        return float(self.weights @ function(self.points))

    @property
    def mean(self) -> float:
        return self.expect(lambda x: x)

    @property
    def sd(self) -> float:
        return float(np.sqrt(self.expect(lambda x: (x - self.mean) ** 2)))

    def moved_to(self, function) -> "GridLaw":
        return GridLaw(function(self.points), self.weights)


def stationary_weights(transition: np.ndarray) -> np.ndarray:
    """The law π = πP of a stochastic matrix."""
    assert np.abs(transition.sum(axis=1) - 1).max() < 1e-6, "the grid must catch all moves"
    n = len(transition)
    system = np.vstack([(transition.T - np.eye(n))[1:], np.ones(n)])
    return np.linalg.solve(system, np.eye(n)[-1])


def nodes_in(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss–Legendre quadrature."""
    x, w = np.polynomial.legendre.leggauss(count)
    return low + (high - low) * (x + 1) / 2, w * (high - low) / 2


def reflected_law(low, high, means, step, count=120) -> GridLaw:
    """Of x' = x folded into [low, high]; `means(x)` has one mean of the move per row."""
    x, w = nodes_in(low, high, count)
    width, sd = high - low, np.sqrt(step)
    images = [2 * k * width + s * (x - low) + low for k in range(-2, 3) for s in (1, -1)]
    density = np.mean(
        [sum(norm.pdf(image, m[:, None], sd) for image in images) for m in means(x)], axis=0
    )
    return GridLaw(x, stationary_weights(density * w))


def projected_law(low, high, means, step, count=120) -> GridLaw:
    """Of x' = x clipped to [low, high], whose law has an atom at each end."""
    x, w = nodes_in(low, high, count)
    points, sd = np.concatenate([[low], x, [high]]), np.sqrt(step)
    rows = [
        np.column_stack(
            [norm.cdf(low, m, sd), norm.pdf(x, m[:, None], sd) * w, norm.sf(high, m, sd)]
        )
        for m in means(points)
    ]
    return GridLaw(points, stationary_weights(np.mean(rows, axis=0)))


def free_law(reach, means, step, count) -> GridLaw:
    """Of a chain on the whole line that stays within ±reach, on a uniform grid."""
    y = np.linspace(-reach, reach, count)
    density = np.mean([norm.pdf(y, m[:, None], np.sqrt(step)) for m in means(y)], axis=0)
    density *= y[1] - y[0]
    inside = density / density.sum(axis=1, keepdims=True)  # moves off the grid are not made
    assert abs(density[count // 2].sum() - 1) < 1e-9, "the grid is too coarse"
    return GridLaw(y, stationary_weights(inside))


def target_law(low, high, potential, count=120) -> GridLaw:
    """exp(−f) on [low, high]."""
    x, w = nodes_in(low, high, count)
    density = np.exp(-potential(x)) * w
    return GridLaw(x, density / density.sum())
