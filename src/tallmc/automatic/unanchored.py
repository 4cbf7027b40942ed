"""The last resort: no Gaussian around the mode to lean on. Nosé–Hoover dynamics with simple gradients.

The thermostat takes up gradient noise of any size that is the same everywhere, without being told how much there is. What is left
is not known, and the account says so.
"""

from __future__ import annotations

import numpy as np

from .._account import Account, Budget
from .._anchor import Anchor
from .._method import Method, Prepared
from .._posterior import AbstractPosterior
from ..dynamics import NoseHoover
from ..geometry import Diagonal
from ..gradient import Simple
from ..subsample import Preferential

_STEP = 0.05
_FRICTION = 2.0
_LEAST_ROWS = 256


def unanchored_plan(
    posterior: AbstractPosterior, anchor: Anchor, scale: np.ndarray, budget: Budget, why: str, n_row_evals: int
) -> Prepared:
    """SGNHT in units of `scale`, from the mode that was found."""
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
    doubt = "without a Gaussian anchor neither the noise nor the step has been checked: compare with another method."
    account = Account(method=method, budget=budget, reasons=(why, f"SGNHT with {size} rows a step"), doubts=(doubt,))
    return prepared._replace(account=account, n_row_evals=prepared.n_row_evals + n_row_evals)
