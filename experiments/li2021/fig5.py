"""Figure 5: logistic regression on Parkinsons (195 rows) and Pima (768 rows), 250 simulations.

Mean and standard deviation over chains of the log-likelihood of the held-out rows, against passes,
for the full gradient (underdamped Langevin), SGHMC, EWSG and EWSG-VR, with b = 1 and M = 1. The
paper gives no step sizes, friction, split, prior or scaling. Here: standardised columns and an
intercept, prior N(0, I), a quarter of the rows held out, γ = 2√λ with λ the largest curvature at
the mode, start 0. The full gradient has h = 0.1 γ/λ. The others have three step sizes over a
decade: h₀ = 2γ/(λN), at which gradient noise about doubles the variances of SGHMC, 0.3 h₀ and
0.1 h₀. Each runs for three times the time γ/μ that the slowest direction takes to forget its start,
where μ is the smallest curvature. Its curve stands still if the means over chains of the last two
quarters of the run differ by less than three standard errors. Calls of gradients are counted as in
figure 4; EWSG-VR calibrates every N/2 steps (L = 1).

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
from ..results import Claim, Curve, ExperimentSetting, Panel, Result, ResultTable
from ..synthetic import shuffle_split
from .ensemble import Ensemble
from .steps import library_step

DATASETS = {"parkinsons": "Parkinsons", "pima": "Pima"}
PRIOR_VARIANCE = 1.0
SHARES = (1.0, 0.3, 0.1)
"""Step sizes of the stochastic methods, as shares of h₀."""
FULL = "full gradient"
_STEP_OF_FULL_GRADIENT, _NOISE_OF_SGHMC = 0.1, 2.0
_CHAINS = 250  # the paper has 1,000
_FORGOTTEN, _RECORDS = 3, 40
_STEP_OF_MALA, _STEPS_OF_MALA = 0.3, 6_000
_PASSES_OF_FULL_GRADIENT = 4_000
Found = dict[tuple[str, float], "Spread"]
"""By method and step size, as a share of h₀."""


class SmallRegression(NamedTuple):
    """The posterior of the training rows, its mode, and the held-out rows times ±1 (the label)."""

    posterior: ModelPosterior
    anchor: Anchor
    signed_rows: Float[Array, "M d"]
    curvature: float
    """λ."""
    smallest_curvature: float
    """μ."""

    @property
    def friction(self) -> float:
        return float(2 * np.sqrt(self.curvature))

    def steps(self, share: float) -> int:
        """Steps of h = `share` h₀ until the slowest direction has forgotten its start three times.

        The time γ/μ has γ/(μh) = λN/(2μ) steps of h₀.
        """
        steps = self.curvature * self.posterior.n_rows / (_NOISE_OF_SGHMC * self.smallest_curvature)
        return round(_FORGOTTEN * steps / share)

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

    @property
    def stands_still(self) -> bool:
        """Whether the mean of the last quarter is that of the quarter before.

        Records of a chain are correlated, so the error is that of one record.
        """
        before, last = np.split(self.mean[len(self.mean) % 4 :], 4)[2:]
        return bool(abs(last.mean() - before.mean()) < 3 * np.sqrt(2) * self.end_errors[0])


def as_stated(setting: ExperimentSetting) -> Result:
    panels, curves, claims, rows = [], [], [], []
    for name, title in DATASETS.items():
        problem = regression(name, setting)
        truth = _truth(setting, problem, title)
        found = _spreads(setting, problem, title)
        for share in SHARES:
            panel = f"{name} {share:g}"
            panels.append(
                Panel(
                    panel,
                    f"{title}, h = {share:g} h₀",
                    "passes through the data",
                    "mean log-likelihood",
                    log_x=True,
                )
            )
            curves += [
                Curve(panel, label, spread.passes, spread.mean)
                for (label, of), spread in found.items()
                if label == FULL or of == share
            ]
            ends = np.array([1.0, found[FULL, 1.0].passes[-1]])
            level = np.full(2, truth.mean[-1])
            curves.append(Curve(panel, "exact (MALA)", ends, level, kind="reference"))
        claims += _claims(title, found, truth)
        rows += _rows(title, found, truth)
    columns = ("data", "method", "h / h₀", "passes", "mean", "±", "sd", "±", "still", "chains")
    table = ResultTable("at the end, less the exact value; ± standard error", columns, rows)
    return Result(panels, curves, claims, [table])


def regression(name: str, setting: ExperimentSetting) -> SmallRegression:
    x, y = two_classes(name, setting.folder)
    kept, held_out = shuffle_split(len(y), len(y) // 4, seed=0)
    posterior = logistic_regression(x[kept], y[kept], PRIOR_VARIANCE)
    anchor = find_anchor(posterior)
    chance = jax.nn.sigmoid(x[kept] @ np.asarray(anchor.position))
    weights = np.asarray(chance * (1 - chance))
    hessian = (x[kept] * weights[:, None]).T @ x[kept] + np.eye(x.shape[1]) / PRIOR_VARIANCE
    signed_rows = jnp.asarray((2 * y[held_out] - 1)[:, None] * x[held_out], posterior.dtype)
    curvatures = np.linalg.eigvalsh(hessian)
    return SmallRegression(
        posterior, anchor, signed_rows, float(curvatures[-1]), float(curvatures[0])
    )


@jax.jit
def _log_likelihoods(
    signed_rows: Float[Array, "M d"], positions: Float[Array, "chains k d"]
) -> Float[Array, "chains k"]:
    def of_chain(chain: Float[Array, "k d"]) -> Float[Array, " k"]:
        return jnp.mean(jax.nn.log_sigmoid(signed_rows @ chain.T), axis=0)

    return jax.lax.map(of_chain, positions)


def _spreads(setting: ExperimentSetting, problem: SmallRegression, title: str) -> Found:
    n, friction = problem.posterior.n_rows, problem.friction
    limit = friction / problem.curvature
    full = Method(
        dynamics=SGHMC(friction),
        gradient=Full(),
        subsample=AllRows(),
        step_size=library_step(_STEP_OF_FULL_GRADIENT * limit),
    )
    starts = np.zeros((setting.pick(_CHAINS, 200), problem.posterior.dim))

    def spread(label: str, method: Method, every: int, records: int, passes: float) -> Spread:
        """Run a method, with this many passes between records."""
        ensemble = Ensemble(problem.posterior, method, starts, every, seed=0)
        positions = ensemble.positions(records, setting.part(f"{title}, {label}"))
        return _spread(problem, positions, passes * np.arange(1, records + 1))

    found = {(FULL, 1.0): spread(FULL, full, 20, _PASSES_OF_FULL_GRADIENT // 20, 20.0)}
    for share in SHARES[:1] if setting.quick else SHARES:
        h = share * _NOISE_OF_SGHMC / n * limit
        every = max(1, problem.steps(share) // _RECORDS)
        every = setting.pick(every, max(1, every // 8))
        # Calls of a gradient per step; EWSG-VR also makes a pass every n // 2 steps.
        runs = {
            "SGHMC": (sghmc(library_step(h), 1, friction), 1.0),
            "EWSG": (ewsg(library_step(h), 1, friction), 2.0),
            "EWSG-VR": (ewsg_vr(library_step(h), 1, friction, n // 2), 4.0 + n / (n // 2)),
        }
        for label, (method, calls) in runs.items():
            found[label, share] = spread(
                f"{label}, h = {share:g} h₀", method, every, _RECORDS, every * calls / n
            )
    return found


def _truth(setting: ExperimentSetting, problem: SmallRegression, title: str) -> Spread:
    chains = setting.pick(_CHAINS, 200)
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


def _rows(title: str, found: Found, truth: Spread) -> list[list[str]]:
    rows = []
    for (label, share), spread in found.items():
        offs = [getattr(spread, kind)[-1] - getattr(truth, kind)[-1] for kind in ("mean", "sd")]
        errors = np.hypot(spread.end_errors, truth.end_errors)
        rows.append(
            [
                title,
                label,
                "" if label == FULL else f"{share:g}",
                f"{spread.passes[-1]:.0f}",
                *(f"{x:.4f}" for pair in zip(offs, errors, strict=True) for x in pair),
                "yes" if spread.stands_still else "no",
                str(spread.chains),
            ]
        )
    return rows


def _claims(title: str, found: Found, truth: Spread) -> list[Claim]:
    shares = sorted({share for _, share in found}, reverse=True)
    claims = [_converged(title, found, share) for share in shares]
    moving = [
        f"{label}, {of:g} h₀" for (label, of), spread in found.items() if not spread.stands_still
    ]
    still = f"no: {'; '.join(moving)}" if moving else "yes"
    claims.append(Claim(f"{title}: all curves stand still", "yes", still, not moving, False))
    for index, kind in enumerate(("mean", "sd")):

        def off(label: str, share: float, index: int = index, kind: str = kind) -> tuple:
            spread = found[label, share]
            error = float(np.hypot(spread.end_errors[index], truth.end_errors[index]))
            return getattr(spread, kind)[-1] - getattr(truth, kind)[-1], error

        of_full, error = off(FULL, 1.0)
        z = abs(of_full) / error
        statement = f"{title}: the {kind} of the full gradient is the exact one"
        claims.append(
            Claim(statement, "|z| ≤ 4.6", f"off by {of_full:.4f}, |z| {z:.1f}", bool(z <= 4.6))
        )
        for better, worse in (("EWSG", "SGHMC"), ("EWSG-VR", "EWSG")):
            words, holds = [], []
            for share in shares:
                (one, one_error), (other, other_error) = off(better, share), off(worse, share)
                gain = abs(other) - abs(one)
                holds.append(gain > 2 * np.hypot(one_error, other_error))
                words.append(f"{share:g} h₀: {one:.4f} against {other:.4f} ± {other_error:.4f}")
            claims.append(
                Claim(
                    f"{title}: the {kind} of {better} is closer to the exact one than of {worse}",
                    "closer by two standard errors at every step size",
                    "; ".join(words),
                    bool(np.all(holds)),
                    required=False,
                )
            )
    return claims


def _converged(title: str, found: Found, share: float) -> Claim:
    """Passes after which the mean stays within 5 % of its whole change from θ = 0."""
    passes = {}
    for (label, of), spread in found.items():
        if label != FULL and of != share:
            continue
        change = abs(spread.mean[-1] + np.log(2))
        outside = np.flatnonzero(~(np.abs(spread.mean - spread.mean[-1]) <= 0.05 * change))
        last = outside[-1] + 1 if len(outside) else 0
        passes[label] = spread.passes[min(last, len(spread.passes) - 1)]
    full = passes.pop(FULL)
    return Claim(
        f"{title}, {share:g} h₀: passes to within 5 % of the end, fewer than the full gradient",
        f"fewer than {full:g}",
        ", ".join(f"{label} {value:.3g}" for label, value in passes.items()),
        bool(max(passes.values()) < full),
        required=False,
    )
