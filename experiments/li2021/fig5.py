"""Figure 5: logistic regression on Parkinsons (195 rows) and Pima (768 rows), 1,000 simulations.

Mean and standard deviation over chains of the log-likelihood of the held-out rows, against passes,
for the full gradient (underdamped Langevin), SGHMC, EWSG and EWSG-VR, with b = 1 and M = 1. The
paper gives no step sizes, friction, split, prior or scaling. Here: standardised columns and an
intercept, prior N(0, I), a quarter of the rows held out, γ = 2√λ with λ the largest curvature at
the mode, start 0. The full gradient has h = 0.1 γ/λ. The others have h = 2γ/(λN): gradient noise
then about doubles the variances of SGHMC. Calls of gradients are counted as in figure 4; EWSG-VR
calibrates once per pass (L = 1).

The paper takes the full gradient as the truth. Here the truth is the law of as many chains of MALA,
which is exact, started at the mode.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tallmc._anchor.anchor import Anchor, find_anchor
from tallmc.dynamics import SGHMC
from tallmc.gradient import Full
from tallmc.methods import ewsg, ewsg_vr, mala, sghmc
from tallmc.methods.method import Method
from tallmc.models import logistic_regression
from tallmc.models.posterior import ModelPosterior
from tallmc.subsample import AllRows

from ..data import two_classes
from ..results import Claim, Curve, ExperimentSetting, Panel, Result
from ..synthetic import shuffle_split
from .ensemble import Ensemble

DATASETS = {"parkinsons": "Parkinsons", "pima": "Pima"}
PRIOR_VARIANCE = 1.0
_STEP_OF_FULL_GRADIENT, _NOISE_OF_SGHMC = 0.1, 2.0
_STEP_OF_MALA, _STEPS_OF_MALA = 0.3, 6_000
_PASSES_OF_FULL_GRADIENT = 4_000


class SmallRegression(NamedTuple):
    """The posterior of the training rows, its mode, and the held-out rows times ±1 (the label)."""

    posterior: ModelPosterior
    anchor: Anchor
    signed_rows: Float[Array, "M d"]
    curvature: float
    """λ."""

    @property
    def friction(self) -> float:
        return float(2 * np.sqrt(self.curvature))

    def log_likelihoods(
        self, positions: Float[np.ndarray, "chains k d"]
    ) -> Float[np.ndarray, "chains k"]:
        return np.asarray(_log_likelihoods(self.signed_rows, jnp.asarray(positions)))


class Spread(NamedTuple):
    """Mean and sd over chains of the held-out log-likelihood, along the passes."""

    passes: Float[np.ndarray, " k"]
    mean: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"]
    chains: int
    """Chains that have not failed."""

    @property
    def end_errors(self) -> tuple[float, float]:
        """Standard errors of the mean and of the sd at the end."""
        return self.sd[-1] / np.sqrt(self.chains), self.sd[-1] / np.sqrt(2 * self.chains)


def as_stated(setting: ExperimentSetting) -> Result:
    panels, curves, claims, remarks = [], [], [], []
    for name, title in DATASETS.items():
        problem = regression(name, setting)
        truth = _truth(setting, problem, title)
        spreads = _spreads(setting, problem, title)
        for key, kind in (("mean", "mean"), ("sd", "standard deviation")):
            panel = f"{name} {key}"
            panels.append(
                Panel(
                    panel, title, "passes through the data", f"{kind}, log-likelihood", log_x=True
                )
            )
            curves += [
                Curve(panel, label, spread.passes, getattr(spread, key))
                for label, spread in spreads.items()
            ]
            level = np.full(2, getattr(truth, key)[-1])
            ends = np.array([1.0, spreads["full gradient"].passes[-1]])
            curves.append(Curve(panel, "exact (MALA)", ends, level, kind="reference"))
        claims += _claims(title, spreads, truth)
        lost = {label: of.chains for label, of in spreads.items()}
        remarks.append(f"{title}: chains that did not fail: {lost}.")
    return Result(panels, curves, claims, remarks=remarks)


def regression(name: str, setting: ExperimentSetting) -> SmallRegression:
    x, y = two_classes(name, setting.folder)
    kept, held_out = shuffle_split(len(y), len(y) // 4, seed=0)
    posterior = logistic_regression(x[kept], y[kept], PRIOR_VARIANCE)
    anchor = find_anchor(posterior)
    chance = jax.nn.sigmoid(x[kept] @ np.asarray(anchor.position))
    weights = np.asarray(chance * (1 - chance))
    hessian = (x[kept] * weights[:, None]).T @ x[kept] + np.eye(x.shape[1]) / PRIOR_VARIANCE
    signed_rows = jnp.asarray((2 * y[held_out] - 1)[:, None] * x[held_out], posterior.dtype)
    return SmallRegression(posterior, anchor, signed_rows, float(np.linalg.eigvalsh(hessian)[-1]))


@jax.jit
def _log_likelihoods(
    signed_rows: Float[Array, "M d"], positions: Float[Array, "chains k d"]
) -> Float[Array, "chains k"]:
    def of_chain(chain: Float[Array, "k d"]) -> Float[Array, " k"]:
        return jnp.mean(jax.nn.log_sigmoid(signed_rows @ chain.T), axis=0)

    return jax.lax.map(of_chain, positions)


def _spreads(setting: ExperimentSetting, problem: SmallRegression, title: str) -> dict[str, Spread]:
    n, friction = problem.posterior.n_rows, problem.friction
    limit = friction / problem.curvature
    epsilon = 2 * _NOISE_OF_SGHMC / n * limit
    full = Method(
        dynamics=SGHMC(friction),
        gradient=Full(),
        subsample=AllRows(),
        step_size=2 * _STEP_OF_FULL_GRADIENT * limit,
    )
    every = n // 2
    passes = setting.pick(42, 21)
    # Steps between records and their cost in passes.
    runs = {
        "full gradient": (full, 20, 20.0, _PASSES_OF_FULL_GRADIENT),
        "SGHMC": (sghmc(epsilon, 1, friction), n, 1.0, passes),
        "EWSG": (ewsg(epsilon, 1, friction), n // 2, 1.0, passes),
        "EWSG-VR": (ewsg_vr(epsilon, 1, friction, every), every, 3.0, passes),
    }
    starts = np.zeros((setting.pick(1_000, 200), problem.posterior.dim))
    spreads = {}
    for label, (method, steps, cost, most) in runs.items():
        ensemble = Ensemble(problem.posterior, method, starts, steps, seed=0)
        records = int(most / cost)
        positions = ensemble.positions(records, setting.part(f"{title}, {label}"))
        spreads[label] = _spread(problem, positions, cost * np.arange(1, records + 1))
    return spreads


def _truth(setting: ExperimentSetting, problem: SmallRegression, title: str) -> Spread:
    chains = setting.pick(1_000, 200)
    starts = np.tile(np.asarray(problem.anchor.position), (chains, 1))
    method = mala(_STEP_OF_MALA / problem.curvature)
    ensemble = Ensemble(problem.posterior, method, starts, _STEPS_OF_MALA, seed=1)
    positions = ensemble.positions(1, setting.part(f"{title}, MALA"))
    return _spread(problem, positions, np.array([float(_STEPS_OF_MALA)]))


def _spread(
    problem: SmallRegression,
    positions: Float[np.ndarray, "chains k d"],
    passes: Float[np.ndarray, " k"],
) -> Spread:
    alive = positions[np.isfinite(positions).all(axis=(1, 2))]
    if len(alive) < 2:
        nothing = np.full(len(passes), np.nan)
        return Spread(passes, nothing, nothing, len(alive))
    values = problem.log_likelihoods(alive)
    return Spread(passes, values.mean(axis=0), values.std(axis=0, ddof=1), len(alive))


def _claims(title: str, spreads: dict[str, Spread], truth: Spread) -> list[Claim]:
    claims = [_converged(title, spreads)]
    for index, kind in enumerate(("mean", "sd")):
        off, error = {}, {}
        for label, spread in spreads.items():
            off[label] = getattr(spread, kind)[-1] - getattr(truth, kind)[-1]
            error[label] = float(np.hypot(spread.end_errors[index], truth.end_errors[index]))
        z = abs(off["full gradient"]) / error["full gradient"]
        statement = f"{title}: the {kind} of the full gradient is the exact one"
        found = f"off by {off['full gradient']:.4f}, |z| {z:.1f}"
        claims.append(Claim(statement, "|z| ≤ 4.6", found, bool(z <= 4.6)))
        for better, worse in (("EWSG", "SGHMC"), ("EWSG-VR", "EWSG")):
            gain = abs(off[worse]) - abs(off[better])
            claims.append(
                Claim(
                    f"{title}: the {kind} of {better} is closer to the exact one than of {worse}",
                    "closer by two standard errors",
                    f"off by {off[better]:.4f} against {off[worse]:.4f}, ± {error[worse]:.4f}",
                    bool(gain > 2 * np.hypot(error[better], error[worse])),
                    required=False,
                )
            )
    return claims


def _converged(title: str, spreads: dict[str, Spread]) -> Claim:
    """Passes after which the mean stays within 5 % of its whole change from θ = 0."""
    passes = {}
    for label, spread in spreads.items():
        change = abs(spread.mean[-1] + np.log(2))
        outside = np.flatnonzero(~(np.abs(spread.mean - spread.mean[-1]) <= 0.05 * change))
        last = outside[-1] + 1 if len(outside) else 0
        passes[label] = spread.passes[min(last, len(spread.passes) - 1)]
    full = passes.pop("full gradient")
    found = ", ".join(f"{label} {value:g}" for label, value in passes.items())
    return Claim(
        f"{title}: passes to within 5 % of the end, fewer than the full gradient",
        f"fewer than {full:g}",
        found,
        bool(max(passes.values()) < full),
        required=False,
    )
