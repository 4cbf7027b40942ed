"""The zig-zag process with subsampling and control variates: exact draws from a few rows.

Bierkens, Fearnhead and Roberts (2019), in the coordinates of the Laplace approximation. The
position moves on a straight line with velocity v ∈ {−1, 1}ᵈ, and coordinates of v change their sign
at random times (`rates.py`), whose rates leave the posterior invariant:

    du/dt = v,   v_j → −v_j at the rate λ_j(u, v),   λ_j(u, v) − λ_j(u, F_j v) = v_j ∂_j U(u)

A step follows the path for the time `step_size`. The position at its end is the draw. Averages
along the path are recorded too, without any error of discretisation (`path.py`):
`tallmc.diagnose.path_moments` reads them.

Cost: a pass for c_i, and then about Σc E‖u‖ᵏ/k! rows per unit of time, with the order k. Whitened
rows have a length of the order of N^(−1/2), so this number does not depend on N with order 1, which
is the order of the paper, and falls as N^(−1/2) with order 2. It is proportional to d² with order 1
and to d³ with order 2.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

from ...anchor.anchor import Anchor, AnchorLevel
from ...core.errors import check_int, check_number
from ...core.supervision import stage
from ...dynamics.base import Curvature, Suggestion
from ...engine.kernel import BoundKernel
from ...geometry import Dense
from ...models.posterior import AbstractPosterior, check_posterior
from ...schedule import as_schedule, in_precision
from ..base import (
    AbstractReadingMethod,
    PreparedMethod,
    check_row_access,
    prepare_anchor,
)
from .kernel import HORIZON, ZigZagKernel
from .rates import Rates, prepare_rates

_SUGGESTED_TIME = 2.0
_MOST_CHUNK = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZigZag(AbstractReadingMethod):
    """The zig-zag process; exact.

    For logistic, probit, binomial and linear regression with a Gaussian prior.

    **Arguments:**

    - `step_size`: the time between draws, in units in which a coordinate crosses one standard
      deviation of the anchor's Gaussian. Draws are exact for any value.
    - `order`: the order of the control variates, 1 or 2.

    **Raises:** `InvalidInput` if an argument is out of its range.

    >>> import tallmc
    >>> tallmc.ZigZag(step_size=2.0).exact
    True
    """

    step_size: float
    order: int = 2

    def __post_init__(self) -> None:
        check_number("step_size", self.step_size, 0, low_open=True)
        check_int("order", self.order, 1, 2)

    @property
    def needs(self) -> AnchorLevel:
        return AnchorLevel.HESSIAN

    @property
    def exact(self) -> bool:
        return True

    @property
    def unseen_by_pairs(self) -> None:
        return None

    @property
    def axes(self) -> dict[str, str]:
        return {
            "dynamics": "zig-zag process",
            "gradient": f"control variates of order {self.order}",
            "subsample": "thinned rows",
            "size": "Poisson",
        }

    def suggest(self, curvature: Curvature) -> Suggestion:
        rule = "the time in which a coordinate crosses two standard deviations"
        return Suggestion(_SUGGESTED_TIME, rule, 1.0, 1.0)

    def prepare(
        self, posterior: AbstractPosterior, anchor: Anchor | None = None, *, seed: int = 0
    ) -> PreparedMethod:
        """Find the anchor, the bounds of all rows and the table that draws them."""
        check_posterior(posterior)
        check_row_access(self, posterior)
        anchor, n_row_evals = prepare_anchor(posterior, anchor, self.needs)
        assert anchor is not None, "the method requires an anchor"
        metric = Dense().prepare(posterior, anchor)
        stage("bounding the rows")
        rates = prepare_rates(posterior, anchor, metric, self.order)
        kernel = ZigZagKernel(
            rates=rates,
            schedule=in_precision(as_schedule(self.step_size), posterior.dtype),
            rest=anchor.position,
            chunk=_chunk(rates, posterior.dim),
        )
        rows = n_row_evals + posterior.n_rows
        return PreparedMethod(BoundKernel(kernel, posterior), anchor, rows)


def _chunk(rates: Rates, dim: int) -> int:
    """About the number of candidates until the known terms switch a velocity.

    For v_j u_j standard normal, (v_j u_j)₊ has the mean 1/√2π.
    """
    per_time = float(rates.bound(jnp.full((), math.sqrt(dim), rates.total.dtype)))
    mean = per_time / (dim / math.sqrt(2 * math.pi) + 1 / HORIZON)
    return min(max(2, math.ceil(mean + math.sqrt(mean))), _MOST_CHUNK)
