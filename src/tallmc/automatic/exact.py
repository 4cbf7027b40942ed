"""The exact plan: all rows in every step and an accept step (MALA), its step size found by short runs.

Where rows are few, or gradient noise asks for most of them, nothing is gained by leaving some out, and exactness costs nothing.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._account import Account, Budget
from .._anchor import Anchor
from .._kernel import Kernel
from .._method import Method, Prepared
from .._outcome import Outcome
from .._posterior import AbstractPosterior
from .._run import Run
from ..dynamics import MALA
from ..geometry import Dense, Identity
from ..gradient import Full
from ..subsample import AllRows

_CHAINS = 8
_ROUNDS = 16
_STEPS_A_ROUND = 40
_ACCEPTANCE = 0.6
_BURN_IN = 200
_LARGEST_DRAWN = 2.7  # of a standard Gaussian in one dimension


def exact_plan(posterior: AbstractPosterior, anchor: Anchor, budget: Budget, why: str, seed: int) -> Prepared:
    """MALA in the coordinates of the anchor where it has any."""
    whitened = anchor.factor is not None
    step = _LARGEST_DRAWN / posterior.dim ** (1 / 3) * (1.0 if whitened else 1e-2)
    method = Method(
        dynamics=MALA(),
        gradient=Full(),
        subsample=AllRows(),
        geometry=Dense() if whitened else Identity(),
        step_size=step,
    )
    prepared = method.prepare(posterior, anchor)
    kernel = prepared.kernel
    assert isinstance(kernel, Kernel), "a composition is a Kernel"
    rows, position, rate = prepared.n_row_evals, jnp.broadcast_to(anchor.position, (_CHAINS, posterior.dim)), 0.0
    for number in range(_ROUNDS):
        kernel = eqx.tree_at(lambda k: k.schedule.step_size, kernel, jnp.asarray(step, posterior.dtype))
        run = Run(kernel, seed + number, position, 0, 1, _STEPS_A_ROUND)
        run.run_to(_STEPS_A_ROUND)
        rows += run.rows_touched()
        rate = float(np.mean(run.sample_stats()["acceptance_rate"]))
        if all(outcome is Outcome.OK for outcome in run.outcomes()):
            position = run.last_positions()
        if number + 1 < _ROUNDS:
            step *= float(np.exp((rate - _ACCEPTANCE) * 4 / (1 + number / 4)))
    unit = " in posterior standard deviations" if whitened else ""
    reasons = (why, f"MALA with steps of {step:.3g}{unit}: {rate:.0%} of its moves are accepted")
    account = Account(method=method, budget=budget, reasons=reasons, exact=True)
    return Prepared(kernel, anchor, rows, account, start=position, burn_in=_BURN_IN)
