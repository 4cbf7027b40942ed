"""The fallback without a Gaussian around the mode: Nosé–Hoover dynamics with simple gradients.

The thermostat absorbs gradient noise of any size, if the noise is equal in all directions and at
all positions. The remaining error is not known, and the account says so.
"""

from __future__ import annotations

import numpy as np

from ...anchor.anchor import Anchor
from ...dynamics import NoseHoover
from ...geometry import Diagonal
from ...gradient import Simple
from ...models.posterior import AbstractPosterior
from ...subsample import Preferential
from ..account import Account, ErrorBudget
from ..base import PreparedMethod
from ..method import Method

_STEP = 0.05
_FRICTION = 2.0
_LEAST_ROWS = 256


def unanchored_plan(
    posterior: AbstractPosterior,
    anchor: Anchor,
    scale: np.ndarray,
    budget: ErrorBudget,
    why: str,
    n_row_evals: int,
) -> PreparedMethod:
    """Return SGNHT in units of `scale`, started at the anchor."""
    size = min(posterior.n_rows, max(_LEAST_ROWS, posterior.n_rows // 100))
    method = Method(
        dynamics=NoseHoover(friction=_FRICTION),
        gradient=Simple(),
        subsample=Preferential("gradient"),
        size=size,
        geometry=Diagonal(scale),
        step_size=_STEP,
    )
    prepared = method.prepare(posterior, anchor)
    doubt = (
        "without a Gaussian anchor neither the noise nor the step has been checked: "
        "compare with another method."
    )
    account = Account(
        method=method,
        budget=budget,
        reasons=(why, f"SGNHT with {size} rows per step"),
        doubts=(doubt,),
    )
    return prepared._replace(account=account, n_row_evals=prepared.n_row_evals + n_row_evals)
