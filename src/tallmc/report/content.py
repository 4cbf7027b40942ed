"""The content of the report: the run, its draws, and diagnostics computed from them.

Some diagnostics need the posterior and are left out without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ..core.errors import InvalidInput
from ..diagnose.draws_ksd import in_units
from ..diagnose.gaussian import langevin_inflation
from ..diagnose.gradients import exact_gradients
from ..diagnose.ksd import ksd_path
from ..diagnose.pseudo_variance import pseudo_variance
from ..diagnose.stored import findings
from ..dynamics.langevin import LangevinDynamics
from ..engine.kernel import Kernel
from ..models.posterior import AbstractPosterior
from ..results.draws import Draws
from ..schedule import Constant
from ..statistics.thinned_history import evenly
from ..store.reader import OpenStore, draws_of
from ..store.setup import restored
from .predictive_check import PredictiveCheck, predictive_check

_DEFAULT_PARAMETERS = 6
_TRACE_POINTS = 400
_KSD_DRAWS = 400
_KSD_ROWS = 4 * 10**8
_NOISE_DRAWS = 5


@dataclasses.dataclass(frozen=True)
class Discrepancies:
    """KSD of prefixes of the run, by the number of rows touched."""

    rows: np.ndarray
    ksd: np.ndarray


@dataclasses.dataclass(frozen=True)
class NoiseSummary:
    """Exact gradient noise, averaged over a few draws.

    `inflation` is predicted from it if the dynamics have a formula, and None otherwise.
    """

    trace: float
    inflation: float | None


@dataclasses.dataclass(frozen=True)
class Content:
    """Everything that the report shows."""

    opened: OpenStore
    draws: Draws
    names: tuple[str, ...]
    """One name per entry of the parameters."""
    chosen: tuple[int, ...]
    """Indices of the entries that are plotted."""
    warnings: tuple[str, ...]
    discrepancies: Discrepancies | None
    noise: NoiseSummary | None
    check: PredictiveCheck | None

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
    """Collect the content of the report."""
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
        tuple(findings(opened, draws)),
        ksd,
        noise,
        check,
    )


def _chosen(names: tuple[str, ...], wanted: Sequence[str] | None) -> tuple[int, ...]:
    if not wanted:
        return tuple(range(min(_DEFAULT_PARAMETERS, len(names))))
    found = {name.partition("[")[2][:-1]: at for at, name in enumerate(names)}
    found |= {name: at for at, name in enumerate(names)}  # an entry's own name is enough
    for name in wanted:
        if name not in found:
            known = ", ".join(names[:10])
            raise InvalidInput(
                "--parameter", f"be one of {known}{', …' if len(names) > 10 else ''}", name
            )
    return tuple(dict.fromkeys(found[name] for name in wanted))


def _discrepancies(
    draws: Draws, posterior: AbstractPosterior, factor: np.ndarray | None
) -> Discrepancies:
    """KSD in the units of the anchor, or of the standard deviations of the draws."""
    chains = np.flatnonzero(draws.ok)
    most = max(8, min(_KSD_DRAWS, _KSD_ROWS // posterior.n_rows) // len(chains))
    kept = evenly(draws.positions.shape[1], most)
    in_time = (
        np.asarray(draws.positions[np.ix_(chains, kept)])
        .transpose(1, 0, 2)
        .reshape(-1, draws.positions.shape[2])
    )
    units = (
        np.asarray(factor, np.float64)
        if factor is not None
        else np.maximum(in_time.std(axis=0, dtype=float), 1e-12)
    )
    lengths = np.unique(np.geomspace(1, len(kept), min(12, len(kept))).round().astype(int))
    x, gradients = in_units(units, in_time.astype(np.float64), exact_gradients(posterior, in_time))
    touched = draws.sample_stats["n_row_evals"][:, kept].sum(axis=0)
    return Discrepancies(
        touched[lengths - 1], ksd_path(x, gradients, at=[int(k) * len(chains) for k in lengths])
    )


def _noise(opened: OpenStore, draws: Draws, posterior: AbstractPosterior) -> NoiseSummary | None:
    """The exact noise at a few draws.

    None if the run measured its noise, or if one pass over the rows cannot give it.
    """
    if "grad_noise" in draws.sample_stats or opened.setup.content["method"] is None:
        return None
    bound = restored(opened.setup, posterior, None).bound
    kernel = bound.kernel
    if not isinstance(kernel, Kernel):
        return None
    chain = int(np.flatnonzero(draws.ok)[0])
    kept = evenly(draws.positions.shape[1], _NOISE_DRAWS)
    langevin = kernel.dynamics if isinstance(kernel.dynamics, LangevinDynamics) else None
    geometry = None if langevin is None else langevin.geometry
    try:
        positions = draws.positions[chain, kept]
        trace = float(
            np.mean([pseudo_variance(bound, position, geometry=geometry) for position in positions])
        )
    except InvalidInput:  # the subsample has no exact pseudo-variance
        return None
    step = float(draws.sample_stats["step_size"][chain, -1])
    if langevin is None or not isinstance(kernel.schedule, Constant):
        return NoiseSummary(trace, None)
    return NoiseSummary(trace, _langevin_inflation(trace, step, posterior.dim))


def _langevin_inflation(trace: float, step: float, dim: int) -> float:
    """Inflation by noise alone, εv/4, with v averaged over coordinates."""
    far_from_unstable = 1e9 * step
    return float(langevin_inflation(far_from_unstable, step, trace / dim)) - 1
