"""Block pseudo-marginal Metropolis–Hastings with difference estimators of order 2. Approximate.

Quiroz, Kohn, Villani and Tran (2019), with the blocks of Tran, Kohn, Quiroz and Villani (2016) and
the proposals of `SubsampledMH`. Row i has f_i = T_i + R_i, its Taylor expansion at the anchor and
the remainder. The state has the position u, θ = θ̂ + Cu, and the numbers of m rows i_1, …, i_m,
drawn with replacement with probabilities p. The potential at u is ½‖u‖² + e(u) + Ŝ, with the
certain part e of `surrogate.py` and

    Ŝ = D̂ + ½σ̂²,   D̂ = (1/m) Σ_j z_j,   z_j = R_{i_j}(u)/p_{i_j},
    σ̂² = Σ_j (z_j − D̂)² / (m(m − 1)).

D̂ is the difference estimator of ΣR_i, and σ̂² estimates its variance σ². Without ½σ̂², exp(−D̂) would
exceed exp(−ΣR_i) by a factor of about exp(½σ²) on average. `potential_variance` of
`draws.sample_stats` is σ̂², which should be far below 1. p is in proportion to the bounds c_i of
`thinning.py`, with a share of 1 % for equal probabilities. Models without bounds have equal
probabilities.

A proposal is a new position and new draws in one of G blocks of rows, so successive estimates have
a correlation of about 1 − 1/G, and Ŝ changes little when the position does. The law of the draws is
p in every block, and the accept step is that of the joint law of positions and draws.

Proposals with ‖u‖ > r are rejected. Far from the anchor R_i tends to −½f_i″(w_iᵀu)². If all m
draws are of one row with f_i″‖w_i‖² > p_i, then σ̂² = 0 and exp(−½‖u‖² − Ŝ) grows without a limit.
On all of space the perturbed posterior is then not proper, however large m is. A Gaussian position
is beyond r with a probability of 10⁻¹⁰.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._anchor.anchor import Anchor
from .._core.arrays import Scalar, Vector, on_device
from .._core.errors import check_int
from .._core.random import derived_keys
from .._engine.kernel import ChainState, Gathered, KernelStep, NewChain
from .._rows.access import AbstractRows, PerRow, RowBlock
from .._rows.law import AbstractStream
from .._rows.probabilities import probabilities
from ..dynamics.dynamics import AbstractDynamicsState, Curvature, Suggestion
from ..geometry import Dense
from ..methods.abstract import AbstractAnchoredMethod, AtAnchor, labels
from ..methods.method import StepSize
from ..methods.registry import named
from ..methods.subsampled.method import AbstractProposalKernel, suggested
from ..methods.subsampled.remainders import AbstractRemainders, radius_of
from ..methods.subsampled.surrogate import (
    PROPOSALS,
    Proposal,
    Surrogate,
    check_proposal,
    prepare_surrogate,
)
from ..methods.subsampled.thinning import bound_rows
from ..models.generalised_linear import integral
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior
from ..schedule import AbstractSchedule, as_schedule, in_precision

# Remainders of order 2 of any model, by automatic differentiation; they have no bounds.
#
#     R_i = h(1) − h(0) − h'(0) − h''(0)/2,   h(s) = f_i(θ̂ + s(θ − θ̂))
#
# R_i is the integral of `generalised_linear.py` where this agrees with the difference, up to the
# rounding of the difference. Elsewhere the row is too far from a polynomial for the rule, and R_i
# is the difference.

_ROUNDING = 32.0  # The rounding of a difference, in units of the precision of its terms


class ExpansionRemainders(AbstractRemainders):
    """Remainders without bounds."""

    model: AbstractModel
    order: int = eqx.field(static=True)
    anchor: Vector

    def values(self, moves: Float[Array, "m d"], block: RowBlock) -> Float[Array, "m n"]:
        def of_move(move: Vector) -> PerRow:
            def potential(s: Scalar) -> PerRow:
                return self.model.row_potentials(self.anchor + s * move, block)

            first = _derivative(potential)
            second = _derivative(first)
            zero, one = jnp.zeros((), move.dtype), jnp.ones((), move.dtype)
            terms = jnp.stack([potential(one), -potential(zero), -first(zero), -second(zero) / 2])
            difference = jnp.sum(terms, axis=0)
            rounding = _ROUNDING * jnp.finfo(move.dtype).eps * jnp.sum(jnp.abs(terms), axis=0)
            found = integral(2, lambda s: _derivative(second)(s * one))
            return jnp.where(jnp.abs(found - difference) <= rounding, found, difference)

        return jax.vmap(of_move)(moves)

    def constants(self, block: RowBlock) -> PerRow:
        return jnp.full(jax.tree.leaves(block)[0].shape[0], jnp.inf, self.anchor.dtype)

    def growth(self, here: Vector, there: Vector) -> Scalar:
        return jnp.full((), jnp.inf, self.anchor.dtype)

    def width(self, rows: AbstractRows) -> int:
        return self.model.width(rows)


def _derivative(function: Callable[[Scalar], PerRow]) -> Callable[[Scalar], PerRow]:
    return lambda s: jax.jvp(function, (s,), (jnp.ones_like(s),))[1]


class CorrelatedState(AbstractDynamicsState):
    """Position θ = θ̂ + Cu, and the rows that estimate the potential there."""

    position: Vector
    whitened: Vector  # u
    indices: Int[Array, " m"]
    weights: Float[Array, " m"]  # 1/p of the rows
    potential: Scalar  # e(u) + Ŝ
    variance: Scalar  # σ̂²


class CorrelatedKernel(AbstractProposalKernel):
    """Proposes a move of the surrogate and new rows in one block."""

    surrogate: Surrogate
    proposal: Proposal
    stream: AbstractStream
    size: int = eqx.field(static=True)  # m
    # Rows per block. If this is no divisor of m, the last block has rows of the one before it.
    block: int = eqx.field(static=True)
    radius: Scalar  # r
    schedule: AbstractSchedule
    rest: Vector

    @property
    def rows_per_step(self) -> int:
        return self.size

    def rows_at_start(self) -> int:
        return self.size

    def broken_claim(self, chains: ChainState) -> str | None:
        outside = int(np.asarray(chains.carried, np.int64).sum())
        if not outside:
            return None
        return (
            f"{outside:,} proposals were rejected because they were more than "
            f"{float(self.radius):.3g} standard deviations from the anchor, where estimates of the "
            "likelihood are not reliable. Use mala(...), which has no such limit."
        )

    def start_memory(
        self, positions: Float[Array, "chains d"], rows: AbstractRows
    ) -> Int[Array, " chains"]:
        """How many proposals were beyond the radius."""
        return on_device(np.zeros(len(positions)), np.int32)

    def init(self, new: NewChain, rows: AbstractRows) -> ChainState:
        u = self.surrogate.metric.solve(new.position - self.surrogate.anchor)
        draws = self.stream.draw(new.key, (self.size,))
        return ChainState(self.state_at(u, draws.indices, draws.weights, rows), new.carried)

    def state_at(
        self, u: Vector, indices: Int[Array, " m"], weights: Float[Array, " m"], rows: AbstractRows
    ) -> CorrelatedState:
        """The state with these rows; this evaluates them."""
        move = self.surrogate.metric.push(u)
        (values,) = self.surrogate.remainders.values(move[None], rows.take(indices))
        estimate, variance = self.corrected(values * weights)
        potential = self.surrogate.excess(u, rows) + estimate
        return CorrelatedState(
            self.surrogate.anchor + move, u, indices, weights, potential, variance
        )

    def corrected(self, z: Float[Array, " m"]) -> tuple[Scalar, Scalar]:
        """Ŝ and σ̂²."""
        mean = jnp.mean(z)
        variance = jnp.sum((z - mean) ** 2) / (self.size * (self.size - 1))
        return mean + variance / 2, variance

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        here = state.motion
        normal, log_uniform = gathered.noise
        there, known = self.proposed(here.whitened, step, normal)
        candidate = self.state_at(there, *self._redrawn(here, gathered.selection), rows)
        log_ratio = known - (candidate.potential - here.potential)
        outside = ~(jnp.linalg.norm(there) <= self.radius)
        log_ratio = jnp.where(outside, -jnp.inf, log_ratio)
        motion = jax.tree.map(
            lambda new, old: jnp.where(log_uniform < log_ratio, new, old), candidate, here
        )
        stats = {
            "acceptance_rate": jnp.exp(jnp.minimum(log_ratio, 0)),
            "potential_variance": motion.variance,
        }
        new = ChainState(motion, state.carried + outside.astype(jnp.int32))
        return KernelStep(new, stats)

    def _redrawn(
        self, state: CorrelatedState, key: PRNGKeyArray
    ) -> tuple[Int[Array, " m"], Float[Array, " m"]]:
        """The rows of the state with new ones in one block, and 1/p."""
        rows_key, block_key = derived_keys(key, 2)
        number = jax.random.randint(block_key, (), 0, -(-self.size // self.block))
        # The last block starts earlier if there are not enough rows left.
        start = (number * self.block,)
        new = self.stream.draw(rows_key, (self.block,))
        return (
            lax.dynamic_update_slice(state.indices, new.indices, start),
            lax.dynamic_update_slice(state.weights, new.weights, start),
        )


# Share of equal probabilities: no row that matters beyond the radius of its bound is too rare.
_EQUAL_SHARE = 0.01
_STEP = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PseudoMarginal(AbstractAnchoredMethod):
    """Metropolis–Hastings with an estimate of the likelihood from a fixed number of rows."""

    paper = "Quiroz, Kohn, Villani and Tran (2019)"
    bias = (
        "No step size removes the bias: the draws are those of a perturbed posterior, whose "
        "logarithm is off by κ₃/(3m²) + O(m⁻³), where κ₃ is the third cumulant of R_i/p_i, of the "
        "order of N^(−3/2). If m is so small that all draws may be of one row, the bias is larger."
    )
    cost = (
        "A pass over all rows for c_i. A step evaluates m rows at one position; G does not change "
        "this."
    )
    unseen_by_pairs = "the bias by the estimated likelihood"
    unmeasured = (
        f"{unseen_by_pairs} was not measured. Compare with a larger size, or with an exact method."
    )

    step_size: StepSize
    batch_size: int = 100
    blocks: int = 20
    proposal: str = "pcn"

    def __post_init__(self) -> None:
        check_proposal(self.proposal, self.step_size)
        check_int("batch_size", self.batch_size, 2)
        check_int("blocks", self.blocks, 1, self.batch_size)

    @property
    def axes(self) -> dict[str, str]:
        subsample, proposals = "rows redrawn in blocks", f"{self.proposal} proposals"
        return labels(proposals, "surrogate of order 2", subsample, "fixed")

    def suggest(self, curvature: Curvature) -> Suggestion:
        return suggested(self.proposal, _STEP / curvature.dim, "the scaling of random walks")

    def kernel_at(self, posterior: AbstractPosterior, anchor: Anchor) -> AtAnchor:
        rows = posterior.rows
        if posterior.model.remainder_bound(2) is not None:
            bounded = bound_rows(posterior, anchor, 2)
            p = probabilities(bounded.constants, _EQUAL_SHARE)
            surrogate, n_row_evals = bounded.surrogate, bounded.n_row_evals
        else:
            p, metric = None, Dense().prepare(posterior, anchor)
            remainders = ExpansionRemainders(posterior.model, 2, anchor.position)
            surrogate, n_row_evals = prepare_surrogate(posterior, anchor, metric, remainders)
        kernel = CorrelatedKernel(
            surrogate=surrogate,
            proposal=PROPOSALS[self.proposal],
            stream=rows.stream(p, posterior.dtype),
            size=self.batch_size,
            block=-(-self.batch_size // self.blocks),
            radius=on_device(radius_of(posterior.dim, bounded=False), posterior.dtype),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
        )
        return AtAnchor(kernel, n_row_evals)


@named("Quiroz, Kohn, Villani and Tran (2019)", example={"batch_size": 20})
def pseudo_marginal_mh(
    step_size: StepSize = 1.0, batch_size: int = 100, blocks: int = 20, *, proposal: str = "pcn"
) -> PseudoMarginal:
    """Block pseudo-marginal Metropolis–Hastings: approximate, reads a fixed number of rows.

    For every model.

    - `step_size`: h. Proposals "pcn" with h = 1 are independent of the position.
    - `batch_size`: m, the rows that estimate the likelihood, at least 2. The bias falls as 1/m².
    - `blocks`: G; a proposal redraws about m/G of the rows. 1 redraws all of them.
    - `proposal`: "pcn", "langevin" or "random-walk".
    """
    return PseudoMarginal(
        step_size=step_size, batch_size=batch_size, blocks=blocks, proposal=proposal
    )
