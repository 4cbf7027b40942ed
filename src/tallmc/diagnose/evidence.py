"""The evidence, p(y) = ∫ p(y | θ) p(θ) dθ, by bridge sampling on all rows.

A Gaussian g is fitted to the first half of every chain. With n draws θ_i of the second half, n
draws φ_j of g, and the ratio l = p(y | θ) p(θ)/g(θ), the estimate is the fixed point of

    r = Σ_j l(φ_j)/(l(φ_j) + r)  /  Σ_i 1/(l(θ_i) + r)

(Meng and Wong, 1996). It is consistent for any g, and has a small error where g and the posterior
overlap, as they do with many rows. One pass over the rows has p(y | θ) at all 2n points. The error
is that of Frühwirth-Schnatter (2004), with the effective number of draws.

Draws of the default method are not quite those of the posterior. The estimate is stationary in such
an error: where the log density is off by δ, it moves by a multiple of δ² only.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._core.arrays import Parameters, on_device
from .._core.errors import InvalidInput, check_int
from .._rows.access import RowBlock
from .._rows.law import Batch
from .._rows.passes import split_sum
from ..models.model import AbstractModel
from ..models.posterior import AbstractPosterior, check_posterior
from ..models.predictive import AbstractPredictive, RegressionPredictive
from ..results.draws import Draws
from ..results.prediction import used_draws
from .kfold import resolved

_MOST_STEPS = 1000
_FAR = 50.0
"""Posterior sds, and units, beyond which a proper prior has fallen."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """An estimate of the log evidence.

    **Arguments:**

    - `log_evidence`: log p(y), in nats.
    - `se`: its standard error.
    - `n`: how many draws, and as many proposals, were compared.

    The difference of two has the log Bayes factor and its error:

    >>> Evidence(-10.0, 0.3, 256) - Evidence(-12.0, 0.4, 256)
    Evidence(2.00 ± 0.50)
    """

    log_evidence: float
    se: float
    n: int

    def __sub__(self, other: Evidence) -> Evidence:
        difference = self.log_evidence - other.log_evidence
        return Evidence(difference, math.hypot(self.se, other.se), min(self.n, other.n))

    def __repr__(self) -> str:
        return f"Evidence({self.log_evidence:.2f} ± {self.se:.2f})"


def evidence(draws: Draws, posterior: Any = None, *, n: int = 256, seed: int = 0) -> Evidence:
    """Estimate the log evidence of a posterior, from its draws and one pass over its rows.

    The difference of two estimates is a log Bayes factor, if both have the same rows.

    **Arguments:**

    - `draws`: draws of the default method or of an exact one.
    - `posterior`: their posterior, in memory or on disk; for draws of `tallmc.fit` its table or row
      store, by default the one that it read. Its prior must be proper. Both log densities of a
      `tallmc.Posterior` must have all their constants.
    - `n`: how many draws, and as many proposals, are compared. The error falls with √n.
    - `seed`: seed of the proposals.
    """
    is_fit = isinstance(draws.predictive, RegressionPredictive)
    if is_fit and not isinstance(posterior, AbstractPosterior):
        draws, posterior, _ = resolved(draws, posterior)
    check_posterior(posterior)
    predictive = draws.with_posterior(posterior).predictive
    why = why_no_evidence(draws, posterior)
    if why is not None:
        raise InvalidInput("draws", "have an evidence that can be estimated", why[0], why[1])
    used = used_draws(draws)
    n_draws = used.positions.shape[1]
    first, second = (
        part.reshape(-1, posterior.dim).astype(np.float64)
        for part in np.split(used.positions, [n_draws // 2], axis=1)
    )
    n = min(check_int("n", n, 2), len(second))
    if len(first) < 2 * posterior.dim:
        rule = f"be at least {4 * posterior.dim:,}, four per parameter"
        raise InvalidInput("draws", rule, used.flat.shape[0], "Draw more: n_draws=...")
    middle = first.mean(axis=0)
    factor = np.linalg.cholesky(np.cov(first.T, ddof=1).reshape(2 * (posterior.dim,)))
    kept = second[np.linspace(0, len(second) - 1, n).astype(int)]
    noise = np.random.default_rng(seed).normal(size=(n, posterior.dim))
    points = np.concatenate([kept, middle + noise @ factor.T])
    _check_proper(posterior, middle, np.sqrt(np.sum(factor**2, axis=1)))
    scaled = np.linalg.solve(factor, (points - middle).T)
    log_gaussian = -0.5 * (scaled**2).sum(axis=0) - np.log(np.diag(factor)).sum()
    log_gaussian -= 0.5 * posterior.dim * math.log(2 * math.pi)
    log_ratio = _log_joint(posterior, predictive, middle, points) - log_gaussian
    effective = min(n, draws.report.ess / 2) if math.isfinite(draws.report.ess) else n
    found, error = _bridge(log_ratio[:n], log_ratio[n:], effective)
    return Evidence(found, error, n)


def why_no_evidence(draws: Draws, posterior: AbstractPosterior) -> tuple[str, str] | None:
    """What is in the way of an estimate, and its cure."""
    account = draws.account
    if draws.settings.get("errors"):
        return "draws with robust errors, which are not those of the posterior", ""
    if draws.series is None and not (account is not None and account.exact):
        cure = "Use the default method, or an exact one."
        return "draws of a stochastic gradient, whose law is not the posterior", cure
    if draws.predictive is None and posterior.predictive is None:
        return (
            "no likelihood with all constants",
            "Write it as tallmc.Posterior, which has a log likelihood per row.",
        )
    if posterior.model.log_prior_integral() is None:
        return "a prior whose constant is not known", "Compare by elpd: tallmc.diagnose.loo."
    return None


def _check_proper(
    posterior: AbstractPosterior, middle: Float[np.ndarray, " d"], sds: Float[np.ndarray, " d"]
) -> None:
    """Raise if the prior does not fall along some parameter, to either side."""
    steps = np.diag(_FAR * (1 + sds) + 3 * np.abs(middle))
    at = on_device(np.concatenate([middle[None], middle + steps, middle - steps]), posterior.dtype)
    found = np.asarray(_priors(posterior.model, at), np.float64)
    rises = (found[1:] > found[0]).reshape(2, -1).all(axis=0)
    if not rises.all():
        name = Parameters(posterior.layout).entry_names()[int(np.argmin(rises))]
        cure = "Choose a proper prior for it, or compare by elpd: tallmc.diagnose.loo."
        raise InvalidInput("prior", "be proper for an evidence to exist", f"none of {name}", cure)


def _log_joint(
    posterior: AbstractPosterior,
    predictive: AbstractPredictive | None,
    middle: Float[np.ndarray, " d"],
    points: Float[np.ndarray, "k d"],
) -> Float[np.ndarray, " k"]:
    """log p(y | θ) p(θ) at some points, in one pass over the rows."""
    model, dtype = posterior.model, posterior.dtype
    centre = on_device(middle, dtype)
    at = on_device(points, dtype)
    moves = on_device(points - np.asarray(centre, np.float64), dtype)
    constant = model.log_prior_integral()
    assert constant is not None, "`why_no_evidence` has looked"
    changes, high, low = posterior.rows.reduce(
        _row_sums, model, predictive, centre, moves, width=len(points) + posterior.width
    ).float64()
    priors = np.asarray(_priors(model, at), np.float64)
    return -(changes + high + low + priors + constant)


def _row_sums(
    block: RowBlock,
    counted: Bool[Array, " n"],
    model: AbstractModel,
    predictive: AbstractPredictive,
    centre: Float[Array, " d"],
    moves: Float[Array, "k d"],
) -> tuple[Float[Array, " k"], Float[Array, ""], Float[Array, ""]]:
    """Σ [f_i(θ̂ + move) − f_i(θ̂)], and Σ −log p(y_i | θ̂) as (high, low)."""
    changes = model.sum_of_changes(centre, moves, Batch(block, counted.astype(model.dtype)))
    level = model.row_potentials(centre, block) + predictive.constants(block)
    return changes, *split_sum(jnp.where(counted, level, 0))


@eqx.filter_jit
def _priors(model: AbstractModel, positions: Float[Array, "k d"]) -> Float[Array, " k"]:
    return jax.lax.map(model.prior_potential, positions)


def _bridge(
    at_draws: Float[np.ndarray, " n"], at_proposals: Float[np.ndarray, " n"], effective: float
) -> tuple[float, float]:
    """log r and its standard error, from log l at draws and at proposals."""
    level = float(np.median(at_draws))
    draws, proposals = at_draws - level, np.nan_to_num(at_proposals - level, nan=-np.inf)
    log_r = 0.0
    for _ in range(_MOST_STEPS):
        above = np.exp(proposals - np.logaddexp(proposals, log_r))  # l/(l + r)
        below = np.exp(log_r - np.logaddexp(draws, log_r))  # r/(l + r)
        step = math.log(above.mean()) - math.log(below.mean())
        log_r += step
        if abs(step) < 1e-10:
            break
    variance = above.var() / above.mean() ** 2 / len(above)
    variance += below.var() / below.mean() ** 2 / effective
    return level + log_r, math.sqrt(variance)
