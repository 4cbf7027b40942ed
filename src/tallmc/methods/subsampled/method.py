"""Metropolis–Hastings with scalable subsampling: exact draws from a Poisson number of rows.

Prado, Nemeth and Sherlock (2024), in the coordinates u of the Laplace approximation, θ = θ̂ + Cu.
Row i has f_i = T_i + R_i, its Taylor expansion at the anchor and the remainder (`remainders.py`),
and a step has D_i = R_i(u') − R_i(u) (`thinning.py`):

    |D_i| ≤ c_i M(u, u'),   B ~ Poisson(M Σc) rows ∝ c_i,   each kept with probability φ_i/(c_i M),
    log ratio = log q(u | u')/q(u' | u) − Σ T_i(u') + Σ T_i(u) + Σ_kept log(φ_i(−D_i)/φ_i(D_i))

A proposal that leaves N(θ̂, Σ̂) invariant meets the target's excess over this Gaussian only. In d
dimensions the bound |wᵀu| ≤ ‖w‖‖u‖ loses a factor √d for each power.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..._anchor.anchor import Anchor
from ..._core.arrays import Scalar, Vector, on_device
from ..._core.errors import InvalidInput, check_int, check_number
from ..._core.programs import quickly_compiled
from ..._core.random import derived_keys, key_of, random_words, standard_normal
from ..._core.supervision import stage
from ..._engine.kernel import AbstractKernel, ChainState, Drawn, Gathered, KernelStep, NewChain
from ..._rows.access import AbstractRows, RowBlock
from ..._rows.law import Batch
from ..._rows.passes import Sum
from ...dynamics.dynamics import AbstractDynamicsState, Curvature, Suggestion
from ...models.model import AbstractModel
from ...models.posterior import AbstractPosterior
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ..abstract import AbstractAnchoredMethod, Account, AtAnchor, labels
from ..firefly import Taylor
from ..method import StepSize
from .remainders import ModelRemainders
from .surrogate import PROPOSALS, Proposal, Surrogate, check_proposal
from .thinning import (
    AbstractDecision,
    BoundedRows,
    Move,
    Rule,
    bound_rows,
    poisson_decision,
    typical_growth,
)

# How much of the posterior is where Gaussian proposals never go.
#
# In the coordinates u of the anchor's Gaussian, proposals are beyond 4.5 sds along a direction
# seven times in a million. Chains miss what a posterior with heavier tails has there, and nothing
# in their draws shows it. So the density along some lines through the mode is computed from all
# rows,
#
#     share of the variance along v that is beyond = ∫ t² p(tv)/p(0) dt / √(2π) over |t| > 4.5,
#
# with log p linear between the distances below, and p falling as t⁻⁴ beyond the last of them. The
# lines have the directions in which rows skew the posterior, Cᵀ∇f_i with probability ∝ c_i, and
# those in which a single parameter varies most, Cᵀe_j, along which a heavy prior shows.

_DISTANCES = (4.5, 6.5, 9.0)
_ROWS, _MOST_PARAMETERS = 16, 64
LARGEST_SHARE = 0.005  # Of a variance; its sd is then off by 0.25 %


class Tails(NamedTuple):
    """What lies beyond the reach of Gaussian proposals, along the worst of some directions."""

    share: float  # The share of a variance beyond 4.5 sds
    outside: float | None
    """The part of the posterior outside the radius within which rows have bounds."""
    n_row_evals: int

    @property
    def missed(self) -> str | None:
        """Why the draws cannot be trusted, with the cure; None if the tails are light."""
        if self.share <= LARGEST_SHARE:
            return None
        share = "most" if self.share > 0.5 else f"about {self.share:.1%}"
        return (
            f"{share} of a variance is more than {_DISTANCES[0]} sds from the mode, where Gaussian "
            "proposals hardly ever go: the draws lack this tail. Use the default method, or "
            "proposal='random-walk'."
        )


def measure_tails(
    posterior: AbstractPosterior,
    anchor: Anchor,
    constants: Float[np.ndarray, " N"],
    radius: float | None,
) -> Tails:
    """The tails of the posterior, from one pass over the rows.

    `constants` are c_i; `radius` is that outside of which rows have no bounds, if there is one.
    """
    stage("looking for heavy tails")
    factor = np.asarray(anchor.factor, np.float64)
    directions = _directions(posterior, anchor, constants, factor)
    distances = np.array(_DISTANCES if radius is None else (*_DISTANCES, radius))
    signed = np.concatenate([distances, -distances])
    u = signed[:, None, None] * directions
    moves = on_device(u.reshape(-1, u.shape[2]) @ factor.T, posterior.dtype)
    width = len(moves) + posterior.width
    rises = posterior.rows.reduce(
        _changes, posterior.model, anchor.position, moves, width=width, finish=_with_prior
    )
    rises = np.asarray(rises, np.float64).reshape(2, len(distances), -1)
    log_density = np.where(np.isfinite(rises), -rises, -np.inf)
    share = _share_beyond(log_density[:, : len(_DISTANCES)]).sum(axis=0).max()
    outside = None
    if radius is not None:
        from scipy.special import chdtrc  # a slow import

        excess = max(0.0, float(np.max(log_density[:, -1])) + radius**2 / 2)
        outside = min(1.0, chdtrc(posterior.dim, radius**2) * math.exp(min(excess, 700.0)))
    return Tails(float(share), outside, posterior.n_rows + min(_ROWS, posterior.n_rows))


def _share_beyond(log_density: Float[np.ndarray, "side t k"]) -> Float[np.ndarray, "side k"]:
    """∫ t² p dt/√(2π) beyond the first distance, of each line and side."""
    t = np.array(_DISTANCES)[:, None]
    log_terms = np.clip(log_density + 2 * np.log(t), -700, 100)
    terms, steps = np.exp(log_terms), np.diff(np.array(_DISTANCES))[:, None]
    slopes = np.diff(log_terms, axis=1)
    nearly_equal = np.abs(slopes) < 1e-6
    means = np.where(
        nearly_equal, terms[:, 1:], np.diff(terms, axis=1) / np.where(nearly_equal, 1, slopes)
    )
    beyond = t[-1] * terms[:, -1]  # ∫ t² p dt of p ∝ t⁻⁴
    return (np.sum(means * steps, axis=1) + beyond) / math.sqrt(2 * math.pi)


def _directions(
    posterior: AbstractPosterior,
    anchor: Anchor,
    constants: Float[np.ndarray, " N"],
    factor: Float[np.ndarray, "d d"],
) -> Float[np.ndarray, "k d"]:
    """Unit vectors in the coordinates u."""
    rng = np.random.default_rng(0)
    cumulated = np.cumsum(constants, dtype=np.float64)
    drawn = np.searchsorted(cumulated, rng.random(_ROWS) * cumulated[-1])
    numbers = np.minimum(drawn, len(constants) - 1)
    gradients = _row_gradients(posterior.model, anchor.position, posterior.rows.read(numbers))
    parameters = np.arange(len(factor))
    if len(factor) > _MOST_PARAMETERS:
        parameters = rng.choice(len(factor), _MOST_PARAMETERS, replace=False)
    found = np.concatenate([np.asarray(gradients, np.float64) @ factor, factor[parameters]])
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    return found / np.where(norms > 0, norms, np.inf)


@quickly_compiled
def _row_gradients(model: AbstractModel, at: Vector, block: RowBlock) -> Float[Array, "n d"]:
    return model.expand(model.row_gradients(at, block), block)


def _changes(
    block: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    at: Vector,
    moves: Float[Array, "k d"],
) -> Float[Array, " k"]:
    return model.sum_of_changes(at, moves, Batch(block, counted.astype(model.dtype)))


def _with_prior(
    total: Sum, model: AbstractModel, at: Vector, moves: Float[Array, "k d"]
) -> Float[Array, " k"]:
    prior = jax.vmap(model.prior_potential)(at + moves) - model.prior_potential(at)
    return total.rounded() + prior


class SubsampledState(AbstractDynamicsState):
    """Position θ = θ̂ + Cu."""

    position: Vector
    whitened: Vector  # u
    excess: Scalar  # e(u)


class Breaches(eqx.Module):
    """How often the steps of a chain left the bounds."""

    exceeded: Int[Array, "*chains"]  # Rows whose change was above their cap
    worst: Float[Array, "*chains"]  # The largest change, relative to its cap
    outside: Int[Array, "*chains"]
    """Moves that were rejected because there is no bound for them."""


def no_breaches(positions: Float[Array, "chains d"]) -> tuple[Array, Array, Array]:
    """The counts of chains that start here, and the largest excess between them."""
    none = np.zeros(len(positions))
    counts = on_device(none, np.int32)
    return counts, on_device(none, positions.dtype), counts


def breach_totals(breaches: Any) -> tuple[int, float, int]:
    """Those of all chains together."""
    exceeded, worst, others = jax.tree.leaves(breaches)
    first, second = (int(np.asarray(counts, np.int64).sum()) for counts in (exceeded, others))
    return first, float(np.max(worst)), second


class AbstractProposalKernel(AbstractKernel):
    """Proposes moves of the surrogate."""

    surrogate: eqx.AbstractVar[Surrogate]
    proposal: eqx.AbstractVar[Proposal]

    @property
    def model(self) -> AbstractModel:
        return self.surrogate.remainders.model

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        normal_key, uniform_key, rows_key = derived_keys(key, 3)
        like = self.model.init
        normal = standard_normal(normal_key, (steps, *like.shape), like.dtype)
        uniform = -jax.random.exponential(uniform_key, (steps,), like.dtype)
        return Drawn(key_of(random_words(rows_key, (steps,))), (normal, uniform))

    def proposed(self, here: Vector, step: Int[Array, ""], normal: Vector) -> tuple[Vector, Scalar]:
        """u', and log q(u | u')/q(u' | u) relative to N(0, I)."""
        step_size = self.schedule(step).astype(here.dtype)
        there = self.proposal.propose(self.surrogate, here, step_size, normal)
        return there, self.proposal.log_ratio(self.surrogate, here, there, step_size)


class SubsampledKernel(AbstractProposalKernel):
    """Proposes a move of the surrogate, and decides from a few rows."""

    surrogate: Surrogate
    proposal: Proposal
    decision: AbstractDecision
    schedule: AbstractSchedule
    rest: Vector

    rows_per_step = None

    @property
    def most_rows(self) -> int:
        return self.n_certain + self.decision.most_rows

    @property
    def n_certain(self) -> int:
        """Rows that every step evaluates."""
        return int(self.surrogate.certain.shape[0])

    def rows_at_start(self) -> int:
        return self.n_certain

    def broken_claim(self, chains: ChainState) -> str | None:
        exceeded, worst, outside = breach_totals(chains.carried)
        if exceeded:
            return (
                f"{exceeded:,} evaluated rows changed by more than their caps, at most by "
                f"{worst:.2g} times: the draws are not exact. Use larger caps, or a larger bound."
            )
        if outside:
            return (
                f"{outside:,} proposals were outside the region where the rows have a bound and "
                "were rejected: the draws are those of the posterior inside that region."
            )
        return None

    def start_memory(self, positions: Float[Array, "chains d"], rows: AbstractRows) -> Breaches:
        return Breaches(*no_breaches(positions))

    def init(self, new: NewChain, rows: AbstractRows) -> ChainState:
        u = self.surrogate.metric.solve(new.position - self.surrogate.anchor)
        motion = SubsampledState(new.position, u, self.surrogate.excess(u, rows))
        return ChainState(motion, new.carried)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        surrogate, here = self.surrogate, state.motion.whitened
        normal, log_uniform = gathered.noise
        there, log_known = self.proposed(here, step, normal)
        excess = surrogate.excess(there, rows)
        moves = surrogate.metric.push(jnp.stack([here, there]))
        move = Move(
            here=here,
            there=there,
            moves=moves,
            log_known=log_known - (excess - state.motion.excess),
            log_uniform=log_uniform,
        )
        decided = self.decision.decide(surrogate.remainders, move, gathered.selection, rows)
        candidate = SubsampledState(surrogate.anchor + moves[1], there, excess)
        motion = jax.tree.map(
            lambda new, old: jnp.where(decided.accept, new, old), candidate, state.motion
        )
        carried = Breaches(
            state.carried.exceeded + decided.exceeded,
            jnp.maximum(state.carried.worst, decided.worst),
            state.carried.outside + decided.outside.astype(jnp.int32),
        )
        stats = {
            "acceptance_rate": decided.rate,
            "batch_size": decided.n_rows + jnp.int32(self.n_certain),
        }
        return KernelStep(ChainState(motion, carried), stats)


def suggested(proposal: str, step: float, rule: str) -> Suggestion:
    """Independent proposals for "pcn", and this step size for others."""
    if proposal == "pcn":
        return Suggestion(1.0, "proposals that do not depend on the position", 1.0, 1.0)
    return Suggestion(step, rule, 2 / step, step)


_MALA_STEP = 2.0  # in one dimension; smaller by the cube root of d in d dimensions
_RULES = ("thinned", "factorised", "tuna")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsampledMH(AbstractAnchoredMethod):
    """Metropolis–Hastings that decides from a Poisson number of rows."""

    paper_by_setting: ClassVar = {
        "rule='thinned'": "Prado, Nemeth and Sherlock (2024)",
        "rule='tuna'": "Zhang, Cooper and De Sa (2020)",
        "rule='factorised'": ("Cornish, Vanetti, Bouchard-Côté, Deligiannidis and Doucet (2019)"),
    }
    bias = (
        "None as long as the bounds c_i M hold, at any step size and order. `caps` below 1 takes a "
        "fraction of the bounds, which no run can prove: rows that exceed their cap are counted "
        "where they are looked at."
    )
    cost = (
        "A pass over the rows for c_i, one for the tails, one more for order 3, and 2d + 1 more to "
        "check a bound of the user's. A step evaluates its candidates and the rows that would be "
        "drawn at least once per step anyway. Σc falls as N^(−1/2) with order 2 and as N^(−1) with "
        "order 3."
    )

    step_size: StepSize
    proposal: str = "pcn"
    order: int = 2
    rule: str = "thinned"
    chi: float = 0.0
    caps: float = 1.0
    bound: Taylor | None = None

    def __post_init__(self) -> None:
        check_proposal(self.proposal, self.step_size)
        if self.rule not in _RULES:
            raise InvalidInput("rule", f"be one of {', '.join(map(repr, _RULES))}", self.rule)
        check_int("order", self.order, 0, 3)
        check_number("chi", self.chi, 0)
        check_number("caps", self.caps, 0, 1, low_open=True)
        if not isinstance(self.bound, Taylor | None):
            cure = "A lower bound on the likelihood such as Tangent() does not bound remainders."
            raise InvalidInput("bound", "be Taylor(...) or None", self.bound, cure)
        if self.bound is not None and self.order != 2:
            raise InvalidInput("order", "be 2 with a bound of yours", self.order)

    @property
    def exact(self) -> bool:
        return self.caps == 1 and (self.bound is None or self.bound.is_proved)

    @property
    def axes(self) -> dict[str, str]:
        gradient = f"surrogate of order {self.order}"
        return labels(f"{self.proposal} proposals", gradient, f"{self.rule} rows", "Poisson")

    def suggest(self, curvature: Curvature) -> Suggestion:
        step = _MALA_STEP / curvature.dim ** (1 / 3)
        return suggested(self.proposal, step, "the scaling of Langevin proposals")

    def check(self, posterior: AbstractPosterior) -> None:
        if self.bound is not None:
            self.bound.check(posterior)

    def kernel_at(self, posterior: AbstractPosterior, anchor: Anchor) -> AtAnchor:
        bounded = bound_rows(posterior, anchor, self.order, self.bound)
        schedule = in_precision(as_schedule(self.step_size), posterior.dtype)
        proposal, surrogate = PROPOSALS[self.proposal], bounded.surrogate
        typical = typical_growth(surrogate, proposal, schedule(jnp.asarray(0)))
        chi = jnp.asarray(self.chi, posterior.dtype) if self.rule == "tuna" else None
        caps, rule = self.caps * bounded.constants, Rule(self.rule, chi)
        decision, certain = poisson_decision(posterior, caps, rule, typical, posterior.dtype)
        kernel = SubsampledKernel(
            surrogate=eqx.tree_at(lambda part: part.certain, surrogate, certain),
            proposal=proposal,
            decision=decision,
            schedule=schedule,
            rest=surrogate.anchor,
        )
        account, n_further = self._account(posterior, anchor, bounded)
        return AtAnchor(kernel, bounded.n_row_evals + n_further, account)

    def _account(
        self, posterior: AbstractPosterior, anchor: Anchor, bounded: BoundedRows
    ) -> tuple[Account, int]:
        """The account with what the tails of the posterior say, and rows evaluated for it."""
        account = Account(self, exact=self.exact)
        if self.proposal == "random-walk":
            return account, 0
        remainders, radius = bounded.surrogate.remainders, None
        if isinstance(remainders, ModelRemainders) and not remainders.bounded:
            radius = float(remainders.radius)
        tails = measure_tails(posterior, anchor, bounded.constants, radius)
        reasons: tuple[str, ...] = ()
        if tails.outside is not None:
            where = f"within {radius:.1f} sds of the mode, where rows have bounds"
            reasons = (f"proposals {where}; about {tails.outside:.1g} of the posterior is outside",)
        account = dataclasses.replace(account, reasons=reasons, unmeasured=tails.missed)
        return account, tails.n_row_evals
