"""The simulated logistic regression of section 6.1 and the samplers that are compared on it.

Rows x ~ N(0, Σ) with Σ_ij = Unif(−0.4, 0.4)^|i−j|, θ_j ~ N(0, s_j²) with s_j drawn from 0.1, 1 and
10 (not in the paper), prior N(0, 10 I), subsamples of 1 % of the rows. The authors set no seed, so
the data are not theirs. Where paper and code differ:

                 paper                        code                       here
    prior        covariance 10 I              100 I (10 I in Stan)       10 I
    iterations   20,000; CV 10,000 + 10,000   10⁵; CV 5·10⁴ + 5·10⁴      those of the paper
    θ            from the model               sd of each from {.1, 1, 10}  that of the code
    step sizes   tuned, not printed           printed for d = 10         those of the code
    mode         stochastic gradient descent  the same                   Newton's method

The step sizes h of the R package are those of momenta with variance h. Here momenta have variance
1, which makes the step size ε = 2√h and the friction α/√h. SGNHT moves θ with the new momentum.

An iteration of SGHMC is a trajectory of five steps. Seconds are those of sampling, plus those of
finding the mode for methods that need it, without compilation.
"""

from __future__ import annotations

import time
import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tallmc._anchor.anchor import Anchor, find_anchor
from tallmc._core.errors import SamplingWarning
from tallmc.dynamics import NoseHoover
from tallmc.gradient import ControlVariate, Simple
from tallmc.methods import ula
from tallmc.methods.abstract import AbstractMethod
from tallmc.methods.method import Method
from tallmc.methods.registry import METHODS
from tallmc.methods.suggestions import suggest
from tallmc.models import logistic_regression
from tallmc.models.posterior import AbstractPosterior
from tallmc.reference import nuts

from ..chains import Share, quiet_sample
from ..results import ExperimentSetting
from .advi import advi_draws

N_ROWS, N_HELD_OUT, PRIOR_VARIANCE, SEED = 100_000, 10_000, 10.0, 2021
TRAJECTORY = 5
NUTS, DEFAULT, ADVI = "NUTS", "tallmc default", "ADVI"
NAMES = {
    "SGLD": "sgld",
    "SGLD-CV": "sgld_cv",
    "SGHMC": "sghmc_trajectories",
    "SGHMC-CV": "sghmc_cv_trajectories",
    "SGNHT": "sgnht",
    "SGNHT-CV": "sgnht_cv",
    "ULA": "ula",
}
LABELS = (NUTS, *NAMES, ADVI, DEFAULT)
_LANGEVIN_STEP, _SGHMC_STEP, _SGNHT_STEP, _SGNHT_CV_STEP = 4e-7, 1e-8, 1e-8, 1e-9
_SGHMC_ALPHA, _SGNHT_ALPHA = 0.01, 0.02
_THETA_SDS = (0.1, 1.0, 10.0)


class ReviewData(NamedTuple):
    """Simulated rows, rows held out, and the posterior of the former."""

    rows: Float[np.ndarray, "N d"]
    responses: Float[np.ndarray, " N"]
    posterior: AbstractPosterior
    held_out: tuple[Float[np.ndarray, "M d"], Float[np.ndarray, " M"]]
    anchor: Anchor
    anchor_seconds: float
    """Seconds to find the mode, without compilation."""
    start: Float[np.ndarray, " d"]
    """θ₀ ~ N(0, I), where all chains start that do not start at the mode."""

    @property
    def size(self) -> int:
        """Rows per gradient: 1 %."""
        return self.posterior.n_rows // 100


class SamplerRun(NamedTuple):
    """Draws of one sampler and what they cost."""

    positions: Float[np.ndarray, "chains draws d"]
    times: Float[np.ndarray, " draws"]
    """Seconds from the beginning to each draw, without compilation."""
    compilation: float

    @property
    def seconds(self) -> float:
        return float(self.times[-1])


class TrueMoments(NamedTuple):
    """Means and standard deviations of a posterior."""

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]


def simulated(d: int, n_rows: int = N_ROWS) -> ReviewData:
    """Simulate the data and find the mode."""
    random = np.random.default_rng(SEED)
    covariance = np.eye(d)
    for i in range(d):
        for j in range(i):
            covariance[i, j] = covariance[j, i] = random.uniform(-0.4, 0.4) ** (i - j)
    # For large d the matrix is not positive definite; negative eigenvalues are raised to 1e-6.
    eigenvalues, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(eigenvalues, 1e-6))
    rows = random.normal(size=(n_rows, d)) @ root.T
    theta = random.normal(size=d) * random.choice(_THETA_SDS, size=d)
    responses = _responses(random, rows, theta)
    new_rows = random.normal(size=(N_HELD_OUT, d)) @ root.T
    held_out = new_rows, _responses(random, new_rows, theta)
    posterior = logistic_regression(rows, responses, prior_variance=PRIOR_VARIANCE)
    find_anchor(posterior)  # compiles
    began = time.perf_counter()
    anchor = find_anchor(posterior)
    seconds = time.perf_counter() - began
    start = random.normal(size=d)
    return ReviewData(rows, responses, posterior, held_out, anchor, seconds, start)


def _responses(
    random: np.random.Generator, rows: Float[np.ndarray, "N d"], theta: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " N"]:
    return (random.random(len(rows)) < 1 / (1 + np.exp(-rows @ theta))).astype(float)


def thermostat(h: float, size: int, alpha: float, *, control_variates: bool) -> Method:
    """SGNHT in the order and the units of the R package."""
    root = float(np.sqrt(h))
    return Method(
        dynamics=NoseHoover(alpha / root, momentum_first=True),
        gradient=ControlVariate() if control_variates else Simple(),
        batch_size=size,
        step_size=2 * root,
    )


def stated_methods(data: ReviewData) -> dict[str, AbstractMethod]:
    """Return the methods with the step sizes of the authors' code.

    They are for 100,000 rows. With fewer rows the posterior is wider, and h grows in proportion.
    """
    scale, size = N_ROWS / data.posterior.n_rows, data.size
    root = (scale * _SGHMC_STEP) ** 0.5
    overdamped = {
        label: METHODS[NAMES[label]].make(scale * _LANGEVIN_STEP, batch_size=size)
        for label in ("SGLD", "SGLD-CV")
    }
    trajectories = {
        label: METHODS[NAMES[label]].make(
            2 * root, batch_size=size, friction=_SGHMC_ALPHA / root, length=TRAJECTORY
        )
        for label in ("SGHMC", "SGHMC-CV")
    }
    return {
        **overdamped,
        **trajectories,
        "SGNHT": thermostat(scale * _SGNHT_STEP, size, _SGNHT_ALPHA, control_variates=False),
        "SGNHT-CV": thermostat(scale * _SGNHT_CV_STEP, size, _SGNHT_ALPHA, control_variates=True),
        "ULA": ula(scale * _LANGEVIN_STEP),
    }


def suggested_methods(data: ReviewData) -> dict[str, AbstractMethod]:
    """Return the methods with the settings that `tallmc.suggest` finds for these rows."""
    return {
        label: suggest(
            data.posterior,
            name,
            batch_size=None if label == "ULA" else data.size,
            anchor=data.anchor,
        ).method
        for label, name in NAMES.items()
    }


def steps_per_iteration(label: str) -> int:
    return TRAJECTORY if "SGHMC" in label else 1


def method_run(
    data: ReviewData,
    label: str,
    method: AbstractMethod,
    iterations: int,
    *,
    at_mode: bool,
    share: Share,
) -> SamplerRun:
    """Run one chain, from the mode or from θ₀. The seconds include those of the anchor if used."""
    uses_anchor = at_mode or method.needs > 0
    draws = quiet_sample(
        data.posterior,
        method,
        chains=1,
        n_draws=iterations,
        thin=steps_per_iteration(label),
        burn_in=0,
        start=np.asarray(data.anchor.position) if uses_anchor else data.start,
        anchor=data.anchor if method.needs else None,
        seed=SEED,
        share=share,
    )
    before = data.anchor_seconds if uses_anchor else 0.0
    times = before + draws.timing.sampling * np.arange(1, iterations + 1) / iterations
    return SamplerRun(draws.positions, times, draws.timing.compilation)


def default_run(data: ReviewData, share: Share) -> SamplerRun:
    """Run `tallmc.sample(posterior)`, the second time in this process: nothing is compiled."""
    first = quiet_sample(data.posterior, share=share, seed=SEED)
    draws = quiet_sample(data.posterior, share=share, seed=SEED)
    begun = draws.timing.preparation + draws.timing.compilation + draws.timing.checking
    n_draws = draws.positions.shape[1]
    times = begun + draws.timing.sampling * np.arange(1, n_draws + 1) / n_draws
    spent = [run.timing.preparation + run.timing.compilation for run in (first, draws)]
    return SamplerRun(draws.positions[draws.ok], times, max(spent[0] - spent[1], 0.0))


def nuts_run(data: ReviewData, n_draws: int, warmup: int) -> SamplerRun:
    """Run one chain of NUTS from the mode, in coordinates of the anchor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        found = nuts(data.posterior, chains=1, n_draws=n_draws, warmup=warmup, anchor=data.anchor)
    passes = found.sample_stats["n_row_evals"][0]
    times = data.anchor_seconds + found.timing.sampling * passes / passes[-1]
    return SamplerRun(found.positions, times, found.timing.compilation)


def advi_run(data: ReviewData, steps: int, n_draws: int) -> SamplerRun:
    """Fit NumPyro's AutoNormal guide and draw from it."""
    found = advi_draws(data.rows, data.responses, PRIOR_VARIANCE, steps=steps, n_draws=n_draws)
    return SamplerRun(found.positions, np.full(n_draws, found.seconds), found.compilation)


def all_runs(
    setting: ExperimentSetting,
    data: ReviewData,
    methods: dict[str, AbstractMethod],
    *,
    at_mode: bool,
) -> dict[str, SamplerRun]:
    """Run all samplers: 20,000 iterations, or 10,000 after the mode has been found."""
    d = data.posterior.dim
    draws = 1000
    setting.part(f"NUTS, d = {d}")(0.0)
    runs = {NUTS: nuts_run(data, draws, warmup=setting.pick(1000, 300))}
    for label, method in methods.items():
        iterations = setting.pick(20_000, 10_000) // (2 if method.needs else 1)
        share = setting.part(f"{label}, d = {d}")
        runs[label] = method_run(data, label, method, iterations, at_mode=at_mode, share=share)
    setting.part(f"ADVI, d = {d}")(0.0)
    runs[ADVI] = advi_run(data, setting.pick(4000, 1000), draws)
    runs[DEFAULT] = default_run(data, setting.part(f"{DEFAULT}, d = {d}"))
    return runs
