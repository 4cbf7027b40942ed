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
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._anchor.anchor import Anchor, AnchorLevel
from ..._core.arrays import Scalar, Vector, on_device
from ..._core.errors import InvalidInput, Outcome, check_int, check_number
from ..._core.random import derived_keys, key_of, random_words, standard_normal
from ..._engine.kernel import AbstractKernel, BoundKernel, ChainState, Drawn, Gathered, KernelStep
from ..._rows.access import AbstractRows
from ...dynamics.dynamics import AbstractDynamicsState, Curvature, Suggestion
from ...models.model import AbstractModel
from ...models.posterior import AbstractPosterior, check_posterior
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ..abstract import AbstractMethod, Account, PreparedMethod, check_row_access, prepare_anchor
from ..firefly import Taylor
from ..method import StepSize
from .candidates import BoundedRows, bound_rows, poisson_decision, typical_growth
from .remainders import ModelRemainders
from .surrogate import PROPOSALS, Proposal, Surrogate, check_proposal
from .tails import measure_tails
from .thinning import AbstractDecision, Move, Rule


class SubsampledState(AbstractDynamicsState):
    """Position θ = θ̂ + Cu."""

    position: Vector
    whitened: Vector
    """u."""
    excess: Scalar
    """e(u)."""


class Breaches(eqx.Module):
    """How often the steps of a chain left the bounds."""

    exceeded: Int[Array, "*chains"]
    """Rows whose change was above their cap."""
    worst: Float[Array, "*chains"]
    """The largest change, relative to its cap."""
    outside: Int[Array, "*chains"]
    """Moves that were rejected because there is no bound for them."""


class SubsampledKernel(AbstractKernel):
    """Proposes a move of the surrogate, and decides from a few rows."""

    surrogate: Surrogate
    proposal: Proposal
    decision: AbstractDecision
    schedule: AbstractSchedule
    rest: Vector

    @property
    def model(self) -> AbstractModel:
        return self.surrogate.remainders.model

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
        exceeded, outside = (
            int(np.asarray(counts, np.int64).sum())
            for counts in (chains.carried.exceeded, chains.carried.outside)
        )
        if exceeded:
            worst = float(np.max(chains.carried.worst))
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
        none = np.zeros(len(positions))
        counts = on_device(none, np.int32)
        return Breaches(counts, on_device(none, positions.dtype), counts)

    def init(
        self,
        key: PRNGKeyArray,
        position: Vector,
        carried: Breaches,
        gathered: Gathered,
        rows: AbstractRows,
    ) -> ChainState:
        u = self.surrogate.metric.solve(position - self.surrogate.anchor)
        return ChainState(SubsampledState(position, u, self.surrogate.excess(u, rows)), carried)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        normal_key, uniform_key, rows_key = derived_keys(key, 3)
        like = self.model.init
        normal = standard_normal(normal_key, (steps, *like.shape), like.dtype)
        uniform = -jax.random.exponential(uniform_key, (steps,), like.dtype)
        return Drawn(key_of(random_words(rows_key, (steps,))), (normal, uniform))

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        surrogate, here = self.surrogate, state.motion.whitened
        normal, log_uniform = gathered.noise
        step_size = self.schedule(step).astype(here.dtype)
        there = self.proposal.propose(surrogate, here, step_size, normal)
        excess = surrogate.excess(there, rows)
        moves = surrogate.metric.push(jnp.stack([here, there]))
        move = Move(
            here=here,
            there=there,
            moves=moves,
            log_known=self.proposal.log_ratio(surrogate, here, there, step_size)
            - (excess - state.motion.excess),
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
        return KernelStep(
            ChainState(motion, carried), stats, jnp.int32(Outcome.OK), jnp.zeros_like(here)
        )


_MALA_STEP = 2.0  # in one dimension; smaller by the cube root of d in d dimensions
_RULES = ("thinned", "factorised", "tuna")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsampledMH(AbstractMethod):
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
    needs = AnchorLevel.HESSIAN

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
        return {
            "dynamics": f"{self.proposal} proposals",
            "gradient": f"surrogate of order {self.order}",
            "subsample": f"{self.rule} rows",
            "size": "Poisson",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        if self.proposal == "pcn":
            return Suggestion(1.0, "proposals that do not depend on the position", 1.0, 1.0)
        step = _MALA_STEP / curvature.dim ** (1 / 3)
        return Suggestion(step, "the scaling of Langevin proposals", 2 / step, step)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Find the anchor, the bounds of all rows and the table that draws them."""
        check_posterior(posterior)
        if self.bound is not None:
            self.bound.check(posterior)
        check_row_access(self, posterior)
        anchor, n_row_evals = prepare_anchor(posterior, anchor, self.needs)
        assert anchor is not None, "the method requires an anchor"
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
        n_row_evals += bounded.n_row_evals + n_further
        return PreparedMethod(BoundKernel(kernel, posterior), anchor, n_row_evals, account)

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
