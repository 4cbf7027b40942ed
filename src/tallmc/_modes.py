"""Finding the mode: Newton for few dimensions, L-BFGS for many, Adam on minibatches as in the papers."""

from __future__ import annotations

import abc
import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ._errors import PreparationError, check_int, check_number
from ._posterior import AbstractPosterior
from ._rows import Part, Sum, take_rows

_NEWTON_LIMIT = 500
_HESSIAN_STEPS = 10
_MANY_ROWS = 200_000


class Passes:
    """Passes over a posterior's rows, in float64 on the host, counted.

    With a `share` below one they see a random part of the rows, and the potential is f₀ + (N/n) Σ f_i: what the part says about
    all of them. The share is no matter of compilation.
    """

    def __init__(self, posterior: AbstractPosterior, share: float = 1.0):
        self.posterior = posterior
        self.n_row_evals = 0
        self._part = Part.of(posterior.n_rows, posterior.width, share)
        self._rows = self._part.n_rows(posterior.n_rows, posterior.width)
        self.scale = posterior.n_rows / self._rows

    def value_and_gradient(self, position: Any) -> tuple[float, np.ndarray]:
        whole, prior = _value_and_gradient(self.posterior, self._on_device(position), self._part)
        value, gradient = jax.tree.map(self._scaled, whole.float64(), prior)
        return float(value), gradient

    def hessian(self, position: Any) -> np.ndarray:
        whole, prior = _hessian(self.posterior, self._on_device(position), self._part)
        matrix = self._scaled(whole.float64(), prior)
        return (matrix + matrix.T) / 2

    def _scaled(self, whole: np.ndarray, prior: Array) -> np.ndarray:
        prior_part = np.asarray(prior, np.float64)
        return prior_part + self.scale * (whole - prior_part)

    def _on_device(self, position: Any) -> Float[Array, " d"]:
        self.n_row_evals += self._rows
        return jnp.asarray(position, self.posterior.dtype)


class AbstractOptimiser(abc.ABC):
    @abc.abstractmethod
    def find(self, passes: Passes) -> Float[Array, " d"]:
        """The mode, starting from the posterior's `init`."""


@dataclasses.dataclass(frozen=True)
class Newton(AbstractOptimiser):
    """Newton's method with a line search, to within `tolerance` posterior standard deviations of the mode.

    A Hessian costs several gradients, so a few steps follow each, on which the gradients seen update it (BFGS). With many rows
    the search begins on a twentieth of them, goes on with a quarter, and ends with all.
    """

    tolerance: float = 1e-3
    max_steps: int = 100

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, 0, low_open=True)
        check_int("max_steps", self.max_steps, 1)

    def find(self, passes: Passes) -> Float[Array, " d"]:
        posterior = passes.posterior
        start = np.asarray(posterior.init, np.float64)
        for share in (0.05, 0.25) if posterior.n_rows >= _MANY_ROWS else ():
            part = Passes(posterior, share)
            # The mode of a part is √scale standard deviations from that of the whole: no need to find it better.
            start = self._descend(part, start, tolerance=0.3 * part.scale**0.5)
            passes.n_row_evals += part.n_row_evals
        return jnp.asarray(self._descend(passes, start, self.tolerance), posterior.dtype)

    def _descend(self, potential: Passes, position: np.ndarray, tolerance: float) -> np.ndarray:
        """Steps until the decrement √(∇fᵀ H⁻¹ ∇f) is under `tolerance`, or rounding lets it fall no further."""
        value, gradient = potential.value_and_gradient(position)
        if not np.isfinite(value) or not np.isfinite(gradient).all():
            raise PreparationError("the potential or its gradient is not finite at init. Start where the density is positive.")
        hessian, hessian_age = potential.hessian(position), 0
        smallest, since_smallest = np.inf, 0
        for _ in range(self.max_steps):
            direction = _descent_direction(hessian, gradient)
            decrement = float(np.sqrt(max(direction @ gradient, 0.0)))
            since_smallest = 0 if decrement < smallest else since_smallest + 1
            smallest = min(smallest, decrement)
            if decrement < tolerance or (smallest < 0.05 and since_smallest >= 3):
                return position
            if hessian_age >= _HESSIAN_STEPS:
                hessian, hessian_age = potential.hessian(position), 0
                continue
            found = _line_search(potential, position, value, direction, decrement)
            if found is None:
                if hessian_age == 0:
                    break
                hessian, hessian_age = potential.hessian(position), 0
                continue
            candidate, value, new_gradient = found
            hessian = _bfgs_update(hessian, candidate - position, new_gradient - gradient)
            position, gradient, hessian_age = candidate, new_gradient, hessian_age + 1
        if smallest < 0.05:
            return position
        raise PreparationError(
            f"Newton's method did not reach the mode in {self.max_steps} steps: {decrement:.3g} standard deviations to go. "
            "Standardise the columns, give a proper prior or another init, or raise max_steps."
        )


@dataclasses.dataclass(frozen=True)
class LBFGS(AbstractOptimiser):
    """Limited-memory BFGS on the full data (optax), to a gradient smaller by `tolerance`, or until rounding stops it."""

    tolerance: float = 1e-6
    max_steps: int = 500

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, 0, low_open=True)
        check_int("max_steps", self.max_steps, 1)

    def find(self, passes: Passes) -> Float[Array, " d"]:
        posterior = passes.posterior
        position, steps, evaluations = _lbfgs(posterior, jnp.asarray(self.tolerance, posterior.dtype), jnp.int32(self.max_steps))
        passes.n_row_evals += int(evaluations) * posterior.n_rows
        if int(steps) == self.max_steps:
            warnings.warn(f"L-BFGS stopped after {self.max_steps} steps, before the mode. Raise max_steps.", stacklevel=3)
        if not bool(jnp.all(jnp.isfinite(position))):
            raise PreparationError("L-BFGS left the region where the potential is finite. Give another init or use Adam.")
        return position


@dataclasses.dataclass(frozen=True)
class Adam(AbstractOptimiser):
    """Adam on uniform minibatches; the last iterate is the mode, converged or not (putcha-2023 and its code)."""

    step_size: float = 1e-3
    steps: int = 10_000
    size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, 0, low_open=True)
        check_int("steps", self.steps, 1)
        check_int("size", self.size, 1)
        check_int("seed", self.seed, 0, 2**32 - 1)

    def find(self, passes: Passes) -> Float[Array, " d"]:
        posterior = passes.posterior
        passes.n_row_evals += self.steps * self.size
        step_size = jnp.asarray(self.step_size, posterior.dtype)
        return _adam(posterior, step_size, self.steps, self.size, jax.random.key(self.seed))


def default_optimiser(posterior: AbstractPosterior) -> AbstractOptimiser:
    return Newton() if posterior.dim <= _NEWTON_LIMIT else LBFGS()


def _line_search(
    potential: Passes, position: np.ndarray, value: float, direction: np.ndarray, decrement: float
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """The first halving of the step that lowers the potential enough, up to rounding."""
    posterior = potential.posterior
    step, rounding = 1.0, 64 * float(jnp.finfo(posterior.dtype).eps) / posterior.n_rows**0.5
    for _ in range(40):
        candidate = position - step * direction
        new_value, gradient = potential.value_and_gradient(candidate)
        if new_value <= value - 1e-4 * step * decrement**2 + rounding * abs(value):
            return candidate, new_value, gradient
        step /= 2
    return None


def _bfgs_update(hessian: np.ndarray, step: np.ndarray, gradient_change: np.ndarray) -> np.ndarray:
    """The Hessian that explains the change of the gradient, nearest to the one given."""
    curvature, product = step @ gradient_change, hessian @ step
    along = step @ product
    if curvature <= 1e-8 * abs(along) or along <= 0:
        return hessian
    return hessian + np.outer(gradient_change, gradient_change) / curvature - np.outer(product, product) / along


def _descent_direction(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """H⁻¹ ∇f, with |eigenvalues| where H is not positive definite, so that it is a direction of descent."""
    try:
        root = np.linalg.cholesky(hessian)
        return np.linalg.solve(root.T, np.linalg.solve(root, gradient))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(hessian)
        size = np.maximum(np.abs(values), 1e-8 * np.abs(values).max() or 1.0)
        return vectors @ ((vectors.T @ gradient) / size)


@eqx.filter_jit
def _value_and_gradient(
    posterior: AbstractPosterior, position: Float[Array, " d"], part: Part
) -> tuple[Sum, tuple[Array, Array]]:
    prior = posterior.prior_potential(position), posterior.prior_gradient(position)
    return posterior.potential_and_gradient_sum(position, part), prior


@eqx.filter_jit
def _hessian(posterior: AbstractPosterior, position: Float[Array, " d"], part: Part) -> tuple[Sum, Array]:
    return posterior.hessian_sum(position, part), jax.hessian(posterior.prior_potential)(position)


@eqx.filter_jit
def _lbfgs(posterior: AbstractPosterior, tolerance: Array, max_steps: Array) -> tuple[Float[Array, " d"], Array, Array]:
    @jax.custom_vjp
    def potential(position: Float[Array, " d"]) -> Float[Array, ""]:
        return posterior.potential(position)

    # The row-blocked gradient instead of a derivative of the blocked sum, which would keep every block's residuals.
    potential.defvjp(
        lambda position: (posterior.potential(position), posterior.gradient(position)),
        lambda gradient, cotangent: (cotangent * gradient,),
    )

    import optax  # here and below, since it takes long to import and Newton does without

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(potential)
    first_norm = jnp.linalg.norm(posterior.gradient(posterior.init))

    # Three steps in a row that do not lower the potential: rounding allows no more.
    def unfinished(carry: Any) -> Array:
        _, state, step, _, stalled = carry
        norm = jnp.linalg.norm(optax.tree.get(state, "grad"))
        return (step == 0) | ((step < max_steps) & (norm > tolerance * first_norm) & (stalled < 3))

    def advance(carry: Any) -> Any:
        position, state, step, evaluations, stalled = carry
        value, gradient = value_and_grad(position, state=state)
        updates, state = solver.update(gradient, state, position, value=value, grad=gradient, value_fn=potential)
        searched = optax.tree.get(state, "num_linesearch_steps").astype(jnp.int32)
        fell = value - optax.tree.get(state, "value") > jnp.finfo(value.dtype).eps * jnp.abs(value)
        stalled = jnp.where(fell, 0, stalled + 1)
        return optax.apply_updates(position, updates), state, step + 1, evaluations + searched, stalled

    zero = jnp.int32(0)
    start = (posterior.init, solver.init(posterior.init), zero, jnp.int32(2), zero)
    position, _, steps, evaluations, _ = lax.while_loop(unfinished, advance, start)
    return position, steps, evaluations


@eqx.filter_jit
def _adam(posterior: AbstractPosterior, step_size: Array, steps: int, size: int, key: Array) -> Float[Array, " d"]:
    import optax

    solver = optax.adam(step_size)

    def advance(carry: Any, key: Array) -> Any:
        position, state = carry
        rows = take_rows(posterior.data, jax.random.randint(key, (size,), 0, posterior.n_rows))
        weights = jnp.full(size, posterior.n_rows / size, posterior.dtype)
        gradient = posterior.sum_remainders(0, position, position, rows, weights)
        updates, state = solver.update(gradient + posterior.prior_gradient(position), state)
        return (optax.apply_updates(position, updates), state), None

    start = (posterior.init, solver.init(posterior.init))
    (position, _), _ = lax.scan(advance, start, jax.random.split(key, steps))
    return position
