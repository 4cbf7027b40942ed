"""The automatic method: parts and settings chosen by fixed rules and by pilot runs.

Posteriors, and the choice for each:

    few rows                             all rows, exact (MALA)
    up to 2,000 parameters               order-2 control variates, whitened (`anchored.py`)
    more parameters                      order-1 control variates, one scale per parameter
    pilot runs that need many rows       all rows, exact
    no positive definite Hessian         Nosé–Hoover with simple gradients, and a doubt
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...anchor.anchor import Anchor, AnchorLevel, laplace
from ...core.errors import PreparationError, check_number
from ...core.random import new_key, standard_normal
from ...core.supervision import checkpoint, stage
from ...dynamics.base import Curvature
from ...geometry import Dense, Diagonal
from ...models.base import AbstractModel
from ...models.posterior import AbstractPosterior
from ...rows.base import RowAccess, RowBlock
from ...rows.sums import Sum
from ..account import ErrorBudget
from ..base import AbstractMethod, PreparedMethod, RunDefaults, prepare_anchor
from .anchored import AnchoredPlanner
from .exact import exact_plan
from .unanchored import unanchored_plan

_FEW_ROWS = 5_000
_MOST_DENSE = 2_000
_POWER_ITERATIONS = 20


@dataclasses.dataclass(frozen=True)
class Automatic(AbstractMethod):
    """Choose all parts and settings for the posterior, by fixed rules and by pilot runs.

    **Arguments:**

    - `inflation`: the error budget, the largest relative inflation of a variance by gradient noise.

    **Raises:** `InvalidInput` if `inflation` is not in (0, 1].

    >>> import tallmc
    >>> tallmc.Automatic(inflation=0.005).defaults
    RunDefaults(chains=8, draws=None, ess=1000.0)
    """

    inflation: float = 0.01

    def __post_init__(self) -> None:
        check_number("inflation", self.inflation, 0, 1, low_open=True)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.NOTHING

    @property
    def row_access(self) -> RowAccess:
        return RowAccess.STREAM

    @property
    def defaults(self) -> RunDefaults:
        return RunDefaults(chains=8, draws=None, ess=1000.0)

    @property
    def has_accept_step(self) -> bool:
        return False

    @property
    def exact(self) -> bool:
        return False

    @property
    def unseen_by_pairs(self) -> None:
        return None

    @property
    def axes(self) -> dict[str, str]:
        return dict.fromkeys(
            ("dynamics", "gradient", "subsample", "size"), "chosen for the posterior"
        )

    def suggest(self, curvature: Curvature) -> None:
        return None

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        budget = ErrorBudget(inflation=self.inflation)
        if posterior.dim > _MOST_DENSE:
            return _diagonal_plan(posterior, anchor, budget, seed)
        try:
            found, _ = prepare_anchor(posterior, anchor, AnchorLevel.HESSIAN)
        except PreparationError as error:
            return _without_gaussian(posterior, budget, str(error), seed)
        assert found is not None
        if posterior.n_rows <= _FEW_ROWS:
            why = f"{posterior.n_rows:,} rows are few: every step uses all of them"
            return exact_plan(posterior, found, budget, why, seed)
        anchored = AnchoredPlanner(
            posterior, found, order=2, geometry=Dense(), stiffness=1.0, budget=budget, seed=seed
        )
        return anchored.plan() or _exact_fallback(anchored)


def _exact_fallback(planner: AnchoredPlanner) -> PreparedMethod:
    why = "gradient noise requires most of the rows: every step uses all of them"
    plan = exact_plan(planner.posterior, planner.anchor, planner.budget, why, planner.seed)
    return plan._replace(n_row_evals=plan.n_row_evals + planner.n_row_evals)


def _diagonal_plan(
    posterior: AbstractPosterior, anchor: Anchor | None, budget: ErrorBudget, seed: int
) -> PreparedMethod:
    """Return an anchored plan without d×d matrices, with one scale per parameter."""
    found, _ = prepare_anchor(posterior, anchor, AnchorLevel.MODE)
    assert found is not None
    scale = fisher_scales(posterior, found.position)
    stiffness = largest_curvature(posterior, found.position, scale)
    planner = AnchoredPlanner(
        posterior,
        found,
        order=1,
        geometry=Diagonal(np.asarray(scale)),
        stiffness=stiffness,
        budget=budget,
        seed=seed,
    )
    planner.n_row_evals += (_POWER_ITERATIONS + 1) * posterior.n_rows
    planner.reasons.append(
        f"{posterior.dim:,} parameters are too many for their covariance: each has its own scale"
    )
    return planner.plan() or _exact_fallback(planner)


def _without_gaussian(
    posterior: AbstractPosterior, budget: ErrorBudget, error: str, seed: int
) -> PreparedMethod:
    anchor = laplace(posterior, hessian=False)
    why = f"no Gaussian around the mode: {error.split(';')[0]}"
    if posterior.n_rows <= _FEW_ROWS:
        return exact_plan(posterior, anchor, budget, why, seed)
    curvature = np.abs(np.diag(np.asarray(posterior.hessian(anchor.position))))
    scale = np.minimum(
        np.asarray(fisher_scales(posterior, anchor.position)),
        1 / np.sqrt(np.maximum(curvature, 1e-12)),
    )
    return unanchored_plan(posterior, anchor, scale, budget, why, 2 * posterior.n_rows)


def fisher_scales(posterior: AbstractPosterior, position: Float[Array, " d"]) -> Float[Array, " d"]:
    """Return 1/√F_jj with F_jj = Σ_i (∂_j f_i)² plus the curvature of the prior.

    This approximates the posterior scale of each parameter when nothing else is known.
    """
    return posterior.rows.reduce(
        _squared_gradients, posterior.model, position, width=posterior.width, finish=_inverse_roots
    )


def _squared_gradients(
    rows: RowBlock, model: AbstractModel, position: Float[Array, " d"]
) -> Float[Array, " d"]:
    return jnp.sum(model.expand(model.row_gradients(position, rows), rows) ** 2, axis=0)


def _inverse_roots(
    total: Sum, model: AbstractModel, position: Float[Array, " d"]
) -> Float[Array, " d"]:
    _, prior = jax.jvp(model.prior_gradient, (position,), (jnp.ones_like(position),))
    information = total.rounded() + jnp.abs(prior)
    return 1 / jnp.sqrt(jnp.maximum(information, jnp.finfo(position.dtype).tiny))


@eqx.filter_jit
def _curvature_times(
    posterior: AbstractPosterior,
    position: Float[Array, " d"],
    scale: Float[Array, " d"],
    vector: Float[Array, " d"],
) -> Float[Array, " d"]:
    """S H S v."""

    def gradient(at: Float[Array, " d"]) -> Float[Array, " d"]:
        return posterior.model.potential_and_gradient(at, posterior.rows).rounded()[1]

    return scale * jax.jvp(gradient, (position,), (scale * vector,))[1]


def largest_curvature(
    posterior: AbstractPosterior, position: Float[Array, " d"], scale: Float[Array, " d"]
) -> float:
    """Return the largest eigenvalue of S H S, S = diag(`scale`), by power iteration.

    Each iteration takes one pass over the rows.
    """
    vector = standard_normal(new_key(0), position.shape, position.dtype)
    stage("finding the largest curvature")
    for _ in range(_POWER_ITERATIONS):
        checkpoint()
        vector = vector / jnp.linalg.norm(vector)
        vector = _curvature_times(posterior, position, scale, vector)
    return float(jnp.linalg.norm(vector))
