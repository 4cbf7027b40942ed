"""`tallmc.fit`: a regression from a formula and a table, in one call."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._api.sample import sample
from .._core.errors import InvalidInput, python_words, speaking_python, warn
from .._rows.sharded import ShardedRows
from .._store.files import as_folder
from ..methods.abstract import AbstractMethod
from ..models.design import CodedColumns, column_sds, design_data, store_data
from ..models.groups import grouped_observations
from ..models.posterior import AbstractPosterior, ModelPosterior
from ..models.predictive import RegressionPredictive
from ..priors import PriorChoice, as_priors
from ..results.draws import Draws
from ..results.smooths import notes_on_dimensions
from .columns import INTERCEPT, missing, notes_on_levels
from .encoding import Design, RowRoles, make_design
from .formulas import FORMULA, FormulaText, split_formula
from .model import RegressionModel
from .reading import Table, read_table
from .regression import RegressionForm, check_groups, form_of, model_rows, saved_form
from .store_design import opened_rows, row_store_design, stored_table

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class RegressionProblem:
    """A posterior, and how it came from a table."""

    form: RegressionForm
    posterior: ModelPosterior
    notes: tuple[str, ...]

    @property
    def response(self) -> str:
        return self.form.encoding.response.name

    @property
    def n_columns(self) -> int:
        """Columns of the design without the intercept."""
        return len(set(self.form.columns.names) - {INTERCEPT})

    @classmethod
    def of_table(
        cls, table: Table, model: RegressionModel, *, integrate: bool = True
    ) -> RegressionProblem:
        """The problem of a table; without `integrate`, effects of many groups are parameters."""
        family, _ = model.families()
        dtype = str(jax.dtypes.canonicalize_dtype(np.float64))
        design = make_design(table, model, family.response, dtype, codes=True)
        design, notes = _without_zero_weights(design)
        form = RegressionForm(model, design.encoding, table.description)
        x, y, weights, groups = model_rows(design, family.has_intercept)
        names, values = form.columns.names, design.level_values
        apart = integrate and form.integrates_effects
        if apart and not form.columns.names:
            rule = "have an intercept or a column besides the effects of many groups"
            raise InvalidInput(FORMULA, rule, model.formula, "Write 1 + in place of 0 +.")
        if apart and isinstance(x, CodedColumns):
            x, values = x.matrix(values), None
        rest, absent = () if apart else groups, None
        if form.encoding.imputed:
            absent, x = np.isnan(x), np.nan_to_num(x)
        data = design_data(
            *(x, y, names, weights, design.offset, rest, values), times=family.response == "times"
        )
        check_groups(design, family, apart)
        form = form.of_rows(data)
        grouped = grouped_observations(data, groups) if apart else None
        sds = column_sds(x, values)
        sds[list(form.imputed)] = 1.0
        posterior = form.posterior(data, sds, groups=grouped, absent=absent)
        return cls(form, posterior, (*design.notes, *notes, *_notes_on(model)))

    @classmethod
    def of_rows(cls, rows: ShardedRows, model: RegressionModel) -> RegressionProblem:
        encoding, column_sds, view = row_store_design(rows, model)
        form = RegressionForm(model, encoding, "row store")
        data = store_data(rows.viewed(view), form.columns.names)
        form = form.of_rows(data)
        terms = encoding.scaled.terms
        notes = (*notes_on_levels(terms.features, terms.baselines), *_notes_on(model))
        return cls(form, form.posterior(data, column_sds), notes)


def _notes_on(model: RegressionModel) -> tuple[str, ...]:
    """Notes on choices that are hard to sample."""
    names = {of.name: "" for of in as_priors(model.prior).values() if of.shares_scales}
    words = "coefficients near zero make its posterior hard to sample; see the verdict"
    return tuple(f"{name}: {words}" for name in names)


def _without_zero_weights(design: Design) -> tuple[Design, tuple[str, ...]]:
    """The rows that count."""
    if design.weights is None or (design.weights > 0).all():
        return design, ()
    kept = design.weights > 0
    groups = tuple(
        dataclasses.replace(group, codes=group.codes[kept], x=group.x[kept])
        for group in design.groups
    )
    fields: dict[str, Any] = {
        name: jax.tree.map(lambda column: column[kept], values)
        for name in ("x", "y", "weights", "offset", "trials")
        if (values := getattr(design, name)) is not None
    }
    note = f"left out {int((~kept).sum())} rows of weight 0"
    return dataclasses.replace(design, groups=groups, **fields), (note,)


def fit(
    formula: str,
    data: Any,
    *,
    family: str,
    link: str | None = None,
    prior: PriorChoice | str | Mapping[str, PriorChoice | str] | None = None,
    noise_variance: float | None = None,
    weights: str | None = None,
    offset: str | None = None,
    exposure: str | None = None,
    trials: str | None = None,
    breaks: Sequence[float] | None = None,
    quantile: float | None = None,
    exclude: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str = "raise",
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
      or the name of the response, and all other columns are covariates. Smooth terms are those of
      mgcv: s(age, k=20), s(hour, bs="cc"), s(lon, lat), s(x, by=region). Survival times are
      surv(time, event), surv(start, stop, event) or surv(lower, upper, type="interval"). A formula
      is Python code: pass only formulas that you trust.
    - `data`: a data frame (pandas, polars, pyarrow), a dict of arrays, the path of a table (CSV,
      Parquet, Arrow, .npz, a folder of Parquet files), or a row store (its path, or
      `tallmc.rows.open`).
    - `family`: bernoulli, binomial, gaussian, poisson, negative_binomial, categorical, ordinal,
      student_t, gamma, beta, tweedie, quantile, zero_inflated_poisson,
      zero_inflated_negative_binomial, hurdle_poisson, hurdle_negative_binomial; of survival times
      exponential, weibull, lognormal, loglogistic or piecewise_exponential.
    - `link`: logit or probit for bernoulli; the others have one link.
    - `prior`: a prior from `tallmc.priors` for all coefficients, or a dict of priors by term, such
      as {"age": "normal(0, 1)", "s(x)": "half_normal(1)", "sd(shop)": "exponential(1)"}. The
      default is normal(2.5 sd(y)/sd(x)), rstanarm's rule.
    - `noise_variance`: the noise variance of a gaussian response, if it is known.
    - `weights`, `offset`, `exposure`, `trials`: names of columns: how often each row counts, what
      is added to the predictor, a positive number whose logarithm is added, trials of a binomial.
    - `breaks`: the times between intervals of constant hazard, for piecewise_exponential. By
      default ten intervals with equal numbers of events.
    - `quantile`: the level of family quantile, between 0 and 1; the median by default.
    - `exclude`: columns to leave out, if `formula` is the name of the response.
    - `categorical`: columns of numbers that are categories.
    - `missing`: "raise" refuses missing values, "drop" drops their rows. "indicator" gives a
      category the level "(missing)", and a number its mean and a column "age_missing" of 0 and 1;
      rows without a response are dropped. "impute" does the same for categories, and integrates
      numbers of at most five columns out: they are normal given the other columns.
    - `standardise`: whether columns, and a gaussian, student_t or quantile response, are
      standardised.
    - `intercept`: whether a column of ones is added; a formula says so itself, with 0.
    - `level`: the level of a binary response that counts as 1, or the order of classes.
    - `standardised_results`: whether draws stay in standardised units.
    - `separator`: the character between the columns of a CSV file; detected by default.
    - `method`: the sampling method; chosen for you by default.
    - `sample_options`: options of `tallmc.sample`, such as `ess`, `chains`, `seed`, `store`.

    **Returns:** the draws, as `Draws`. Variables are terms, as in Bambi.

    >>> import numpy as np, tallmc
    >>> rng = np.random.default_rng(0)
    >>> age = rng.uniform(20, 60, size=500)
    >>> table = {"age": age, "income": 1000 + 50 * age + rng.normal(0, 100, size=500)}
    >>> draws = tallmc.fit("income ~ age", table, family="gaussian", seed=0, progress=False)
    >>> list(draws.values)
    ['Intercept', 'age', 'sigma']
    >>> bool(abs(draws.values["age"].mean() - 50) < 2), str(draws.report.verdict)
    (True, 'checked')
    """
    # All arguments but these describe the model.
    chosen = {k: v for k, v in locals().items() if k not in ("data", "method", "sample_options")}
    if not isinstance(formula, str):
        cure = "The formula comes first: tallmc.fit(formula, data)."
        raise InvalidInput("formula", "be text such as 'y ~ age'", type(formula).__name__, cure)
    with speaking_python("data"):
        model = regression_model(**chosen)
        problem = regression_problem(data, model)
    for note in problem.notes:
        warn(python_words(note), FitNote)
    if sample_options.get("store") is not None and isinstance(data, str | os.PathLike):
        folder = as_folder(sample_options["store"])
        about = {"table": str(Path(data).resolve()), **folder.about}
        sample_options["store"] = dataclasses.replace(folder, about=about)
    draws = sample(problem.posterior, method, **sample_options)
    object.__setattr__(draws, "source", data)  # a copy would lose its report, which is cached
    for note in notes_on_dimensions(smooths_of_fit(draws)):
        warn(note, FitNote)
    return draws


def smooths_of_fit(draws: Draws) -> pd.DataFrame | None:
    """The table of smooth terms; None if there are none."""
    predictive = draws.predictive
    is_smooth = isinstance(predictive, RegressionPredictive) and predictive.smooths.value
    return draws.smooths() if is_smooth and draws.ok.any() else None


def regression_model(
    formula: str,
    *,
    prior: PriorChoice | str | Mapping[str, PriorChoice | str] | None = None,
    breaks: Sequence[float] | None = None,
    exclude: Sequence[str] = (),
    categorical: Sequence[str] = (),
    level: str | Sequence[str] | None = None,
    **others: Any,
) -> RegressionModel:
    """What a user chose by the arguments of `fit`."""
    return RegressionModel(
        response=None if "~" in formula else formula,
        formula=formula if "~" in formula else None,
        prior={term: choice.shown for term, choice in as_priors(prior).items()},
        breaks=None if breaks is None else tuple(map(float, breaks)),
        exclude=_names("exclude", exclude),
        categorical=_names("categorical", categorical),
        level=level if level is None or isinstance(level, str) else tuple(map(str, level)),
        **others,
    )


class FitNote(UserWarning):
    """What `tallmc.fit` chose: dropped rows, baselines, the level that counts as 1."""


def regression_problem(
    data: Any, model: RegressionModel, *, integrate: bool = True
) -> RegressionProblem:
    """The problem of a table, a row store or the path of one."""
    data = opened_rows(data)
    if isinstance(data, ShardedRows):
        text = None if model.formula is None else split_formula(model.formula)
        if text is None or not text.groups:
            return RegressionProblem.of_rows(data, model)
        table = _table_of_store(data, model, text)
        if any(missing(column).any() for column in table.columns.values()):
            model = dataclasses.replace(model, missing="indicator")
    else:
        table = read_table(data, separator=model.separator)
    return RegressionProblem.of_table(table, model, integrate=integrate)


def _table_of_store(rows: ShardedRows, model: RegressionModel, text: FormulaText) -> Table:
    """The columns of a formula with group terms, from a row store."""
    manifest = rows.shards.manifest
    response, roles = model.response or text.response, RowRoles.of(model).names.values()
    sources = {column.source: None for column in manifest.columns if column.source}
    free = [name for name in sources if name not in {response, *roles, *model.exclude}]
    groups = [name for group in text.groups for name in group.columns]
    used = {*text.variables(free, sources), *groups, *roles, *([response] if response else [])}
    return stored_table(rows, sorted(used), groups)


def fitted_posterior(draws: Draws, data: Any) -> AbstractPosterior:
    """The posterior of draws of `fit`, from what it read; or the posterior itself."""
    if isinstance(data, AbstractPosterior):
        return data
    form = form_of(draws) or saved_form(draws.about, None)
    if form is None:
        cure = "Pass the posterior of each."
        raise InvalidInput("rows", "be those of the draws", "draws of a posterior", cure)
    if data is None:
        cure = "Loaded draws keep no rows: pass the table or row store of each fit."
        raise InvalidInput("rows", "be those of the draws", "none", cure)
    problem = regression_problem(data, form.model)
    if problem.form.encoding.to_json() != form.encoding.to_json():
        cure = "Pass the table that it was made from."
        raise InvalidInput("rows", "be those of the fit", "rows with other levels or means", cure)
    return problem.posterior


def _names(parameter: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    try:
        return tuple(map(str, given))
    except TypeError:
        raise InvalidInput(parameter, "list names of columns", given) from None
