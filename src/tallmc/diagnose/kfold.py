"""Cross-validation by refits: the cure where importance weights of leave-one-out fail.

    elpd = Σ_i π_i,   π_i = log p(y_i | the rows outside the fold of row i)

m of the N rows are divided at random into K folds, and the posterior is drawn anew K times, each
time without one fold. As in `loo.py` the sum over all rows is the difference estimator; with m = N
it is K-fold cross-validation as in the package `loo` of R. The folds of a row store are of whole
shards, of which m rows are evaluated. Columns, scales and priors are those of the fit to all rows.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np

from .._api.sample import sample
from .._core.errors import InvalidInput, check_int
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from ..models.groups import RegressionWithEffects
from ..models.posterior import AbstractPosterior, ModelPosterior
from ..models.predictive import RegressionPredictive
from ..results.draws import Draws
from .loo import ChosenRows, LeaveOneOut

_ESS = 1000.0


def kfold(
    draws: Draws,
    posterior: Any = None,
    *,
    folds: int = 10,
    n: int = 1000,
    seed: int = 0,
    **options: Any,
) -> LeaveOneOut:
    """Estimate the expected log predictive density by refits without some of the rows.

    It needs no importance weights: use it where `loo` finds many rows with Pareto k > 0.7.

    **Arguments:**

    - `draws`: draws of the posterior.
    - `posterior`: the posterior, in memory or on disk; for draws of `tallmc.fit` its table or row
      store, by default the one that it read.
    - `folds`: the number of folds, K, and of refits.
    - `n`: the number of rows, m, in all folds together.
    - `seed`: seed of the choice of rows, of the folds and of the refits.
    - `options`: options of `tallmc.sample` for the refits, such as `method` or `ess` (1,000).

    **Returns:** a `LeaveOneOut` whose `pareto_k` is NaN.
    """
    draws, posterior, _ = resolved(draws, posterior)
    if has_integrated_effects(draws):
        cure = "Use tallmc.diagnose.loo."
        found = "effects of many groups, which are integrated out"
        raise InvalidInput("draws", "have rows that can be left out one by one", found, cure)
    folds = check_int("folds", folds, 2, posterior.n_rows)
    rows = posterior.rows
    if isinstance(rows, ShardedRows) and rows.n_shards < folds:  # of 64 MiB at most
        rows = rows.in_memory()
    chosen = ChosenRows.of(draws, posterior.predictive, rows, posterior.width, n, seed)
    if len(chosen.numbers) < folds:
        raise InvalidInput("n", f"be at least the number of folds ({folds})", len(chosen.numbers))
    if isinstance(rows, ShardedRows):
        shard = np.searchsorted(rows.starts, chosen.numbers, side="right") - 1
        of_shard = np.random.default_rng(seed).permutation(rows.n_shards) % folds
        fold = of_shard[shard]
    else:
        fold = np.random.default_rng(seed).permutation(len(chosen.numbers)) % folds
    # The search for the mode starts where the rows of all folds have it.
    model = eqx.tree_at(lambda m: m.init, posterior.model, chosen.centre)
    settings: dict[str, Any] = {"seed": seed, "progress": False, **options}
    if "n_draws" not in settings:
        settings.setdefault("ess", _ESS)
    exact = np.empty(len(chosen.numbers))
    for number in range(folds):
        held = np.flatnonzero(fold == number)
        if not len(held):
            continue
        if isinstance(rows, ShardedRows):
            kept: Any = rows.of_shards(np.flatnonzero(of_shard != number).tolist())
        else:
            others = np.setdiff1d(np.arange(rows.n_rows), chosen.numbers[held])
            kept = ResidentRows(jax.device_put(rows.read(others)))
        refit = sample(
            ModelPosterior(
                model, kept, posterior.quantities, posterior.predictive, posterior.description
            ),
            **settings,
        )
        exact[held] = chosen.law_in(refit, held).log_densities()
    lpd = chosen.law_in(draws).log_densities()
    return chosen.estimate(exact, lpd, np.full(len(exact), np.nan))


def resolved(draws: Draws, given: Any) -> tuple[Draws, AbstractPosterior, Any]:
    """Draws that know their posterior, the posterior, and what it was made from."""
    from .._fit.fit import fitted_posterior

    for remembered in (draws.source, draws.about.get("table")):
        given = remembered if given is None else given
    posterior = fitted_posterior(draws, given)
    return draws.with_posterior(posterior), posterior, given


def has_integrated_effects(draws: Draws) -> bool:
    predictive = draws.predictive
    return isinstance(predictive, RegressionPredictive) and isinstance(
        predictive.model, RegressionWithEffects
    )
