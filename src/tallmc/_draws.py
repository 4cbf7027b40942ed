"""The result of a run: draws, statistics, outcomes, costs; as arrays first, as an ArviZ DataTree on request."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, PyTree

from ._account import Account
from ._errors import InvalidInput
from ._layout import Layout
from ._outcome import Outcome

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from .diagnose.health import Health


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds spent before, between and in the steps."""

    preparation: float
    compilation: float
    sampling: float


@dataclasses.dataclass(frozen=True)
class Draws:
    """Draws of `sample`. A chain that failed has NaN from its failure on, and is left out of summaries."""

    positions: Float[np.ndarray, "chains draws d"]
    """One flat vector a draw; `params` has the parameters' own structure."""
    sample_stats: dict[str, np.ndarray]
    """Per chain and draw: step_size, batch_size, n_row_evals (of this chain, cumulative) and what the dynamics adds."""
    outcomes: tuple[Outcome, ...]
    n_row_evals_sampling: int
    """Rows touched by all chains, burn-in included."""
    n_row_evals_preparation: int
    """Rows touched to find the anchor, the weights and so on."""
    timing: Timing
    layout: Layout
    settings: dict[str, Any]
    """What was run: method, seed, burn-in, thinning, sizes, versions."""
    account: Account | None = None
    """What an automatic choice says of itself."""
    stopped_by: str | None = None
    """What ended the run before its goal: "Ctrl-C", "SIGTERM", a limit, the store; None when nothing did."""

    @functools.cached_property
    def health(self) -> Health:
        """What was chosen, why, and how wrong the draws may be."""
        from .diagnose.health import assess

        return assess(self)

    @property
    def n_row_evals(self) -> int:
        """Rows touched in all, preparation included."""
        return self.n_row_evals_preparation + self.n_row_evals_sampling

    @property
    def ok(self) -> np.ndarray:
        """Which chains completed."""
        return np.array([outcome is Outcome.OK for outcome in self.outcomes])

    @property
    def params(self) -> PyTree[np.ndarray]:
        """The draws in the structure of `init`, each leaf with (chains, draws) in front."""
        return self.layout.unravel(self.positions)

    def to_datatree(self, labels: Mapping[str, Sequence[str]] | None = None) -> xr.DataTree:
        """An ArviZ-schema `xarray.DataTree` with groups posterior and sample_stats.

        A chain that failed is NaN throughout. `labels` names the entries of a vector parameter:
        `labels={"beta": ["intercept", "age"]}`.
        """
        if labels is not None and not isinstance(labels, Mapping):
            raise InvalidInput("labels", "map parameters to the names of their entries", labels)
        import arviz_base

        coords, dims = {}, {}
        for name, entries in (labels or {}).items():
            if name not in self.layout.names:
                raise InvalidInput("labels", f"name parameters among {', '.join(self.layout.names)}", name)
            shape = self.layout.shapes[self.layout.names.index(name)]
            if shape != (len(entries),):
                raise InvalidInput(f"labels[{name!r}]", f"have one name an entry {shape}".replace(",)", ")"), len(entries))
            coords[f"{name}_dim"], dims[name] = list(entries), [f"{name}_dim"]
        completed = np.where(self.ok[:, None, None], self.positions, np.nan)  # nothing of a failed chain passes for a draw
        tree = arviz_base.from_dict(
            {"posterior": self.layout.split(completed), "sample_stats": self.sample_stats}, coords=coords, dims=dims
        )
        attributes = {
            **{key: value if isinstance(value, (int, str)) else repr(value) for key, value in self.settings.items()},
            "outcomes": [outcome.name.lower() for outcome in self.outcomes],
            "n_row_evals": self.n_row_evals,
            "n_row_evals_preparation": self.n_row_evals_preparation,
            **{f"seconds_{part}": seconds for part, seconds in dataclasses.asdict(self.timing).items()},
        }
        tree.attrs.update(attributes)
        return tree

    def summary(self, labels: Mapping[str, Sequence[str]] | None = None) -> pd.DataFrame:
        """Mean, sd, median, 5 % and 95 % quantiles, effective sample sizes, R-hat and Monte-Carlo errors, a row a parameter.

        Over the chains that completed. R-hat needs two chains or more and at least four draws.
        """
        if not self.ok.any():
            raise InvalidInput("draws", "have a chain that completed", f"outcomes {[o.name for o in self.outcomes]}")
        import arviz_stats

        complete = dataclasses.replace(
            self,
            positions=np.asarray(self.positions[self.ok], np.float64),
            outcomes=tuple(outcome for outcome in self.outcomes if outcome is Outcome.OK),
            sample_stats={},
        )
        tree = complete.to_datatree(labels)
        table = arviz_stats.summary(tree, ci_prob=0.9, ci_kind="eti", round_to="none")
        table = table.rename(columns={"eti90_lb": "q05", "eti90_ub": "q95", "r_hat": "rhat"})
        table.insert(2, "median", np.median(complete.positions, axis=(0, 1)))
        return table

    def __repr__(self) -> str:
        chains, draws, d = self.positions.shape
        failed = int((~self.ok).sum())
        trouble = f", {failed} failed" if failed else ""
        return f"Draws({chains} chains{trouble} × {draws} draws × {d} parameters; {self.n_row_evals:,} rows touched)"
