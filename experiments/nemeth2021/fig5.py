"""Figure 5: test log-loss of a neural network on MNIST, with and without control variates.

softmax(softmax(xB + b)A + a) with 100 hidden units, N(0, 1/λ) priors and λ ~ Gamma(1, 1) for each
of A, B, a, b. 55,000 training rows, 550 per step; 10⁴ steps after 10⁴ iterations of burn-in or,
with control variates, of plain gradient descent. SGHMC has trajectories of five steps: its burn-in
is 10⁴ trajectories, and the 10⁴ steps after it are 2,000. The log-loss is that of the current
sample.

The authors' code samples λ on the raw scale, where a step can make it negative. Here u = log λ is
sampled. The code's SGHMC is ν' = ν + ε∇log π − αν + √(2αε) ξ, θ' = θ + ν', with α = 0.01: in the
library's units h = √ε and γ = α/√ε. The same holds for SGNHT, which moves θ with the new momentum:
with the old one it would be stable only for ε < α/curvature, and the curvature of u is 39,200 for
the weights B at the prior's scale, so that the printed step would be 27 times too large. Rows are
drawn with replacement; the authors draw 1 % of them without.

As it works, step sizes are a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from tallmc._anchor.anchor import Anchor, find_anchor
from tallmc.methods import sghmc_cv_trajectories, sghmc_trajectories, sgld, sgld_cv
from tallmc.methods.method import Method
from tallmc.models import DenseLayer, neural_network
from tallmc.models.posterior import AbstractPosterior

from ..chains import Share
from ..data import mnist
from ..predictive_runs import PredictiveRun, error_per_cent, log_loss, predictive_run
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable, lower
from .review import thermostat

N_VALIDATION, N_TRAIN, BATCH, STEPS, EVALUATIONS = 5_000, 55_000, 550, 10_000, 50
ALPHA, LENGTH = 0.01, 5
STEP_SIZES = {"SGLD": 1e-4, "SGHMC": 4e-6, "SGNHT": 7e-6}
DESCENT = {"SGLD": 4e-5, "SGHMC": 1e-5, "SGNHT": 1e-5}
"""Step sizes of gradient descent on f before the chains with control variates."""
SMALLER = 10.0
"""What the printed step sizes are divided by, as it works."""


def network(
    folder: Path | None, chains: int, n_train: int = N_TRAIN
) -> tuple[AbstractPosterior, np.ndarray]:
    """Return the posterior, and starts from the priors: N(0, 1) weights, Gamma(1, 1) precisions."""
    split = mnist(folder)
    x, y = (rows[N_VALIDATION : N_VALIDATION + n_train] for rows in (split.X, split.y))
    posterior = neural_network([DenseLayer(100, "softmax")], x, y, precisions=True)
    rng, layout = np.random.default_rng(0), posterior.layout
    sizes = [int(np.prod(shape)) for shape in layout.shapes]
    starts = [
        np.concatenate(
            [
                np.log(rng.gamma(1.0, size=size))
                if name.startswith("precision")
                else rng.standard_normal(size)
                for name, size in zip(layout.names, sizes, strict=True)
            ]
        )
        for _ in range(chains)
    ]
    return posterior, np.stack(starts)


def methods(shrink: float = 1.0) -> dict[str, Method]:
    """The six methods at the printed step sizes, divided by `shrink`."""
    steps = {name: step / shrink for name, step in STEP_SIZES.items()}
    root = float(np.sqrt(steps["SGHMC"]))
    return {
        "SGLD": sgld(steps["SGLD"], BATCH),
        "SGLD-CV": sgld_cv(steps["SGLD"], BATCH),
        "SGHMC": sghmc_trajectories(2 * root, BATCH, LENGTH, ALPHA / root),
        "SGHMC-CV": sghmc_cv_trajectories(2 * root, BATCH, ALPHA / root, LENGTH),
        "SGNHT": thermostat(steps["SGNHT"], BATCH, ALPHA, control_variates=False),
        "SGNHT-CV": thermostat(steps["SGNHT"], BATCH, ALPHA, control_variates=True),
    }


def run(
    folder: Path | None,
    *,
    chains: int,
    steps: int = STEPS,
    evaluations: int = EVALUATIONS,
    shrink: float = 1.0,
    n_train: int = N_TRAIN,
    families: Sequence[str] = tuple(STEP_SIZES),
    seed: int = 0,
    share: Share = lambda done: None,
) -> dict[str, PredictiveRun]:
    """Run all methods: `steps` steps after as many iterations of burn-in or descent."""
    posterior, starts = network(folder, chains, n_train)
    split = mnist(folder)
    assert posterior.predictive is not None, "networks predict"
    test_rows = posterior.predictive.encode((split.X_held_out, split.y_held_out))
    scores = {"log-loss": log_loss(split.y_held_out), "error": error_per_cent(split.y_held_out)}
    per_evaluation, found = max(1, steps // evaluations), {}

    def chain(
        method: Method,
        start: np.ndarray,
        anchor: Anchor | None = None,
        *,
        noise: bool = True,
        steps_per_iteration: int = 1,
    ) -> PredictiveRun:
        return predictive_run(
            posterior,
            method,
            test_rows,
            scores,
            start,
            steps=per_evaluation * steps_per_iteration,
            evaluations=evaluations,
            seed=seed + (anchor is not None),
            anchor=anchor,
            with_noise=noise,
        )

    chosen = {
        name: method
        for name, method in methods(shrink).items()
        if name.removesuffix("-CV") in families
    }
    for number, (name, method) in enumerate(chosen.items()):
        family = name.removesuffix("-CV")
        if name == family:
            length = LENGTH if family == "SGHMC" else 1
            burnt_in = chain(method, starts, steps_per_iteration=length)
            found[f"{name}, burn-in"] = burnt_in
            found[name] = chain(method, np.asarray(burnt_in.positions))
        else:
            descent = chain(sgld(2 * DESCENT[family], BATCH), starts[:1], noise=False)
            found[f"{name}, descent"] = descent
            mode = posterior.layout.unravel(descent.positions[0])
            anchor = find_anchor(posterior, hessian=False, at=jax.tree.map(np.asarray, mode))
            found[name] = chain(method, np.repeat(descent.positions, chains, axis=0), anchor)
        share((number + 1) / len(chosen))
    return found


def as_stated(setting: ExperimentSetting) -> Result:
    return _result(setting, 1.0)


def as_works(setting: ExperimentSetting) -> Result:
    return _result(setting, SMALLER)


def _result(setting: ExperimentSetting, shrink: float) -> Result:
    steps, evaluations = setting.pick(STEPS, 40), setting.pick(EVALUATIONS, 4)
    found = run(
        setting.folder,
        chains=setting.pick(2, 1),
        steps=steps,
        evaluations=evaluations,
        shrink=shrink,
        n_train=setting.pick(N_TRAIN, 1_100),
        families=("SGNHT",) if setting.quick else tuple(STEP_SIZES),
        share=setting.part("six methods"),
    )
    return result_of(found, steps, reduced=setting.quick)


def result_of(found: dict[str, PredictiveRun], steps: int, *, reduced: bool) -> Result:
    """Panels, table and claims from the runs."""
    families = [family for family in STEP_SIZES if family in found]
    panels = [Panel(f, f, "step after burn-in or descent", "test log-loss") for f in families]
    curves, claims, rows = [], [], []
    for family in families:
        for name in (family, f"{family}-CV"):
            losses = found[name].current["log-loss"]
            x = np.arange(1, losses.shape[1] + 1) * steps / losses.shape[1]
            curves.append(Curve(family, name, x, losses.mean(axis=0)))
            rows.append(
                [
                    name,
                    f"{losses[:, 0].mean():.3f}",
                    f"{losses[:, -1].mean():.3f}",
                    f"{found[name].averaged['log-loss'][:, -1].mean():.3f}",
                    f"{found[name].averaged['error'][:, -1].mean():.2f}",
                ]
            )
        plain, controlled = (
            found[name].current["log-loss"].mean(axis=1) for name in (family, f"{family}-CV")
        )
        claims.append(lower(f"control variates lower the log-loss of {family}", controlled, plain))
    if not reduced:
        sgld_loss = found["SGLD"].current["log-loss"].mean(axis=1)
        claims += [
            lower(
                f"{family} predicts better than SGLD",
                found[family].current["log-loss"].mean(axis=1),
                sgld_loss,
            )
            for family in ("SGHMC", "SGNHT")
        ]
    finite = all(np.isfinite(np.asarray(run.positions)).all() for run in found.values())
    found_finite = "yes" if finite else "no"
    claims.append(Claim("all positions are finite", "yes", found_finite, finite))
    columns = ("method", "first", "last", "averaged", "error %, averaged")
    table = ResultTable("test log-loss (no numbers are published)", columns, rows)
    return Result(panels, curves, claims, [table])
