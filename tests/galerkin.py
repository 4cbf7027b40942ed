"""The stationary law of a chain with few dimensions, without Monte Carlo.

A chain s' = φ(s, ω), ω one of a list of events with probabilities, sends a function f to Pf(s) = E f(φ(s, ω)). On polynomials,
written in normalised Hermite polynomials of s around a guess of its law, P is a matrix (Gauss quadrature gives its entries),
and the stationary expectations E f of the basis are its left fixed point. The error falls faster than any power of the degree
as long as the law is not far from Gaussian; it is checked by comparing two degrees.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
        return self.expectations[self.powers.index(tuple(degree * (j == i) for j in range(len(self.scales))))]


def gauss(nodes: int) -> list[tuple[float, float]]:
    """Standard normal noise as events: (probability, value)."""
    values, weights = hermegauss(nodes)
    return list(zip(weights / weights.sum(), values, strict=True))


def stationary_law(
    step: Callable[[np.ndarray, float], np.ndarray], events: Sequence[tuple[float, object]], scales: Sequence[float], degree: int
) -> Law:
    """The law of the chain `step(states, event)`, states (n, k), around N(0, diag(scales²))."""
    scales, k = np.asarray(scales, float), len(scales)
    values, weights = hermegauss(degree + 8)
    grid = np.stack(np.meshgrid(*[values] * k, indexing="ij"), axis=-1).reshape(-1, k)
    weight = np.stack(np.meshgrid(*[weights / weights.sum()] * k, indexing="ij"), axis=-1).reshape(-1, k).prod(axis=1)
    powers = [power for power in itertools.product(range(degree + 1), repeat=k) if sum(power) <= degree]

    def basis(states: np.ndarray) -> np.ndarray:
        hermite = [_hermite(states[:, i] / scales[i], degree) for i in range(k)]
        return np.stack([np.prod([hermite[i][power[i]] for i in range(k)], axis=0) for power in powers], axis=1)

    states = grid * scales
    after = sum(probability * basis(np.asarray(step(states, event))) for probability, event in events)
    operator = (basis(states).T * weight) @ after
    equations = operator.T - np.eye(len(powers))
    equations[0] = np.eye(len(powers))[0]  # the constant has expectation one
    return Law(powers, np.linalg.solve(equations, np.eye(len(powers))[0]), scales)


def _hermite(x: np.ndarray, degree: int) -> list[np.ndarray]:
    values = [np.ones_like(x), x]
    for n in range(1, degree):
        values.append((x * values[n] - np.sqrt(n) * values[n - 1]) / np.sqrt(n + 1))
    return values
