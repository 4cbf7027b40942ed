"""Figure 3: errors of the posterior mean and standard deviation against time, d = 10.

The paper runs STAN, SGLD, SGLD-CV and ULA for 600 seconds, of which the first minute is burn-in,
and shows the mean and the variance of the first parameter. Here every sampler of section 6.1 runs
for 30 seconds, of which the first tenth is burn-in, and tallmc's default until it ends by itself.
A short run measures the seconds per iteration, which gives the number of iterations. The times of
the draws are proportional to the rows that were read, without compilation. The truth is the NUTS
run of this figure.

As stated: step sizes of the authors' code, start at θ₀ ~ N(0, I). As it works: step sizes by
`tallmc.suggest`, start at the mode.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from tallmc.methods.abstract import AbstractMethod

from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from . import review
from .review import DEFAULT, NAMES, NUTS, ReviewData, SamplerRun, TrueMoments

_BURN_IN, _POINTS, _PILOT, _NUTS_PILOT = 0.1, 60, 1000, 200


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
    data = review.simulated(10, setting.pick(review.N_ROWS, 10_000))
    seconds = setting.pick(30, 2)
    setting.part(NUTS)(0.0)
    runs = {NUTS: _timed_nuts(data, seconds)}
    for label, method in methods_for(data).items():
        share = setting.part(label)
        pilot = review.method_run(data, label, method, _PILOT, at_mode=at_mode, share=share)
        rate = _PILOT / (pilot.times[-1] - pilot.times[0])
        iterations = max(int(seconds * rate), _PILOT)
        runs[label] = review.method_run(
            data, label, method, iterations, at_mode=at_mode, share=share
        )
    runs[DEFAULT] = review.default_run(data, setting.part(DEFAULT))
    of_nuts = runs[NUTS].positions[0]
    truth = TrueMoments(of_nuts.mean(axis=0), of_nuts.std(axis=0))
    return result_of(runs, truth, seconds, float(len(of_nuts)))


def _timed_nuts(data: ReviewData, seconds: float) -> SamplerRun:
    """Run NUTS for about this time: half of the iterations are warm-up, as in the paper."""
    pilot = review.nuts_run(data, _NUTS_PILOT, _NUTS_PILOT)
    draws = max(int(seconds / pilot.seconds * _NUTS_PILOT), _NUTS_PILOT)
    return review.nuts_run(data, draws, warmup=draws)


def result_of(
    runs: dict[str, SamplerRun], truth: TrueMoments, seconds: float, truth_draws: float
) -> Result:
    """Make the figure from the runs. `truth_draws` are the draws that the truth is known from."""
    panels = [
        Panel("mean", "mean of θ₁", "seconds", "error of the mean, in sd", log_x=True),
        Panel("sd", "standard deviation of θ₁", "seconds", "relative error", log_x=True),
        Panel(
            "rms",
            "all standard deviations",
            "seconds",
            "root mean square relative error",
            log_x=True,
            log_y=True,
        ),
    ]
    curves, ends = [], {}
    for label, run in runs.items():
        times, means, sds = running_moments(run, 0.0 if label == DEFAULT else _BURN_IN)
        mean_errors, sd_errors = (means - truth.mean) / truth.sd, sds / truth.sd - 1
        rms = np.sqrt((sd_errors**2).mean(axis=1))
        curves += [
            Curve("mean", label, times, mean_errors[:, 0]),
            Curve("sd", label, times, sd_errors[:, 0]),
            Curve("rms", label, times, rms),
        ]
        largest = float(np.abs(mean_errors[-1]).max())
        ends[label] = run.seconds, run.positions.shape[1], largest, float(rms[-1])
    rows = [
        [label, f"{time:.1f} s", f"{draws:,}", f"{mean_error:.3f}", f"{rms:.1%}"]
        for label, (time, draws, mean_error, rms) in ends.items()
    ]
    columns = ("sampler", "time", "iterations", "largest error of a mean, in sd", "rms error of sd")
    return Result(
        panels,
        curves,
        _claims({label: end[3] for label, end in ends.items()}, runs, seconds, truth_draws),
        [ResultTable("at the end of each run", columns, rows)],
        ["Curves begin after a burn-in of a tenth of the run; the default has none."],
    )


def running_moments(
    run: SamplerRun, burn_in: float
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k d"], Float[np.ndarray, "k d"]]:
    """Return times, and the means and sds of all draws after the burn-in up to these times."""
    first = int(burn_in * run.positions.shape[1])
    kept = run.positions[:, first:] - run.positions[:, -1:].mean(axis=0)
    chains, draws, _ = kept.shape
    counts = np.unique(np.geomspace(20, draws, _POINTS).astype(int))
    sums, squares = (
        np.cumsum(values.sum(axis=0, dtype=float), axis=0)[counts - 1]
        for values in (kept, kept.astype(float) ** 2)
    )
    n = chains * counts[:, None]
    means = sums / n
    sds = np.sqrt(squares / n - means**2)
    return run.times[first + counts - 1], means + run.positions[:, -1].mean(axis=0), sds


def _claims(
    rms: dict[str, float], runs: dict[str, SamplerRun], seconds: float, truth_draws: float
) -> list[Claim]:
    default, best = rms[DEFAULT], min(NAMES, key=lambda label: rms[label])
    # Twice the rms error of ten sds from 1,000 effective draws, and from those of the truth.
    largest = 2 * np.sqrt((1 / 1000 + 1 / truth_draws) / 2)
    return [
        Claim(
            "the default has the standard deviations right",
            f"rms error at most {largest:.1%}",
            f"{default:.1%} after {runs[DEFAULT].seconds:.1f} s",
            bool(default < largest),
        ),
        Claim(
            f"the default is as good in its time as the best of the others after {seconds:g} s",
            f"{rms[best]:.1%} ({best})",
            f"{default:.1%}",
            default <= rms[best],
            required=False,
        ),
        Claim(
            "SGLD over-estimates the standard deviations less than ULA errs",
            f"less than {rms['ULA']:.1%}",
            f"{rms['SGLD']:.1%}",
            rms["SGLD"] < rms["ULA"],
            required=False,
        ),
    ]
