"""What the page is about: the run, its draws, and what can be computed from them and the posterior, where it is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from .._draws import Draws
from .._errors import InvalidInput
from .._kernel import Kernel
from .._posterior import AbstractPosterior
from ..diagnose.draws_ksd import in_units
from ..diagnose.gaussian import langevin_inflation
from ..diagnose.gradients import exact_gradients
from ..diagnose.ksd import ksd_path
from ..diagnose.pseudo_variance import pseudo_variance
from ..diagnose.stored import findings
from ..dynamics.langevin import LangevinDynamics
from ..schedule import Constant
from ..store.reader import Opened, draws_of
from ..store.setup import restored

_DRAWN = 6
_TRACE_POINTS = 400
_KSD_DRAWS = 400
_KSD_ROWS = 4 * 10**8
_NOISE_DRAWS = 5


@dataclasses.dataclass(frozen=True)
class Discrepancies:
    """KSD of longer and longer parts of the run, in the order in which rows were touched."""

    rows: np.ndarray
    ksd: np.ndarray


@dataclasses.dataclass(frozen=True)
class Noise:
    """Gradient noise, computed exactly at a few draws; predicted inflation where there is a formula for the dynamics."""

    trace: float
    inflation: float | None


@dataclasses.dataclass(frozen=True)
class Content:
    opened: Opened
    draws: Draws
    names: tuple[str, ...]
    """Of all parameters, entry by entry."""
    chosen: tuple[int, ...]
    """Those that are drawn."""
    warnings: tuple[str, ...]
    discrepancies: Discrepancies | None
    noise: Noise | None

    @property
    def complete(self) -> Float[np.ndarray, "chains draws d"]:
        """Chains that completed."""
        return self.draws.positions if self.draws.ok.all() else self.draws.positions[self.draws.ok]

    def trace(self, parameter: int) -> tuple[np.ndarray, Float[np.ndarray, "chains n"]]:
        """Numbers of some draws, evenly spaced, and a parameter's values there."""
        at = evenly(self.draws.positions.shape[1], _TRACE_POINTS)
        return at + 1, np.asarray(self.draws.positions[:, at, parameter], np.float64)


def evenly(count: int, most: int) -> np.ndarray:
    """At most so many numbers of `count`, evenly spaced, the last among them."""
    kept = min(count, most)
    return np.arange(1, kept + 1) * count // max(kept, 1) - 1


def make_content(opened: Opened, posterior: AbstractPosterior | None, parameters: Sequence[str] | None) -> Content:
    draws = draws_of(opened)
    names = parameter_names(opened)
    ksd = noise = None
    if posterior is not None and draws.ok.any() and draws.positions.shape[1] >= 4:
        ksd = _discrepancies(draws, posterior, opened.setup.arrays.get("anchor/factor"))
        noise = _noise(opened, draws, posterior)
    return Content(opened, draws, names, _chosen(names, parameters), tuple(findings(opened, draws)), ksd, noise)


def parameter_names(opened: Opened) -> tuple[str, ...]:
    """A name for each entry: its label where it has one."""
    found = []
    labels = opened.setup.content["labels"]
    for name, shape in opened.setup.content["parameters"].items():
        entries = labels.get(name, ())
        if not shape:
            found.append(str(name))
        elif len(shape) == 1 and len(entries) == shape[0]:
            found += [str(entry) for entry in entries]
        else:
            found += [f"{name}[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]
    return tuple(found)


def _chosen(names: tuple[str, ...], wanted: Sequence[str] | None) -> tuple[int, ...]:
    if not wanted:
        return tuple(range(min(_DRAWN, len(names))))
    for name in wanted:
        if name not in names:
            some = ", ".join(names[:10])
            raise InvalidInput("--parameter", f"be one of {some}{', …' if len(names) > 10 else ''}", name)
    return tuple(names.index(name) for name in dict.fromkeys(wanted))


def _discrepancies(draws: Draws, posterior: AbstractPosterior, factor: np.ndarray | None) -> Discrepancies:
    """In the units of the anchor, or of the draws' own standard deviations."""
    chains = np.flatnonzero(draws.ok)
    most = max(8, min(_KSD_DRAWS, _KSD_ROWS // posterior.n_rows) // len(chains))
    at = evenly(draws.positions.shape[1], most)
    in_time = np.asarray(draws.positions[np.ix_(chains, at)]).transpose(1, 0, 2).reshape(-1, draws.positions.shape[2])
    units = np.asarray(factor, np.float64) if factor is not None else np.maximum(in_time.std(axis=0, dtype=float), 1e-12)
    lengths = np.unique(np.geomspace(1, len(at), min(12, len(at))).round().astype(int))
    x, gradients = in_units(units, in_time.astype(np.float64), exact_gradients(posterior, in_time))
    touched = draws.sample_stats["n_row_evals"][:, at].sum(axis=0)
    return Discrepancies(touched[lengths - 1], ksd_path(x, gradients, at=[int(k) * len(chains) for k in lengths]))


def _noise(opened: Opened, draws: Draws, posterior: AbstractPosterior) -> Noise | None:
    """None where it is measured on the run anyway, or where it cannot be computed from one pass over the rows."""
    if "grad_noise" in draws.sample_stats or opened.setup.content["method"] is None:
        return None
    kernel = restored(opened.setup, posterior, None).kernel
    if not isinstance(kernel, Kernel):
        return None
    chain = int(np.flatnonzero(draws.ok)[0])
    at = evenly(draws.positions.shape[1], _NOISE_DRAWS)
    try:
        trace = float(np.mean([pseudo_variance(kernel, draws.positions[chain, draw]) for draw in at]))
    except InvalidInput:  # of this subsample it is not known
        return None
    step = float(draws.sample_stats["step_size"][chain, -1])
    if not isinstance(kernel.dynamics, LangevinDynamics) or not isinstance(kernel.schedule, Constant):
        return Noise(trace, None)
    return Noise(trace, _langevin_inflation(trace, step, posterior.dim))


def _langevin_inflation(trace: float, step: float, dim: int) -> float:
    """By noise alone, εv/4, with v the mean over coordinates."""
    far_from_unstable = 1e9 * step
    return float(langevin_inflation(far_from_unstable, step, trace / dim)) - 1
