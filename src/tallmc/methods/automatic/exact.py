"""The exact plan: MALA on all rows, with a step size tuned by short runs.

With few rows, or with gradient noise that requires a large share of them, subsampling gains little
and exactness has hardly any extra cost.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ...anchor.anchor import Anchor
from ...core.outcome import Outcome
from ...core.supervision import is_short_of_time, stage
from ...dynamics import MALA
from ...engine.run import Run, chain_keys
from ...geometry import Dense, Identity
from ...gradient import Full
from ...models.posterior import AbstractPosterior
from ...subsample import AllRows
from ..account import Account, ErrorBudget
from ..base import PreparedMethod
from ..method import Method

_CHAINS = 8
_ROUNDS = 16
_STEPS_PER_ROUND = 40
_TARGET_ACCEPTANCE = 0.6
_BURN_IN = 200
_FIRST_STEP = 2.7  # for a standard Gaussian in one dimension


def exact_plan(
    posterior: AbstractPosterior, anchor: Anchor, budget: ErrorBudget, why: str, seed: int
) -> PreparedMethod:
    """Return MALA with a tuned step size, in whitened coordinates if the anchor has a Hessian."""
    whitened = anchor.factor is not None
    step = _FIRST_STEP / posterior.dim ** (1 / 3) * (1.0 if whitened else 1e-2)
    method = Method(
        dynamics=MALA(),
        gradient=Full(),
        subsample=AllRows(),
        geometry=Dense() if whitened else Identity(),
        step_size=step,
    )
    prepared = method.prepare(posterior, anchor)
    bound = prepared.kernel
    rows, position, rate = (
        prepared.n_row_evals,
        jnp.broadcast_to(anchor.position, (_CHAINS, posterior.dim)),
        0.0,
    )
    stage("tuning the step size on all rows")
    for number in range(_ROUNDS):
        if number and is_short_of_time():
            break
        bound = eqx.tree_at(
            lambda b: b.kernel.schedule.step_size, bound, jnp.asarray(step, posterior.dtype)
        )
        run = Run(bound, chain_keys(seed + number, _CHAINS), position, 0, 1, _STEPS_PER_ROUND)
        run.run_to(_STEPS_PER_ROUND)
        rows += run.rows_touched()
        rate = float(np.mean(run.sample_stats()["acceptance_rate"]))
        if all(outcome is Outcome.OK for outcome in run.outcomes()):
            position = run.last_positions()
        if number + 1 < _ROUNDS:
            step *= float(np.exp((rate - _TARGET_ACCEPTANCE) * 4 / (1 + number / 4)))
    unit = " in posterior standard deviations" if whitened else ""
    chosen = f"MALA with step size {step:.3g}{unit}: {rate:.0%} of its proposals are accepted"
    account = Account(method=method, budget=budget, reasons=(why, chosen), exact=True)
    return PreparedMethod(bound, anchor, rows, account, start=position, burn_in=_BURN_IN)
