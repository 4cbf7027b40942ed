"""The stationary law of a chain with few dimensions, without Monte Carlo.

A chain s' = φ(s, ω), where ω is one of finitely many events with known probabilities, maps a
function f to Pf(s) = E f(φ(s, ω)). The basis consists of normalised Hermite polynomials of s,
scaled by a guess of the standard deviations. On this basis P is a matrix, whose entries come from
Gauss quadrature. The stationary expectations of the basis functions are its left fixed point. If
the law is close to Gaussian, the error falls faster than any power of the degree. Tests compare two
degrees to check the error.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss


class Law(NamedTuple):
    powers: list[tuple[int, ...]]
    expectations: np.ndarray
    scales: np.ndarray

    def second_moment(self, i: int) -> float:
        """E s_i²."""
        return float(self.scales[i] ** 2 * (1 + np.sqrt(2) * self._expectation(i, 2)))

    def mean(self, i: int) -> float:
        return float(self.scales[i] * self._expectation(i, 1))

    def _expectation(self, i: int, degree: int) -> float:
        return self.expectations[
            self.powers.index(tuple(degree * (j == i) for j in range(len(self.scales))))
        ]


def gauss(nodes: int) -> list[tuple[float, float]]:
    """Gauss quadrature of a standard normal as events: (probability, value)."""
    values, weights = hermegauss(nodes)
    return list(zip(weights / weights.sum(), values, strict=True))


def stationary_law(
    step: Callable[[np.ndarray, Any], np.ndarray],
    events: Sequence[tuple[float, Any]],
    scales: Sequence[float],
    degree: int,
) -> Law:
    """The law of the chain `step(states, event)`, expanded around N(0, diag(scales²)).

    `states` has the shape (n, k).
    """
    deviations, k = np.asarray(scales, float), len(scales)
    values, weights = hermegauss(degree + 8)
    grid = np.stack(np.meshgrid(*[values] * k, indexing="ij"), axis=-1).reshape(-1, k)
    weight = (
        np.stack(np.meshgrid(*[weights / weights.sum()] * k, indexing="ij"), axis=-1)
        .reshape(-1, k)
        .prod(axis=1)
    )
    powers = [
        power for power in itertools.product(range(degree + 1), repeat=k) if sum(power) <= degree
    ]

    def basis(states: np.ndarray) -> np.ndarray:
        """One row per basis function."""
        values = np.ones(())
        for i in range(k):
            hermite = np.stack(_hermite(states[:, i] / deviations[i], degree))
            values = values * hermite[[power[i] for power in powers]]
        return values

    states = grid * deviations
    after = np.sum(
        [probability * basis(np.asarray(step(states, event))) for probability, event in events],
        axis=0,
    )
    operator = (basis(states) * weight) @ after.T
    equations = operator.T - np.eye(len(powers))
    equations[0] = np.eye(len(powers))[0]  # the constant function has expectation 1
    return Law(powers, np.linalg.solve(equations, np.eye(len(powers))[0]), deviations)


def _hermite(x: np.ndarray, degree: int) -> list[np.ndarray]:
    values = [np.ones_like(x), x]
    for n in range(1, degree):
        values.append((x * values[n] - np.sqrt(n) * values[n - 1]) / np.sqrt(n + 1))
    return values
