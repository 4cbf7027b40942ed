"""Figure 2: trace plots of all samplers on the logistic regression with d = 10.

As stated: every sampler without control variates starts at θ₀ ~ N(0, I), step sizes are those of
the authors' code. As it works: step sizes by `tallmc.suggest`, chains start at the mode. Iterations
until a chain has arrived are counted until every coordinate has once been within two standard
deviations of its posterior mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tallmc.methods.abstract import AbstractMethod

from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from . import review
from .review import ADVI, DEFAULT, NUTS, ReviewData, SamplerRun, TrueMoments

_SHOWN, _POINTS = (0, 2, 4, 6, 8), 400
_CV_METHODS = ("SGLD-CV", "SGHMC-CV", "SGNHT-CV")


def as_stated(setting: ExperimentSetting) -> Result:
    found, data = _runs(setting, review.stated_methods, at_mode=False)
    arrivals = {label: arrival(run, _truth(found)) for label, run in found.items()}
    return _result(found, data, arrivals, _arrival_claims(arrivals))


def as_works(setting: ExperimentSetting) -> Result:
    found, data = _runs(setting, review.suggested_methods, at_mode=True)
    arrivals = {label: arrival(run, _truth(found)) for label, run in found.items()}
    return _result(found, data, arrivals, [])


def _runs(
    setting: ExperimentSetting,
    methods_for: Callable[[ReviewData], dict[str, AbstractMethod]],
    *,
    at_mode: bool,
) -> tuple[dict[str, SamplerRun], ReviewData]:
    data = review.simulated(10, setting.pick(review.N_ROWS, 10_000))
    return review.all_runs(setting, data, methods_for(data), at_mode=at_mode), data


def _truth(found: dict[str, SamplerRun]) -> TrueMoments:
    draws = found[NUTS].positions[0]
    return TrueMoments(draws.mean(axis=0), draws.std(axis=0))


def arrival(run: SamplerRun, truth: TrueMoments) -> int | None:
    """Iterations until every coordinate has been within two posterior sds of its mean."""
    near = np.abs(run.positions[0] - truth.mean) < 2 * truth.sd
    return int(near.argmax(axis=0).max()) if near.any(axis=0).all() else None


def _result(
    found: dict[str, SamplerRun],
    data: ReviewData,
    arrivals: dict[str, int | None],
    claims: list[Claim],
) -> Result:
    traced = [label for label in found if label != ADVI]
    panels = [Panel(label, label, "iteration", "θ") for label in traced]
    curves = []
    for label in traced:
        positions = found[label].positions[0]
        at = np.unique(np.linspace(0, len(positions) - 1, _POINTS).astype(int))
        curves += [Curve(label, f"θ{j + 1}", at + 1, positions[at, j]) for j in _SHOWN]
    rows = [[label, _words(arrivals[label]), f"{found[label].seconds:.1f} s"] for label in traced]
    columns = ("sampler", "iterations until arrival", "seconds of the whole run")
    table = ResultTable(f"N = {data.posterior.n_rows:,}, one chain each", columns, rows)
    default = _default_claim(found)
    remarks = [
        "The default shows the first of its chains. ADVI has no trace.",
        "An iteration of SGHMC is a trajectory of five gradients.",
    ]
    return Result(panels, curves, [*claims, default], [table], remarks)


def _default_claim(found: dict[str, SamplerRun]) -> Claim:
    truth = _truth(found)
    draws = found[DEFAULT].positions.reshape(-1, len(truth.mean))
    error = float(np.abs((draws.mean(axis=0) - truth.mean) / truth.sd).max())
    # Both have about 400 effective draws or more: 4.6 √(2/400) would be 0.33.
    return Claim(
        "the default ends where NUTS does", "means within 0.33 sd", f"{error:.3f} sd", error < 0.33
    )


def _arrival_claims(arrivals: dict[str, int | None]) -> list[Claim]:
    def faster(one: str, other: str, required: bool = False) -> Claim:
        a, b = arrivals[one], arrivals[other]
        holds = a is not None and (b is None or a < b)
        return Claim(
            f"{one} arrives in fewer iterations than {other}",
            "fewer",
            f"{_words(a)} against {_words(b)}",
            holds,
            required,
        )

    at_once = {label: arrivals[label] for label in _CV_METHODS}
    return [
        *(faster(one, "SGLD") for one in ("SGHMC", "SGNHT", "ULA")),
        Claim(
            "chains with control variates need no burn-in: they start at the mode",
            "0 iterations",
            ", ".join(f"{label} {_words(count)}" for label, count in at_once.items()),
            all(count == 0 for count in at_once.values()),
        ),
    ]


def _words(iterations: int | None) -> str:
    return "never" if iterations is None else f"{iterations:,}"
