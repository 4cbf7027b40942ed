"""Newton's method with a line search."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import PreparationError, check_int, check_number
from ..advice import how_to_help_a_search, not_finite
from ..passes import CountedPasses
from .base import AbstractOptimiser, SearchEnd

_STEPS_PER_HESSIAN = 10
_MANY_ROWS = 200_000
_STALL = 10
_LEAST_FALL = 0.01
"""The search gives up when `_STALL` steps lower the potential by less than this times the squared
distance to the mode in posterior sds. One Newton step on a smooth potential lowers it by half of
the squared distance."""


@dataclasses.dataclass(frozen=True)
class Newton(AbstractOptimiser):
    """Newton's method with a line search.

    A Hessian costs several gradients. Each Hessian therefore serves several steps, and BFGS updates
    it with their gradients. With many rows, the search starts on a twentieth of the rows, continues
    on a quarter of them and ends on all rows.

    **Arguments:**

    - `tolerance`: the distance to the mode at which the search stops, in posterior standard
      deviations.
    - `max_steps`: the largest number of steps on each of these sets of rows.

    **Raises:** `InvalidInput` if an argument is out of range.

    >>> Newton(tolerance=1e-2).max_steps
    100
    """

    tolerance: float = 1e-3
    max_steps: int = 100

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, 0, low_open=True)
        check_int("max_steps", self.max_steps, 1)

    def find(self, passes: CountedPasses) -> Float[Array, " d"]:
        posterior = passes.posterior
        end = self.search(passes, np.asarray(posterior.init, np.float64))
        if end.problem is not None:
            raise PreparationError(
                f"{end.problem} {how_to_help_a_search(posterior)}, raise max_steps, "
                "or leave out the optimiser: the default also tries L-BFGS and Adam."
            )
        return jnp.asarray(end.position, posterior.dtype)

    def search(self, passes: CountedPasses, start: Float[np.ndarray, " d"]) -> SearchEnd:
        """Search from `start`, with many rows on a part of them first."""
        posterior = passes.posterior
        position = start
        for share in (0.05, 0.25) if posterior.n_rows >= _MANY_ROWS else ():
            part = CountedPasses(posterior, share)
            # The mode of these rows is about √scale posterior sds away from the mode of all
            # rows, so a more accurate search would not help.
            position = self._descend(part, position, tolerance=0.3 * part.scale**0.5).position
            passes.n_row_evals += part.n_row_evals
        return self.descend(passes, position)

    def descend(self, passes: CountedPasses, start: Float[np.ndarray, " d"]) -> SearchEnd:
        """Search from `start` with `passes` alone."""
        return self._descend(passes, start, self.tolerance)

    def _descend(
        self, passes: CountedPasses, position: Float[np.ndarray, " d"], tolerance: float
    ) -> SearchEnd:
        """Step until √(∇fᵀ H⁻¹ ∇f) is below `tolerance`, or rounding prevents progress."""
        value, gradient = passes.value_and_gradient(position)
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            raise not_finite(passes, position, "at init")
        hessian, hessian_age = passes.hessian(position), 0
        smallest, since_smallest, definite, values = np.inf, 0, True, [value]
        # In double precision, steps without progress come from a curved valley, not from rounding.
        patience = 3 if passes.posterior.dtype == np.float32 else 12
        for _ in range(self.max_steps):
            direction, definite = descent_direction(hessian, gradient)
            decrement = float(np.sqrt(max(direction @ gradient, 0.0)))
            since_smallest = 0 if decrement < smallest else since_smallest + 1
            smallest = min(smallest, decrement)
            if decrement < tolerance or (smallest < 0.05 and since_smallest >= patience):
                if definite or hessian_age == 0:
                    return SearchEnd(position, None, definite)
                # An updated Hessian that is not positive definite says little about the distance.
                hessian, hessian_age = passes.hessian(position), 0
                smallest, since_smallest = np.inf, 0
                continue
            if len(values) > _STALL and values[-_STALL - 1] - value < _LEAST_FALL * smallest**2:
                break
            if hessian_age >= _STEPS_PER_HESSIAN:
                hessian, hessian_age = passes.hessian(position), 0
                continue
            found = _line_search(passes, position, value, direction, decrement)
            if found is None:
                if hessian_age == 0:
                    break
                hessian, hessian_age = passes.hessian(position), 0
                continue
            candidate, value, new_gradient = found
            hessian = _bfgs_update(hessian, candidate - position, new_gradient - gradient)
            position, gradient, hessian_age = candidate, new_gradient, hessian_age + 1
            values.append(value)
        if smallest < 0.05:
            return SearchEnd(position, None, definite)
        problem = (
            f"Newton's method did not reach the mode in {len(values) - 1} steps: "
            f"it is {decrement:.3g} posterior standard deviations away."
        )
        return SearchEnd(position, problem, definite)


def _line_search(
    passes: CountedPasses,
    position: np.ndarray,
    value: float,
    direction: np.ndarray,
    decrement: float,
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Halve the step until the potential falls enough, up to rounding; None if it never does."""
    posterior = passes.posterior
    step, rounding = 1.0, 64 * float(jnp.finfo(posterior.dtype).eps) / posterior.n_rows**0.5
    for _ in range(40):
        candidate = position - step * direction
        new_value, gradient = passes.value_and_gradient(candidate)
        if new_value <= value - 1e-4 * step * decrement**2 + rounding * abs(value):
            return candidate, new_value, gradient
        step /= 2
    return None


def _bfgs_update(hessian: np.ndarray, step: np.ndarray, gradient_change: np.ndarray) -> np.ndarray:
    """The BFGS update of `hessian`, which then maps `step` to `gradient_change`."""
    curvature, product = step @ gradient_change, hessian @ step
    along = step @ product
    if curvature <= 1e-8 * abs(along) or along <= 0:
        return hessian
    return (
        hessian
        + np.outer(gradient_change, gradient_change) / curvature
        - np.outer(product, product) / along
    )


def descent_direction(hessian: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, bool]:
    """H⁻¹ ∇f, and whether H is positive definite. If not, |eigenvalues| replace its eigenvalues.

    An infinite H, at a kink of the density, is replaced by the identity. In all cases the potential
    falls along minus this direction.
    """
    if not np.isfinite(hessian).all():
        return gradient, False
    try:
        root = np.linalg.cholesky(hessian)
        return np.linalg.solve(root.T, np.linalg.solve(root, gradient)), True
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(hessian)
        size = np.maximum(np.abs(values), 1e-8 * np.abs(values).max() or 1.0)
        return vectors @ ((vectors.T @ gradient) / size), False
