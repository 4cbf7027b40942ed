"""The result of a run: draws, statistics, outcomes and costs.

Draws are NumPy arrays. `Draws.to_datatree` converts them to an ArviZ DataTree.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import html
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from .._core.arrays import (
    AbstractQuantities,
    Layout,
    Parameters,
    StoredQuantities,
    check_labels,
    flat,
    shown,
)
from .._core.errors import InvalidInput, Outcome, check_int, check_number, counted
from .._core.packages import check_installed
from .._core.statistics import (
    Agreement,
    GroupMoments,
    diagnostics,
    moments,
    quantiles,
    weight_efficiency,
)
from .._rows.opening import is_row_store, open_rows
from .._rows.resident import ResidentRows
from .._rows.sharded import ShardedRows
from .._rows.shards import ByName
from ..methods.abstract import AbstractMethod, Account
from ..methods.automatic.update import FittedSeries
from ..methods.method import Method
from ..models.groups import RegressionWithEffects
from ..models.posterior import AbstractPosterior, check_posterior
from ..models.predictive import AbstractPredictive, RegressionPredictive
from ..models.priors import ScaleMixturePrior
from ..models.smooths import SmoothEffect
from ..schedule import Cyclical
from .prediction import MOST_DRAWS, DrawnLaw, Prediction, used_draws
from .report import RunReport, failure_doubts, make_report, visible_doubts
from .saved import node_names, read_draws, write_draws
from .smooths import smooth_curve, smooth_table

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from .summary import SummaryTable

_MOST_CURVES = 4000  # draws whose curves are averaged
_MOST_IN_HTML = 50  # parameters; the summary of more takes seconds


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds spent in each phase of a run.

    **Arguments:**

    - `preparation`: everything before the first step but compilation, such as the anchor.
    - `compilation`: seconds in which programs were compiled, for the preparation too.
    - `sampling`: running steps. A resumed run includes the time of earlier processes.
    - `checking`: measuring the bias after the run.
    """

    preparation: float
    compilation: float
    sampling: float
    checking: float = 0.0


@dataclasses.dataclass(frozen=True)
class Draws:
    """The draws that `sample`, `resume` and `load` return.

    A failed chain has NaN from the draw of its failure on. Summaries leave it out.

    **Arguments:**

    - `positions`: one flat vector per chain and draw; `params` restores the parameters' structure.
    - `sample_stats`: arrays per chain and draw: `step_size`, `batch_size`, `n_row_evals`
        (cumulative, per chain) and the statistics of the dynamics.
    - `outcomes`: how each chain ended.
    - `n_row_evals_sampling`: rows touched by all chains, burn-in included.
    - `n_row_evals_preparation`: rows touched to find the anchor, the weights and so on.
    - `timing`: seconds per phase.
    - `layout`: how parameters lie in the flat vector.
    - `settings`: method, seed, burn-in, thinning, sizes and versions.
    - `account`: what the method chose, why, and how large its bias is.
    - `stopped_by`: what ended the run before its goal ("Ctrl-C", "SIGTERM", a limit, the store);
        None if the run reached its goal.
    - `n_row_evals_check`: rows touched to measure the bias after the run.
    - `quantities`: how the quantities that users see are computed from positions. By default they
        are the parameters in the flat vector.
    - `predictive`: the law of the response of new rows; None if it is unknown, as for draws from a
        store.
    - `about`: what a file or a store says about the fit, as JSON; `tallmc.load` makes `predictive`
        of it.
    - `group_moments`: means and standard deviations of the parameters of all groups of a
        `LocalPosterior`, by kind; empty for other posteriors and for draws from a store.
    - `series`: what the default method keeps of the rows, for `update`; None for other methods.
    - `source`: what `tallmc.fit` read: the table, its path or the row store. It is not copied and
        not saved.

    >>> from tallmc._core.arrays import layout_of
    >>> layout, _ = layout_of({"slope": 0.0})
    >>> outcomes, timing = (Outcome.OK, Outcome.OK), Timing(0.5, 1.0, 3.0)
    >>> Draws(np.zeros((2, 50, 1)), {}, outcomes, 800, 200, timing, layout, {})
    Draws(2 chains × 50 draws × 1 parameter; 1,000 rows touched)
    """

    positions: Float[np.ndarray, "chains draws d"]
    sample_stats: dict[str, np.ndarray]
    outcomes: tuple[Outcome, ...]
    n_row_evals_sampling: int
    n_row_evals_preparation: int
    timing: Timing
    layout: Layout
    settings: dict[str, Any]
    account: Account | None = None
    stopped_by: str | None = None
    n_row_evals_check: int = 0
    quantities: AbstractQuantities = None  # type: ignore[assignment]  # `__post_init__` sets it
    predictive: AbstractPredictive | None = None
    group_moments: Mapping[str, GroupMoments] = dataclasses.field(default_factory=dict)
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    series: FittedSeries | None = None
    source: Any = dataclasses.field(default=None, repr=False, compare=False)

    updater: ClassVar[Callable[..., Draws]]
    """`_api.update.update`, which is above this layer and puts itself here."""

    def __post_init__(self) -> None:
        if self.quantities is None:
            object.__setattr__(self, "quantities", Parameters(self.layout))

    @functools.cached_property
    def report(self) -> RunReport:
        """What was chosen and why, estimated errors, and reasons for doubt."""
        return self._report(None)

    def _report(self, agreed: Agreement | None) -> RunReport:
        account = Account(self.settings.get("method")) if self.account is None else self.account
        efficiency = weight_efficiency(self.weights)
        draws = shown(self.quantities, self.positions)
        wanted = self.settings.get("ess")
        names = self.quantities.entry_names
        if draws is self.positions:
            names = functools.partial(self.quantities.coordinate_names, self.layout)
        return make_report(
            *(draws, self.ok, self.sample_stats, account, efficiency, agreed, wanted), names=names
        )

    def judged(
        self,
        failed_at: np.ndarray,
        covariance: Array | np.ndarray | None,
        further_doubts: Sequence[str] = (),
        agreed: Agreement | None = None,
    ) -> Draws:
        """The same draws; their account and report have the doubts that the draws themselves raise.

        `failed_at` has the steps at which chains failed, `covariance` is that of the anchor's
        Gaussian, `agreed` the agreement of the completed chains if it is known.
        """
        account = Account(self.settings.get("method")) if self.account is None else self.account
        doubts = failure_doubts(self.outcomes, failed_at) + visible_doubts(
            *(self.positions, self.ok, self.sample_stats, self.account, covariance),
            names=functools.partial(self.quantities.coordinate_names, self.layout),
        )
        draws = dataclasses.replace(self, account=account.doubting(*doubts, *further_doubts))
        if agreed is not None:  # saves computing R-hat and ESS again
            vars(draws)["report"] = draws._report(agreed)  # where `cached_property` keeps its value
        return draws

    @functools.cached_property
    def weights(self) -> Float[np.ndarray, "chains draws"] | None:
        """The weight of each draw, with mean 1; None if all draws count the same.

        Draws of decreasing steps are weighted by their step size, because each stands for that much
        time of the diffusion. `summary` uses the weights. Draws of a method with an accept step
        follow the target at any step size, and those of a `Cyclical` schedule count the same by the
        method's theory (Zhang et al., 2020).
        """
        method, steps = self.settings.get("method"), self.sample_stats.get("step_size")
        if steps is None or not steps.size or np.ptp(steps) == 0:
            return None
        if isinstance(method, AbstractMethod) and method.has_accept_step:
            return None
        if isinstance(method, Method) and isinstance(method.step_size, Cyclical):
            return None
        return np.asarray(steps, np.float64) / np.mean(steps, dtype=np.float64)

    @property
    def n_row_evals(self) -> int:
        """Total number of rows touched, by preparation, sampling and check."""
        return self.n_row_evals_preparation + self.n_row_evals_sampling + self.n_row_evals_check

    @property
    def ok(self) -> np.ndarray:
        """Which chains completed."""
        return np.array([outcome is Outcome.OK for outcome in self.outcomes])

    @functools.cached_property
    def values(self) -> dict[str, np.ndarray]:
        """The draws of each quantity by name, (chains, draws, ...); constrained, if it is."""
        return self.quantities.of(self.positions)

    @property
    def flat_values(self) -> Float[np.ndarray, "chains draws entries"]:
        """The draws of all quantities side by side, in the order of `quantities.entry_names`."""
        is_plain = isinstance(self.quantities, Parameters)
        return self.positions if is_plain else flat(self.values)

    @property
    def params(self) -> PyTree[np.ndarray]:
        """The draws in the structure of `init`; each leaf has leading axes (chains, draws).

        A dict by name if there are other quantities than parameters.
        """
        structure = self.quantities.structure
        if structure is None:
            return self.values
        return jax.tree.unflatten(structure, list(self.values.values()))

    def to_datatree(
        self,
        labels: Mapping[str, Sequence[str]] | None = None,
        *,
        posterior_predictive: Any = None,
        log_likelihood: Any = None,
    ) -> xr.DataTree:
        """Convert to an `xarray.DataTree` in ArviZ's schema.

        **Arguments:**

        - `labels`: names for the entries of vector parameters, such as
            `{"beta": ["intercept", "age"]}`.
        - `posterior_predictive`: rows whose responses are simulated, as in `posterior_predictive`;
            with `log_likelihood` for every draw.
        - `log_likelihood`: rows with responses, as in `log_likelihood`.

        **Returns:** a tree with groups `posterior` and `sample_stats`; with rows also
        `posterior_predictive`, `log_likelihood` and, if responses are known, `observed_data`. All
        draws of a failed chain are NaN. If draws count differently, `sample_stats` has their
        `weight`. ArviZ does not use it: `Draws.summary` does.
        """
        named, entries_of = self._labelled(labels)
        check_installed("arviz_base", needed_by="Draws.to_datatree")
        import arviz_base

        # Formats such as NetCDF refuse some names.
        of_dims = node_names(dict.fromkeys(dim for found in named.values() for dim in found))
        nodes = node_names(self.quantities.shapes, ("chain", "draw", *of_dims.values()))
        coords = {of_dims[dim]: list(entries_of[dim]) for dim in of_dims if dim in entries_of}
        dims = {nodes[name]: [of_dims[dim] for dim in found] for name, found in named.items()}
        # Draws of a failed chain before its failure are not valid draws either.
        completed = {
            nodes[name]: np.where(self.ok.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan)
            for name, values in self.values.items()
        }
        weight = {} if self.weights is None else {"weight": self.weights}
        tree = arviz_base.from_dict(
            {"posterior": completed, "sample_stats": self.sample_stats | weight},
            coords=coords,
            dims=dims,
        )
        attributes = {
            **{
                key: value if isinstance(value, (int, str)) else repr(value)
                for key, value in self.settings.items()
                if key != "model"
            },
            **self.settings.get("model", {}),
            "outcomes": [outcome.name.lower() for outcome in self.outcomes],
            "n_row_evals": self.n_row_evals,
            "n_row_evals_preparation": self.n_row_evals_preparation,
            "n_row_evals_check": self.n_row_evals_check,
            **{f"seconds_{part}": seconds for part, seconds in vars(self.timing).items()},
        }
        if weight:
            attributes["weights"] = (
                "The steps decrease: weight each draw by sample_stats.weight, its step size over "
                "the mean step size."
            )
        tree.attrs.update(attributes)
        if posterior_predictive is not None or log_likelihood is not None:
            self._add_predictive_groups(tree, posterior_predictive, log_likelihood)
        return tree

    def summary(self, labels: Mapping[str, Sequence[str]] | None = None) -> SummaryTable:
        """Summarise the chains that completed.

        **Arguments:**

        - `labels`: names for the entries of vector parameters, as in `to_datatree`.

        **Returns:** a table with one row per parameter: mean, sd, 5 % quantile, median, 95 %
        quantile, effective sample sizes, R-hat and Monte-Carlo errors. It is a data frame that
        prints as many columns as the terminal has room for, R-hat and ESS always. R-hat needs at
        least two chains and at least four draws. Draws of decreasing steps are weighted
        (`weights`); effective sample sizes are then multiplied by Kish's factor.
        """
        if not self.ok.any():
            outcomes = f"outcomes {[o.name for o in self.outcomes]}"
            raise InvalidInput("draws", "have a chain that completed", outcomes)
        dims, coords = self._labelled(labels)
        check_installed("pandas", needed_by="Draws.summary")
        import pandas as pd

        values = {
            name: np.asarray(array[self.ok], np.float64) for name, array in self.values.items()
        }
        entry_names = StoredQuantities(values, dims, coords).entry_names()
        draws = flat(values)
        weights = None if self.weights is None else self.weights[self.ok]
        found, share = moments(draws, weights), weight_efficiency(weights)
        low, median, high = quantiles(draws, (0.05, 0.5, 0.95), weights)
        sd, diagnosed = found.sd, diagnostics(draws)._asdict()
        if weights is not None:
            # For equal weights this is the factor n/(n − 1) of an unbiased variance.
            sd = found.sd / np.sqrt(1 - 1 / (share * weights.size))
            factor = sd / moments(draws).sd
            for name in ("mcse_mean", "mcse_sd"):
                diagnosed[name] = diagnosed[name] * factor / np.sqrt(share)
            for name in ("ess_bulk", "ess_tail"):
                diagnosed[name] = diagnosed[name] * share
        from .summary import COLUMNS, SummaryTable

        content = {"mean": found.mean, "sd": sd, "q05": low, "median": median, "q95": high}
        table = pd.DataFrame(content | diagnosed, index=pd.Index(entry_names))
        made = SummaryTable(table[list(COLUMNS)])
        missing = self.settings.get("model", {}).get("missing values")
        notes = {"errors": self.settings.get("errors"), "missing values": missing}
        said = [f"{what}: {note}" for what, note in notes.items() if note]
        if said:
            made.attrs["note"] = "\n".join(said)
        return made

    def _labelled(self, labels: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Dimensions by quantity, and entries by dimension, with those that labels name."""
        if labels is not None and not isinstance(labels, Mapping):
            raise InvalidInput("labels", "map parameter names to lists of entry names", labels)
        dims, coords = dict(self.quantities.dims), dict(self.quantities.coords)
        for name, entries in check_labels(labels or {}, self.quantities.shapes).items():
            dims[name], coords[f"{name}_dim"] = (f"{name}_dim",), tuple(entries)
        return dims, coords

    def with_posterior(self, posterior: AbstractPosterior) -> Draws:
        """The same draws with what the posterior knows about new rows.

        Draws that `tallmc.load` returns need it before they predict.

        **Arguments:**

        - `posterior`: the posterior of these draws. Its rows may be others.
        """
        check_posterior(posterior)
        here, there = self.layout, posterior.layout
        if (here.names, here.shapes) != (there.names, there.shapes):
            rule = f"have the parameters of the draws ({', '.join(here.names)})"
            found = ", ".join(f"{a} {b}" for a, b in zip(there.names, there.shapes, strict=True))
            raise InvalidInput("posterior", rule, found)
        quantities = self.quantities
        if isinstance(quantities, StoredQuantities):
            quantities = copy.copy(quantities)
            quantities.computed_by = posterior.quantities
        return dataclasses.replace(self, predictive=posterior.predictive, quantities=quantities)

    def predict(
        self,
        new_rows: Any,
        *,
        interval: float = 0.9,
        kind: str = "mean",
        n_draws: int | None = MOST_DRAWS,
        seed: int = 0,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
        missing: str = "raise",
        new_groups: str = "raise",
    ) -> Prediction:
        """Predict the response of new rows, averaged over draws.

        Failed chains are left out, and draws of decreasing steps are weighted (`weights`).

        **Arguments:**

        - `new_rows`: a design matrix with the columns of the fit, or a data frame with their
          names. Rows in the structure of the data for a `tallmc.Posterior` with `mean`. The table
          for draws from a formula. A row store, or `posterior.rows` of one: its shards are read
          one after the other.
        - `interval`: the probability of the central interval.
        - `kind`: "mean" for E(y | θ, x), whose interval shows the uncertainty of the parameters;
          "response" for y itself, with its noise; "median" for the median survival time.
        - `n_draws`: how many draws are used at most, evenly thinned, from all chains together; None
          for all. 1,000 draws have a Monte-Carlo error of 3 % of the sd of a prediction.
        - `seed`: seed of the simulated responses.
        - `offset`: a number per row that is added to its predictor.
        - `trials`: the number of trials per row of a binomial response; 1 by default.
        - `missing`: "raise", or "nan" for NaN in rows of a table that have missing values.
        - `new_groups`: "raise", or "draw" for groups of a term `(1 + x | group)` that the fit has
          not seen: their effects are drawn from N(0, Σ), with the sds and correlations of each
          draw. Rows of one new group of the table share its effects.

        **Returns:** a `Prediction` with mean, sd and interval per row, and per class if there are
        several.

        >>> import tallmc
        >>> X, y = [[1.0], [2.0], [3.0]], [1.1, 1.9, 3.0]
        >>> fit = tallmc.models.linear_regression(X, y, prior_variance=9.0, noise_variance=0.01)
        >>> draws = tallmc.sample(fit, tallmc.methods.mala(0.001), n_draws=200, burn_in=100)
        >>> prediction = draws.predict([[2.0], [4.0]])
        >>> [round(value) for value in prediction.mean.tolist()]
        [2, 4]
        >>> prediction.to_frame().columns.tolist()
        ['mean', 'sd', 'low', 'high']
        """
        options = {"offset": offset, "trials": trials, **_with_groups(new_groups)}
        law, finish = self._law_of(new_rows, n_draws, missing, **options)
        return finish(law.predict(interval, kind, seed))

    def survival(
        self,
        new_rows: Any,
        times: ArrayLike | Sequence[float],
        *,
        interval: float = 0.9,
        n_draws: int | None = MOST_DRAWS,
        missing: str = "raise",
        new_groups: str = "raise",
    ) -> Prediction:
        """Predict survival curves P(T > t) of new rows at some times, averaged over draws.

        **Arguments:** those of `predict`, and

        - `times`: the times, in the units of the table. Rows are followed from time 0.

        **Returns:** a `Prediction` with arrays (rows, times): mean, sd and a band per row and time.
        """
        law, finish = self._law_of(new_rows, n_draws, missing, **_with_groups(new_groups))
        return finish(law.survival(interval, times))

    def _law_of(
        self, new_rows: Any, n_draws: int | None, missing: str = "raise", **options: Any
    ) -> tuple[DrawnLaw, Callable[[Prediction], Prediction]]:
        """The law of new rows, and what adds the index of a data frame and incomplete rows."""
        if missing not in ("raise", "nan"):
            raise InvalidInput("missing", "be 'raise' or 'nan'", missing)
        is_frame = type(new_rows).__module__.partition(".")[0] == "pandas"
        index, complete = (new_rows.index if is_frame else None), None
        if missing == "nan":
            new_rows, complete = self._predictive.complete(new_rows)
            new_rows = new_rows.rows(complete)
        rows, used = self.encoded(new_rows, **options), used_draws(self, n_draws)

        def finish(found: Prediction) -> Prediction:
            found = dataclasses.replace(found, index=index)
            return found if complete is None else found.with_missing(complete)

        return DrawnLaw(self._predictive, used, rows), finish

    def posterior_predictive(
        self,
        new_rows: Any,
        *,
        n_draws: int | None = MOST_DRAWS,
        seed: int = 0,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
        new_groups: str = "raise",
    ) -> Float[np.ndarray, "chains draws n"]:
        """Simulate the response of new rows.

        **Arguments:** as in `predict`.

        **Returns:** one response per chain, draw and row; NaN for failed chains. Classes are
        numbered.
        """
        options = {"offset": offset, "trials": trials, **_with_groups(new_groups)}
        law, _ = self._law_of(new_rows, n_draws, "raise", **options)
        return law.gathered(law.simulations(seed), self.ok)

    def average_response(
        self, new_rows: Any, *, n_draws: int | None = MOST_DRAWS
    ) -> Float[np.ndarray, "k ..."]:
        """E(y | θ, x) averaged over rows, in each draw.

        **Arguments:** as in `predict`.

        **Returns:** one number per draw, or one per draw and class.
        """
        law, _ = self._law_of(new_rows, n_draws)
        return law.sums()[0] / law.rows.n_rows

    def log_likelihood(
        self,
        rows: Any,
        *,
        n_draws: int | None = None,
        offset: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Float[np.ndarray, "chains draws n"]:
        """Log p(y | θ, x) of rows with responses, with all constants.

        **Arguments:**

        - `rows`: (X, y) with X as in `predict`, or rows of the posterior (`posterior.data`).
        - `n_draws`, `offset`, `trials`: as in `predict`; all draws by default.

        **Returns:** one number per chain, draw and row; NaN for failed chains.
        """
        law, _ = self._law_of(rows, n_draws, response=True, offset=offset, trials=trials)
        return law.gathered(law.log_likelihoods(), self.ok)

    def update(self, new_rows: Any, *, old_rows: Any = None, **options: Any) -> Draws:
        """Add new rows to a fit of the default method, without fitting the old ones again.

        The fit keeps the hard rows and the series of all others. The series moves to the mode that
        the new rows give, and theirs is added: the cost hardly depends on the number of old rows.

        **Arguments:**

        - `new_rows`: rows with responses: the table for draws from a formula or a table; (X, y) or
          rows as in `posterior.data` for others. Or the row store of the fit, after rows have been
          added to it (`tallmc.ingest(..., append=True)`): the rows that the fit does not know.
        - `old_rows`: all rows of the fit and of earlier updates, in the form of `new_rows`, if they
          are still there. The draws are then checked on all rows, otherwise on the new ones only,
          and the verdict says so. A row store has the old rows itself.
        - `options`: `chains`, `n_draws`, `ess`, `max_seconds`, `seed`, `progress`, `callback` and
          `executor` of `tallmc.sample`.

        **Returns:** draws from the posterior of all rows, which can be updated again. Columns are
        scaled as in the first fit, whose default priors stay.
        """
        return Draws.updater(self, new_rows, old_rows, **options)

    def group_effects(self, *, n_draws: int = 100) -> pd.DataFrame:
        """Means and sds of the effects of all groups of a fit with one term and over 100 groups.

        They are averages over draws of the shared parameters of the means and variances that a
        group has given these, so that few draws are enough and memory does not grow with them.

        **Arguments:**

        - `n_draws`: how many draws are used at most, evenly thinned, from all chains together.

        **Returns:** a table with one row per group; columns such as `1|shop` and `1|shop_sd`.
        """
        import pandas as pd

        model = getattr(self._predictive, "model", None)
        if not isinstance(model, RegressionWithEffects):
            rule = "be of a fit with one group term and more than 100 groups"
            cure = "Effects of fewer groups, or of several terms, are in draws.summary()."
            raise InvalidInput("draws", rule, "other ones", cure)
        mean, sd = model.effect_moments(used_draws(self, n_draws).flat)
        names = model.names.value
        content: dict[str, np.ndarray] = {}
        for k, term in enumerate(names.terms):
            content |= {term: mean[:, k], f"{term}_sd": sd[:, k]}
        return pd.DataFrame(content, index=pd.Index(names.levels, name=names.group))

    def smooths(self, *, interval: float = 0.9) -> pd.DataFrame:
        """The smooth terms of a fit: how straight each is.

        **Arguments:**

        - `interval`: the probability of the interval of `sd`.

        **Returns:** a table with one row per term: its effective degrees of freedom `edf`, the
        largest number that its `k` allows (`most`), and the posterior mean `sd`, with interval, of
        the scale σ of what is not straight in it.
        """
        interval = check_number("interval", interval, 0, 1, low_open=True, high_open=True)
        return smooth_table(self._smooths, used_draws(self).flat, interval)

    def smooth(
        self, term: str, *, points: int | None = None, interval: float = 0.9
    ) -> pd.DataFrame:
        """The curve of a smooth term, with a band.

        The curve is that of the predictor: in the units of the response, or of its link. It is zero
        on average over the rows.

        **Arguments:**

        - `term`: the term, such as "s(age)"; `smooths` lists them.
        - `points`: points along each column; 100 by default, or 30 by 30 for two columns.
        - `interval`: the probability of the pointwise intervals.

        **Returns:** a table with the columns of the term, and mean, sd, low and high.
        """
        interval = check_number("interval", interval, 0, 1, low_open=True, high_open=True)
        found = {effect.name: effect for effect, _ in self._smooths}
        if term not in found:
            raise InvalidInput("term", f"be one of {', '.join(found)}", term)
        effect = found[term]
        points = check_int("points", points or (100 if len(effect.variables) == 1 else 30), 2)
        return smooth_curve(effect, used_draws(self, _MOST_CURVES).flat, points, interval)

    @property
    def _smooths(self) -> list[tuple[SmoothEffect, ScaleMixturePrior]]:
        predictive = self._predictive
        found = predictive.smooths.value if isinstance(predictive, RegressionPredictive) else ()
        if not found or not isinstance(predictive, RegressionPredictive):
            cure = "Write a formula such as y ~ s(x)."
            raise InvalidInput("draws", "be of a fit with smooth terms", "others", cure)
        priors = {tuple(map(int, at)): prior for at, prior in predictive.model.scale_mixtures()}
        return [(effect, priors[effect.wiggly]) for effect in found]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the draws to one NetCDF file in ArviZ's schema; `tallmc.load` reads it.

        **Arguments:**

        - `path`: the file, such as "draws.nc". An existing file is replaced.
        """
        write_draws(self, path)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Draws:
        """The draws that `save` wrote; `tallmc.load` also reads other results."""
        fields = read_draws(path)
        return cls(**fields | {"timing": Timing(**fields["timing"])})

    def _add_predictive_groups(self, tree: xr.DataTree, simulated: Any, evaluated: Any) -> None:
        """Add the groups `posterior_predictive`, `log_likelihood` and `observed_data`."""
        import arviz_base

        groups: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
        name, observed = self._predictive.response_name, None
        if evaluated is not None:
            every = np.arange(self.positions.shape[1])
            groups["log_likelihood"] = self.log_likelihood(evaluated), every
            observed = self._observed(evaluated)
        if simulated is not None:
            most = MOST_DRAWS if evaluated is None else None  # ArviZ aligns the draws of both
            kept = used_draws(self, most).kept
            groups["posterior_predictive"] = (
                self.posterior_predictive(simulated, n_draws=most),
                kept,
            )
            seen = self._observed(simulated)
            observed = observed if seen is None else seen
        if observed is not None:
            groups["observed_data"] = observed, None
        for group, (values, kept_draws) in groups.items():
            # ArviZ takes responses for counts if they are integers; NaN marks failed chains.
            if self._predictive.whole and group != "log_likelihood" and np.isfinite(values).all():
                values = np.rint(values).astype(np.int64)
            coords = {} if kept_draws is None else {"draw": kept_draws}
            made = arviz_base.from_dict(
                {group: {name: values}}, coords=coords, dims={name: ["row"]}
            )
            tree[group] = made[group]

    def _observed(self, rows: Any) -> np.ndarray | None:
        predictive = self._predictive
        try:
            encoded = predictive.encode(rows, response=True)
        except InvalidInput:  # rows without responses
            return None
        found = predictive.observed(encoded)
        return None if found is None or np.isnan(found).any() else np.asarray(found)

    @property
    def _predictive(self) -> AbstractPredictive:
        if self.predictive is None:
            cure = "Attach the posterior: draws.with_posterior(posterior)."
            if self.about.get("encoding", {}).get("groups"):
                cure = "Effects of groups are drawn from the rows: tallmc.load(path, data=table)."
            elif self.about.get("model"):  # `tallmc.load` has not taken its formula from a file
                formula = self.about["model"].get("formula")
                cure = f"If you trust its formula, pass it: tallmc.load(path, formula={formula!r})."
            raise InvalidInput("draws", "know the law of the response", "none", cure)
        return self.predictive

    def encoded(self, rows: Any, **options: Any) -> ResidentRows | ShardedRows:
        """Rows as the model sees them: those of a row store, or encoded from rows of the user."""
        stored = self.stored_rows(rows)
        return ResidentRows(self._predictive.encode(rows, **options)) if stored is None else stored

    def stored_rows(self, rows: Any) -> ShardedRows | None:
        """The rows of a row store, or of its folder, as the model sees them; None for others."""
        rows = open_rows(rows) if is_row_store(rows) else rows
        if not isinstance(rows, ShardedRows) or not isinstance(rows.view, ByName):
            return rows if isinstance(rows, ShardedRows) else None
        view = None if self.series is None else self.series.view
        view = self._predictive.view_of(rows) if view is None else view
        if view is None and self._predictive.reads_tables:
            return None
        if view is None:
            cure = "Pass the rows of the posterior of the store: posterior.rows."
            raise InvalidInput("rows", "be rows as the model sees them", "columns", cure)
        return rows.viewed(view)

    def _repr_html_(self) -> str:
        """The verdict, the size and the summary of a small run, for notebooks."""
        _, draws, d = self.positions.shape
        small = self.ok.any() and draws >= 4 and d <= _MOST_IN_HTML
        table = (self.summary()._repr_html_() or "") if small else ""
        return f"<div>{self.report._repr_html_()}<p>{html.escape(repr(self))}</p>{table}</div>"

    def __repr__(self) -> str:
        chains, draws, d = self.positions.shape
        failed = int((~self.ok).sum())
        failures = f", {failed} failed" if failed else ""
        size = (
            counted(chains, "chain") + failures,
            counted(draws, "draw"),
            counted(d, "parameter"),
        )
        return f"Draws({' × '.join(size)}; {counted(self.n_row_evals, 'row')} touched)"


def _with_groups(new_groups: str) -> dict[str, bool]:
    """The option of `encode` for groups that the fit has not seen."""
    if new_groups not in ("raise", "draw"):
        raise InvalidInput("new_groups", "be 'raise' or 'draw'", new_groups)
    return {"new_groups": True} if new_groups == "draw" else {}
