"""Limited-memory BFGS on all rows, from optax; from SciPy for rows that are not in memory."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from ...core.errors import PreparationError, check_int, check_number
from ...models.posterior import AbstractPosterior
from ...rows.base import RowAccess
from ..advice import how_to_help_a_search
from ..passes import CountedPasses
from .base import AbstractOptimiser, SearchEnd


@dataclasses.dataclass(frozen=True)
class LBFGS(AbstractOptimiser):
    """Limited-memory BFGS on all rows (optax).

    **Arguments:**

    - `tolerance`: the search stops when the norm of the gradient falls below `tolerance` times its
      first value, or when rounding prevents progress.
    - `max_steps`: the search stops after this many steps, with a warning.

    **Raises:** `InvalidInput` if an argument is out of range.

    >>> LBFGS(tolerance=1e-4).max_steps
    500
    """

    tolerance: float = 1e-6
    max_steps: int = 500

    def __post_init__(self) -> None:
        check_number("tolerance", self.tolerance, 0, low_open=True)
        check_int("max_steps", self.max_steps, 1)

    def find(self, passes: CountedPasses) -> Float[Array, " d"]:
        posterior = passes.posterior
        end = self.search(passes, np.asarray(posterior.init, np.float64))
        if not np.isfinite(end.position).all():
            raise PreparationError(
                f"{end.problem} {how_to_help_a_search(posterior)}, use Adam, "
                "or leave out the optimiser: the default also tries several starts."
            )
        if end.problem is not None:
            warnings.warn(f"{end.problem} Raise max_steps.", stacklevel=3)
        return jnp.asarray(end.position, posterior.dtype)

    def search(self, passes: CountedPasses, start: Float[np.ndarray, " d"]) -> SearchEnd:
        """Search from `start`."""
        posterior = passes.posterior
        if posterior.rows.access < RowAccess.TAKE:
            return self._search_by_host(passes, start)
        position, steps, evaluations = _lbfgs(
            posterior,
            jnp.asarray(start, posterior.dtype),
            jnp.asarray(self.tolerance, posterior.dtype),
            jnp.int32(self.max_steps),
        )
        passes.n_row_evals += int(evaluations) * posterior.n_rows
        problem = None
        if not bool(jnp.all(jnp.isfinite(position))):
            problem = "L-BFGS left the region where the potential is finite."
        elif int(steps) == self.max_steps:
            problem = f"L-BFGS stopped after {self.max_steps} steps, before the mode."
        return SearchEnd(np.asarray(position, np.float64), problem)

    def _search_by_host(self, passes: CountedPasses, start: Float[np.ndarray, " d"]) -> SearchEnd:
        """Search with passes that the host drives, for rows that are not in memory."""
        from scipy.optimize import minimize

        _, gradient = passes.value_and_gradient(start)
        wanted = self.tolerance * float(np.abs(gradient).max())
        options = {"maxiter": self.max_steps, "gtol": wanted, "ftol": 1e-12}
        end = minimize(
            passes.value_and_gradient, start, jac=True, method="L-BFGS-B", options=options
        )
        stopped = end.nit >= self.max_steps
        problem = f"L-BFGS stopped after {self.max_steps} steps, before the mode."
        return SearchEnd(np.asarray(end.x, np.float64), problem if stopped else None)


@eqx.filter_jit
def _lbfgs(
    posterior: AbstractPosterior, start: Float[Array, " d"], tolerance: Array, max_steps: Array
) -> tuple[Float[Array, " d"], Array, Array]:
    @jax.custom_vjp
    def potential(position: Float[Array, " d"]) -> Float[Array, ""]:
        return posterior.potential(position)

    # Differentiating the blocked sum would store the residuals of every block, so the VJP calls
    # the blocked gradient.
    potential.defvjp(
        lambda position: (posterior.potential(position), posterior.gradient(position)),
        lambda gradient, cotangent: (cotangent * gradient,),
    )

    import optax  # imported here: it is slow to import, and Newton does not need it

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(potential)
    first_norm = jnp.linalg.norm(posterior.gradient(start))

    # After three successive steps that do not lower the potential, rounding prevents progress.
    def unfinished(carry: Any) -> Array:
        _, state, step, _, stalled = carry
        norm = jnp.linalg.norm(optax.tree.get(state, "grad"))
        return (step == 0) | ((step < max_steps) & (norm > tolerance * first_norm) & (stalled < 3))

    def advance(carry: Any) -> Any:
        position, state, step, evaluations, stalled = carry
        value, gradient = value_and_grad(position, state=state)
        updates, state = solver.update(
            gradient, state, position, value=value, grad=gradient, value_fn=potential
        )
        searched = optax.tree.get(state, "num_linesearch_steps").astype(jnp.int32)
        fell = value - optax.tree.get(state, "value") > jnp.finfo(value.dtype).eps * jnp.abs(value)
        stalled = jnp.where(fell, 0, stalled + 1)
        return (
            optax.apply_updates(position, updates),
            state,
            step + 1,
            evaluations + searched,
            stalled,
        )

    zero = jnp.int32(0)
    first = (start, solver.init(start), zero, jnp.int32(2), zero)
    position, _, steps, evaluations, _ = lax.while_loop(unfinished, advance, first)
    return position, steps, evaluations
