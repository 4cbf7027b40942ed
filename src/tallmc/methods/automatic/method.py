"""The automatic method: parts and settings chosen by fixed rules and by pilot runs.

Posteriors, and the choice for each:

    few rows                             all rows, exact (HMC)
    several modes                        all rows, exact, with jumps between the modes
    up to 2,000 parameters               order-2 control variates, whitened (`anchored.py`)
    more parameters                      order-1 control variates, one scale per parameter
    pilot runs fail, need many rows,     all rows, exact
      or find no step size
    no Gaussian at the mode              all rows, exact

Exact means every row in every step. Where that is too much (`_MOST_NUMBERS`), the anchored plan is
kept and a doubt says what is wrong with it; without an anchor it is Nosé–Hoover with simple
gradients (`unanchored.py`).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ...anchor.anchor import Anchor, AnchorLevel, laplace
from ...core.errors import InvalidInput, PreparationError, check_number
from ...core.random import new_key, standard_normal
from ...core.supervision import checkpoint, stage
from ...dynamics.base import Curvature
from ...engine.chains import chains_at_once
from ...geometry import Dense, Diagonal
from ...models.base import AbstractModel
from ...models.hierarchy import Hierarchical
from ...models.posterior import AbstractPosterior
from ...rows.base import RowAccess, RowBlock
from ...rows.batch import Batch
from ...rows.sums import Sum
from ..account import ErrorBudget
from ..base import AbstractMethod, PreparedMethod, RunDefaults, prepare_anchor
from .anchored import AnchoredPlanner
from .exact import exact_plan
from .metric import absolute_hessian
from .modes import find_modes, in_one_mode
from .unanchored import unanchored_plan

_CHAINS = 8  # or more, if the device runs more chains at once
FEW_ROWS = 5_000
"""Up to this number, every step uses all rows."""
_MOST_DENSE = 2_000
_POWER_ITERATIONS = 20
# All rows in every step are affordable if 8 chains of 5,000 steps read at most so many numbers. Two
# slow cores take about half an hour for them.
_MOST_NUMBERS = 2e12
_EXPECTED_STEPS = 8 * 5_000
_SPIKE = "the effects of some groups are too small to be seen in the rows"
_ALL_ROWS = "every step uses all rows"


@dataclasses.dataclass(frozen=True)
class Automatic(AbstractMethod):
    """Choose all parts and settings for the posterior, by fixed rules and by pilot runs.

    **Arguments:**

    - `inflation`: the error budget, the largest relative inflation of a variance by gradient noise.

    **Raises:** `InvalidInput` if `inflation` is not in (0, 1].

    >>> import tallmc
    >>> tallmc.Automatic(inflation=0.005).defaults(dim=55)  # on a CPU
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

    def defaults(self, dim: int) -> RunDefaults:
        return RunDefaults(chains=max(_CHAINS, chains_at_once(dim)), draws=None, ess=1000.0)

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
        except InvalidInput:  # a Hessian that is not positive definite, of an unbounded density
            if anchor is not None or posterior.model.bounded:
                raise
            return _without_gaussian(posterior, budget, _SPIKE, seed)
        assert found is not None
        model = posterior.model
        if isinstance(model, Hierarchical) and model.is_in_spike(found.position):
            return _without_gaussian(posterior, budget, _SPIKE, seed)
        few = posterior.n_rows <= FEW_ROWS
        why = (f"{posterior.n_rows:,} rows are few: every step uses all of them",) if few else ()
        modes, rows_of_search = find_modes(posterior, found, seed)
        if few or (modes is not None and exact_is_affordable(posterior)):
            plan = exact_plan(posterior, found, Dense(), budget, why, seed, modes)
            return plan._replace(n_row_evals=plan.n_row_evals + rows_of_search)
        anchored = AnchoredPlanner(
            posterior, found, order=2, geometry=Dense(), stiffness=1.0, budget=budget, seed=seed
        )
        anchored.n_row_evals += rows_of_search
        plan = _anchored_or_exact(anchored)
        return plan if modes is None else in_one_mode(plan, modes)


def exact_is_affordable(posterior: AbstractPosterior) -> bool:
    """Whether a run can use all rows in every step."""
    numbers = _EXPECTED_STEPS * posterior.n_rows * posterior.width
    return posterior.rows.access >= RowAccess.TAKE and numbers <= _MOST_NUMBERS


def _anchored_or_exact(planner: AnchoredPlanner) -> PreparedMethod:
    """The anchored plan or, if it is not possible or doubtful, all rows in every step.

    A doubtful plan is kept if all rows are too many.
    """
    plan = planner.plan()
    affordable = exact_is_affordable(planner.posterior)
    if plan is not None and not (affordable and planner.why_not):
        return plan
    if planner.posterior.rows.access < RowAccess.TAKE:
        raise PreparationError(
            f"{planner.why_not}, and rows that are not in memory cannot all be in every step. "
            "Choose a method and its settings, or fit a part of the rows in memory."
        )
    why = f"{planner.why_not}: {_ALL_ROWS}"
    exact = exact_plan(
        planner.posterior, planner.anchor, planner.geometry, planner.budget, (why,), planner.seed
    )
    return exact._replace(n_row_evals=exact.n_row_evals + planner.n_row_evals)


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
    return _anchored_or_exact(planner)


def _without_gaussian(
    posterior: AbstractPosterior, budget: ErrorBudget, error: str, seed: int
) -> PreparedMethod:
    # The search for a mode of an unbounded density may end in a spike, where chains get stuck.
    at = None if posterior.model.bounded else posterior.layout.unravel(posterior.init)
    anchor = laplace(posterior, at=at, hessian=False)
    why = f"no Gaussian around the mode ({error.split(';')[0]})"
    if posterior.n_rows <= FEW_ROWS or exact_is_affordable(posterior):
        metric = absolute_hessian(posterior, anchor)
        plan = exact_plan(posterior, anchor, metric, budget, (f"{why}: {_ALL_ROWS}",), seed)
        return plan._replace(n_row_evals=plan.n_row_evals + posterior.n_rows)
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
    rows: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Float[Array, " d"]
) -> Float[Array, " d"]:
    squares = model.expand(model.row_gradients(position, rows), rows) ** 2
    return jnp.sum(squares, axis=0, where=counted[:, None])


def _inverse_roots(
    total: Sum, model: AbstractModel, position: Float[Array, " d"]
) -> Float[Array, " d"]:
    _, prior = jax.jvp(model.prior_gradient, (position,), (jnp.ones_like(position),))
    information = total.rounded() + jnp.abs(prior)
    return 1 / jnp.sqrt(jnp.maximum(information, jnp.finfo(position.dtype).tiny))


def _curvature_sums(
    rows: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    position: Float[Array, " d"],
    direction: Float[Array, " d"],
) -> Float[Array, " d"]:
    """Σ ∇²f_i v over a block of rows."""
    batch = Batch(rows, counted.astype(model.dtype))

    def gradient(at: Float[Array, " d"]) -> Float[Array, " d"]:
        return model.sum_remainders(0, at, at, batch)

    return jax.jvp(gradient, (position,), (direction,))[1]


def _with_prior_curvature(
    total: Sum, model: AbstractModel, position: Float[Array, " d"], direction: Float[Array, " d"]
) -> Float[Array, " d"]:
    return total.rounded() + jax.jvp(model.prior_gradient, (position,), (direction,))[1]


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
        vector = scale * posterior.rows.reduce(
            _curvature_sums,
            posterior.model,
            position,
            scale * (vector / jnp.linalg.norm(vector)),
            width=posterior.width,
            finish=_with_prior_curvature,
        )
    return float(jnp.linalg.norm(vector))
