"""Figure 4: EWSG-VR against EWSG and the full gradient on the Gaussian example, L = 1, M = 1.

EWSG-VR (appendix F) raises the friction to Γ = γ + (h/2) cov, where cov is the covariance of the
stochastic gradient. Algorithm 2 as printed never moves when L = 1 and never sets ω; here a pass
over the data calibrates (ω ← θ), then 25 steps follow, and cov is estimated around ω from the
rows of each step. A pass is 50 calls of a gradient: EWSG-VR makes 50 at each calibration and 4 per
step (two proposals, at θ and at ω), so that 25 steps take three passes.

As stated, h = 0.05. The covariance is about 2,500, so hΓ ≈ 3.6: Euler steps with such a friction
diverge (they need hΓ < 2), and the library ends the chains. As it works, h is 0.02 and 0.01.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tallmc.methods import ewsg_vr

from ..results import Claim, Curve, ExperimentSetting, Panel, Result, close, lower
from .gaussian import (
    FRICTION,
    N_ROWS,
    STEP_SIZES,
    KlPath,
    Schedule,
    centres,
    exact_kl,
    full_gradient,
    kl_path,
    weighted,
)
from .steps import library_step

SMALLER_STEPS = (0.02, 0.01)
REPEATED_FULL_GRADIENT = 0.050
PASSES = 60
_EVERY = 25


def as_stated(setting: ExperimentSetting) -> Result:
    h, draws = STEP_SIZES["EWSG"], range(setting.pick(4, 3))
    paths = _paths(setting, h, draws)
    frictions = [h * corrected_friction(draw, h) for draw in draws]
    exact = exact_kl("full gradient", centres(0), h, PASSES)
    full = paths["full gradient"]
    z = max(abs(path.end - exact) / path.error for path in full)
    failed = float(np.mean([path.failed for path in paths["EWSG-VR"]]))
    claims = [
        Claim(
            "final KL of the full gradient is that of its linear recursion",
            f"{exact:.4f}, |z| ≤ 4.6",
            f"{np.mean([path.end for path in full]):.4f}, largest |z| {z:.1f}",
            z <= 4.6,
        ),
        close("final KL of the full gradient, as repeated", exact, REPEATED_FULL_GRADIENT, 0.005),
        Claim(
            "the friction of appendix F is too large for Euler steps",
            "hΓ > 2",
            f"hΓ from {min(frictions):.1f} to {max(frictions):.1f}",
            min(frictions) > 2,
        ),
        Claim(
            "EWSG-VR ends below EWSG",
            "lower KL",
            f"{failed:.0%} of the chains of EWSG-VR fail",
            bool(np.all(_ends(paths["EWSG-VR"]) < _ends(paths["EWSG"]))),
            required=False,
        ),
    ]
    return Result([_panel(h)], _curves(h, paths), claims)


def as_works(setting: ExperimentSetting) -> Result:
    draws = range(setting.pick(4, 3))
    curves, claims, remarks = [], [], []
    for h in SMALLER_STEPS:
        paths = _paths(setting, h, draws)
        curves += _curves(h, paths)
        claims.append(
            lower(
                f"EWSG-VR ends below EWSG, h = {h}", _ends(paths["EWSG-VR"]), _ends(paths["EWSG"])
            )
        )
        z = max(
            abs(path.end - exact_kl("full gradient", centres(draw), h, PASSES)) / path.error
            for draw, path in enumerate(paths["full gradient"])
        )
        statement = f"final KL of the full gradient is that of its linear recursion, h = {h}"
        claims.append(Claim(statement, "|z| ≤ 4.6", f"largest |z| {z:.1f}", z <= 4.6))
        failed = np.mean([path.failed for path in paths["EWSG-VR"]])
        remarks.append(f"At h = {h}, {failed:.2%} of the chains of EWSG-VR fail and are left out.")
    return Result([_panel(h) for h in SMALLER_STEPS], curves, claims, remarks=remarks)


def corrected_friction(draw: int, h: float) -> float:
    """The largest eigenvalue of Γ = γ + (h/2) cov with the exact covariance of one row."""
    covariance = N_ROWS**2 * np.cov(centres(draw).T, bias=True)
    return float(FRICTION + h / 2 * np.linalg.eigvalsh(covariance)[-1])


def _paths(setting: ExperimentSetting, h: float, draws: range) -> dict[str, list[KlPath]]:
    reduced = ewsg_vr(library_step(h), 1, FRICTION, every=_EVERY)
    schedules = {
        "EWSG": weighted(h),
        "EWSG-VR": Schedule(reduced, 4, pass_every=_EVERY),
        "full gradient": full_gradient(h),
    }
    chains = setting.pick(10_000, 2_000)
    return {
        label: [
            kl_path(
                schedule,
                centres(draw),
                chains=chains,
                passes=PASSES,
                seed=draw,
                share=setting.part(f"{label}, h = {h}, points {draw + 1}"),
            )
            for draw in draws
        ]
        for label, schedule in schedules.items()
    }


def _panel(h: float) -> Panel:
    return Panel(f"h = {h}", f"h = {h}", "passes through the data", "KL divergence", log_y=True)


def _curves(h: float, paths: dict[str, list[KlPath]]) -> list[Curve]:
    return [
        Curve(f"h = {h}", label, of[0].passes, np.mean([path.kl for path in of], axis=0))
        for label, of in paths.items()
    ]


def _ends(of_draws: Sequence[KlPath]) -> np.ndarray:
    return np.array([path.end for path in of_draws])
