"""Named methods for points on simplices, from the counts of a few rows."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._anchor.anchor import Anchor
from ..._core.arrays import Vector, on_device
from ..._core.errors import InvalidInput, check_int, outcome_of
from ..._core.random import derived_keys
from ..._engine.kernel import AbstractKernel, BoundKernel, ChainState, Drawn, Gathered, KernelStep
from ..._rows.access import AbstractRows
from ...dynamics.dynamics import PositionState
from ...methods.abstract import AbstractMethod, PreparedMethod, check_row_access
from ...methods.method import StepSize
from ...methods.registry import named
from ...models.posterior import AbstractPosterior, check_posterior
from ...schedule import AbstractSchedule, as_schedule, in_precision
from ...subsample import Fixed, SubsampleChoice, Uniform
from ...subsample.selection import AbstractStaticSelection, SubsampleContext
from .counts import AbstractCountsModel
from .transitions import (
    AbstractGammaTransition,
    CoxIngersollRoss,
    ExpandedMean,
    gamma_variables,
)

# A step on simplices: rows, expected counts, and a move of θ.
#
# The process of SCIR moves w at the speed 1/θ. ,
#
#     dw = [α + n(w) − (α. + n.(w)) w] dt/θ. + noise of variance 2(diag(w) − wwᵀ) dt/θ. ,
#
# which leaves the law of w invariant if θ. is independent of w. Given counts, θ. ~ Gamma(α. + n.)
# is. Where the total n. depends on w, as for topics, θ. follows it, and the law of w would be
# tilted by about one count in n. . There every step draws θ. anew, from Gamma(α. + n̄) with the mean
# total n̄ of the steps so far. SGRLD has no such problem: its θ. follows α. alone.


class SimplexKernel(AbstractKernel):
    """Estimates counts from the rows of a step and moves θ."""

    counts_model: AbstractCountsModel
    selection: AbstractStaticSelection
    transition: AbstractGammaTransition
    schedule: AbstractSchedule
    rest: Vector

    @property
    def model(self) -> AbstractCountsModel:
        return self.counts_model

    @property
    def rows_per_step(self) -> int:
        return self.selection.size

    @property
    def rows_ahead(self) -> int:
        return self.selection.size

    @property
    def _redraws_total(self) -> bool:
        return self.transition.moves_total and self.counts_model.totals_vary

    def start_memory(
        self, positions: Float[Array, "chains d"], rows: AbstractRows
    ) -> Float[Array, "chains ..."] | None:
        """n̄ of every simplex, where θ. is drawn anew."""
        if not self._redraws_total:
            return None
        shape = self.counts_model.prior.shape[:-1]
        return on_device(np.zeros((len(positions), *shape)), positions.dtype)

    def draw(self, key: PRNGKeyArray, steps: int) -> Drawn:
        rows_key, move_key, *step_keys = derived_keys(key, 4)
        shape, dtype = self.counts_model.prior.shape, self.counts_model.dtype
        moves = self.transition.draw(move_key, steps, shape, dtype)
        of_steps = (derived_keys(step_key, steps) for step_key in step_keys)
        return Drawn(self.selection.draw(rows_key, steps), (moves, *of_steps))

    def gather(self, drawn: Drawn, rows: AbstractRows) -> Gathered:
        return Gathered(self.selection.gather(drawn.selection, rows), drawn.noise)

    def step(
        self, state: ChainState, gathered: Gathered, step: Int[Array, ""], rows: AbstractRows
    ) -> KernelStep:
        model, (move, counts_key, total_key) = self.counts_model, gathered.noise
        step_size = self.schedule(step).astype(state.position.dtype)
        simplex, theta = model.simplex(state.position), model.theta(state.position)
        counts = model.expected_counts(simplex, gathered.selection, counts_key)
        totals = state.carried
        if self._redraws_total:
            totals += (jnp.sum(counts, axis=-1) - totals) / (step + 1)
            shape = jnp.sum(jnp.broadcast_to(model.prior, theta.shape), axis=-1) + totals
            drawn = gamma_variables(total_key, shape)
            theta = simplex * drawn[..., None]
        theta = self.transition.move(theta, model.prior, counts, step_size, move)
        position = theta.reshape(state.position.shape)
        new = ChainState(PositionState(position), totals)
        return KernelStep(new, {}, outcome_of(position), jnp.zeros_like(position))


_MODELS_CURE = "See tallmc.contrib.simplex.dirichlet_multinomial and tallmc.contrib.simplex.lda."
_TRANSITIONS: dict[str, type[AbstractGammaTransition]] = {
    "cir": CoxIngersollRoss,
    "expanded mean": ExpandedMean,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimplexSampler(AbstractMethod):
    """SCIR or SGRLD for models of counts.

    Every step draws n rows, estimates the counts of all N rows with the weights of the subsample,
    and moves θ, whose normalised rows are the points (`transitions.py`):

        n̂ = Σ_{i∈S} w_i E[n_i | w],   "cir": θ' = c·Gamma(α + n̂ + J, 1),   J ~ Poisson(θe^{−ε/2}/c)
        c = 1 − e^{−ε/2},   "expanded mean": θ' = |θ + (ε/2)(α − θ + n̂ − n̂.θ/θ.) + √(εθ) η|
    """

    paper_by_setting: ClassVar = {
        "transition='cir'": "Baker, Fearnhead, Fox and Nemeth (2018)",
        "transition='expanded mean'": "Patterson and Teh (2013)",
    }
    bias = (
        "Subsampling inflates variances of θ by Var(n̂) tanh(ε/4), about (N/n)(ε/4) relative to "
        "their size for rows of one count each. SCIR has no error of discretisation; that of SGRLD "
        "is large for components close to zero."
    )
    cost = "A step reads n rows and draws one or two random variables per component."
    unseen_by_pairs = "the bias of expected counts from a few Gibbs sweeps"

    uses_gradients = False

    step_size: Any
    batch_size: int
    transition: str = "cir"
    subsample: SubsampleChoice = dataclasses.field(default_factory=lambda: Uniform(replace=False))

    def __post_init__(self) -> None:
        as_schedule(self.step_size)
        check_int("batch_size", self.batch_size, 1)
        if self.transition not in _TRANSITIONS:
            rule = f"be one of {', '.join(_TRANSITIONS)}"
            raise InvalidInput("transition", rule, self.transition)
        if not isinstance(self.subsample, SubsampleChoice):
            raise InvalidInput("subsample", "be a subsample of tallmc.subsample", self.subsample)

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": self.transition,
            "gradient": "expected counts",
            "subsample": type(self.subsample).__name__,
            "size": "fixed",
        }

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Prepare the subsample."""
        check_posterior(posterior)
        model = posterior.model
        if not isinstance(model, AbstractCountsModel):
            rule = "be a model of counts on simplices for this method"
            raise InvalidInput("posterior", rule, type(model).__name__, _MODELS_CURE)
        check_row_access(self, posterior)
        check_int("batch_size", self.batch_size, 1, posterior.n_rows)
        selection = self.subsample.prepare(SubsampleContext(posterior), Fixed(self.batch_size))
        if not isinstance(selection, AbstractStaticSelection):
            rule = "choose rows independently of the position"
            cure = "Use Uniform() or Preferential(weights)."
            raise InvalidInput("subsample", rule, type(self.subsample).__name__, cure)
        kernel = SimplexKernel(
            counts_model=model,
            selection=selection,
            transition=_TRANSITIONS[self.transition](),
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=posterior.init,
        )
        return PreparedMethod(BoundKernel(kernel, posterior), None, 0)


@named("Patterson and Teh (2013)", example={"batch_size": 2})
def sgrld_simplex(
    step_size: StepSize, batch_size: int, subsample: SubsampleChoice | None = None
) -> SimplexSampler:
    """SGRLD on simplices, in the expanded-mean parametrisation: biased near zero.

    For models of counts: `dirichlet_multinomial` and `lda`. `subsample` decides which rows a step
    sees: `Uniform(...)`, or `Preferential(weights)` with a number per row, such as the lengths of
    documents; by default distinct rows at random.
    """
    chosen = Uniform(replace=False) if subsample is None else subsample
    return SimplexSampler(
        step_size=step_size, batch_size=batch_size, transition="expanded mean", subsample=chosen
    )


@named("Baker, Fearnhead, Fox and Nemeth (2018)", example={"batch_size": 2})
def scir(
    step_size: StepSize, batch_size: int, subsample: SubsampleChoice | None = None
) -> SimplexSampler:
    """Stochastic Cox–Ingersoll–Ross process on simplices: no error of discretisation.

    The models and settings are those of `sgrld_simplex`.
    """
    return dataclasses.replace(sgrld_simplex(step_size, batch_size, subsample), transition="cir")
