"""Exponentially weighted subsampling, EWSG (Li, Wang, Zha and Tao, 2021): rows chosen so that a noisy step looks exact.

A Gaussian move with the exact gradient g has density ∝ exp(−‖x + ag‖²/2) at x, one with a batch's estimate G_S instead
exp(−‖x + aG_S‖²/2). If the batch is drawn with probability

    p_S ∝ q_S exp(‖x + aG_S‖²/2 − ‖x + ag‖²/2),   q the law of the base subsample                            (li-2021, eq. 4)

the two laws agree at x. Where the move will go is not known, so x is guessed: "at_rest" (the move stays; √h γr/σ for underdamped
dynamics, the paper's recommendation), "to_zero" (it ends at zero), "zero" or "one" (figure 1b). A chain of M Metropolis steps
over batches, each proposed from q and accepted with probability min(1, exp(‖x + aG_j‖²/2 − ‖x + aG_i‖²/2)) (eq. 6), stands for p
without a pass over the rows. It begins at a fresh batch (Algorithm 1) or, with `carry`, at the last step's (section 4.4).

Biased, unlike every other subsample here, of order ε. The paper's account is less variance for that bias; on its own Gaussian
example the variance is a fifth larger than that of uniform draws, and the gain comes from the bias: a mean force (h/2)Vr along
the momentum, which is the friction that balances gradient noise of covariance V. A step takes M + 1 batches of rows.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._anchor import Needs
from .._errors import InvalidInput, check_int
from .._rows import take_rows
from ..gradient.base import AbstractGradient, Batch
from .base import Setting, SizeChoice, SubsampleChoice
from .selection import AbstractSelection, AbstractStaticSelection, Estimate, Memory, Picks, Transition
from .uniform import Uniform

Guess = Literal["at_rest", "to_zero", "zero", "one"]
_GUESSES = ("at_rest", "to_zero", "zero", "one")


class ChainSupply(eqx.Module):
    proposed: Picks | Batch
    """Batches, along an axis of their own."""
    log_uniform: Float[Array, "*k M"]


class IndexChain(AbstractSelection):
    base: AbstractStaticSelection
    length: int = eqx.field(static=True)
    guess: Guess = eqx.field(static=True)
    carry: bool = eqx.field(static=True)

    @property
    def rows_per_step(self) -> int:
        return (self.length + 1) * self.base.size

    @property
    def rows_ahead(self) -> int:
        return self.rows_per_step

    @property
    def most_rows(self) -> int:
        return self.rows_per_step

    def supply(self, key: PRNGKeyArray, steps: int) -> ChainSupply:
        pick_key, accept_key = jax.random.split(key)
        proposals = self.length + (not self.carry)
        picks = self.base.supply(pick_key, steps * proposals)
        apart = jax.tree.map(lambda leaf: leaf.reshape(steps, proposals, *leaf.shape[1:]), picks)
        return ChainSupply(apart, -jax.random.exponential(accept_key, (steps, self.length), picks.weights.dtype))

    def start(self, supply: ChainSupply) -> Picks | None:
        if not self.carry:
            return None
        assert isinstance(supply.proposed, Batch) and supply.proposed.indices is not None, "the rows are gathered by now"
        return Picks(supply.proposed.indices[0], supply.proposed.weights[0])

    def estimate(
        self,
        gradient: AbstractGradient,
        position: Float[Array, " d"],
        memory: Memory,
        supply: ChainSupply,
        transition: Transition | None,
    ) -> Estimate:
        assert transition is not None, "exponential weights are composed with dynamics that say what a gradient does"
        proposed, posterior = supply.proposed, gradient.posterior
        assert isinstance(proposed, Batch), "the rows are gathered by now"
        batches = proposed
        if self.carry:
            held = memory.selection
            last = Batch(take_rows(posterior.data, held.indices), held.weights, held.indices)
            batches = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), last, proposed)

        def look_at(batch: Batch) -> tuple[Array, Float[Array, " d"]]:
            residuals = gradient.residuals(position, batch.rows, batch.indices, memory.gradient)
            return residuals, posterior.combine(residuals, batch.rows, batch.weights)

        residuals, sums = jax.vmap(look_at)(batches)
        gradients = gradient.known(position, memory.gradient) + sums
        chosen = self.last_of_chain(gradients, supply.log_uniform, transition)
        batch = jax.tree.map(lambda leaf: leaf[chosen], batches)
        learned = Memory(
            gradient.learn(memory.gradient, batch, residuals[chosen]),
            Picks(batch.indices, batch.weights) if self.carry else None,
            memory.noise,
        )
        # What else is estimated from the rows, is estimated from all that were proposed: these are draws from the base.
        together = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), proposed)
        evenly = dataclasses.replace(together, weights=together.weights / proposed.weights.shape[0])
        return Estimate(gradients[chosen], jnp.int32(self.rows_per_step), learned, evenly)

    def last_of_chain(
        self, gradients: Float[Array, "M_1 d"], log_uniform: Float[Array, " M"], transition: Transition
    ) -> Int[Array, ""]:
        """Which of the batches the Metropolis chain ends at, from their gradients (eq. 6)."""
        x = {
            "at_rest": transition.at_rest,
            "to_zero": transition.to_zero,
            "zero": jnp.zeros_like(transition.at_rest),
            "one": jnp.ones_like(transition.at_rest),
        }[self.guess]
        weight = jnp.sum((x + transition.scale * transition.geometry.pull(gradients)) ** 2, axis=1) / 2
        current = jnp.int32(0)
        for proposal in range(1, self.length + 1):
            accept = log_uniform[proposal - 1] < weight[proposal] - weight[current]
            current = jnp.where(accept, proposal, current)
        return current


@dataclasses.dataclass(frozen=True)
class ExponentiallyWeighted(SubsampleChoice):
    """Choose rows by exponential weights: a chain of `length` Metropolis steps over batches from the `base` subsample.

    `guess` is x, where the move is thought to go; `carry` starts each chain at the last step's batch.
    """

    length: int = 1
    guess: Guess = "at_rest"
    carry: bool = False
    base: SubsampleChoice = dataclasses.field(default_factory=Uniform)
    knows_its_spread = False

    def __post_init__(self) -> None:
        if self.guess not in _GUESSES:
            raise InvalidInput("guess", f"be one of {', '.join(_GUESSES)}", self.guess)
        if not isinstance(self.carry, bool):
            raise InvalidInput("carry", "be True or False", self.carry)
        check_int("length", self.length, 1 if self.carry else 0)
        if not isinstance(self.base, SubsampleChoice):
            raise InvalidInput("base", "be a SubsampleChoice", self.base, "See tallmc.subsample.")

    @property
    def needs(self) -> Needs:
        return self.base.needs

    @property
    def passes(self) -> int:
        return self.base.passes

    def prepare(self, setting: Setting, size: SizeChoice | None) -> IndexChain:
        base = self.base.prepare(setting, size)
        if not isinstance(base, AbstractStaticSelection):
            rule = "draw a fixed number of rows without looking at the state: the index chain does that"
            raise InvalidInput("base", rule, self.base, "As Uniform() or Preferential(...), with a fixed size.")
        return IndexChain(base=base, length=self.length, guess=self.guess, carry=self.carry)
