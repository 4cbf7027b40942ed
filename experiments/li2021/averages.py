"""The mean squared error of a time average (theorem 4.3) on the Gaussian example.

The test function is φ(θ) = ‖θ − c̄‖², whose mean under the target is the variance φ̄ = 2/50. The
average φ̂ = (1/K) Σ φ(θ_k) over the K = T/h steps of a chain has the error E(φ̂ − φ̄)², over chains
that start in the target. The theorem bounds it by C₁/T + C₂h/T + C₃h².

`limit_of_small_steps` is C₁/T: for h → 0 the chain is the underdamped Langevin diffusion, and the
error is (2/T²) ∫ (T − t) 4ρ(t)² dt with the autocovariance ρ of one coordinate. `exact_bias` is the
bias φ̄_h − φ̄ of SGHMC for T → ∞, from the stationary covariance of its linear recursion.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ..chains import Share
from .ensemble import Ensemble
from .gaussian import FRICTION, N_ROWS, Schedule, target

MEAN_OF_TEST_FUNCTION = 2 / N_ROWS


def average_errors(
    schedule: Schedule,
    points: Float[np.ndarray, "50 2"],
    h: float,
    times: Float[np.ndarray, " times"],
    *,
    chains: int,
    seed: int,
    share: Share,
) -> Float[np.ndarray, "times chains"]:
    """φ̂ − φ̄ after each of these times, which increase."""
    centre = points.mean(axis=0, dtype=float)
    random = np.random.default_rng(seed)
    starts = centre + random.standard_normal((chains, 2)) / np.sqrt(N_ROWS)
    ensemble = Ensemble(target(points), schedule.method, starts, 1, seed)
    steps = np.rint(times / h).astype(int)
    sums, done, averages = np.zeros(chains), 0, []
    for piece in ensemble.pieces(int(steps[-1]), share):
        values = np.sum((piece - centre) ** 2, axis=2)
        inside = (steps > done) & (steps <= done + values.shape[1])
        averages += [(sums + values[:, : step - done].sum(axis=1)) / step for step in steps[inside]]
        sums, done = sums + values.sum(axis=1), done + values.shape[1]
    return np.array(averages) - MEAN_OF_TEST_FUNCTION


def limit_of_small_steps(time: float) -> float:
    """E(φ̂ − φ̄)² of the diffusion after this time, started in the target."""
    frequency = np.sqrt(N_ROWS - FRICTION**2 / 4)
    grid = np.linspace(0, min(time, 40 / FRICTION), 20_001)
    decay = np.exp(-FRICTION * grid / 2)
    waves = np.cos(frequency * grid) + FRICTION / (2 * frequency) * np.sin(frequency * grid)
    covariance = 4 * (decay * waves / N_ROWS) ** 2
    return float(2 / time**2 * np.trapezoid((time - grid) * covariance, grid))


def exact_bias(points: Float[np.ndarray, "50 2"], h: float) -> float:
    """The bias of SGHMC for T → ∞: the trace of its stationary covariance, less φ̄."""
    noise = N_ROWS**2 * np.var(points.astype(float), axis=0)
    drift = np.array([[1, h], [-h * N_ROWS, 1 - h * FRICTION]])
    of_one = np.linalg.solve(np.eye(4) - np.kron(drift, drift), [0, 0, 0, 1.0])[0]
    return float(of_one * np.sum(2 * FRICTION * h + h**2 * noise) - MEAN_OF_TEST_FUNCTION)


def log_slope(
    x: Float[np.ndarray, " k"], y: Float[np.ndarray, " k"], error: Float[np.ndarray, " k"]
) -> tuple[float, float]:
    """The slope of log y against log x by least squares, and its standard error from those of y."""
    centred = np.log(x) - np.log(x).mean()
    weights = centred / np.sum(centred**2)
    return float(weights @ np.log(y)), float(np.sqrt(np.sum((weights * error / y) ** 2)))


def squared_error(
    errors: Float[np.ndarray, "*k chains"],
) -> tuple[Float[np.ndarray, "*k"], Float[np.ndarray, "*k"]]:
    """The mean squared error over chains and its standard error."""
    squares = errors**2
    error = squares.std(axis=-1, ddof=1) / np.sqrt(errors.shape[-1])
    return np.asarray(squares.mean(axis=-1)), np.asarray(error)
