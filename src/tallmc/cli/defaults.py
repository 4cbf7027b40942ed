"""Settings that the user left open, read off the curvature H at the mode: step size, friction, and steps between draws.

λ is H's largest eigenvalue and μ its smallest. The step is well inside where the dynamics becomes unstable, so that
discretisation widens no direction by more than a few per cent; a draw is kept about twice in the time in which the slowest
direction forgets where it was.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .._method import AbstractMethod, Method
from ..dynamics import (
    Hamiltonian,
    NoseHoover,
    RandomWalk,
    RiemannianHamiltonian,
    RiemannianLangevin,
    RMSprop,
    Splitting,
    Underdamped,
)

_TRAJECTORY = 10
_DRAWS_A_CYCLE = 10


@dataclasses.dataclass(frozen=True)
class Defaults:
    step_size: float
    rule: str
    """How the step size was chosen, to be read."""
    steps_between: float
    """Steps between draws."""
    others: dict[str, Any]
    """Settings that this dynamics has beside."""


def defaults_for(method: AbstractMethod, hessian: np.ndarray, n_rows: int, size: int | None) -> Defaults:
    """What suits the dynamics of this method; its own settings do not matter."""
    curvatures = np.linalg.eigvalsh(hessian)
    lowest, largest = float(curvatures[0]), float(curvatures[-1])
    fast, ratio = largest**0.5, largest / lowest
    dynamics = method.dynamics if isinstance(method, Method) else None
    match dynamics:
        case Underdamped() | NoseHoover():
            return Defaults(0.2 / fast, "0.2 / root of the largest curvature", 10 * ratio, {"friction": 2 * fast})
        case Splitting():
            friction = 2 * lowest**0.5
            return Defaults(1 / fast, "1 / root of the largest curvature", 2 * ratio**0.5, {"friction": friction})
        case Hamiltonian():
            return Defaults(1 / fast, "1 / root of the largest curvature", _TRAJECTORY, {"length": _TRAJECTORY})
        case RiemannianLangevin():
            return Defaults(0.2, "in units of the metric", 5, {})
        case RiemannianHamiltonian():
            return Defaults(0.4 / ratio, "0.4 · smallest / largest curvature", 5 * ratio, {"friction": 2 * lowest})
        case RMSprop():
            # Gradients of H_jj/N a row make its preconditioner √(N n/H_jj).
            step = 0.2 / (n_rows * (size or n_rows) * float(np.diag(hessian).max())) ** 0.5
            return Defaults(step, "0.2 / what its preconditioner makes of the largest curvature", 5 * ratio, {})
        case RandomWalk():
            step = 2 / (len(hessian) * largest)
            return Defaults(step, "2 / (columns · largest curvature)", 1 / (step * lowest), {})
    return Defaults(0.2 / largest, "0.2 / largest curvature", 5 * ratio, {})


def other_settings(parameters: set[str], n_rows: int, size: int | None, thin: int) -> dict[str, Any]:
    """Settings that do not come from the curvature, for those of the parameters that are among them."""
    passes = -(-n_rows // (size or n_rows))
    known = {"every": passes, "cycle": 4 * _DRAWS_A_CYCLE * thin}
    return {name: value for name, value in known.items() if name in parameters}
