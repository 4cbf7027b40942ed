"""Exponentially weighted subsampling, EWSG (Li, Wang, Zha and Tao, 2021).

A Gaussian move with the exact gradient g has density ∝ exp(−‖x + ag‖²/2) at x. With a batch's
estimate G_S the density is ∝ exp(−‖x + aG_S‖²/2). The two laws agree at x if the batch is drawn
with probability

    p_S ∝ q_S exp(‖x + aG_S‖²/2 − ‖x + ag‖²/2),   q the law of the base subsample   (eq. 4)

The end of the move is not known, so x is guessed: "at_rest" (the position does not change; √h γr/σ
for underdamped dynamics, the paper's recommendation), "to_zero" (the move ends at zero), "zero" or
"one" (figure 1b). A chain of M Metropolis steps over batches approximates p without a pass over the
rows. It proposes batches from q and accepts with probability
min(1, exp(‖x + aG_j‖²/2 − ‖x + aG_i‖²/2)) (eq. 6). It begins at a fresh batch (Algorithm 1) or,
with `carry`, at the batch of the last step (section 4.4).

Each integrator fixes x and a (`Transition`). A momentum that moves as ρ' = mρ − kCᵀg + sξ with
ξ ~ N(0, I) has the density ∝ exp(−‖(ρ' − mρ)/s + (k/s)Cᵀg‖²/2), so x = (ρ' − mρ)/s and a = k/s.
"at_rest" is ρ' = ρ, x = (1 − m)ρ/s, and "to_zero" is ρ' = 0, x = −mρ/s. With h = ε/2 and
c = exp(−γh):

    dynamics                          m        k              s²
    SGHMC (Euler; eq. 4)        1 − γh   h              2γh
    BAOAB (BAOAB)                 c        ch             1 − c²
    GeometricLangevin, Hamiltonian    c        (1 + c)h/2     1 − c²

In all but `BAOAB`, θ' is a function of ρ' that does not depend on g, so the ratio of the
densities of ρ' is that of the whole move. In `BAOAB`, moves with different gradients end on
disjoint sets. Their density ratio does not exist, and the weights make the laws of ρ' alone agree.
The mean of the weighted estimates is g + aV(x + ag) + …; V is the covariance of G_S under q. At
rest the kick has the mean −kaVx = −(1 − m)(k²/s²)Vρ. To first order in V it removes the share
2m(1 − m)/s² of the variance k²V that gradient noise adds to ρ': 1 − γh for Euler steps, and
2c/(1 + c) with exact friction.

The paper claims less variance in return for its bias. On the paper's own Gaussian example the
variance is a fifth larger than that of uniform draws. The gain comes from the bias: a mean force
(h/2)Vr along the momentum, which is the friction that balances gradient noise of covariance V.

With `carry` and M = 1 the method is worse than SGHMC on that example at the paper's step size: a
batch that is kept for several steps adds its noise in the same direction each time.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._anchor.anchor import AnchorLevel
from .._core.errors import InvalidInput, check_int
from .._rows.access import AbstractRows
from .._rows.law import Batch, RowDraws
from .selection import (
    AbstractSelection,
    AbstractStaticSelection,
    Estimate,
    GradientAt,
    SizeChoice,
    SubsampleChoice,
    SubsampleContext,
    Transition,
)
from .uniform import Uniform

Guess = Literal["at_rest", "to_zero", "zero", "one"]
_GUESSES = ("at_rest", "to_zero", "zero", "one")


class Proposals(eqx.Module):
    """The batches of the index chain, stacked, and the thresholds at which it accepts them."""

    proposed: RowDraws | Batch  # Row numbers, or, once they are gathered, rows
    log_uniform: Float[Array, "*k M"]


class IndexChain(AbstractSelection):
    """A Metropolis chain over batches from the base selection."""

    base: AbstractStaticSelection
    length: int = eqx.field(static=True)  # M
    guess: Guess = eqx.field(static=True)
    carry: bool = eqx.field(static=True)

    @property
    def rows_per_step(self) -> int:
        return (self.length + 1) * self.base.size

    @property
    def rows_ahead(self) -> int:
        return self.rows_per_step

    def draw(self, key: PRNGKeyArray, steps: int) -> Proposals:
        rows_key, accept_key = jax.random.split(key)
        proposals = self.length + (not self.carry)
        drawn = self.base.draw(rows_key, steps * proposals)
        by_step = jax.tree.map(lambda leaf: leaf.reshape(steps, proposals, *leaf.shape[1:]), drawn)
        log_uniform = -jax.random.exponential(accept_key, (steps, self.length), drawn.weights.dtype)
        return Proposals(by_step, log_uniform)

    def gather(self, drawn: Proposals, rows: AbstractRows) -> Proposals:
        assert isinstance(drawn.proposed, RowDraws), "the rows are gathered once"
        return Proposals(rows.gather(drawn.proposed), drawn.log_uniform)

    def start(self, gathered: Proposals) -> RowDraws | None:
        if not self.carry:
            return None
        assert gathered.proposed.indices is not None, "rows in memory have numbers"
        return RowDraws(gathered.proposed.indices[0], gathered.proposed.weights[0])

    def estimate(self, at: GradientAt, gathered: Proposals) -> Estimate:
        assert at.transition is not None, (
            "exponential weights require dynamics that describe their transition"
        )
        assert isinstance(gathered.proposed, Batch), "the rows are gathered before the step"
        batches = proposed = gathered.proposed
        if self.carry:
            last = at.rows.gather(at.carried.selection)
            batches = jax.tree.map(
                lambda first, others: jnp.concatenate([first[None], others]), last, proposed
            )

        known = at.carried.gradient
        gradients = jax.vmap(lambda batch: at.gradient(at.position, batch, known))(batches)
        chosen = self.last_of_chain(gradients, gathered.log_uniform, at.transition)
        batch = jax.tree.map(lambda leaf: leaf[chosen], batches)
        # Row by row only if the estimator learns from its rows; otherwise XLA removes this.
        chosen_draws = RowDraws(batch.indices, batch.weights) if self.carry else None
        learned = at.after(batch, at.residuals(batch), chosen_draws)
        # Other estimates use all proposed rows, which are unbiased draws from the base selection.
        all_proposed = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), proposed)
        pooled = all_proposed.with_weights(all_proposed.weights / proposed.weights.shape[0])
        return Estimate(gradients[chosen], jnp.int32(self.rows_per_step), learned, pooled)

    def last_of_chain(
        self,
        gradients: Float[Array, "M_1 d"],
        log_uniform: Float[Array, " M"],
        transition: Transition,
    ) -> Int[Array, ""]:
        """The number of the batch at which the Metropolis chain ends (eq. 6)."""
        x = {
            "at_rest": lambda: transition.at_rest,
            "to_zero": transition.to_zero,
            "zero": lambda: jnp.zeros_like(transition.at_rest),
            "one": lambda: jnp.ones_like(transition.at_rest),
        }[self.guess]()
        moves = x + transition.scale * transition.geometry.pull(gradients)
        log_weight = jnp.sum(moves**2, axis=1) / 2
        current = jnp.int32(0)
        for proposal in range(1, self.length + 1):
            accept = log_uniform[proposal - 1] < log_weight[proposal] - log_weight[current]
            current = jnp.where(accept, proposal, current)
        return current


@dataclasses.dataclass(frozen=True)
class ExponentiallyWeighted(SubsampleChoice):
    """Exponential weights, by a Metropolis chain over batches from a base subsample.

    **Arguments:**

    - `length`: M, the number of Metropolis steps over batches per step of the sampler.
    - `guess`: x, the assumed end of the move: "at_rest", "to_zero", "zero" or "one".
    - `carry`: whether the Metropolis chain begins at the batch of the sampler's last step. With
      `length` 1 this is worse than uniform draws on the paper's own example.
    - `base`: the subsample that proposes batches.
    """

    paper = "Li, Wang, Zha and Tao (2021)"
    bias = "The estimate has a bias of order ε; every other subsample here is unbiased."
    cost = "A step takes M + 1 batches of rows."

    length: int = 1
    guess: Guess = "at_rest"
    carry: bool = False
    base: SubsampleChoice = dataclasses.field(default_factory=Uniform)
    knows_its_spread = False
    # Where a few batches have far larger gradients than the others, the weights remove them at ε
    # and at ε/2 alike.
    unseen_by_pairs = "the bias of exponential weights"

    def __post_init__(self) -> None:
        if self.guess not in _GUESSES:
            raise InvalidInput("guess", f"be one of {', '.join(_GUESSES)}", self.guess)
        if not isinstance(self.carry, bool):
            raise InvalidInput("carry", "be True or False", self.carry)
        check_int("length", self.length, 1 if self.carry else 0)
        if not isinstance(self.base, SubsampleChoice):
            raise InvalidInput("base", "be a SubsampleChoice", self.base, "See tallmc.subsample.")

    @property
    def needs(self) -> AnchorLevel:
        return self.base.needs

    @property
    def passes(self) -> int:
        return self.base.passes

    def prepare(self, context: SubsampleContext, size: SizeChoice | None) -> IndexChain:
        base = self.base.prepare(context, size)
        if not isinstance(base, AbstractStaticSelection):
            rule = (
                "draw a fixed number of rows, chosen independently of the state: "
                "only the index chain may depend on the state"
            )
            cure = "Use Uniform() or Preferential(...) with a fixed size."
            raise InvalidInput("base", rule, self.base, cure)
        return IndexChain(base=base, length=self.length, guess=self.guess, carry=self.carry)
