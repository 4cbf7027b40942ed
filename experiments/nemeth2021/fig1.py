"""Figure 1: kernel Stein discrepancy and effective sample size against the step size.

The target is N(0, PᵀDP), with P a rotation by π/4. Langevin dynamics runs for 10,000 steps from 0
with gradients that have additional noise of standard deviation 0.1, ten times for each step size.

The noisy gradient comes from rows x_i = Σ ν_i of a Gaussian model with covariance NΣ. A gradient
from one row is Σ⁻¹θ − ν_i, so subsamples of size 1 have the noise of the paper. The ν_i are
standardised: their mean is 0 and their covariance is exactly 0.01 I.

As stated: D = diag(2, 1), as in the paper, and exact gradients in the discrepancy. As run:
D = diag(3, 1), as in the authors' code, and the noisy gradients of the chain, one step late. Both
use the Stein kernel of the target. The kernel that the paper prints has +∇U in the place of the
score; a table shows its values, which are not smallest for draws that follow the target.

The chain of eq. 7 has variance σ²/(1 − h/(4σ²)) in the direction of variance σ², and with gradient
noise of variance v the numerator grows by the factor 1 + hv/4.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from tallmc import diagnose
from tallmc.methods import sgld
from tallmc.models import gaussian

from ..chains import Trace, kernel_of, trace
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable, close
from .expected_ksd import expected_squared_ksd

STEP_SIZES = (1e-3, 1e-2, 1e-1, 1.0)
NOISE_SD, ITERATIONS, LONG_RUN, N_ROWS, SEED = 0.1, 10_000, 100_000, 10_000, 3
_STEP_IN_PAPER = 10  # iterations per mark in the scatter plots: 1,000 marks
_ANGLE = np.pi / 4
ROTATION = np.array(
    [[np.cos(_ANGLE), np.sin(_ANGLE)], [-np.sin(_ANGLE), np.cos(_ANGLE)]]
)  # P of the paper


class Rerun(NamedTuple):
    """Numbers of an independent re-run with three repetitions."""

    log_ksd: tuple[float, ...]
    """log₁₀ KSD by step size."""
    ess: tuple[tuple[float, float], ...] = ((5, 5), (11, 16), (100, 145), (1000, 1550))
    """Smallest and largest minimum of the ESS over coordinates, by step size."""


RERUNS = {
    (2.0, 1.0): Rerun((-0.23, -0.71, -1.21, -1.07)),
    (3.0, 1.0): Rerun((-0.23, -0.72, -1.19, -1.11)),
}
_RERUN_REPETITIONS = 3
# Standard deviations over ten repetitions, of log₁₀ KSD and of the natural logarithm of the ESS.
_LOG_KSD_SD, _LOG_ESS_SD = (0.1, 0.13, 0.11, 0.03), (0.47, 0.73, 0.28, 0.1)


class Repetitions(NamedTuple):
    """Repeated chains of one step size."""

    step_size: float
    positions: Float[np.ndarray, "repetitions steps 2"]
    log_ksd: Float[np.ndarray, " repetitions"]
    ess: Float[np.ndarray, " repetitions"]
    printed_log_ksd: float
    """With the sign of the paper, first repetition."""


def as_stated(setting: ExperimentSetting) -> Result:
    return _result((2.0, 1.0), setting, with_own_gradients=False)


def as_run(setting: ExperimentSetting) -> Result:
    return _result((3.0, 1.0), setting, with_own_gradients=True)


def _result(
    variances: tuple[float, float], setting: ExperimentSetting, *, with_own_gradients: bool
) -> Result:
    found = [
        _repetitions(variances, step_size, setting, with_own_gradients=with_own_gradients)
        for step_size in STEP_SIZES
    ]
    return Result(
        [*_scatter_panels(), *_summary_panels()],
        [*_scatter_curves(variances, found), *_summary_curves(variances, found)],
        [*_claims(variances, found), *_variance_claims(variances, found[-1])],
        [_table(variances, found)],
    )


def chains(
    variances: tuple[float, float], step_size: float, repetitions: int, iterations: int
) -> Trace:
    """Run eq. 7 from 0, with gradient noise of standard deviation 0.1."""
    covariance = target_covariance(variances)
    noise = np.random.default_rng(SEED).standard_normal((N_ROWS, 2))
    noise -= noise.mean(axis=0)
    root = np.linalg.cholesky(noise.T @ noise / N_ROWS)
    rows = NOISE_SD * np.linalg.solve(root, noise.T).T @ covariance
    with jax.enable_x64(True):
        flat_prior = 1e12 * np.eye(2)
        posterior = gaussian(rows, N_ROWS * covariance, np.zeros(2), flat_prior)
        kernel = kernel_of(sgld(step_size, batch_size=1), posterior)
        starts = np.zeros((repetitions, 2))
        return trace(
            [kernel] * repetitions, starts, iterations, seed=SEED, share=lambda share: None
        )


def target_covariance(variances: tuple[float, float]) -> Float[np.ndarray, "2 2"]:
    """Σ = PᵀDP."""
    return ROTATION.T @ np.diag(variances) @ ROTATION


def stationary_variances(
    variances: tuple[float, float], step_size: float
) -> Float[np.ndarray, " 2"]:
    """Variances of the chain along the axes of D."""
    inflation = 1 + step_size * NOISE_SD**2 / 4
    return np.array(variances) * inflation / (1 - step_size / (4 * np.array(variances)))


def _repetitions(
    variances: tuple[float, float],
    step_size: float,
    setting: ExperimentSetting,
    *,
    with_own_gradients: bool,
) -> Repetitions:
    share = setting.part(f"h = {step_size:g}")
    found = chains(variances, step_size, setting.pick(10, 3), ITERATIONS)
    gradients = (
        found.gradients
        if with_own_gradients
        else found.positions @ np.linalg.inv(target_covariance(variances))
    )
    log_ksd = []
    for index, (x, gradient) in enumerate(zip(found.positions, gradients, strict=True)):
        log_ksd.append(np.log10(diagnose.ksd(x, gradient)))
        share((index + 1) / len(gradients))
    printed = diagnose.ksd(found.positions[0], gradients[0], flipped_sign=True)
    ess = np.array([diagnose.ess(x[None]).min() for x in found.positions])
    return Repetitions(step_size, found.positions, np.array(log_ksd), ess, float(np.log10(printed)))


def _scatter_panels() -> list[Panel]:
    return [Panel(f"h = {h:g}", f"draws, h = {h:g}", "θ₁", "θ₂") for h in STEP_SIZES]


def _summary_panels() -> list[Panel]:
    x = "step size h"
    return [
        Panel("ksd", "kernel Stein discrepancy", x, "log₁₀ KSD", log_x=True),
        Panel("ess", "effective sample size", x, "smallest ESS", log_x=True, log_y=True),
    ]


def _scatter_curves(variances: tuple[float, float], found: list[Repetitions]) -> list[Curve]:
    curves = []
    for of_step in found:
        panel = f"h = {of_step.step_size:g}"
        x, y = of_step.positions[0, ::_STEP_IN_PAPER].T
        curves.append(Curve(panel, "draws", x, y, kind="cloud"))
        for share in (0.5, 0.95):
            x, y = contour(variances, share)
            label = f"contains {100 * share:.0f} % of the target"
            curves.append(Curve(panel, label, x, y, kind="reference"))
    return curves


def contour(variances: tuple[float, float], share: float) -> Float[np.ndarray, "2 k"]:
    """Return the ellipse of equal density that contains a share of the target."""
    angle = np.linspace(0, 2 * np.pi, 200)
    radius = np.sqrt(-2 * np.log(1 - share))
    circle = radius * np.array([np.cos(angle), np.sin(angle)])
    return ROTATION.T @ (np.sqrt(variances)[:, None] * circle)


def _summary_curves(variances: tuple[float, float], found: list[Repetitions]) -> list[Curve]:
    h, rerun = np.array(STEP_SIZES), RERUNS[variances]

    def curve(panel: str, label: str, values: list[np.ndarray]) -> Curve:
        means, sds = np.mean(values, axis=1), np.std(values, axis=1, ddof=1)
        return Curve(panel, label, h, means, sds)

    def expected_log(n_draws: int) -> Float[np.ndarray, " 4"]:
        return np.array([np.log10(_expected(variances, step, n_draws)) / 2 for step in STEP_SIZES])

    return [
        curve("ksd", "found", [of_step.log_ksd for of_step in found]),
        Curve("ksd", "independent re-run", h, np.array(rerun.log_ksd), kind="reference"),
        *(
            Curve("ksd", f"expected, {n:,} iterations", h, expected_log(n), kind="reference")
            for n in (ITERATIONS, LONG_RUN)
        ),
        curve("ess", "found", [of_step.ess for of_step in found]),
        Curve(
            "ess",
            "independent re-run",
            h,
            np.array([np.mean(r) for r in rerun.ess]),
            kind="reference",
        ),
    ]


def _claims(variances: tuple[float, float], found: list[Repetitions]) -> list[Claim]:
    rerun, claims = RERUNS[variances], []
    for index, of_step in enumerate(found):
        repetitions = len(of_step.log_ksd)
        errors = 3 * np.sqrt(1 / _RERUN_REPETITIONS + 1 / repetitions)
        statement = f"log10 KSD at h = {of_step.step_size:g} is that of the independent re-run"
        tolerance = round(errors * _LOG_KSD_SD[index] + 0.005, 3)
        claims.append(close(statement, of_step.log_ksd.mean(), rerun.log_ksd[index], tolerance))
        claims.append(_ess_claim(of_step, rerun.ess[index], errors * _LOG_ESS_SD[index]))
    best = STEP_SIZES[int(np.argmin([of_step.log_ksd.mean() for of_step in found]))]
    most = STEP_SIZES[int(np.argmax([of_step.ess.mean() for of_step in found]))]
    return [
        *claims,
        *(_expected_claim(variances, of_step) for of_step in found[2:]),
        # The means at h = 0.1 and h = 1 differ by less than the spread over repetitions.
        Claim("the KSD is smallest at h = 0.1", "0.1", f"{best:g}", best == 0.1, required=False),
        _long_run_claim(variances),
        Claim("the ESS is largest at h = 1", "1", f"{most:g}", most == 1),
    ]


def _expected(variances: tuple[float, float], step_size: float, n_draws: int) -> float:
    """E KSD² of the stationary chain."""
    chain_variances = stationary_variances(variances, step_size)
    return expected_squared_ksd(np.array(variances), chain_variances, step_size, n_draws)


def _expected_claim(variances: tuple[float, float], of_step: Repetitions) -> Claim:
    """Compare KSD² with its expectation. The start at 0 is forgotten early for h ≥ 0.1."""
    squares = 100**of_step.log_ksd
    target = _expected(variances, of_step.step_size, ITERATIONS)
    log_sd = _LOG_KSD_SD[STEP_SIZES.index(of_step.step_size)]
    tolerance = 3 * 2 * np.log(10) * log_sd * target / np.sqrt(len(squares))
    return close(
        f"mean KSD² at h = {of_step.step_size:g} is that of the closed form",
        float(squares.mean()),
        round(target, 5),
        round(float(tolerance), 5),
    )


def _long_run_claim(variances: tuple[float, float]) -> Claim:
    values = [_expected(variances, h, LONG_RUN) for h in STEP_SIZES]
    best = STEP_SIZES[int(np.argmin(values))]
    statement = f"the expected KSD of {LONG_RUN:,} iterations is smallest at h = 0.1 (closed form)"
    return Claim(statement, "0.1", f"{best:g}", best == 0.1)


def _ess_claim(of_step: Repetitions, rerun: tuple[float, float], log_error: float) -> Claim:
    factor = np.exp(log_error)
    mean = np.exp(np.log(of_step.ess).mean())
    return Claim(
        f"the smallest ESS at h = {of_step.step_size:g} is that of the independent re-run",
        f"{rerun[0]:g} to {rerun[1]:g}, within a factor of {factor:.2g}",
        f"{mean:.3g}",
        bool(rerun[0] / factor <= mean <= rerun[1] * factor),
    )


def _variance_claims(variances: tuple[float, float], at_one: Repetitions) -> list[Claim]:
    """Compare the variances at h = 1 with the closed form, within 4 standard errors."""
    expected = stationary_variances(variances, at_one.step_size)
    pooled = (at_one.positions @ ROTATION.T).reshape(-1, 2)
    decay = 1 - at_one.step_size / (2 * np.array(variances))
    # The squares of an AR(1) with coefficient ρ have autocorrelation ρ²ᵏ.
    relative_errors = np.sqrt(2 * (1 + decay**2) / (1 - decay**2) / len(pooled))
    return [
        close(
            f"variance at h = 1 in the direction of variance {variance:g}",
            float(found),
            round(float(target), 3),
            round(float(4 * target * error), 3),
        )
        for variance, found, target, error in zip(
            variances, pooled.var(axis=0), expected, relative_errors, strict=True
        )
    ]


def _table(variances: tuple[float, float], found: list[Repetitions]) -> ResultTable:
    rerun = RERUNS[variances]
    rows = [
        [
            f"{of_step.step_size:g}",
            f"{of_step.log_ksd.mean():.3f} ± {of_step.log_ksd.std(ddof=1):.2f}",
            f"{rerun.log_ksd[index]:.2f}",
            f"{of_step.ess.mean():.0f} ± {of_step.ess.std(ddof=1):.0f}",
            " to ".join(f"{end:g}" for end in dict.fromkeys(rerun.ess[index])),
            f"{of_step.printed_log_ksd:.3f}",
        ]
        for index, of_step in enumerate(found)
    ]
    columns = (
        "h",
        "log10 KSD",
        "re-run",
        "smallest ESS",
        "re-run",
        "log10 KSD with the printed sign",
    )
    return ResultTable(f"D = diag{variances}, mean ± sd over repetitions", columns, rows)
