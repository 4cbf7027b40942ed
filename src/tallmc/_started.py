"""A run before its first step: everything that is decided by then, whether just now or by an earlier process."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._account import Account
from ._anchor import Anchor
from ._goal import Goal
from ._kept import AbstractKept
from ._kernel import AbstractKernel
from ._method import AbstractMethod
from ._posterior import AbstractPosterior
from ._run import Run
from ._version import __version__


@dataclasses.dataclass(frozen=True)
class Started:
    method: AbstractMethod
    """The composition that is run."""
    kernel: AbstractKernel
    anchor: Anchor | None
    account: Account | None
    start: Float[Array, "chains d"]
    burn_in: int
    thin: int
    seed: int
    goal: Goal
    n_row_evals: int
    """Rows touched by the preparation."""
    seconds: float
    """Spent on it."""

    def run(self, kept: AbstractKept) -> Run:
        run = Run(self.kernel, self.seed, self.start, self.burn_in, self.thin, self.goal.first_draws, kept)
        jax.block_until_ready(jax.tree.leaves(run.state))
        return run

    def settings(self, posterior: AbstractPosterior) -> dict[str, Any]:
        """What was run, for the draws to carry."""
        return {
            "method": self.method,
            "seed": self.seed,
            "burn_in": self.burn_in,
            "thin": self.thin,
            "n_rows": posterior.n_rows,
            "dtype": jnp.dtype(posterior.dtype).name,
            "tallmc_version": __version__,
            "jax_version": jax.__version__,
        }
