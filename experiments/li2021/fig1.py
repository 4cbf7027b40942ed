"""Figure 1: EWSG on the Gaussian example (`gaussian.py`).

(a) KL against passes for SGLD, pSGLD, SGHMC, EWSG and SVRG-LD; (b) four choices of x in EWSG at
h = 0.07; (c) index chains of M = 0, 1, 9 and 19 steps; (d) to (f) the mean squared error of an
average against T and h (`averages.py`).

The paper uses one draw of the 50 points and prints no numbers. An independent calculation has
printed its divergences after 30 passes: (a) as mean and sd over five draws of the points, (b) and
(c) without sd. The claims of (a) to (c) use several draws, as the differences between draws are
larger than those between methods. Index chains of 9 and 19 steps have a quarter of the chains.
"""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Float

from tallmc.subsample.exponential import Guess

from ..results import Claim, Curve, ExperimentSetting, Panel, Result, close, lower
from .averages import average_errors, exact_bias, limit_of_small_steps, log_slope, squared_error
from .gaussian import STEP_SIZES, KlPath, Schedule, centres, compared, exact_kl, kl_path, weighted

STEP_SIZE_OF_B = 0.07
GUESSES: dict[str, Guess] = {
    "x = √h γr/σ": "at_rest",
    "x = 0": "zero",
    "x = 1": "one",
    "next r = 0": "to_zero",
}
LENGTHS = {f"M = {length}": length for length in (0, 1, 9, 19)}
_LONG_CHAIN = 9
# Mean and sd over five draws; without sd, one draw (see `_agree`).
REPEATED = {
    "SGLD": (1.170, 0.117),
    "pSGLD": (1.135, 0.053),
    "SGHMC": (1.340, 0.115),
    "EWSG": (1.062, 0.102),
}
REPEATED_ONCE = {
    "x = √h γr/σ": 1.449,
    "x = 0": 1.886,
    "x = 1": 1.907,
    "next r = 0": 2.049,
    "M = 0": 1.256,
    "M = 1": 0.997,
    "M = 9": 0.818,
    "M = 19": 0.905,
}
_REPEATED_DRAWS = 5
_TIMES = (1.0, 2.0, 4.0, 8.0, 16.0)
_H_OF_D, _T_OF_E, _T_OF_F = 2.5e-4, 1.0, 100.0
_SMALL_STEPS = np.array([2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3])
_LARGE_STEPS = np.array([0.005, 0.01, 0.02, 0.03, 0.05, 0.07])

Paths = dict[str, list[KlPath]]
"""One path per draw of the points, by label."""


def as_stated(setting: ExperimentSetting) -> Result:
    draws = range(setting.pick(6, 3))
    a = _paths(setting, compared(), draws)
    b = _paths(setting, {x: weighted(STEP_SIZE_OF_B, 1, of) for x, of in GUESSES.items()}, draws)
    h = STEP_SIZES["EWSG"]
    long = {m: weighted(h, of) for m, of in LENGTHS.items() if of >= _LONG_CHAIN}
    c = {"M = 0": a["SGHMC"], "M = 1": a["EWSG"], **_paths(setting, long, draws)}
    panels = [
        _kl_panel("a", "methods"),
        _kl_panel("b", f"choices of x, h = {STEP_SIZE_OF_B}", log_y=False),
        _kl_panel("c", "lengths of the index chain"),
    ]
    curves = [*_curves("a", a), *_curves("b", b), *_curves("c", c)]
    claims = [
        *_claims_of_methods(a),
        *_claims_of_choices(b),
        *_claims_of_lengths(c),
    ]
    errors = _of_averages(setting)
    return Result([*panels, *errors.panels], [*curves, *errors.curves], [*claims, *errors.claims])


def _paths(setting: ExperimentSetting, schedules: dict[str, Schedule], draws: range) -> Paths:
    chains = setting.pick(10_000, 2_000)
    return {
        label: [
            kl_path(
                schedule,
                centres(draw),
                chains=chains // 4 if schedule.calls_per_step > _LONG_CHAIN else chains,
                seed=draw,
                share=setting.part(f"{label}, points {draw + 1} of {len(draws)}"),
            )
            for draw in draws
        ]
        for label, schedule in schedules.items()
    }


def _kl_panel(key: str, title: str, *, log_y: bool = True) -> Panel:
    return Panel(key, f"({key}) {title}", "passes through the data", "KL divergence", log_y)


def _curves(panel: str, paths: Paths) -> list[Curve]:
    return [
        Curve(panel, label, of_draws[0].passes, np.mean([path.kl for path in of_draws], axis=0))
        for label, of_draws in paths.items()
    ]


def ends(of_draws: list[KlPath]) -> Float[np.ndarray, " draws"]:
    return np.array([path.end for path in of_draws])


def _claims_of_methods(paths: Paths) -> list[Claim]:
    exact = [
        _exact_claim(label, [abs(_z(label, draw, path)) for draw, path in enumerate(paths[label])])
        for label in ("SGLD", "SGHMC")
    ]
    agreeing = [
        _agree(label, paths[label], mean, sd / np.sqrt(_REPEATED_DRAWS))
        for label, (mean, sd) in REPEATED.items()
    ]
    order = [
        lower(f"EWSG ends below {other}", ends(paths["EWSG"]), ends(paths[other]))
        for other in ("SGHMC", "SGLD", "pSGLD")
    ]
    best = lower("SVRG-LD ends below EWSG", ends(paths["SVRG-LD"]), ends(paths["EWSG"]))
    return [*exact, *agreeing, *order, best, _slowest(paths)]


def _z(label: str, draw: int, path: KlPath) -> float:
    h, schedule = STEP_SIZES[label], compared()[label]
    steps = round(path.passes[-1] * len(centres(draw)) / schedule.calls_per_step)
    return (path.end - exact_kl(label, centres(draw), h, steps)) / path.error


def _exact_claim(label: str, z: list[float]) -> Claim:
    statement = f"final KL of {label} is that of its linear recursion"
    return Claim(statement, "|z| ≤ 4.6 for every draw", f"largest |z| {max(z):.1f}", max(z) <= 4.6)


def _agree(label: str, of_draws: list[KlPath], value: float, error: float | None = None) -> Claim:
    """Compare with the repeated value. Without its error, it is taken as that of one draw."""
    found = ends(of_draws)
    sd = found.std(ddof=1)
    tolerance = 3 * np.hypot(sd if error is None else error, sd / np.sqrt(len(found)))
    statement = f"final KL, {label}, mean of {len(found)} draws of the points, as repeated"
    return close(statement, float(found.mean()), value, round(float(tolerance), 3))


def _slowest(paths: Paths) -> Claim:
    """Passes after which the mean divergence stays within a factor of two of its end.

    The ends differ by three orders of magnitude, so the tolerance is relative to them.
    """
    passes = {}
    for curve in _curves("a", paths):
        outside = np.flatnonzero(np.abs(np.log(curve.y / curve.y[-1])) > np.log(2))
        passes[curve.label] = curve.x[outside[-1] + 1] if len(outside) else curve.x[0]
    found = ", ".join(f"{label} {value:.1f}" for label, value in passes.items())
    holds = max(passes, key=lambda label: passes[label]) == "SVRG-LD"
    statement = "SVRG-LD converges slowest: passes until within a factor of two of the end"
    return Claim(statement, "most for SVRG-LD", found, holds, required=False)


def _claims_of_choices(paths: Paths) -> list[Claim]:
    recommended, *others = GUESSES
    return [
        *(_agree(label, paths[label], REPEATED_ONCE[label]) for label in GUESSES),
        *(
            lower(f"x = √h γr/σ ends below {x}", ends(paths[recommended]), ends(paths[x]))
            for x in others
        ),
    ]


def _claims_of_lengths(paths: Paths) -> list[Claim]:
    labels = list(LENGTHS)
    return [
        *(_agree(label, paths[label], REPEATED_ONCE[label]) for label in labels),
        *(
            lower(f"{longer} ends below {shorter}", ends(paths[longer]), ends(paths[shorter]))
            for shorter, longer in itertools.pairwise(labels)
        ),
    ]


def _of_averages(setting: ExperimentSetting) -> Result:
    """Panels (d) to (f), with the first draw of the points."""
    d, e, f = _against_time(setting), _against_small_steps(setting), _against_large_steps(setting)
    return Result(
        [*d.panels, *e.panels, *f.panels],
        [*d.curves, *e.curves, *f.curves],
        [*d.claims, *e.claims, *f.claims],
    )


def _against_time(setting: ExperimentSetting) -> Result:
    times = np.array(_TIMES if not setting.quick else _TIMES[:3])
    errors = average_errors(
        weighted(_H_OF_D),
        centres(0),
        _H_OF_D,
        times,
        chains=setting.pick(2_000, 500),
        seed=1,
        share=setting.part("(d) averages over time"),
    )
    found, error = squared_error(errors)
    exact = np.array([limit_of_small_steps(time) for time in times])
    z = float(np.max(np.abs(found - exact) / error))
    panel = Panel("d", f"(d) EWSG, h = {_H_OF_D:g}", "T", "mean squared error", True, True)
    statement = "(d) mean squared error of EWSG against T"
    claims = [
        Claim(f"{statement} is that of the diffusion", "|z| ≤ 4.6", f"largest {z:.1f}", z <= 4.6),
        _slope_claim(statement, times, found, error, -1),
    ]
    curves = [
        Curve("d", "EWSG", times, found),
        Curve("d", "diffusion, h → 0", times, exact, kind="reference"),
    ]
    return Result([panel], curves, claims)


def _against_small_steps(setting: ExperimentSetting) -> Result:
    steps = _SMALL_STEPS if not setting.quick else _SMALL_STEPS[2:]
    chains = setting.pick(10_000, 1_000)
    limit = limit_of_small_steps(_T_OF_E)
    curves, claims = [], []
    for label, length in (("EWSG", 1), ("SGHMC", 0)):
        found, error, _ = _errors_against(setting, "e", label, length, steps, _T_OF_E, chains)
        curves.append(Curve("e", label, steps, found))
        statement = f"(e) mean squared error of {label} against small h"
        claims.append(_slope_claim(statement, steps, found, error, 1))
        if np.all(found > limit):
            statement += ", less its limit for h → 0"
            claims.append(_slope_claim(statement, steps, found - limit, error, 1))
    curves.append(
        Curve("e", "diffusion, h → 0", steps, np.full(len(steps), limit), kind="reference")
    )
    panel = Panel("e", f"(e) T = {_T_OF_E:g}, small h", "h", "mean squared error", True, True)
    return Result([panel], curves, claims)


def _against_large_steps(setting: ExperimentSetting) -> Result:
    steps, chains = _LARGE_STEPS, setting.pick(500, 100)
    curves, claims = [], []
    for label, length in (("EWSG", 1), ("SGHMC", 0)):
        found, error, z = _errors_against(setting, "f", label, length, steps, _T_OF_F, chains)
        curves.append(Curve("f", label, steps, found))
        statement = f"(f) mean squared error of {label} against h for large T"
        claims.append(_slope_claim(statement, steps, found, error, 2))
    largest = float(np.abs(z).max())
    statement = "(f) bias of SGHMC is that of its linear recursion"
    claims.append(Claim(statement, "|z| ≤ 4.6", f"largest {largest:.1f}", largest <= 4.6))
    exact = np.array([exact_bias(centres(0), h) ** 2 for h in steps])
    curves.append(Curve("f", "SGHMC, T → ∞, exact", steps, exact, kind="reference"))
    panel = Panel("f", f"(f) T = {_T_OF_F:g}", "h", "mean squared error", True, True)
    return Result([panel], curves, claims)


def _slope_claim(
    statement: str,
    x: Float[np.ndarray, " k"],
    y: Float[np.ndarray, " k"],
    error: Float[np.ndarray, " k"],
    target: int,
) -> Claim:
    """Claim a slope on log axes, within 0.1 and three standard errors."""
    slope, error_of_slope = log_slope(x, y, error)
    holds = bool(abs(slope - target) <= 0.1 + 3 * error_of_slope)
    found = f"{slope:.2f} ± {error_of_slope:.2f}"
    return Claim(f"{statement}, slope", f"{target} ± 0.1", found, holds, required=False)


def _errors_against(
    setting: ExperimentSetting,
    key: str,
    label: str,
    length: int,
    steps: Float[np.ndarray, " k"],
    time: float,
    chains: int,
) -> tuple[Float[np.ndarray, " k"], ...]:
    """The mean squared error at each step size, its standard error, and z of the exact bias."""
    found, z = [], []
    for h in steps:
        share = setting.part(f"({key}) {label}, h = {h:g}")
        errors = average_errors(
            weighted(h, length), centres(0), h, np.array([time]), chains=chains, seed=2, share=share
        )[0]
        found.append(squared_error(errors))
        error = errors.std(ddof=1) / np.sqrt(chains)
        z.append((errors.mean() - exact_bias(centres(0), h)) / error)
    return *np.transpose(found), np.array(z)
