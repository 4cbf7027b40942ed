"""Newton's method with a line search."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...core.errors import PreparationError, check_int, check_number
from ..passes import CountedPasses
from .base import AbstractOptimiser

_STEPS_PER_HESSIAN = 10
_MANY_ROWS = 200_000


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
        start = np.asarray(posterior.init, np.float64)
        for share in (0.05, 0.25) if posterior.n_rows >= _MANY_ROWS else ():
            part = CountedPasses(posterior, share)
            # The mode of these rows is about √scale posterior sds away from the mode of all
            # rows, so a more accurate search would not help.
            start = self._descend(part, start, tolerance=0.3 * part.scale**0.5)
            passes.n_row_evals += part.n_row_evals
        return jnp.asarray(self._descend(passes, start, self.tolerance), posterior.dtype)

    def _descend(self, passes: CountedPasses, position: np.ndarray, tolerance: float) -> np.ndarray:
        """Step until √(∇fᵀ H⁻¹ ∇f) is below `tolerance`, or rounding prevents progress."""
        value, gradient = passes.value_and_gradient(position)
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            raise PreparationError(
                "the potential or its gradient is not finite at init. "
                "Start where the density is positive."
            )
        hessian, hessian_age = passes.hessian(position), 0
        smallest, since_smallest = np.inf, 0
        for _ in range(self.max_steps):
            direction = _descent_direction(hessian, gradient)
            decrement = float(np.sqrt(max(direction @ gradient, 0.0)))
            since_smallest = 0 if decrement < smallest else since_smallest + 1
            smallest = min(smallest, decrement)
            if decrement < tolerance or (smallest < 0.05 and since_smallest >= 3):
                return position
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
        if smallest < 0.05:
            return position
        raise PreparationError(
            f"Newton's method did not reach the mode in {self.max_steps} steps: "
            f"it is {decrement:.3g} posterior standard deviations away. "
            "Standardise the columns, use a proper prior or another init, or raise max_steps."
        )


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


def _descent_direction(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """H⁻¹ ∇f. If H is not positive definite, |eigenvalues| replace its eigenvalues.

    In both cases the potential falls along minus this direction.
    """
    try:
        root = np.linalg.cholesky(hessian)
        return np.linalg.solve(root.T, np.linalg.solve(root, gradient))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(hessian)
        size = np.maximum(np.abs(values), 1e-8 * np.abs(values).max() or 1.0)
        return vectors @ ((vectors.T @ gradient) / size)
