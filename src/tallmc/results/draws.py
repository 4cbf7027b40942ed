"""The result of a run: draws, statistics, outcomes and costs.

Draws are NumPy arrays. `Draws.to_datatree` converts them to an ArviZ DataTree.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from ..core.errors import InvalidInput
from ..core.layout import Layout, check_labels
from ..core.outcome import Outcome
from ..core.packages import check_installed
from ..core.quantities import AbstractQuantities, Parameters, StoredQuantities, flat
from ..core.words import counted
from ..methods.account import Account
from ..methods.base import AbstractMethod
from ..methods.method import Method
from ..models.predictive import AbstractPredictive
from ..schedule import Cyclical
from ..statistics.convergence import Agreement
from ..statistics.group_moments import GroupMoments
from ..statistics.moments import moments
from ..statistics.weighting import quantiles, weight_efficiency
from .health import Health, assess
from .html import draws_html
from .node_names import node_names
from .predicting import AbstractPredictingDraws
from .saving import save

if TYPE_CHECKING:
    import xarray as xr

    from .summary_table import SummaryTable

_MOST_IN_HTML = 50  # parameters; the summary of more takes seconds


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds spent in each phase of a run.

    **Arguments:**

    - `preparation`: everything before compilation, such as the anchor and the weights.
    - `compilation`: compiling the sampling loop.
    - `sampling`: running steps. A resumed run includes the time of earlier processes.
    - `checking`: measuring the bias after the run.

    >>> Timing(preparation=0.5, compilation=1.0, sampling=3.0).sampling
    3.0
    """

    preparation: float
    compilation: float
    sampling: float
    checking: float = 0.0


@dataclasses.dataclass(frozen=True)
class Draws(AbstractPredictingDraws):
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
    - `group_moments`: means and standard deviations of the parameters of all groups of a
        `LocalPosterior`, by kind; empty for other posteriors and for draws from a store.

    >>> from tallmc.core.layout import layout_of
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

    def __post_init__(self) -> None:
        if self.quantities is None:
            object.__setattr__(self, "quantities", Parameters(self.layout))

    @functools.cached_property
    def health(self) -> Health:
        """What was chosen and why, estimated errors, and reasons for doubt."""
        return self._assess(None)

    def _assess(self, agreed: Agreement | None) -> Health:
        account = Account(self.settings.get("method")) if self.account is None else self.account
        efficiency = weight_efficiency(self.weights)
        return assess(self.positions, self.ok, self.sample_stats, account, efficiency, agreed)

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
        - `posterior_predictive`: rows whose responses are simulated, as in `posterior_predictive`.
        - `log_likelihood`: rows with responses, as in `log_likelihood`.

        **Returns:** a tree with groups `posterior` and `sample_stats`; with rows also
        `posterior_predictive`, `log_likelihood` and, if responses are known, `observed_data`. All
        draws of a failed chain are NaN. If draws count differently, `sample_stats` has their
        `weight`. ArviZ does not use it: `Draws.summary` does.

        **Raises:** `InvalidInput` if `labels` does not fit the parameters, or rows do not fit the
        model.
        """
        if labels is not None and not isinstance(labels, Mapping):
            raise InvalidInput("labels", "map parameter names to lists of entry names", labels)
        check_installed("arviz_base", needed_by="Draws.to_datatree")
        import arviz_base

        named, entries_of = dict(self.quantities.dims), dict(self.quantities.coords)
        for name, entries in check_labels(labels or {}, self.quantities.shapes).items():
            entries_of[f"{name}_dim"], named[name] = tuple(entries), (f"{name}_dim",)
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
            **{
                f"seconds_{part}": seconds
                for part, seconds in dataclasses.asdict(self.timing).items()
            },
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

        **Raises:** `InvalidInput` if no chain completed.
        """
        if not self.ok.any():
            raise InvalidInput(
                "draws",
                "have a chain that completed",
                f"outcomes {[o.name for o in self.outcomes]}",
            )
        check_installed("arviz_base", "arviz_stats", needed_by="Draws.summary")
        import arviz_stats

        values = {
            name: np.asarray(array[self.ok], np.float64) for name, array in self.values.items()
        }
        complete = dataclasses.replace(
            self,
            positions=self.positions[self.ok],
            outcomes=tuple(outcome for outcome in self.outcomes if outcome is Outcome.OK),
            sample_stats={},
            quantities=StoredQuantities(values, self.quantities.dims, self.quantities.coords),
        )
        entries = complete.flat_values
        tree = complete.to_datatree(labels)
        # Entries that are constant, such as the zeros of a Cholesky factor, have no R-hat.
        with np.errstate(invalid="ignore", divide="ignore"):
            table = arviz_stats.summary(tree, ci_prob=0.9, ci_kind="eti", round_to="none")
        table = table.rename(columns={"eti90_lb": "q05", "eti90_ub": "q95", "r_hat": "rhat"})
        if labels is None:
            table.index = self.quantities.entry_names()
        weights = None if self.weights is None else self.weights[self.ok]
        low, median, high = quantiles(entries, (0.05, 0.5, 0.95), weights)
        table.insert(2, "median", median)
        if weights is not None:
            share, found = weight_efficiency(weights), moments(entries, weights)
            # For equal weights this is the factor n/(n − 1) of an unbiased variance.
            sd = found.sd / np.sqrt(1 - 1 / (share * weights.size))
            errors = ["mcse_mean", "mcse_sd"]
            table[errors] = table[errors].mul(sd / table["sd"].to_numpy() / np.sqrt(share), axis=0)
            table[["ess_bulk", "ess_tail"]] *= share
            table["mean"], table["sd"], table["q05"], table["q95"] = found.mean, sd, low, high
        from .summary_table import COLUMNS, SummaryTable

        return SummaryTable(table[list(COLUMNS)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the draws to one NetCDF file in ArviZ's schema; `tallmc.load` reads it.

        **Arguments:**

        - `path`: the file, such as "draws.nc". An existing file is replaced.

        **Raises:** `InvalidInput` if the file cannot be written.
        """
        save(self, path)

    def _repr_html_(self) -> str:
        """The verdict, the size and the summary of a small run, for notebooks."""
        _, draws, d = self.positions.shape
        small = self.ok.any() and draws >= 4 and d <= _MOST_IN_HTML
        table = (self.summary()._repr_html_() or "") if small else ""
        return draws_html(self.health._repr_html_(), repr(self), table)

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


def with_health(draws: Draws, agreed: Agreement | None) -> Draws:
    """The same draws with their `health`, given the agreement of the chains if it is known."""
    draws = dataclasses.replace(draws)
    vars(draws)["health"] = draws._assess(agreed)  # where `cached_property` keeps its value
    return draws
