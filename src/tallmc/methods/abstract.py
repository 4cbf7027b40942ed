from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from .._anchor.anchor import Anchor, AnchorLevel, check_anchor, find_anchor
from .._core.arrays import AbstractLinearMap, HostVector, Vector
from .._core.errors import Outcome
from .._core.part import Part
from .._core.programs import quickly_compiled
from .._core.statistics import moments, pareto_k
from .._engine.chains import chains_at_once
from .._engine.kernel import AbstractKernel, BoundKernel, Drawn, Gathered, Kernel
from .._engine.run import DrawSink, Goal, Run, chain_keys
from .._engine.supply import Supply
from .._rows.access import AbstractRows, RowAccess
from .._rows.law import Batch
from .._version import __version__
from ..dynamics import LeimkuhlerMatthews
from ..dynamics.dynamics import Curvature, Suggestion
from ..models.posterior import AbstractPosterior, check_in_memory, check_posterior
from ..subsample.measured import MeasuredSelection
from ..subsample.selection import (
    PaddedReplacement,
    SuppliedRows,
    WithReplacement,
    alternating_signs,
)


class RunDefaults(NamedTuple):
    """Chains and draws that `sample` uses if the user gives none."""

    chains: int
    draws: int | None
    """Draws per chain; None if the effective sample size ends the run."""
    ess: float | None
    """Effective sample size of every parameter, over all chains."""


class PreparedMethod(NamedTuple):
    """A method prepared for one posterior."""

    kernel: BoundKernel
    """Transition kernel with the posterior it runs on."""
    anchor: Anchor | None
    n_row_evals: int
    """Rows touched by the preparation: anchor, weights, pilot runs."""
    account: Account | None = None
    """Account of an automatic choice; None for a composition of the user's own."""
    start: Float[Array, "chains d"] | None = None
    """Start of the chains; None to start at the anchor, or at `posterior.init` without one."""
    burn_in: int | None = None
    """Steps of burn-in that the method asks for, if any."""
    thin: int = 1
    """Steps per draw."""
    ess: float | None = None
    """Effective draws to make if the user asks for no number, where draws cost little."""
    chains: int | None = None
    """Chains to run if the user asks for no number; None for those of `defaults`."""


def labels(dynamics: str, gradient: str, subsample: str, size: str) -> dict[str, str]:
    """The labels of the parts of a method."""
    return {"dynamics": dynamics, "gradient": gradient, "subsample": subsample, "size": size}


class AbstractMethod(Part, abc.ABC):
    """A sampling method that `sample` can run."""

    uses_gradients: ClassVar[bool] = True
    """Whether steps follow gradients, so that a step size can be suggested from the curvature."""

    # Read-only properties, which a subclass may override by an attribute or by a property.

    @property
    def needs(self) -> AnchorLevel:
        """What the method must know about the posterior before the first step."""
        return AnchorLevel.NOTHING

    @property
    def row_access(self) -> RowAccess:
        """How the method reads rows while chains run."""
        return RowAccess.TAKE

    @property
    def has_accept_step(self) -> bool:
        """Whether an accept step compares potentials of all rows; rounding errors then matter."""
        return False

    @property
    def exact(self) -> bool:
        """Whether the method leaves the posterior invariant at any step size."""
        return False

    @property
    def unseen_by_pairs(self) -> str | None:
        """A bias that does not vanish with the step size, if the method has one."""
        return None

    @property
    @abc.abstractmethod
    def axes(self) -> dict[str, str]:
        """The `labels` of the parts."""

    def defaults(self, dim: int) -> RunDefaults:
        """Chains and draws if the user gives none."""
        return RunDefaults(chains=4, draws=1000, ess=None)

    def suggest(self, curvature: Curvature) -> Suggestion | None:
        """Suggest settings for this curvature; None if the method finds its own."""
        return None

    @abc.abstractmethod
    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Do everything that precedes the first step."""


class AtAnchor(NamedTuple):
    """A kernel made at an anchor."""

    kernel: AbstractKernel
    n_row_evals: int  # Rows evaluated to make it
    account: Account | None = None


class AbstractAnchoredMethod(AbstractMethod):
    """A method whose kernel is made at an anchor with its Hessian."""

    needs = AnchorLevel.HESSIAN
    unmeasured: ClassVar[str | None] = None
    """What keeps the bias from being known, with the cure; None if it is known."""

    def check(self, posterior: AbstractPosterior) -> None:
        """Raise `InvalidInput` unless the method fits the posterior; before the anchor is found."""

    @abc.abstractmethod
    def kernel_at(self, posterior: AbstractPosterior, anchor: Anchor) -> AtAnchor:
        """The kernel, and its account unless it is that of `unmeasured`."""

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        check_posterior(posterior)
        self.check(posterior)
        check_row_access(self, posterior)
        anchor, n_row_evals = prepare_anchor(posterior, anchor, self.needs)
        assert anchor is not None, "the method requires an anchor"
        kernel, n_further, account = self.kernel_at(posterior, anchor)
        if account is None and self.unmeasured is not None:
            account = Account(self, unmeasured=self.unmeasured)
        bound = BoundKernel(kernel, posterior)
        return PreparedMethod(bound, anchor, n_row_evals + n_further, account)


def prepare_anchor(
    posterior: AbstractPosterior, anchor: Anchor | None, needs: AnchorLevel
) -> tuple[Anchor | None, int]:
    """Find or check the anchor; return it with the number of rows touched."""
    check_posterior(posterior)
    if anchor is not None:
        return anchor, check_anchor(anchor, posterior, needs) + anchor.n_row_evals
    if needs > AnchorLevel.NOTHING:
        anchor = find_anchor(posterior, hessian=needs >= AnchorLevel.HESSIAN)
        return anchor, anchor.n_row_evals
    return None, 0


def check_row_access(method: AbstractMethod, posterior: AbstractPosterior) -> None:
    """Raise if the method reads rows in a way that the posterior's rows do not allow."""
    if method.row_access > posterior.rows.access:
        check_in_memory(
            posterior,
            "the method reads rows by number, or all rows, inside its steps",
            "Choose a method with fixed weights, such as sgld_cv_ps(...), or the default method.",
        )


# Gradient noise at positions that chains have visited, for draws with replacement.
#
# Number the draws of a step. Let δ be the sum of w_i r_i over the even-numbered draws minus that
# over the odd-numbered ones. It has the covariance of the estimate: E δδᵀ = Cov(∇f̂). It costs
# hardly more than the estimate.


_NOISE_PURPOSE = 4  # separates the keys from those of chains
_POSITIONS = 1024


class VisitedNoise(NamedTuple):
    """Gradient noise in the coordinates of the geometry C, averaged over positions."""

    by_parameter: HostVector  # Variance of (CCᵀ noise)_j
    squared: Float[np.ndarray, " k"]  # ‖Cᵀ noise‖² of single steps
    n_row_evals: int

    @property
    def per_coordinate(self) -> float:
        """Variance per coordinate of the geometry."""
        return float(self.squared.mean() / len(self.by_parameter))


def visited_noise(
    kernel: Kernel, rows: AbstractRows, positions: Float[np.ndarray, "chains draws d"], seed: int
) -> VisitedNoise:
    """The noise of a kernel that draws with replacement, at 1,000 or more of these positions.

    Positions are taken in batches as large as a group of chains. The program that draws for chains
    then draws for them too.
    """
    dim = positions.shape[2]
    n_chains = chains_at_once(dim)
    supply = Supply(kernel, rows, [chain_keys(seed, n_chains, _NOISE_PURPOSE)])
    n_blocks = -(-_POSITIONS // (n_chains * supply.steps))
    count = n_blocks * supply.steps * n_chains
    visited = positions.reshape(-1, dim)
    chosen = visited[np.linspace(0, len(visited) - 1, count).astype(int)]
    by_block = chosen.astype(kernel.rest.dtype).reshape(n_blocks, supply.steps, n_chains, dim)
    squared, by_parameter = [], []
    for number, at in enumerate(by_block):
        supply.prepare(number, n_blocks)
        made = supply.block(0, number)
        norms, squares = _noise_of_block(supply.stepper, supply.rows_of_steps, made, at)
        squared.append(np.asarray(norms, np.float64).ravel())
        by_parameter.append(np.asarray(squares, np.float64) / (count / n_blocks))
    return VisitedNoise(
        np.mean(by_parameter, axis=0), np.concatenate(squared), count * kernel.most_rows
    )


@quickly_compiled
def _noise_of_block(
    kernel: AbstractKernel,
    rows: AbstractRows,
    supply: Drawn | Gathered,
    positions: Float[Any, "steps chains d"],
) -> tuple[Float[Array, "steps chains"], Vector]:
    """‖Cᵀδ‖² of every position, and the sum over positions of (CCᵀδ)_j²."""
    assert isinstance(kernel, Kernel), "the kernel of a composition"
    assert isinstance(kernel.selection, SuppliedRows | PaddedReplacement), "drawn with replacement"
    n_certain = kernel.selection.n_certain
    geometry: AbstractLinearMap = kernel.dynamics.geometry

    def of_chain(supply: Any, position: Vector) -> Vector:
        gathered = supply if isinstance(supply, Gathered) else kernel.gather(supply, rows)
        batch: Batch = rows.complete(gathered.selection)
        signs = alternating_signs(batch.n_rows, n_certain, kernel.rest.dtype)
        signed = batch.with_weights(batch.weights * signs)
        return geometry.pull(kernel.gradient.residual_sum(position, signed, None))

    def of_step(total: Vector, step: tuple[Any, Array]) -> tuple[Vector, Float[Array, " chains"]]:
        pulled = jax.vmap(of_chain)(*step)
        squares = jax.vmap(geometry.push)(pulled) ** 2
        return total + jnp.sum(squares, axis=0), jnp.sum(pulled**2, axis=1)

    total, norms = lax.scan(
        of_step, jnp.zeros(positions.shape[2], positions.dtype), (supply, positions)
    )
    return norms, total


@dataclasses.dataclass(frozen=True)
class ErrorBudget:
    """Largest error allowed in the worst parameter."""

    inflation: float = 0.01
    """Relative inflation of a variance by gradient noise."""
    mean_bias: float = 0.04
    """Bias of a mean by step size and gradient noise, in posterior standard deviations."""
    sd_bias: float = 0.02
    """Relative bias of a standard deviation by step size and gradient noise."""


CHOSEN_BUDGET = ErrorBudget(inflation=0.1, mean_bias=0.1, sd_bias=0.05)
"""The budget of a method that the user chooses."""


class Bias(NamedTuple):
    """Bias per parameter with its standard errors."""

    mean: HostVector
    """Bias of the mean, in posterior standard deviations."""
    mean_error: HostVector
    """Standard error of `mean`."""
    sd: HostVector
    """Relative bias of the standard deviation."""
    sd_error: HostVector
    """Standard error of `sd`."""

    def excess(self, budget: ErrorBudget, errors: float) -> float:
        """The worst bias, less this many standard errors, relative to the budget."""
        mean = (np.abs(self.mean) - errors * self.mean_error).max() / budget.mean_bias
        sd = (np.abs(self.sd) - errors * self.sd_error).max() / budget.sd_bias
        return float(max(mean, sd))

    def imprecision(self, budget: ErrorBudget) -> float:
        """The largest standard error, relative to the budget."""
        mean, sd = self.mean_error.max() / budget.mean_bias, self.sd_error.max() / budget.sd_bias
        return float(max(mean, sd))


@dataclasses.dataclass(frozen=True)
class Account:
    """What a method did to a posterior: its choices, its reasons and its bias."""

    method: Any
    """Composition that was run."""
    budget: ErrorBudget = CHOSEN_BUDGET
    """Error that the choice allowed for."""
    reasons: tuple[str, ...] = ()
    """What an automatic choice chose, and why."""
    doubts: tuple[str, ...] = ()
    """Reasons not to trust the draws."""
    bias: Bias | None = None
    """Bias measured with pairs of chains; None if there is no bias or it is not known."""
    exact: bool = False
    """Whether the method leaves the posterior invariant; only Monte-Carlo error then remains."""
    inflation: HostVector | None = None
    """Inflation of the variances by gradient noise, measured during the run or at its draws."""
    noise_tail: float | None = None
    """Pareto's k of the squared gradient noise at the draws; None if it was not measured there."""
    notes: tuple[str, ...] = ()
    """What the user should know about the posterior, such as a direction that the prior decides."""
    unmeasured: str | None = None
    """What keeps the bias from being known, with the cure; None if it is known."""
    n_unread: int = 0
    """Rows of an earlier fit that the check has not read again."""

    def after_run(self, run: Run, stopped_by: str | None, seed: int) -> tuple[Account, int]:
        """Return the account with the noise of the run, and how many rows this touched.

        A run that ended early raises a doubt.
        """
        doubts = self.doubts
        if stopped_by is not None:
            doubts += (f"{stopped_by} ended the run before its goal.",)
        kernel = run.kernel
        account = dataclasses.replace(self, doubts=doubts)
        account = account.without_claim(kernel.broken_claim(run.state.chains))
        if not isinstance(kernel, Kernel) or not run.completed:
            return account, 0
        if isinstance(kernel.selection, MeasuredSelection):
            return dataclasses.replace(account, inflation=_inflation_during(run)), 0
        chosen_here = bool(self.reasons) and isinstance(kernel.dynamics, LeimkuhlerMatthews)
        if not (chosen_here and isinstance(kernel.selection, WithReplacement)):
            return account, 0
        positions, ok = run.positions(), np.array(run.outcomes()) == Outcome.OK
        if not ok.all():  # a selection of chains is a copy, also of draws on disk
            positions = positions[ok]
        if not positions.size:
            return account, 0
        noise = visited_noise(kernel, run.rows, positions, seed)
        step = float(np.asarray(kernel.schedule.step_size))  # type: ignore[attr-defined]
        variances = moments(positions).sd ** 2
        return dataclasses.replace(
            account,
            inflation=step / (4 - step) * noise.by_parameter / variances,
            noise_tail=pareto_k(noise.squared) if np.ptp(noise.squared) > 0 else None,
        ), noise.n_row_evals

    def without_claim(self, broken: str | None) -> Account:
        """Return the account of a run in which this, if anything, ended the claim of exactness."""
        if broken is None:
            return self
        return dataclasses.replace(self.doubting(broken), exact=False, unmeasured=broken)

    def doubting(self, *doubts: str) -> Account:
        """Return the account with further doubts."""
        return dataclasses.replace(self, doubts=(*self.doubts, *doubts))


def _inflation_during(run: Run) -> HostVector:
    """Variance inflation by the gradient noise v that the steps have measured, h v/(4 − h)."""
    totals = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64).sum(axis=0), run.state.chains.carried.selection
    )
    step = float(run.kernel.schedule(jnp.int32(0)))
    return step / (4 - step) * totals.sum_by_parameter / totals.steps / run.variances()


# A run before its first step: all decisions, made in this process or restored from a store.


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """Everything that determines a run."""

    posterior: AbstractPosterior
    method: AbstractMethod  # Composition that is run
    kernel: AbstractKernel
    anchor: Anchor | None
    account: Account
    start: Float[Array, "chains d"]
    burn_in: int
    thin: int
    seed: int
    goal: Goal
    measures_bias: bool
    """Whether to measure the bias after the run, if the plan has not measured it."""
    n_row_evals: int  # Rows touched by the preparation
    seconds: float  # Seconds spent on the preparation

    @property
    def bound(self) -> BoundKernel:
        """The kernel with the posterior whose rows it runs on."""
        return BoundKernel(self.kernel.after_burn_in(self.burn_in), self.posterior)

    def run(self, sink: DrawSink) -> Run:
        """Return the run before its first step."""
        keys = chain_keys(self.seed, len(self.start))
        first_draws = self.goal.first_draws
        run = Run(self.bound, keys, self.start, self.burn_in, self.thin, first_draws, sink)
        jax.block_until_ready(jax.tree.leaves(run.state))
        return run

    def settings(self) -> dict[str, Any]:
        """Return the settings that are kept with the draws."""
        return {
            "method": self.method,
            "seed": self.seed,
            "burn_in": self.burn_in,
            "thin": self.thin,
            "n_rows": self.posterior.n_rows,
            "dtype": jnp.dtype(self.posterior.dtype).name,
            "tallmc_version": __version__,
            "jax_version": jax.__version__,
            "model": dict(self.posterior.description),
            **({} if self.goal.ess is None else {"ess": self.goal.ess}),
        }
