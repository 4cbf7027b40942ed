"""Table 2: seconds, log-loss and kernel Stein discrepancy of all samplers, for three dimensions.

The data are not those of the authors, so numbers are compared relative to NUTS. The discrepancy of
K independent exact draws is about √((tr E∇²f + d)/K): it depends on the data and on K, and is the
floor of the column KSD. In coordinates in which the posterior is round (KSD, whitened) the floor is
√(2d/K), and the discrepancy shows errors in all directions alike.

As stated: chains of SGLD, SGHMC, SGNHT and ULA start at the same θ₀ ~ N(0, I), and the scores are
those of the last 1,000 draws. As it works: step sizes by `tallmc.suggest`, all chains start at the
mode, and the scores are those of 1,000 draws that are evenly spaced over the last 90 % of each run.
The draws of tallmc's default are 1,000, evenly spaced over its chains, in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tallmc import diagnose
from tallmc.diagnose.ksd import in_units, thinned
from tallmc.methods.abstract import AbstractMethod

from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from . import review
from .review import ADVI, DEFAULT, LABELS, NAMES, NUTS, ReviewData, SamplerRun, TrueMoments

_SCORED = 1000
_PUBLISHED_LABELS = (NUTS, *NAMES, ADVI)
PUBLISHED_KSD = {
    10: (6.12, 6.26, 6.24, 6.18, 6.25, 6.21, 6.23, 6.19, 6.97),
    50: (9.24, 11.73, 11.05, 11.59, 11.11, 11.00, 11.33, 11.30, 11.66),
    100: (11.62, 15.70, 15.53, 15.64, 15.07, 15.14, 15.07, 15.97, 13.61),
}
PUBLISHED_LOG_LOSS = {
    10: (0.10, 0.11, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10),
    50: (0.04, 0.06, 0.05, 0.06, 0.05, 0.05, 0.05, 0.05, 0.07),
    100: (0.04, 0.06, 0.05, 0.06, 0.05, 0.05, 0.05, 0.06, 0.07),
}
PUBLISHED_MINUTES = {
    10: (21.64, 1.74, 1.46, 11.24, 6.53, 2.56, 1.54, 8.05, 0.76),
    50: (157.24, 2.55, 2.06, 13.43, 7.76, 3.33, 1.93, 29.21, 2.37),
    100: (229.76, 3.42, 2.60, 16.01, 9.63, 4.38, 2.36, 51.25, 4.15),
}
# 4.6 standard errors of the difference of two runs of about 1,000 effective draws each.
_LARGEST_MEAN_ERROR = 4.6 * math.sqrt(2 / 1000)
_LARGEST_SD_ERROR = _LARGEST_MEAN_ERROR / math.sqrt(2)


class SamplerScores(NamedTuple):
    """What the table shows of one sampler."""

    seconds: float
    compilation: float
    log_loss: float
    ksd: float
    whitened_ksd: float
    mean_error: float
    """Largest error of a mean, in posterior standard deviations."""
    sd_error: float
    """Largest relative error of a standard deviation."""


class DimensionScores(NamedTuple):
    """The scores of all samplers in one dimension."""

    d: int
    scores: dict[str, SamplerScores]
    floor: float
    """KSD to expect of 1,000 independent exact draws."""

    def agrees(self, label: str) -> bool:
        of_label = self.scores[label]
        return of_label.mean_error < _LARGEST_MEAN_ERROR and of_label.sd_error < _LARGEST_SD_ERROR


def as_stated(setting: ExperimentSetting) -> Result:
    return _result(setting, review.stated_methods, at_mode=False)


def as_works(setting: ExperimentSetting) -> Result:
    return _result(setting, review.suggested_methods, at_mode=True)


def _result(
    setting: ExperimentSetting,
    methods_for: Callable[[ReviewData], dict[str, AbstractMethod]],
    *,
    at_mode: bool,
) -> Result:
    found = []
    for d in (10,) if setting.quick else tuple(PUBLISHED_KSD):
        data = review.simulated(d, setting.pick(review.N_ROWS, 10_000))
        runs = review.all_runs(setting, data, methods_for(data), at_mode=at_mode)
        found.append(dimension_scores(setting, data, runs, at_mode=at_mode))
    return result_of(found, at_mode=at_mode)


def dimension_scores(
    setting: ExperimentSetting, data: ReviewData, runs: dict[str, SamplerRun], *, at_mode: bool
) -> DimensionScores:
    """Score the draws of all samplers. The truth is the run of NUTS."""
    of_nuts = runs[NUTS].positions[0]
    truth = TrueMoments(of_nuts.mean(axis=0), of_nuts.std(axis=0))
    scores = {}
    for label, run in runs.items():
        setting.part(f"scores of {label}, d = {data.posterior.dim}")(0.0)
        scores[label] = score(data, run, kept_draws(label, run, at_mode=at_mode), truth)
    hessian = np.asarray(data.anchor.hessian, float)
    floor = np.sqrt((np.trace(hessian) + len(hessian)) / _SCORED)
    return DimensionScores(len(hessian), scores, float(floor))


def kept_draws(label: str, run: SamplerRun, *, at_mode: bool) -> Float[np.ndarray, "chains k d"]:
    """Return the draws that count: all of the default, the last 1,000, or the last 90 %."""
    if label == DEFAULT:
        return run.positions
    n_draws = run.positions.shape[1]
    return run.positions[:, n_draws // 10 if at_mode and label in NAMES else -_SCORED :]


def score(
    data: ReviewData, run: SamplerRun, kept: Float[np.ndarray, "chains k d"], truth: TrueMoments
) -> SamplerScores:
    """Score draws: discrepancy and log-loss of 1,000 of them, means and sds of all."""
    draws = thinned(kept, _SCORED)
    gradients = diagnose.exact_gradients(data.posterior, draws)
    whitened = in_units(np.asarray(data.anchor.factor, float), draws, gradients)
    return SamplerScores(
        run.seconds,
        run.compilation,
        float(diagnose.log_losses(draws, data.posterior, data.held_out).mean()),
        diagnose.ksd(draws, gradients),
        diagnose.ksd(*whitened),
        float(np.abs((kept.mean(axis=(0, 1)) - truth.mean) / truth.sd).max()),
        float(np.abs(kept.std(axis=(0, 1)) / truth.sd - 1).max()),
    )


def result_of(found: list[DimensionScores], *, at_mode: bool) -> Result:
    claims = [claim for of_d in found for claim in _claims(of_d, at_mode=at_mode)]
    tables = [_table(of_d) for of_d in found]
    remarks = [
        "Published and found numbers are of different data: compare them relative to NUTS.",
        "Seconds exclude compilation and include those of finding the mode where it is used.",
    ]
    return Result(_panels(), _curves(found), claims, tables, remarks)


def _panels() -> list[Panel]:
    return [
        Panel("ksd", "KSD relative to NUTS", "dimension d", "KSD / KSD of NUTS", log_y=True),
        Panel(
            "whitened", "KSD in whitened coordinates", "dimension d", "KSD, whitened", log_y=True
        ),
        Panel("loss", "log-loss", "dimension d", "log-loss − log-loss of NUTS"),
        Panel("time", "time relative to NUTS", "dimension d", "time / time of NUTS", log_y=True),
    ]


def _curves(found: list[DimensionScores]) -> list[Curve]:
    d = np.array([of_d.d for of_d in found])
    curves = []
    for label in LABELS:
        of_label = [of_d.scores[label] for of_d in found]
        of_nuts = [of_d.scores[NUTS] for of_d in found]
        pairs = list(zip(of_label, of_nuts, strict=True))
        values = {
            "ksd": [one.ksd / other.ksd for one, other in pairs],
            "whitened": [one.whitened_ksd for one in of_label],
            "loss": [one.log_loss - other.log_loss for one, other in pairs],
            "time": [one.seconds / other.seconds for one, other in pairs],
        }
        curves += [Curve(panel, label, d, np.array(y)) for panel, y in values.items()]
        curves += [
            Curve(panel, label, d, np.array(y), kind="points") for panel, y in values.items()
        ]
        if label in _PUBLISHED_LABELS:
            curves += _published(label, d)
    return curves


def _published(label: str, d: np.ndarray) -> list[Curve]:
    index = _PUBLISHED_LABELS.index(label)
    relative = {
        "ksd": [PUBLISHED_KSD[k][index] / PUBLISHED_KSD[k][0] for k in d],
        "time": [PUBLISHED_MINUTES[k][index] / PUBLISHED_MINUTES[k][0] for k in d],
    }
    return [Curve(panel, label, d, np.array(y), kind="published") for panel, y in relative.items()]


def _claims(of_d: DimensionScores, *, at_mode: bool) -> list[Claim]:
    d, scores = of_d.d, of_d.scores
    default, exact = scores[DEFAULT], scores[NUTS]
    subsampling = [label for label in NAMES if label != "ULA"]
    worst = max(subsampling, key=lambda label: scores[label].ksd)
    published = PUBLISHED_KSD[d]
    largest = max(published[_PUBLISHED_LABELS.index(label)] for label in subsampling) / published[0]
    slowest = max(subsampling, key=lambda label: scores[label].seconds)
    lowest = min(NAMES, key=lambda label: scores[label].ksd)
    expected = f"means within {_LARGEST_MEAN_ERROR:.2f} sd, sds within {_LARGEST_SD_ERROR:.0%}"
    return [
        Claim(
            f"d = {d}: the default ends where NUTS does",
            expected,
            _errors(default),
            of_d.agrees(DEFAULT),
        ),
        Claim(
            f"d = {d}: the whitened KSD of the default is that of NUTS",
            "within 10 %",
            f"{default.whitened_ksd:.3f} against {exact.whitened_ksd:.3f}",
            abs(default.whitened_ksd / exact.whitened_ksd - 1) < 0.1,
        ),
        Claim(
            f"d = {d}: the default takes no longer than SGLD",
            f"{scores['SGLD'].seconds:.1f} s",
            f"{default.seconds:.1f} s",
            default.seconds <= scores["SGLD"].seconds,
            required=False,
        ),
        Claim(
            f"d = {d}: NUTS has the lowest KSD of all MCMC methods",
            "lower than the others",
            f"{exact.ksd:.2f}; {lowest} {scores[lowest].ksd:.2f}",
            exact.ksd < scores[lowest].ksd,
            required=False,
        ),
        Claim(
            f"d = {d}: SGMCMC is only slightly worse than NUTS",
            f"KSD at most {largest:.2f} times that of NUTS, as published",
            f"{scores[worst].ksd / exact.ksd:.2f} times ({worst})",
            scores[worst].ksd <= largest * exact.ksd,
            required=False,
        ),
        Claim(
            f"d = {d}: every SGMCMC method is faster than NUTS",
            f"less than {exact.seconds:.0f} s",
            f"{slowest} {scores[slowest].seconds:.1f} s",
            scores[slowest].seconds < exact.seconds,
            required=False,
        ),
        Claim(
            f"d = {d}: log-loss of NUTS, as published",
            f"{PUBLISHED_LOG_LOSS[d][0]:.2f} ± 0.03",
            f"{exact.log_loss:.3f}",
            abs(exact.log_loss - PUBLISHED_LOG_LOSS[d][0]) < 0.03,
            required=False,
        ),
    ]


def _errors(scores: SamplerScores) -> str:
    return f"{scores.mean_error:.3f} sd, {scores.sd_error:.1%}"


def _table(of_d: DimensionScores) -> ResultTable:
    def published(label: str, column: Mapping[int, Sequence[float]]) -> str:
        if label not in _PUBLISHED_LABELS:
            return ""
        return f"{column[of_d.d][_PUBLISHED_LABELS.index(label)]:.2f}"

    rows = [
        [
            label,
            f"{of_label.seconds:.1f} s",
            f"{published(label, PUBLISHED_MINUTES)} min" if label != DEFAULT else "",
            f"{of_label.log_loss:.5f}",
            published(label, PUBLISHED_LOG_LOSS),
            f"{of_label.ksd:.2f}",
            published(label, PUBLISHED_KSD),
            f"{of_label.whitened_ksd:.3f}",
            f"{of_label.mean_error:.2f}",
            f"{100 * of_label.sd_error:.0f} %",
        ]
        for label, of_label in of_d.scores.items()
    ]
    columns = (
        "sampler",
        "time",
        "published",
        "log-loss",
        "published",
        "KSD",
        "published",
        "KSD, whitened",
        "largest error of a mean, in sd",
        "largest error of an sd",
    )
    whitened_floor = np.sqrt(2 * of_d.d / _SCORED)
    title = (
        f"d = {of_d.d}; {_SCORED} independent exact draws have KSD {of_d.floor:.2f}, "
        f"whitened {whitened_floor:.3f}"
    )
    return ResultTable(title, columns, rows)
