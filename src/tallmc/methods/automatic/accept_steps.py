"""The plan that is exact and reads a few rows: its cost is known before it runs.

In u = C⁻¹(θ − θ̂) the posterior is close to N(0, I). One pass over the rows sums their remainders at
Gaussian positions and at pCN proposals from there, for several step sizes h. This gives the
acceptance rate a of each h. The same pass looks at the tails: three standard deviations of each
parameter from the mode, where the other parameters follow. Where the posterior is w times as likely
as the Gaussian, a chain of Gaussian proposals stays for some w steps. Excesses of several
parameters multiply, so there is no offer above w = e^1.5 in one of them. A step with lag-one
correlation

    ρ = 1 − a(1 − √(1 − h))

yields (1 − ρ)/(1 + ρ) effective draws, and reads M Σc rows on average. The quotient is the number
of rows per effective draw.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..._anchor.anchor import Anchor
from ..._core.arrays import on_device
from ..._core.compiler import quickly_compiled
from ..._core.errors import InvalidInput
from ..._core.supervision import stage
from ..._rows.access import RowAccess, RowBlock
from ..._rows.passes import Sum
from ...models.posterior import AbstractPosterior
from ..abstract import Account, ErrorBudget, PreparedMethod
from ..subsampled import SubsampledMH
from ..subsampled.candidates import BoundedRows, bound_rows, typical_growth
from ..subsampled.surrogate import PROPOSALS, Surrogate

_STEPS = (1.0, 0.5, 0.2, 0.05)
_POSITIONS = 24
_WIDTHS = (1.0, 1.3)
"""Widths of the Gaussians that the positions come from."""
_TAIL = 3.0
"""Where the tails are looked at, in standard deviations."""
_MOST_TAILS = 64
"""Parameters whose tails are looked at."""
_HEAVIEST_TAIL = 1.5
"""Largest logarithm of posterior over Gaussian in the tails."""
_HEAVY_TAILS = "its tails are so heavy that chains of Gaussian proposals would get stuck there"
_MOST_CUBIC = 64
"""Parameters up to which expansions of order 3 are tried: their pass takes d³ operations a row."""
_BURN_IN = 30
"""Effective draws that are discarded."""
_THIN = 0.5
"""Draws are kept so often that successive ones are this much correlated, if that is possible."""


class Quote(NamedTuple):
    """What exact draws cost with some settings."""

    method: SubsampledMH
    bounded: BoundedRows
    acceptance: float
    rows_per_step: float
    draws_per_step: float
    """Effective draws per step."""

    @property
    def rows(self) -> float:
        """Rows per effective draw."""
        return self.rows_per_step / max(self.draws_per_step, 1e-12)


class Offer(NamedTuple):
    """The best quote, or why there is none."""

    quote: Quote | None
    why_not: str
    n_row_evals: int

    def takes_at_most(self, rows: float) -> bool:
        """Whether there is a quote of at most so many rows per effective draw."""
        return self.quote is not None and self.quote.rows <= rows


NO_OFFER = Offer(None, "the posterior has several modes or too many parameters", 0)


def offer_few_rows(posterior: AbstractPosterior, anchor: Anchor, enough: float) -> Offer:
    """The cheapest exact settings; order 3 is tried if order 2 takes more than `enough` rows."""
    if posterior.rows.access < RowAccess.TAKE:
        return Offer(None, "rows that are not in memory cannot be read by number", 0)
    best: Quote | None = None
    n_row_evals = 0
    for order in (2, 3):
        if order == 3 and (best is None or best.rows <= enough or posterior.dim > _MOST_CUBIC):
            break
        try:
            bounded = bound_rows(posterior, anchor, order)
        except InvalidInput as error:
            if best is None:
                return Offer(None, f"the posterior must {error.rule}", n_row_evals)
            break
        quotes = _quotes(posterior, bounded, order)
        n_row_evals += bounded.n_row_evals + posterior.n_rows
        if quotes is None:
            return Offer(None, _HEAVY_TAILS, n_row_evals)
        best = min([*quotes, *([] if best is None else [best])], key=lambda quote: quote.rows)
    return Offer(best, "", n_row_evals)


def few_rows_plan(
    posterior: AbstractPosterior,
    anchor: Anchor,
    budget: ErrorBudget,
    offer: Offer,
    why: tuple[str, ...],
    n_row_evals: int,
) -> PreparedMethod:
    """The plan of an offer with a quote. `n_row_evals` counts rows evaluated since the anchor."""
    quote = offer.quote
    assert quote is not None, "the caller has seen the quote"
    step = float(quote.method.step_size)  # type: ignore[arg-type]
    kind = "independent of the position" if step == 1 else f"pCN steps of {step:g}"
    reasons = (
        *why,
        f"exact accept steps from a few rows: about {quote.rows:,.3g} rows per effective draw, "
        f"{quote.rows_per_step:,.3g} in a step",
        f"expansions of order {quote.method.order} at the anchor; proposals {kind}, of which about "
        f"{quote.acceptance:.0%} are accepted",
    )
    account = Account(quote.method, budget, reasons, exact=True)
    kernel = quote.method.with_bounds(posterior, quote.bounded)
    burn_in = int(np.ceil(_BURN_IN / quote.draws_per_step))
    thin = max(1, int(_THIN / quote.draws_per_step))
    rows = anchor.n_row_evals + n_row_evals
    return PreparedMethod(kernel, anchor, rows, account, None, burn_in, thin)


def _quotes(posterior: AbstractPosterior, bounded: BoundedRows, order: int) -> list[Quote] | None:
    """What each step size costs, from one pass over the rows; None if the tails are heavy."""
    stage("estimating the cost of exact draws")
    surrogate, dtype = bounded.surrogate, posterior.dtype
    shape = (len(_WIDTHS) * _POSITIONS, posterior.dim)
    here, normals = np.random.default_rng(1).normal(size=(2, *shape))
    here *= np.repeat(_WIDTHS, _POSITIONS)[:, None]
    moves = np.asarray(_moves(surrogate, here.astype(dtype), normals.astype(dtype)))
    positions = np.concatenate([moves, _tails(surrogate).astype(dtype)])
    of_all = posterior.rows.reduce(
        _remainder_sums,
        surrogate,
        positions,
        width=len(positions) + surrogate.remainders.width(posterior.rows),
        finish=_with_surrogate,
    )
    of_all = np.asarray(of_all, np.float64)
    if -of_all[len(moves) :].min() > _HEAVIEST_TAIL:
        return None
    excess = of_all[: len(moves)].reshape(len(_STEPS) + 1, len(_WIDTHS), _POSITIONS)
    total = float(bounded.constants.sum())
    found = []
    for number, h in enumerate(_STEPS):
        rows = total * typical_growth(surrogate, PROPOSALS["pcn"], on_device(h, dtype))
        change = np.nan_to_num(excess[number + 1] - excess[0], nan=np.inf)
        acceptance = float(np.exp(-np.maximum(change, 0)).mean(axis=1).min())
        correlation = 1 - acceptance * (1 - np.sqrt(1 - h))
        method = SubsampledMH(step_size=h, order=order)
        draws = (1 - correlation) / (1 + correlation)
        found.append(Quote(method, bounded, acceptance, rows, draws))
    return found


def _tails(surrogate: Surrogate) -> Float[np.ndarray, "m d"]:
    """U where one parameter is three sds from the mode, and the others where they then are."""
    factor = np.asarray(surrogate.metric.factor, np.float64)  # type: ignore[attr-defined]
    chosen = np.unique(np.linspace(0, len(factor) - 1, _MOST_TAILS).astype(int))
    directions = factor[chosen] / np.linalg.norm(factor[chosen], axis=1, keepdims=True)
    return _TAIL * np.concatenate([directions, -directions])


@quickly_compiled
def _moves(
    surrogate: Surrogate, here: Float[Array, "n d"], normals: Float[Array, "n d"]
) -> Float[Array, "m d"]:
    """Positions, and from them pCN proposals of every step size, with the same noise."""

    def of_step(h: Float[Array, ""]) -> Float[Array, "n d"]:
        def propose(u: Float[Array, " d"], normal: Float[Array, " d"]) -> Float[Array, " d"]:
            return PROPOSALS["pcn"].propose(surrogate, u, h, normal)

        return jax.vmap(propose)(here, normals)

    there = jax.vmap(of_step)(jnp.asarray(_STEPS, here.dtype))
    return jnp.concatenate([here[None], there]).reshape(-1, here.shape[1])


def _remainder_sums(
    block: RowBlock,
    counted: Bool[Array, " n"],
    surrogate: Surrogate,
    positions: Float[Array, "m d"],
) -> Float[Array, " m"]:
    values = surrogate.remainders.values(surrogate.metric.push(positions), block)
    return jnp.sum(values, axis=1, where=counted)


def _with_surrogate(
    total: Sum, surrogate: Surrogate, positions: Float[Array, "m d"]
) -> Float[Array, " m"]:
    """The excess over ½‖u‖² of the whole potential."""
    return total.rounded() + jax.vmap(surrogate.smooth)(positions)
