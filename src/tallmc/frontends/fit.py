"""`tallmc.fit`: a regression from a formula and a table, in one call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..api.sample import sample
from ..core.errors import InvalidInput
from ..methods.base import AbstractMethod
from ..results.draws import Draws
from ..rows.manifest import MANIFEST
from ..rows.opening import open_rows
from ..rows.sharded import ShardedRows
from .priors import AbstractPriorChoice, as_priors
from .problem import RegressionProblem
from .regression_model import RegressionModel
from .tables import read_table


def fit(
    formula: str,
    data: Any,
    *,
    family: str,
    link: str | None = None,
    prior: AbstractPriorChoice | str | Mapping[str, AbstractPriorChoice | str] | None = None,
    noise_variance: float | None = None,
    weights: str | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | None = None,
    exclude: Sequence[str] = (),
    categorical: Sequence[str] = (),
    drop_missing: bool = False,
    standardise: bool = True,
    intercept: bool = True,
    level: str | Sequence[str] | None = None,
    standardised_results: bool = False,
    separator: str | None = None,
    method: AbstractMethod | None = None,
    **sample_options: Any,
) -> Draws:
    """Fit a Bayesian regression to a table.

    Columns are standardised for the sampler. Draws, summaries and reports show coefficients in the
    units of the table.

    **Arguments:**

    - `formula`: a formula such as "clicked ~ age + C(region) + age:C(region) + (1 + age | shop)";
      or the name of the response, and all other columns are covariates. A formula is Python code:
      pass only formulas that you trust.
    - `data`: a data frame (pandas, polars, pyarrow), a dict of arrays, the path of a table (CSV,
      Parquet, Arrow, .npz, a folder of Parquet files), or a row store (its path, or
      `tallmc.rows.open`).
    - `family`: bernoulli, binomial, gaussian, poisson, negative_binomial, categorical, ordinal,
      student_t or gamma.
    - `link`: logit or probit for bernoulli; the others have one link.
    - `prior`: a prior from `tallmc.priors` for all coefficients, or a dict of priors by term. The
      default is normal(2.5 sd(y)/sd(x)), Bambi's rule.
    - `noise_variance`: the noise variance of a gaussian response, if it is known.
    - `weights`, `offset`, `exposure`, `trials`: names of columns: how often each row counts, what
      is added to the predictor, a positive number whose logarithm is added, trials of a binomial.
    - `exclude`: columns to leave out, if `formula` is the name of the response.
    - `categorical`: columns of numbers that are categories.
    - `drop_missing`: whether rows with missing values are dropped; otherwise they are an error.
    - `standardise`: whether columns, and a gaussian or student_t response, are standardised.
    - `intercept`: whether a column of ones is added; a formula says so itself, with 0.
    - `level`: the level of a binary response that counts as 1, or the order of classes.
    - `standardised_results`: whether draws stay in standardised units.
    - `separator`: the character between the columns of a CSV file; detected by default.
    - `method`: the sampling method; chosen for you by default.
    - `sample_options`: options of `tallmc.sample`, such as `ess`, `chains`, `seed`, `store`.

    **Returns:** the draws, as `Draws`. Variables are terms, as in Bambi.

    **Raises:** `InvalidInput`, one line with the cure, before anything is sampled.

    >>> import numpy as np, tallmc
    >>> age = np.random.default_rng(0).uniform(20, 60, size=500)
    >>> table = {"age": age, "income": 1000 + 50 * age}
    >>> method = tallmc.mala(0.05)
    >>> draws = tallmc.fit("income ~ age", table, family="gaussian", noise_variance=100.0,
    ...     method=method, chains=2, draws=200)
    >>> list(draws.values)
    ['Intercept', 'age']
    """
    model = RegressionModel(
        family=family,
        link=link,
        response=None if "~" in formula else formula,
        formula=formula if "~" in formula else None,
        prior={term: choice.shown for term, choice in as_priors(prior).items()},
        noise_variance=noise_variance,
        weights=weights,
        offset=offset,
        exposure=exposure,
        trials=trials,
        exclude=_names("exclude", exclude),
        categorical=_names("categorical", categorical),
        drop_missing=drop_missing,
        standardise=standardise,
        intercept=intercept,
        level=level if level is None or isinstance(level, str) else tuple(map(str, level)),
        standardised_results=standardised_results,
        separator=separator,
    )
    problem = regression_problem(data, model)
    for note in problem.notes:
        warnings.warn(note, FitNote, stacklevel=2)
    return sample(problem.posterior, method, **sample_options)


class FitNote(UserWarning):
    """What `tallmc.fit` chose: dropped rows, baselines, the level that counts as 1.

    >>> issubclass(FitNote, UserWarning)
    True
    """


def regression_problem(data: Any, model: RegressionModel) -> RegressionProblem:
    """The problem of a table, a row store or the path of one."""
    if isinstance(data, str | os.PathLike) and (Path(data) / MANIFEST).is_file():
        data = open_rows(Path(data))
    if isinstance(data, ShardedRows):
        return RegressionProblem.of_rows(data, model)
    return RegressionProblem.of_table(read_table(data, separator=model.separator), model)


def _names(parameter: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    try:
        return tuple(map(str, given))
    except TypeError:
        raise InvalidInput(parameter, "list names of columns", given) from None
