"""Leave-one-out cross-validation on a subsample of the rows, by the difference estimator.

    elpd = Σ_i π_i,   π_i = log p(y_i | data without row i)

π_i of a row comes from its log-likelihood over the draws, by Pareto-smoothed importance sampling
(Vehtari et al., 2017). That takes all draws per row, so it is computed for m of N rows. A surrogate
of all rows, π̃_i = log p(y_i | θ̄) at the posterior mean, takes one pass. The difference estimator

    elpd̂ = Σ_i π̃_i + (N/m) Σ_{j∈S} (π_j − π̃_j),   Var = N² (1 − m/N) s²_e/m,   e_j = π_j − π̃_j

is unbiased for a simple random sample S (Magnusson et al., 2020). With m = N it is PSIS-LOO of all
rows. Packages `loo` (R) and ArviZ compute the same estimate from the log-likelihood of all rows.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._core.errors import InvalidInput, check_int
from .._core.statistics import HEAVY_TAIL, weight_efficiency
from .._rows.access import AbstractRows, RowBlock
from .._rows.resident import ResidentRows
from ..models.posterior import AbstractPosterior, check_posterior
from ..models.predictive import AbstractPredictive, RegressionPredictive
from ..results.draws import Draws
from ..results.prediction import DrawnLaw, log_sum, used_draws


@dataclasses.dataclass(frozen=True)
class LeaveOneOut:
    """An estimate of the expected log predictive density, elpd.

    **Arguments:**

    - `elpd`: Σ over all rows of log p(y_i | the other rows), in nats.
    - `se`: the standard error of `elpd` as a statement about new data, √(N Var π).
    - `subsampling_se`: the standard error that comes from using m of N rows.
    - `p_loo`: the effective number of parameters.
    - `n`, `n_rows`: m and N.
    - `rows`: the numbers of the m rows.
    - `pareto_k`: Pareto's k of the importance weights of these rows; NaN after refits.
    - `pointwise`, `at_mean`: π and π̃ of these rows.
    - `observed`: their responses, if they are known.
    """

    elpd: float
    se: float
    subsampling_se: float
    p_loo: float
    n: int
    n_rows: int
    rows: np.ndarray
    pareto_k: np.ndarray
    pointwise: np.ndarray
    at_mean: np.ndarray
    observed: np.ndarray | None = None

    @property
    def bad_share(self) -> float:
        """The share of rows with k > 0.7, whose π_i is unreliable."""
        return float(np.mean(self.pareto_k > HEAVY_TAIL))

    def __repr__(self) -> str:
        cure = ": see tallmc.diagnose.kfold" if self.bad_share else ""
        return (
            f"LeaveOneOut(elpd {self.elpd:.1f} ± {self.se:.1f}, of which {self.subsampling_se:.1f} "
            f"by using {self.n:,} of {self.n_rows:,} rows; p_loo {self.p_loo:.1f}; "
            f"{100 * self.bad_share:.1f} % bad k{cure})"
        )


def loo(draws: Draws, posterior: Any = None, *, n: int = 1000, seed: int = 0) -> LeaveOneOut:
    """Estimate the expected log predictive density by leave-one-out on some of the rows.

    **Arguments:**

    - `draws`: draws of the posterior.
    - `posterior`: the posterior, in memory or on disk; for draws of `tallmc.fit` its table or row
      store, by default the one that it read.
    - `n`: the number of rows, m, whose leave-one-out density is computed.
    - `seed`: seed of the choice of rows.
    """
    rows: AbstractRows
    posterior = draws.source if posterior is None else posterior
    if isinstance(draws.predictive, RegressionPredictive) and not isinstance(
        posterior, AbstractPosterior
    ):
        predictive: AbstractPredictive | None = draws.predictive
        rows = draws.encoded(posterior, response=True)
        width = draws.predictive.model.width(rows)
    else:
        check_posterior(posterior)
        predictive = draws.with_posterior(posterior).predictive
        rows, width = posterior.rows, posterior.width
    chosen = ChosenRows.of(draws, predictive, rows, width, n, seed)
    return chosen.estimate(*_psis(chosen.law_in(draws), _relative_efficiency(draws)))


@dataclasses.dataclass(frozen=True)
class ChosenRows:
    """m of the N rows, chosen at random, and what makes an estimate for all rows of theirs."""

    predictive: AbstractPredictive
    rows: AbstractRows
    width: int
    numbers: Int[np.ndarray, " m"]
    some: ResidentRows
    centre: Float[Array, " d"]

    @classmethod
    def of(
        cls,
        draws: Draws,
        predictive: AbstractPredictive | None,
        rows: AbstractRows,
        width: int,
        n: int,
        seed: int,
    ) -> ChosenRows:
        if predictive is None:
            cure = "Write it as tallmc.Posterior, which has a log likelihood per row."
            raise InvalidInput("posterior", "know its log-likelihood", "none", cure)
        if rows.n_rows < 2:
            raise InvalidInput("posterior", "have at least 2 rows", rows.n_rows)
        m = min(check_int("n", n, 2), rows.n_rows)
        numbers = np.random.default_rng(seed).choice(rows.n_rows, m, replace=False, shuffle=False)
        used = used_draws(draws)
        weights = None if used.weights is None else used.weights.ravel()
        centre = np.average(used.flat.astype(np.float64), axis=0, weights=weights)
        position = jnp.asarray(centre, draws.positions.dtype)
        some = ResidentRows(jax.device_put(rows.read(np.sort(numbers))))
        return cls(predictive, rows, width, np.sort(numbers), some, position)

    def law_in(self, draws: Draws, which: np.ndarray | None = None) -> DrawnLaw:
        """The law of these rows, or of some of them, in draws."""
        some = self.some if which is None else ResidentRows(jax.device_put(self.some.read(which)))
        return DrawnLaw(self.predictive, used_draws(draws), some)

    def estimate(
        self,
        exact: Float[np.ndarray, " m"],
        lpd: Float[np.ndarray, " m"],
        pareto_k: Float[np.ndarray, " m"],
    ) -> LeaveOneOut:
        """The estimate from π_i and log p(y_i | data) of these rows."""
        args, n_rows, m = (self.predictive, self.centre), self.rows.n_rows, len(exact)
        at_mean = np.asarray(self.some.map(_surrogates, *args, width=self.width), np.float64)
        level = at_mean.mean()  # sums of differences from it need fewer digits
        total, squares = self.rows.reduce(
            _surrogate_sums, *args, jnp.asarray(level), width=self.width
        ).float64()
        above, surrogate = exact - level, at_mean - level
        errors = above - surrogate
        responses = self.predictive.observed(self.some.columns)
        excess = total + n_rows * errors.mean()
        variance = n_rows**2 * (1 - m / n_rows) * errors.var(ddof=1) / m
        # Σπ² by a difference estimator, and (Σπ)² without its bias.
        sum_of_squares = squares + n_rows * np.mean(above**2 - surrogate**2)
        spread = sum_of_squares - (excess**2 - variance) / n_rows
        return LeaveOneOut(
            elpd=float(n_rows * level + excess),
            se=math.sqrt(max(0.0, spread)),
            subsampling_se=math.sqrt(variance),
            p_loo=float(n_rows * np.mean(lpd - exact)),
            n=m,
            n_rows=n_rows,
            rows=self.numbers,
            pareto_k=pareto_k,
            pointwise=exact,
            at_mean=at_mean,
            observed=None if responses is None else np.asarray(responses),
        )


def _psis(
    law: DrawnLaw, efficiency: float
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """π_i, log p(y_i | data) and Pareto's k of these rows."""
    from arviz_stats.base import array_stats

    log_share, parts = law.used.log_shares(), []
    for block in law.log_likelihoods():
        values = block.astype(np.float64)
        # The ratios of importance sampling are w/p.
        try:
            log_weights, k = array_stats.psislw(values - log_share, r_eff=efficiency)
        except (ValueError, IndexError) as error:  # few draws, or chains that have not moved
            rule, cure = "have tails that a Pareto law fits", "Draw more: n_draws=..."
            raise InvalidInput("draws", rule, str(error), cure) from None
        parts.append([log_sum(log_weights + values), log_sum(values + log_share), k])
    exact, lpd, pareto_k = np.concatenate(parts, axis=1)
    return exact, lpd, pareto_k


def _relative_efficiency(draws: Draws) -> float:
    """Effective draws over draws, averaged over quantities, as ArviZ computes it."""
    from arviz_stats.base import array_stats

    values = np.asarray(draws.flat_values[draws.ok], np.float64)
    if len(values) == 1:
        return 1.0
    effective = array_stats.ess(values, chain_axis=0, draw_axis=1, method="mean")
    share = weight_efficiency(None if draws.weights is None else draws.weights[draws.ok])
    return share * float(np.mean(effective)) / values[..., 0].size


def _surrogates(
    block: RowBlock, predictive: AbstractPredictive, position: Float[Array, " d"]
) -> Float[Array, " n"]:
    return predictive.log_likelihood(position, block)


def _surrogate_sums(
    block: RowBlock,
    counted: Bool[Array, " n"],
    predictive: AbstractPredictive,
    position: Float[Array, " d"],
    level: Float[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Σ(π̃ − level) and Σ(π̃ − level)²."""
    excess = predictive.log_likelihood(position, block) - level.astype(position.dtype)
    excess = jnp.where(counted, excess, 0)
    return jnp.sum(excess), jnp.sum(excess**2)
