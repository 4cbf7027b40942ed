"""The cost per step of each dynamics and each estimator, relative to SGLD with as many rows."""

from __future__ import annotations

from typing import Any

import numpy as np

import tallmc
from tallmc.gradient import SAGA, SVRG
from tallmc.subsample import Bandit, Preferential, Stratified

from .problem import DIM, N_ROWS, covertype_shaped
from .report import print_table
from .steps import STEP_SIZE, STEPS, ours, steps_of
from .timing import best_seconds

SIZE, FRICTION = 32, 100.0
MOMENTUM_STEP = 1e-4
LARGE = 4


def dynamics() -> dict[str, tuple[tallmc.Method, str]]:
    """Each method with its target."""
    return {
        "sgld": (tallmc.methods.sgld(STEP_SIZE, SIZE), ""),
        "sgld_lm": (tallmc.methods.sgld_lm(STEP_SIZE, SIZE), "≤ 1.5"),
        "psgld": (tallmc.methods.psgld(STEP_SIZE, SIZE), "≤ 1.5"),
        "psgld, no Γ": (tallmc.methods.psgld(STEP_SIZE, SIZE, gamma=False), "≤ 1.5"),
        "sghmc": (tallmc.methods.sghmc(MOMENTUM_STEP, SIZE, FRICTION), "≤ 1.5"),
        "sg_baoab": (tallmc.methods.sg_baoab(MOMENTUM_STEP, SIZE, FRICTION), "≤ 1.5"),
        "sghmc_trajectories": (
            tallmc.methods.sghmc_trajectories(MOMENTUM_STEP, SIZE, 10, FRICTION),
            "",
        ),
        "sgnht": (tallmc.methods.sgnht(MOMENTUM_STEP, SIZE, FRICTION), "≤ 1.5"),
        "sgld, dense geometry": (
            tallmc.Method(batch_size=SIZE, step_size=0.01, geometry=tallmc.geometry.Dense()),
            "",
        ),
    }


def estimators() -> dict[str, tuple[tallmc.Method, str]]:
    def method(**parts: Any) -> tallmc.Method:
        return tallmc.Method(batch_size=SIZE, step_size=STEP_SIZE, **parts)

    return {
        "sgld": (tallmc.methods.sgld(STEP_SIZE, SIZE), ""),
        "saga_ld": (method(gradient=SAGA()), "≤ 2"),
        "saga_ld_ps": (method(gradient=SAGA(), subsample=Preferential("curvature")), "≤ 2"),
        "svrg_ld, no pass in the steps timed": (method(gradient=SVRG(2**30)), ""),
        "ewsg, M = 1": (tallmc.methods.ewsg(MOMENTUM_STEP, SIZE, FRICTION), "≤ 2.5"),
        "ewsg_overdamped, M = 1": (tallmc.methods.ewsg_overdamped(STEP_SIZE, SIZE), "≤ 2.5"),
        "stratified": (method(subsample=Stratified(10)), ""),
        "bandit": (method(subsample=Bandit()), ""),
        "noise correction, diagonal": (method(correction=tallmc.correction.NoiseCorrection()), ""),
    }


def main() -> None:
    anchor = tallmc.anchor.find_anchor(covertype_shaped())
    for title, methods in (("dynamics", dynamics()), ("estimator or subsample", estimators())):
        seconds = best_seconds(
            {name: ours(method, anchor) for name, (method, _) in methods.items()}, rounds=7
        )
        rows = [
            (
                name,
                f"{seconds[name] / STEPS * 1e6:.1f}",
                f"{seconds[name] / seconds['sgld']:.2f}",
                target,
            )
            for name, (_, target) in methods.items()
        ]
        print_table(
            f"A step, n = {SIZE}, d = {DIM}: each {title}",
            (title, "µs a step", "of sgld", "target"),
            rows,
        )
    print_growth()


def print_growth() -> None:
    """SAGA and the bandit store a value per row; the cost per step must not grow with N."""
    rng = np.random.default_rng(0)
    calls = {}
    methods: dict[str, Any] = {
        "sgld": {},
        "saga": {"gradient": SAGA()},
        "bandit": {"subsample": Bandit()},
    }
    for n_rows in (N_ROWS // LARGE, N_ROWS * LARGE):
        x = rng.normal(size=(n_rows, 10)).astype(np.float32)
        posterior = tallmc.models.logistic_regression(x, x[:, 0] > 0, prior_variance=10.0)
        for name, parts in methods.items():
            kernel = (
                tallmc.Method(batch_size=SIZE, step_size=1e-7, **parts).prepare(posterior).kernel
            )
            calls[name, n_rows] = steps_of(kernel, posterior.init)
    seconds = best_seconds(calls, rounds=7)
    rows = [
        (
            name,
            *(f"{seconds[name, n] / STEPS * 1e6:.1f}" for n in (N_ROWS // LARGE, N_ROWS * LARGE)),
            f"{ratio:.2f}",
        )
        for name in methods
        for ratio in [seconds[name, N_ROWS * LARGE] / seconds[name, N_ROWS // LARGE]]
    ]
    columns = (
        "method",
        f"µs a step, N = {N_ROWS // LARGE:,}",
        f"µs a step, N = {N_ROWS * LARGE:,}",
        "ratio",
    )
    print_table("A step as N grows, d = 10", columns, rows)
