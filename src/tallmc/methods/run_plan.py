"""A run before its first step: all decisions, made in this process or restored from a store."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._version import __version__
from ..anchor.anchor import Anchor
from ..engine.goal import Goal
from ..engine.kernel import AbstractKernel, BoundKernel
from ..engine.run import Run, chain_keys
from ..engine.sinks import AbstractDrawSink
from ..models.posterior import AbstractPosterior
from .account import Account
from .base import AbstractMethod


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """Everything that determines a run."""

    posterior: AbstractPosterior
    method: AbstractMethod
    """Composition that is run."""
    kernel: AbstractKernel
    anchor: Anchor | None
    account: Account
    start: Float[Array, "chains d"]
    burn_in: int
    thin: int
    seed: int
    goal: Goal
    check: bool
    """Whether to measure the bias after the run, if the plan has not measured it."""
    n_row_evals: int
    """Rows touched by the preparation."""
    seconds: float
    """Seconds spent on the preparation."""

    @property
    def bound(self) -> BoundKernel:
        """The kernel with the posterior whose rows it runs on."""
        return BoundKernel(self.kernel.after_burn_in(self.burn_in), self.posterior)

    def run(self, sink: AbstractDrawSink) -> Run:
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
        }
