"""The automatic method: what suits this posterior, chosen by rule and by pilot runs.

few rows                                 all rows, exact (MALA)
up to 2,000 parameters                   control variates of order 2 in whitened coordinates (`anchored.py`)
more                                     control variates of order 1 in coordinates scaled one by one
pilot runs that ask for most of the rows all rows, exact
a mode that is no maximum                Nosé–Hoover with simple gradients, and a warning
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._account import Budget
from .._anchor import Anchor, Needs, laplace
from .._errors import PreparationError, check_number
from .._method import AbstractMethod, Prepared, prepare_anchor
from .._posterior import AbstractPosterior
from .._random import new_key, standard_normal
from .._rows import sum_rows
from ..geometry import Dense, Diagonal
from .anchored import Anchored
from .exact import exact_plan
from .unanchored import unanchored_plan

_FEW_ROWS = 5_000
_MOST_DENSE = 2_000
_POWER_ITERATIONS = 20


@dataclasses.dataclass(frozen=True)
class Automatic(AbstractMethod):
    """Choose everything. `inflation` is the error budget: by how much gradient noise may widen a variance.

    >>> import numpy as np, tallmc
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> posterior = tallmc.models.linear_regression(x, x @ [1.0, -1.0], prior_variance=10.0)
    >>> draws = tallmc.sample(posterior, tallmc.Automatic(), draws=500)
    >>> draws.health.reasons[0]
    '1,000 rows are few: every step looks at all of them'
    """

    inflation: float = 0.01

    def __post_init__(self) -> None:
        check_number("inflation", self.inflation, 0, 1, low_open=True)

    @property
    def needs(self) -> Needs:
        return Needs.NOTHING

    @property
    def has_accept_step(self) -> bool:
        return False

    @property
    def axes(self) -> dict[str, str]:
        return dict.fromkeys(("dynamics", "gradient", "subsample", "size"), "chosen for the posterior")

    def prepare(self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0) -> Prepared:
        budget = Budget(inflation=self.inflation)
        if posterior.dim > _MOST_DENSE:
            return _diagonal_plan(posterior, anchor, budget, seed)
        try:
            found, _ = prepare_anchor(posterior, anchor, Needs.HESSIAN)
        except PreparationError as error:
            return _without_gaussian(posterior, budget, str(error), seed)
        assert found is not None
        if posterior.n_rows <= _FEW_ROWS:
            why = f"{posterior.n_rows:,} rows are few: every step looks at all of them"
            return exact_plan(posterior, found, budget, why, seed)
        anchored = Anchored(posterior, found, order=2, geometry=Dense(), stiffness=1.0, budget=budget, seed=seed)
        return anchored.plan() or _all_rows_after_all(anchored)


def _all_rows_after_all(tried: Anchored) -> Prepared:
    why = "gradient noise asks for so many rows that every step looks at all of them"
    plan = exact_plan(tried.posterior, tried.anchor, tried.budget, why, tried.seed)
    return plan._replace(n_row_evals=plan.n_row_evals + tried.n_row_evals)


def _diagonal_plan(posterior: AbstractPosterior, anchor: Anchor | None, budget: Budget, seed: int) -> Prepared:
    """Too many parameters for a d×d matrix: scales from the rows' squared gradients, and the largest curvature left."""
    found, _ = prepare_anchor(posterior, anchor, Needs.MODE)
    assert found is not None
    scale = fisher_scales(posterior, found.position)
    stiffness = largest_curvature(posterior, found.position, scale)
    tried = Anchored(
        posterior, found, order=1, geometry=Diagonal(np.asarray(scale)), stiffness=stiffness, budget=budget, seed=seed
    )
    tried.n_row_evals += (_POWER_ITERATIONS + 1) * posterior.n_rows
    tried.reasons.append(f"{posterior.dim:,} parameters are too many for their covariance: each has a scale of its own")
    return tried.plan() or _all_rows_after_all(tried)


def _without_gaussian(posterior: AbstractPosterior, budget: Budget, error: str, seed: int) -> Prepared:
    anchor = laplace(posterior, hessian=False)
    why = f"no Gaussian around the mode: {error.split(';')[0]}"
    if posterior.n_rows <= _FEW_ROWS:
        return exact_plan(posterior, anchor, budget, why, seed)
    curvature = np.abs(np.diag(np.asarray(posterior.hessian(anchor.position))))
    scale = np.minimum(np.asarray(fisher_scales(posterior, anchor.position)), 1 / np.sqrt(np.maximum(curvature, 1e-12)))
    return unanchored_plan(posterior, anchor, scale, budget, why, 2 * posterior.n_rows)


@eqx.filter_jit
def fisher_scales(posterior: AbstractPosterior, position: Float[Array, " d"]) -> Float[Array, " d"]:
    """1/√F_jj, F_jj = Σ_i (∂_j f_i)² and the prior's curvature: about the posterior's scale where nothing else is known of it."""

    def block(rows):  # type: ignore[no-untyped-def]
        return jnp.sum(posterior.expand(posterior.row_gradients(position, rows), rows) ** 2, axis=0)

    _, prior = jax.jvp(posterior.prior_gradient, (position,), (jnp.ones_like(position),))
    information = sum_rows(block, posterior.data, posterior.width).rounded() + jnp.abs(prior)
    return 1 / jnp.sqrt(jnp.maximum(information, jnp.finfo(position.dtype).tiny))


@eqx.filter_jit
def _curvature_along(
    posterior: AbstractPosterior, position: Float[Array, " d"], scale: Float[Array, " d"], along: Float[Array, " d"]
) -> Float[Array, " d"]:
    def gradient(at: Float[Array, " d"]) -> Float[Array, " d"]:
        return posterior.potential_and_gradient_sum(at).rounded()[1]

    return scale * jax.jvp(gradient, (position,), (scale * along,))[1]


def largest_curvature(posterior: AbstractPosterior, position: Float[Array, " d"], scale: Float[Array, " d"]) -> float:
    """The largest eigenvalue of S H S, S the diagonal of `scale`, by power iteration: a pass over the rows each."""
    along = standard_normal(new_key(0), position.shape, position.dtype)
    for _ in range(_POWER_ITERATIONS):
        along = along / jnp.linalg.norm(along)
        along = _curvature_along(posterior, position, scale, along)
    return float(jnp.linalg.norm(along))
