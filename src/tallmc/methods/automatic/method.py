"""The automatic method: parts and settings chosen by fixed rules and by pilot runs.

Posteriors, and the choice for each:

    more than 100 group effects          all rows, exact, in coordinates of the effects
    few rows                             all rows, exact (HMC)
    several modes                        hard rows and a series for each, checked on all rows
    up to 2,000 parameters               hard rows and a series, checked on all rows
      exact draws asked for, or the      the same, accepted on all rows
      check finds a moderate error
      the check finds a large error,     all rows, exact
      or there is no Gaussian
    more parameters, codes in the rows   all rows, exact, one scale per parameter
    more parameters                      order-1 control variates, one scale per parameter

All rows means every row in every step. Where that is too much (`_MOST_NUMBERS`), a plan with
control variates is made and a doubt says what is wrong with it; without an anchor it is
Nosé–Hoover with simple gradients.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._anchor.anchor import Anchor, AnchorLevel, find_anchor
from ..._anchor.optimisers import CountedPasses
from ..._core.arrays import Vector
from ..._core.errors import InvalidInput, PreparationError, check_number
from ..._core.random import new_key, standard_normal
from ..._core.supervision import checkpoint, in_background, stage
from ..._engine.chains import chains_at_once
from ..._rows.access import RowAccess, RowBlock
from ..._rows.law import Batch
from ..._rows.passes import Sum
from ..._rows.workers import WorkerError
from ...dynamics import NoseHoover
from ...geometry import Dense, Diagonal
from ...gradient import Simple
from ...models.model import MOST_DENSE, AbstractModel
from ...models.posterior import AbstractPosterior, ModelPosterior
from ...subsample import Preferential
from ..abstract import (
    AbstractMethod,
    Account,
    ErrorBudget,
    PreparedMethod,
    RunDefaults,
    prepare_anchor,
)
from ..method import Method
from ..surrogate import rehearse_sizes
from .anchored import AnchoredPlanner
from .effects import standard_effects
from .exact import exact_plan
from .hard_rows import SurrogatePlanner, enough_draws
from .modes import Modes, find_modes, in_one_mode, with_light_modes

# A first metric for the exact plan, where the anchor has no Gaussian.


_LARGEST_CONDITION = 1e8


def absolute_hessian(posterior: AbstractPosterior, anchor: Anchor) -> Dense:
    """The metric |H|⁻¹ at the anchor: eigenvalues of the Hessian count by their size."""
    hessian = np.asarray(posterior.hessian(anchor.position), np.float64)
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    values = np.maximum(np.abs(values), np.abs(values).max() / _LARGEST_CONDITION)
    covariance = (vectors / values) @ vectors.T
    return Dense((covariance + covariance.T) / 2)


# The fallback without a Gaussian around the mode: Nosé–Hoover dynamics with simple gradients.
#
# The thermostat absorbs gradient noise of any size, if the noise is equal in all directions and at
# all positions. The remaining error is not known, and the account says so.


_STEP = 0.05
_FRICTION = 2.0
_LEAST_ROWS = 256


def unanchored_plan(
    posterior: AbstractPosterior,
    anchor: Anchor,
    scale: np.ndarray,
    budget: ErrorBudget,
    why: str,
    n_row_evals: int,
) -> PreparedMethod:
    """Return SGNHT in units of `scale`, started at the anchor."""
    size = min(posterior.n_rows, max(_LEAST_ROWS, posterior.n_rows // 100))
    method = Method(
        dynamics=NoseHoover(friction=_FRICTION),
        gradient=Simple(),
        subsample=Preferential("gradient"),
        batch_size=size,
        geometry=Diagonal(scale),
        step_size=_STEP,
    )
    prepared = method.prepare(posterior, anchor)
    doubt = (
        "without a Gaussian anchor neither the noise nor the step has been checked: "
        "compare with another method."
    )
    account = Account(
        method=method,
        budget=budget,
        reasons=(why, f"SGNHT with {size} rows per step"),
        doubts=(doubt,),
    )
    return prepared._replace(account=account, n_row_evals=prepared.n_row_evals + n_row_evals)


_CHAINS = 8  # or more, if the device runs more chains at once
FEW_ROWS = 5_000
"""Up to this number, every step uses all rows."""
_POWER_ITERATIONS = 20
_FEW_EFFECTS = 100
_MANY_ROWS_PER_EFFECT = 1_000  # such rows determine their effects
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
    - `exact`: whether only exact methods may be chosen.

    >>> import tallmc
    >>> tallmc.Automatic(inflation=0.005).defaults(dim=55)  # on a CPU
    RunDefaults(chains=8, draws=None, ess=1000.0)
    """

    row_access = RowAccess.STREAM

    inflation: float = 0.01
    exact: bool = False

    def __post_init__(self) -> None:
        check_number("inflation", self.inflation, 0, 1, low_open=True)

    def defaults(self, dim: int) -> RunDefaults:
        return RunDefaults(chains=max(_CHAINS, chains_at_once(dim)), draws=None, ess=1000.0)

    @property
    def axes(self) -> dict[str, str]:
        return dict.fromkeys(
            ("dynamics", "gradient", "subsample", "size"), "chosen for the posterior"
        )

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        posterior.model.check_gradients(posterior.n_rows, self.inflation)
        budget = ErrorBudget(inflation=self.inflation)
        if anchor is None and _has_many_effects(posterior):
            effects = standard_effects(posterior)
            many = f"{_n_effects(posterior):,} group effects, standardised given their sds"
            all_rows = (f"{many}: {_ALL_ROWS}",)
            at, geometry, rows = effects
            return exact_plan(posterior, at, geometry, budget, all_rows, seed, None, rows)
        if posterior.dim > MOST_DENSE:
            return _diagonal_plan(posterior, anchor, budget, self.exact, seed)
        in_memory, few = posterior.rows.access >= RowAccess.TAKE, has_few_rows(posterior)
        if in_memory and not few:
            in_background(lambda: rehearse_sizes(posterior))
        try:
            found, _ = prepare_anchor(posterior, anchor, AnchorLevel.HESSIAN)
        except WorkerError:  # says nothing about the posterior
            raise
        except PreparationError as error:
            return _without_gaussian(posterior, budget, str(error), self.exact, seed)
        except InvalidInput:  # a Hessian that is not positive definite, of an unbounded density
            if anchor is not None or posterior.model.bounded:
                raise
            return _without_gaussian(posterior, budget, _SPIKE, self.exact, seed)
        assert found is not None
        model = posterior.model
        if model.is_in_spike(found.position):
            return _without_gaussian(posterior, budget, _SPIKE, self.exact, seed)
        shift = functools.partial(integration_shift, posterior, found.position, found.factor)
        shifting = in_background(shift)  # beside the chains, since it has programs of its own
        plan = self._plan_at(posterior, found, budget, few, seed)
        return _with_integration_error(plan, shifting.result() if shifting else shift())

    def _plan_at(
        self,
        posterior: AbstractPosterior,
        anchor: Anchor,
        budget: ErrorBudget,
        few: bool,
        seed: int,
    ) -> PreparedMethod:
        """The plan for a posterior that has a Gaussian at its anchor."""
        modes, rows = find_modes(posterior, anchor, seed)
        surrogate = SurrogatePlanner(posterior, anchor, budget, self.exact, seed, rows)
        in_memory = posterior.rows.access >= RowAccess.TAKE
        affordable = in_memory and (self.exact or exact_is_affordable(posterior))

        def all_rows(*why: str, modes: Modes | None = None) -> PreparedMethod:
            rows = surrogate.n_row_evals
            return exact_plan(posterior, anchor, Dense(), budget, why, seed, modes, rows)

        if few:
            why = f"{posterior.n_rows:,} rows are few: every step uses all of them"
            plan = all_rows(why, modes=modes)
            goal = enough_draws(posterior) if modes is None else None
            return plan if goal is None else plan._replace(ess=goal)
        if modes is not None:
            several = None if self.exact else surrogate.plan(modes)
            if several is not None:
                return with_light_modes(several, modes)
            if affordable:
                return all_rows(modes=modes)
        found = surrogate.plan()
        if found is None and (affordable or self.exact):
            found = all_rows(f"{surrogate.why_not}: {_ALL_ROWS}")
        if found is None:
            anchored = AnchoredPlanner(posterior, anchor, 2, Dense(), 1.0, budget, seed)
            anchored.n_row_evals += surrogate.n_row_evals
            anchored.reasons.append(surrogate.why_not)
            found = _anchored_or_exact(anchored)
        return found if modes is None else in_one_mode(found, modes)


_INTEGRALS, _FEWEST_GROUPS, _PLACES = 2**22, 256, 3


def integration_shift(
    posterior: AbstractPosterior, position: Vector, factor: Float[Any, "d d"]
) -> float | None:
    """How far more accurate integrals over group effects move a mean, in posterior sds.

    By the change of the gradient at the mode and at draws of the Gaussian there, for some of the
    groups if they are many. None if the model has no integrals.
    """
    model, finer = posterior.model, posterior.model.refined()
    if finer is None:
        return None
    share = max(_INTEGRALS // finer.row_cost, _FEWEST_GROUPS) / posterior.n_rows
    part = CountedPasses(ModelPosterior(finer, posterior.rows), share)
    normals = np.random.default_rng(0).normal(size=(_PLACES, posterior.dim))
    normals[0] = 0
    root, largest = np.asarray(factor, np.float64), 0.0
    for move in normals @ root.T:
        at = np.asarray(np.asarray(position, np.float64) + move, posterior.dtype)
        there = [of.potential_and_gradient(at, part.posterior.rows) for of in (model, finer)]
        one, other = (of.float64()[1] for of in there)
        shifts = root @ (root.T @ (other - one)) / np.linalg.norm(root, axis=1)
        largest = max(largest, part.scale * float(np.abs(shifts).max()))
    return largest


def with_integration_error(account: Account, shift: float | None) -> Account:
    """Report what the integrals over group effects leave out, with a doubt where it matters."""
    if shift is None:
        return account
    reason = f"more nodes per group effect would move the means by {shift:.1g} sd at most"
    account = dataclasses.replace(account, reasons=(*account.reasons, reason))
    if shift <= account.budget.mean_bias:
        return account
    return account.doubting(
        f"the integrals over the group effects move means by about {shift:.2g} sd. Use fewer "
        "effects per group."
    )


def _with_integration_error(plan: PreparedMethod, shift: float | None) -> PreparedMethod:
    assert plan.account is not None
    return plan._replace(account=with_integration_error(plan.account, shift))


def _n_effects(posterior: AbstractPosterior) -> int:
    return sum(term.n_groups * term.n_columns for term in posterior.model.effect_terms())


def _has_many_effects(posterior: AbstractPosterior) -> bool:
    """Whether there are too many group effects for a series, or too few rows per effect."""
    count, rows = _n_effects(posterior), posterior.rows
    numbers = _EXPECTED_STEPS * rows.n_rows * rows.floats_per_row
    affordable = rows.access >= RowAccess.TAKE and numbers <= _MOST_NUMBERS
    known = posterior.dim <= MOST_DENSE and rows.n_rows > _MANY_ROWS_PER_EFFECT * count
    return count > _FEW_EFFECTS and affordable and not known


def has_few_rows(posterior: AbstractPosterior) -> bool:
    """Whether all rows in every step cost so little that no series is worth its compilation.

    A group whose effects are integrated out costs as much as hundreds or thousands of rows, so that
    a hundred groups are not few: the check reads them at 256 draws, delayed acceptance once in
    three trajectories, and an exact sampler in every leapfrog step.
    """
    in_memory, model = posterior.rows.access >= RowAccess.TAKE, posterior.model
    few = in_memory and posterior.n_rows * model.row_cost <= FEW_ROWS
    return few and not model.scale_mixtures()  # chains of the surrogate also move their scales


def exact_is_affordable(posterior: AbstractPosterior) -> bool:
    """Whether a run can use all rows in every step."""
    numbers = _EXPECTED_STEPS * posterior.n_rows * posterior.width
    return posterior.rows.access >= RowAccess.TAKE and numbers <= _MOST_NUMBERS


def _anchored_or_exact(planner: AnchoredPlanner) -> PreparedMethod:
    """The anchored plan or, if it is not possible or doubtful, an exact one.

    A doubtful plan is kept if all rows are too many.
    """
    posterior, plan = planner.posterior, planner.plan()
    if plan is not None and not (exact_is_affordable(posterior) and planner.why_not):
        return plan
    if posterior.rows.access < RowAccess.TAKE:
        raise PreparationError(
            f"{planner.why_not}, and rows that are not in memory cannot all be in every step. "
            "Choose a method and its settings, or fit a part of the rows in memory."
        )
    return exact_plan(
        posterior,
        planner.anchor,
        planner.geometry,
        planner.budget,
        (f"{planner.why_not}: {_ALL_ROWS}",),
        planner.seed,
        n_row_evals=planner.n_row_evals,
    )


def _diagonal_plan(
    posterior: AbstractPosterior, anchor: Anchor | None, budget: ErrorBudget, exact: bool, seed: int
) -> PreparedMethod:
    """Return an anchored or exact plan without d×d matrices, with one scale per parameter."""
    coded = posterior.width < posterior.dim and exact_is_affordable(posterior)
    if anchor is None and not posterior.model.bounded:
        anchor = find_anchor(posterior, at=posterior.layout.unravel(posterior.init), hessian=False)
    found, _ = prepare_anchor(posterior, anchor, AnchorLevel.MODE)
    assert found is not None
    scale = fisher_scales(posterior, found.position)
    metric = Diagonal(np.asarray(scale))
    if exact or coded:
        why = "the rows are codes" if coded else "exact draws were asked for"
        why = f"{why}, and {posterior.dim:,} parameters are many: {_ALL_ROWS}"
        return exact_plan(posterior, found, metric, budget, (why,), seed, None, posterior.n_rows)
    stiffness = largest_curvature(posterior, found.position, scale)
    planner = AnchoredPlanner(posterior, found, 1, metric, stiffness, budget, seed)
    planner.n_row_evals += (_POWER_ITERATIONS + 1) * posterior.n_rows
    planner.reasons.append(
        f"{posterior.dim:,} parameters are too many for their covariance: each has its own scale"
    )
    return _anchored_or_exact(planner)


def _without_gaussian(
    posterior: AbstractPosterior, budget: ErrorBudget, error: str, exact: bool, seed: int
) -> PreparedMethod:
    # The search for a mode of an unbounded density may end in a spike, where chains get stuck.
    at = None if posterior.model.bounded else posterior.layout.unravel(posterior.init)
    anchor = find_anchor(posterior, at=at, hessian=False)
    why = f"no Gaussian around the mode ({error.split(';')[0]})"
    if exact or posterior.n_rows <= FEW_ROWS or exact_is_affordable(posterior):
        metric, why = absolute_hessian(posterior, anchor), f"{why}: {_ALL_ROWS}"
        return exact_plan(posterior, anchor, metric, budget, (why,), seed, None, posterior.n_rows)
    curvature = np.abs(np.diag(np.asarray(posterior.hessian(anchor.position))))
    scale = np.minimum(
        np.asarray(fisher_scales(posterior, anchor.position)),
        1 / np.sqrt(np.maximum(curvature, 1e-12)),
    )
    return unanchored_plan(posterior, anchor, scale, budget, why, 2 * posterior.n_rows)


def fisher_scales(posterior: AbstractPosterior, position: Vector) -> Vector:
    """Return 1/√F_jj with F_jj = Σ_i (∂_j f_i)² plus the curvature of the prior.

    This approximates the posterior scale of each parameter when nothing else is known.
    """
    return posterior.rows.reduce(
        _squared_gradients, posterior.model, position, width=posterior.width, finish=_inverse_roots
    )


def _squared_gradients(
    block: RowBlock, counted: Bool[Array, " n"], model: AbstractModel, position: Vector
) -> Vector:
    gradients = model.row_gradients(position, block)
    return model.sum_of_squares(gradients, block, counted.astype(model.dtype))


def _inverse_roots(total: Sum, model: AbstractModel, position: Vector) -> Vector:
    _, prior = jax.jvp(model.prior_gradient, (position,), (jnp.ones_like(position),))
    information = total.rounded() + jnp.abs(prior)
    return 1 / jnp.sqrt(jnp.maximum(information, jnp.finfo(position.dtype).tiny))


def _curvature_sums(
    block: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    position: Vector,
    direction: Vector,
) -> Vector:
    """Σ ∇²f_i v over a block of rows."""
    batch = Batch(block, counted.astype(model.dtype))
    return model.hessian_products(position, direction[None], batch)[0]


def _with_prior_curvature(
    total: Sum, model: AbstractModel, position: Vector, direction: Vector
) -> Vector:
    return total.rounded() + jax.jvp(model.prior_gradient, (position,), (direction,))[1]


def largest_curvature(posterior: AbstractPosterior, position: Vector, scale: Vector) -> float:
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
