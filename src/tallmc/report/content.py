"""The content of the report: the run, its draws, and diagnostics computed from them.

Some diagnostics need the posterior and are left out without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .._core.errors import InvalidInput
from .._core.statistics import evenly
from .._engine.kernel import Kernel
from .._fit.encoding import smooths_of
from .._fit.regression import saved_form
from .._rows.resident import ResidentRows
from .._store.reader import OpenStore, draws_of
from .._store.setup import restored
from ..diagnose.gaussian import langevin_inflation
from ..diagnose.ksd import exact_gradients, in_units, ksd_path
from ..diagnose.pseudo_variance import pseudo_variance
from ..dynamics import Langevin
from ..models.posterior import AbstractPosterior
from ..results.draws import Draws
from ..schedule import Constant

if TYPE_CHECKING:
    import pandas as pd

# What a posterior predictive check compares: responses of the data, and simulated ones.

_MOST_ROWS = 5_000
_SIMULATIONS = 100


@dataclasses.dataclass(frozen=True)
class PredictiveCheck:
    """Responses of some rows, and what the draws say about them."""

    observed: Float[np.ndarray, " m"]
    """One per row; none if they are unknown."""
    simulated: Float[np.ndarray, "k n"]
    probability: Float[np.ndarray, " n"] | None
    response: str
    classes: tuple[str, ...] | None


def predictive_check(draws: Draws, posterior: AbstractPosterior) -> PredictiveCheck | None:
    """The check on evenly spaced rows; None if rows are on disk, or the law is unknown."""
    rows, predictive = posterior.rows, posterior.predictive
    if predictive is None or not isinstance(rows, ResidentRows):
        return None
    some = rows.take(jnp.asarray(evenly(rows.n_rows, _MOST_ROWS)))
    responses = predictive.observed(some)
    if responses is None:
        return None
    observed, known = np.asarray(responses, np.float64), draws.with_posterior(posterior)
    simulated = known.posterior_predictive(some, n_draws=_SIMULATIONS)[draws.ok]
    is_binary = bool(np.isin(observed, (0, 1)).all()) and bool(np.isin(simulated, (0, 1)).all())
    return PredictiveCheck(
        observed,
        simulated.reshape(-1, len(observed)).astype(np.float64),
        known.predict(some).mean if is_binary and predictive.classes is None else None,
        predictive.response_name,
        predictive.classes,
    )


class SmoothCurve(NamedTuple):
    """A smooth term on a grid, with its effective degrees of freedom and their largest number."""

    name: str
    variables: tuple[str, ...]
    table: pd.DataFrame
    edf: float
    most: float


_MOST_SMOOTHS = 12


def smooth_curves(opened: OpenStore, draws: Draws) -> tuple[SmoothCurve, ...]:
    """The smooth terms of a stored fit; none if its formula is not plain."""
    try:
        form = saved_form(opened.setup.content["about"], None)
    except InvalidInput:
        return ()
    if form is None or not smooths_of(form.encoding.scaled.terms):
        return ()
    known = draws.with_posterior(form.without_rows())
    found = known.smooths()
    curves = []
    for name in found.index[:_MOST_SMOOTHS]:
        table = known.smooth(name, points=60)
        variables = tuple(table.columns[: table.columns.get_loc("mean")])
        curves.append(SmoothCurve(name, variables, table, *found.loc[name, ["edf", "most"]]))
    return tuple(curves)


_DEFAULT_PARAMETERS = 6
_TRACE_POINTS = 400
_KSD_DRAWS = 400
_KSD_ROWS = 4 * 10**8
_NOISE_DRAWS = 5


class Discrepancies(NamedTuple):
    """KSD of prefixes of the run, by the number of rows touched."""

    rows: np.ndarray
    ksd: np.ndarray


class NoiseSummary(NamedTuple):
    """Exact gradient noise, averaged over a few draws."""

    trace: float
    inflation: float | None  # predicted from the noise if the dynamics have a formula


@dataclasses.dataclass(frozen=True)
class Content:
    """Everything that the report shows."""

    opened: OpenStore
    draws: Draws
    names: tuple[str, ...]  # one name per entry of the parameters
    chosen: tuple[int, ...]  # indices of the entries that are plotted
    warnings: tuple[str, ...]
    discrepancies: Discrepancies | None
    noise: NoiseSummary | None
    check: PredictiveCheck | None
    smooths: tuple[SmoothCurve, ...] = ()

    @property
    def complete(self) -> Float[np.ndarray, "chains draws entries"]:
        """The draws of the chains that completed."""
        values = self.draws.flat_values
        return values if self.draws.ok.all() else values[self.draws.ok]

    @property
    def complete_weights(self) -> Float[np.ndarray, "chains draws"] | None:
        """The weights of these draws; None if all count the same."""
        return None if self.draws.weights is None else self.draws.weights[self.draws.ok]

    def trace(self, parameter: int) -> tuple[np.ndarray, Float[np.ndarray, "chains n"]]:
        """Numbers of evenly spaced draws, and the values of a parameter at these draws."""
        kept = evenly(self.draws.positions.shape[1], _TRACE_POINTS)
        return kept + 1, np.asarray(self.draws.flat_values[:, kept, parameter], np.float64)


def make_content(
    opened: OpenStore, posterior: AbstractPosterior | None, parameters: Sequence[str] | None
) -> Content:
    draws = draws_of(opened)
    names = tuple(draws.quantities.entry_names())
    ksd = noise = check = None
    if posterior is not None and draws.ok.any() and draws.positions.shape[1] >= 4:
        ksd = _discrepancies(draws, posterior, opened.setup.arrays.get("anchor/factor"))
        noise = _noise(opened, draws, posterior)
        check = predictive_check(draws, posterior)
    return Content(
        opened,
        draws,
        names,
        _chosen(names, parameters),
        tuple(stored_doubts(opened, draws)),
        ksd,
        noise,
        check,
        smooth_curves(opened, draws) if draws.ok.any() else (),
    )


def _chosen(names: tuple[str, ...], wanted: Sequence[str] | None) -> tuple[int, ...]:
    if not wanted:
        return tuple(range(min(_DEFAULT_PARAMETERS, len(names))))
    found = {name.partition("[")[2][:-1]: at for at, name in enumerate(names)}
    found |= {name: at for at, name in enumerate(names)}  # an entry's own name is enough
    for name in wanted:
        if name not in found:
            known = ", ".join([*names[:10], *(["…"] if len(names) > 10 else [])])
            raise InvalidInput("--parameter", f"be one of {known}", name)
    return tuple(dict.fromkeys(found[name] for name in wanted))


def _discrepancies(
    draws: Draws, posterior: AbstractPosterior, factor: np.ndarray | None
) -> Discrepancies:
    """KSD in the units of the anchor, or of the standard deviations of the draws."""
    chains = np.flatnonzero(draws.ok)
    most = max(8, min(_KSD_DRAWS, _KSD_ROWS // posterior.n_rows) // len(chains))
    kept = evenly(draws.positions.shape[1], most)
    chosen = np.asarray(draws.positions[np.ix_(chains, kept)])
    in_time = chosen.transpose(1, 0, 2).reshape(-1, chosen.shape[2])
    units = np.maximum(in_time.std(axis=0, dtype=float), 1e-12)
    if factor is not None:
        units = np.asarray(factor, np.float64)
    lengths = np.unique(np.geomspace(1, len(kept), min(12, len(kept))).round().astype(int))
    x, gradients = in_units(units, in_time.astype(np.float64), exact_gradients(posterior, in_time))
    touched = draws.sample_stats["n_row_evals"][:, kept].sum(axis=0)
    ksd = ksd_path(x, gradients, at=[int(k) * len(chains) for k in lengths])
    return Discrepancies(touched[lengths - 1], ksd)


def _noise(opened: OpenStore, draws: Draws, posterior: AbstractPosterior) -> NoiseSummary | None:
    """The exact noise at a few draws; None if the run measured it, or one pass cannot give it."""
    if "grad_noise" in draws.sample_stats or opened.setup.content["method"] is None:
        return None
    bound = restored(opened.setup, posterior, None).bound
    kernel = bound.kernel
    if not isinstance(kernel, Kernel):
        return None
    chain = int(np.flatnonzero(draws.ok)[0])
    kept = evenly(draws.positions.shape[1], _NOISE_DRAWS)
    langevin = kernel.dynamics if type(kernel.dynamics) is Langevin else None
    geometry = None if langevin is None else langevin.geometry
    try:
        positions = draws.positions[chain, kept]
        trace = float(
            np.mean([pseudo_variance(bound, position, geometry=geometry) for position in positions])
        )
    except InvalidInput:  # the subsample has no exact pseudo-variance
        return None
    if langevin is None or not isinstance(kernel.schedule, Constant):
        return NoiseSummary(trace, None)
    # Inflation by noise alone, εv/4, with v averaged over coordinates: far from an unstable step.
    step = float(draws.sample_stats["step_size"][chain, -1])
    inflation = float(langevin_inflation(1e9 * step, step, trace / posterior.dim)) - 1
    return NoiseSummary(trace, inflation)


def stored_doubts(opened: OpenStore, draws: Draws) -> list[str]:
    """Damaged files, an unfinished run, and the doubts of the draws of the store."""
    found = []
    if opened.damaged:
        listed = ", ".join(opened.damaged[:3])
        cure = "Resume the run: it falls back to the last block before the damage."
        found.append(f"{len(opened.damaged)} files are damaged or missing ({listed}). {cure}")
    if not opened.manifest.finished:
        why = opened.manifest.progress.get("stopped_by")
        ended = f": {why} ended it" if why else ""
        so_far = f"it has {opened.manifest.n_draws:,} draws per chain"
        found.append(f"the run is not finished{ended}; {so_far}. Continue with `tallmc resume`.")
    found += [str(message) for message in opened.manifest.progress.get("warnings", [])]
    return list(dict.fromkeys([*found, *draws.report.doubts]))
