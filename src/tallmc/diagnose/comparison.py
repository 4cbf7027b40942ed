"""Models compared by their predictions of rows left out and by their evidence: `tallmc.compare`.

    elpd_A − elpd_B = Σ_i (π_iA − π_iB),   π_i = log p(y_i | data without row i)

All fits use the same m of N rows (`loo.py`), so that what rows have in common cancels in a
difference. Its standard error as a statement about new data is √(N Var(π_iA − π_iB)), from these
rows; that of using m rows is the error of the difference estimator. Weights are those of stacking:
they maximise Σ_j log Σ_k w_k exp π_jk (Yao et al., 2018). With m = N all this is ArviZ's table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from .._core.errors import InvalidInput, counted
from .._core.packages import check_installed
from .._core.statistics import HEAVY_TAIL
from ..results.draws import Draws
from .evidence import evidence
from .kfold import has_integrated_effects, kfold, resolved
from .loo import LeaveOneOut, loo

if TYPE_CHECKING:
    import pandas as pd


def compare(
    fits: Sequence[Draws] | Mapping[str, Draws],
    rows: Any = None,
    *,
    n: int = 1000,
    folds: int | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare fits to the same responses, as ArviZ's `compare` does.

    **Arguments:**

    - `fits`: draws, in a list or by name. In a list they are called by their formulas.
    - `rows`: the rows of the fits: a table or a row store for all of them, or a list of tables,
      row stores or posteriors, one for each. By default what `tallmc.fit` has read.
    - `n`: how many rows are left out, one at a time. All rows give ArviZ's table.
    - `folds`: cross-validate by this many new fits, each without one part of the rows, as
      `tallmc.diagnose.kfold` does. This is slower, and needs no importance weights.
    - `seed`: seed of the choice of rows, and of the evidence.

    **Returns:** a data frame, the best fit first: `rank`, `elpd`, `p` (effective parameters),
    `elpd_diff` to the best, `weight` (stacking), `se`, `dse` (of the difference, for new data),
    `subsampling_dse` (the part of its error that comes from using n rows), `warning` (whether a row
    has Pareto k > 0.7), `log_evidence` and `log_evidence_se`, NaN where there is none: see
    `tallmc.diagnose.evidence`.
    """
    check_installed("pandas", needed_by="tallmc.compare")
    import pandas as pd

    named = dict(fits) if isinstance(fits, Mapping) else _named(fits)
    if not named or not all(isinstance(draws, Draws) for draws in named.values()):
        raise InvalidInput("fits", "be draws, in a list or by name", fits)
    of_fits = rows if isinstance(rows, list | tuple) else [rows] * len(named)
    if len(of_fits) != len(named):
        raise InvalidInput("rows", f"be one per fit ({len(named)})", len(of_fits))
    found, evidences = [], []
    for draws, given in zip(named.values(), of_fits, strict=True):
        whose, posterior, source = resolved(draws, given)
        if folds is not None:
            found.append(kfold(whose, posterior, folds=folds, n=n, seed=seed))
        else:
            # The rows of a posterior whose effects are integrated out are groups.
            left_out = source if has_integrated_effects(whose) else posterior
            found.append(loo(whose, left_out, n=n, seed=seed))
        try:
            known = evidence(whose, posterior, seed=seed)
            evidences.append((known.log_evidence, known.se))
        except InvalidInput:  # there is none, the prior is improper, or draws are few
            evidences.append((math.nan, math.nan))
    _check_same_responses(dict(zip(named, found, strict=True)))
    order = np.argsort([-one.elpd for one in found], kind="stable")
    best = found[order[0]]
    differences = [_difference(best, one) for one in found]
    content = {
        "elpd": [one.elpd for one in found],
        "p": [one.p_loo for one in found],
        "elpd_diff": [best.elpd - one.elpd for one in found],
        "weight": stacking_weights(np.stack([one.pointwise for one in found], axis=1)),
        "se": [one.se for one in found],
        "dse": [dse for dse, _ in differences],
        "subsampling_dse": [error for _, error in differences],
        "warning": [bool((one.pareto_k > HEAVY_TAIL).any()) for one in found],
        "log_evidence": [value for value, _ in evidences],
        "log_evidence_se": [error for _, error in evidences],
    }
    table = pd.DataFrame(content, index=pd.Index(list(named))).iloc[order]
    table.insert(0, "rank", range(len(table)))
    return table


def _named(fits: Sequence[Draws]) -> dict[str, Draws]:
    """The fits by formula; with the family if that is the same, else by number."""
    models = [draws.settings.get("model", {}) for draws in fits]
    for parts in (("formula",), ("formula", "family")):
        names = [", ".join(str(model[key]) for key in parts if key in model) for model in models]
        if all("formula" in model for model in models) and len(set(names)) == len(names):
            return dict(zip(names, fits, strict=True))
    return {f"fit {number}": draws for number, draws in enumerate(fits, 1)}


def _difference(one: LeaveOneOut, other: LeaveOneOut) -> tuple[float, float]:
    """The errors of a difference of elpds: for new data, and by the choice of rows."""
    between = one.pointwise - other.pointwise
    errors = between - (one.at_mean - other.at_mean)
    n_rows, m = one.n_rows, one.n
    by_choice = n_rows**2 * (1 - m / n_rows) * errors.var(ddof=1) / m
    return math.sqrt(n_rows * between.var()), math.sqrt(by_choice)


def _check_same_responses(found: Mapping[str, LeaveOneOut]) -> None:
    (first, one), *others = found.items()
    for name, other in others:
        rule = "be fits to the same rows"
        if other.n_rows != one.n_rows:
            sizes = f"{counted(one.n_rows, 'row')} and {counted(other.n_rows, 'row')}"
            cure = "Leave out rows with missing values before both fits."
            raise InvalidInput("fits", rule, sizes, cure)
        known = one.observed is not None and other.observed is not None
        if known and not np.allclose(one.observed, other.observed, rtol=1e-3, atol=1e-5):  # type: ignore[arg-type]
            cure = "The response must have the same units, and its rows the same order."
            raise InvalidInput("fits", rule, f"other responses in {name} than in {first}", cure)


def stacking_weights(pointwise: Float[np.ndarray, "m k"]) -> Float[np.ndarray, " k"]:
    """The weights w of models, from their log densities π of rows."""
    from scipy import optimize

    densities = np.exp(pointwise - pointwise.max(axis=1, keepdims=True))
    count = densities.shape[1]

    def minus_score(weights: np.ndarray) -> tuple[float, np.ndarray]:
        mixed = np.maximum(densities @ weights, np.finfo(float).tiny)
        return -float(np.log(mixed).mean()), -(densities / mixed[:, None]).mean(axis=0)

    found = optimize.minimize(
        minus_score,
        np.full(count, 1 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    return found.x / found.x.sum()
