"""The Gaussian example of section 5.1: V(θ) = Σ ‖θ − c_i‖²/2 with 50 points c_i ~ N(0, I₂).

The target is N(c̄, I/50). The law of 10,000 chains after some passes is compared with it by
KL(target ‖ Gaussian with the mean and covariance over chains). A pass is 50 calls of a gradient of
one row: SGLD, pSGLD and SGHMC make one per step, EWSG M + 1, SVRG-LD two and one pass per 50 steps.

The gradient noise n(c̄ − c_I) of a uniform index I does not depend on θ. SGLD and SGHMC are
therefore linear recursions whose mean and covariance after any number of steps are known exactly
(`exact_kl`): a check of the simulation that does not depend on the draw of the points.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tallmc import diagnose
from tallmc.dynamics import SGHMC
from tallmc.gradient import Full
from tallmc.methods import psgld, sghmc, sgld, svrg_ld
from tallmc.methods.method import Method
from tallmc.models.posterior import Posterior
from tallmc.subsample import AllRows, ExponentiallyWeighted
from tallmc.subsample.exponential import Guess

from ..chains import Share
from .ensemble import Ensemble
from .steps import library_step

N_ROWS, FRICTION, PASSES = 50, 10.0, 30
STEP_SIZES = {"SGLD": 5e-3, "pSGLD": 5e-3, "SGHMC": 5e-2, "EWSG": 5e-2, "SVRG-LD": 5e-4}
_GROUPS = 20


class Schedule(NamedTuple):
    """What a method is, and what its steps cost in calls of a gradient."""

    method: Method
    calls_per_step: int
    pass_every: int | None = None
    """Steps between passes over all rows; the first one is made before the first step."""

    def passes(self, steps: np.ndarray) -> np.ndarray:
        """Passes over the data that this many steps take."""
        whole = 0 if self.pass_every is None else np.ceil(steps / self.pass_every)
        return steps * self.calls_per_step / N_ROWS + whole

    def records(self, passes: int, per_pass: int) -> tuple[int, int]:
        """Steps between records, about `per_pass` per pass, and records within the passes."""
        over_a_pass = 0 if self.pass_every is None else N_ROWS / self.pass_every
        steps = N_ROWS / (self.calls_per_step + over_a_pass)
        every = max(1, round(steps / per_pass))
        candidates = every * np.arange(1, int(passes * steps / every) + 2)
        return every, int(np.sum(self.passes(candidates) <= passes))


def centres(draw: int) -> Float[np.ndarray, "50 2"]:
    return np.random.default_rng(draw).standard_normal((N_ROWS, 2)).astype(np.float32)


def target(points: Float[np.ndarray, "50 2"]) -> Posterior:
    return Posterior(
        log_likelihood=_log_likelihood, log_prior=_flat, data=points, init=jnp.zeros(2)
    )


def _log_likelihood(theta: Float[Array, " 2"], point: Float[Array, " 2"]) -> Float[Array, ""]:
    return -jnp.sum((theta - point) ** 2) / 2


def _flat(theta: Float[Array, " 2"]) -> Float[Array, ""]:
    return jnp.zeros((), theta.dtype)


def compared() -> dict[str, Schedule]:
    """The five methods of panel (a), with the paper's step sizes."""
    h = STEP_SIZES
    reduced = svrg_ld(library_step(h["SVRG-LD"]), 1, N_ROWS)
    return {
        "SGLD": Schedule(sgld(library_step(h["SGLD"]), 1), 1),
        "pSGLD": Schedule(psgld(library_step(h["pSGLD"]), 1), 1),
        "SGHMC": Schedule(sghmc(library_step(h["SGHMC"]), 1, FRICTION), 1),
        "EWSG": weighted(h["EWSG"]),
        "SVRG-LD": Schedule(reduced, 2, pass_every=N_ROWS),
    }


def weighted(h: float, length: int = 1, guess: Guess = "at_rest") -> Schedule:
    """EWSG with an index chain of `length` steps. With none it is SGHMC."""
    method = Method(
        dynamics=SGHMC(FRICTION),
        subsample=ExponentiallyWeighted(length, guess),
        batch_size=1,
        step_size=library_step(h),
    )
    return Schedule(method, length + 1)


def full_gradient(h: float) -> Schedule:
    method = Method(
        dynamics=SGHMC(FRICTION),
        gradient=Full(),
        subsample=AllRows(),
        step_size=library_step(h),
    )
    return Schedule(method, N_ROWS)


class KlPath(NamedTuple):
    """The divergence against passes, its standard error at the end, and the chains that failed."""

    passes: Float[np.ndarray, " k"]
    kl: Float[np.ndarray, " k"]
    error: float
    failed: float
    """The share of the chains that ended with an outcome; `kl` is that of the others."""

    @property
    def end(self) -> float:
        return float(self.kl[-1])


def kl_path(
    schedule: Schedule,
    points: Float[np.ndarray, "50 2"],
    *,
    chains: int,
    passes: int = PASSES,
    per_pass: int = 5,
    seed: int,
    share: Share,
) -> KlPath:
    """Run chains from 0 and compare their law with the target a few times per pass."""
    every, records = schedule.records(passes, per_pass)
    ensemble = Ensemble(target(points), schedule.method, np.zeros((chains, 2)), every, seed)
    positions = ensemble.positions(records, share)
    steps = every * np.arange(1, records + 1)
    kl = np.array([kl_of(positions[:, record], points) for record in range(records)])
    failed = float(np.mean(np.isnan(positions[:, -1, 0])))
    return KlPath(schedule.passes(steps), kl, jackknife_error(positions[:, -1], points), failed)


def kl_of(positions: Float[np.ndarray, "chains 2"], points: Float[np.ndarray, "50 2"]) -> float:
    """KL(target ‖ Gaussian fit over the chains that have not failed); NaN if most have."""
    alive = positions[np.isfinite(positions).all(axis=1)]
    if len(alive) < len(positions) / 2:
        return float("nan")
    return _kl(alive.mean(axis=0), np.cov(alive.T), points)


def jackknife_error(
    positions: Float[np.ndarray, "chains 2"], points: Float[np.ndarray, "50 2"]
) -> float:
    """The standard error of `kl_of`, by leaving out one of twenty groups of chains at a time."""
    groups = np.arange(len(positions)) % _GROUPS
    left_out = [kl_of(positions[groups != group], points) for group in range(_GROUPS)]
    return float(np.sqrt((_GROUPS - 1) * np.var(left_out)))


def exact_kl(label: str, points: Float[np.ndarray, "50 2"], h: float, steps: int) -> float:
    """The divergence of SGLD, SGHMC or the full gradient after `steps` steps from 0.

    With momentum the state is (θ, r), and r starts as N(0, I).
    """
    points = points.astype(float)
    noise = 0 if label == "full gradient" else N_ROWS**2 * np.cov(points.T, bias=True)
    identity, curvature, centre = np.eye(2), float(N_ROWS), points.mean(axis=0)
    drift: np.ndarray
    injected: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    if label == "SGLD":
        drift, injected = (1 - h * curvature) * identity, 2 * h * identity + h**2 * noise
        mean, covariance = -centre, np.zeros((2, 2))
    else:
        drift = np.kron([[1, h], [-h * curvature, 1 - h * FRICTION]], identity)
        only_momentum = np.diag([0.0, 1.0])
        injected = np.kron(only_momentum, 2 * FRICTION * h * identity + h**2 * noise)
        mean, covariance = np.append(-centre, [0, 0]), np.kron(only_momentum, identity)
    for _ in range(steps):
        mean, covariance = drift @ mean, drift @ covariance @ drift.T + injected
    return _kl(mean[:2] + centre, covariance[:2, :2], points)


def _kl(
    mean: Float[np.ndarray, " 2"],
    covariance: Float[np.ndarray, "2 2"],
    points: Float[np.ndarray, "50 2"],
) -> float:
    return diagnose.gaussian_kl(points.mean(axis=0), np.eye(2) / N_ROWS, mean, covariance)
