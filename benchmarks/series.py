"""Series by buffered windows: error against the buffer, noise of windows, time against length."""

from __future__ import annotations

import functools
import time

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import tallmc
from tallmc.contrib.series.windows import buffer_errors, recut, series_pilot
from tallmc.models.model import DensityModel

from .report import print_table

TRANSITION = np.array([[0.98, 0.02], [0.05, 0.95]])
RARE = np.array([[0.998, 0.002], [0.05, 0.95]])
BUFFERS = (2, 4, 8, 16, 32)
POSITIONS = 16
LENGTHS = (10_000, 100_000, 1_000_000)


def regimes(n_times: int, transition: np.ndarray, distance: float, seed: int = 0) -> np.ndarray:
    """Two regimes whose means differ by `distance` noise sds."""
    rng = np.random.default_rng(seed)
    uniform, states = rng.random(n_times), np.zeros(n_times, int)
    leave = transition[[0, 1], [1, 0]]
    for at in range(1, n_times):
        before = states[at - 1]
        states[at] = 1 - before if uniform[at] < leave[before] else before
    return distance * states + rng.standard_normal(n_times)


def autoregression(n_times: int, a: float, state_scale: float) -> np.ndarray:
    """An AR(1) series plus noise with sd 1."""
    rng = np.random.default_rng(1)
    x, moves = np.zeros(n_times), state_scale * rng.standard_normal(n_times)
    for at in range(1, n_times):
        x[at] = a * x[at - 1] + moves[at]
    return x + rng.standard_normal(n_times)


def errors_by_buffer() -> None:
    """Errors of the gradient, in posterior sds of the mean, by the buffer and its messages."""
    y = regimes(20_000, TRANSITION, 1.5)
    z = autoregression(20_000, 0.95, 0.3)
    made = {
        "two regimes, 1.5 sds apart": (
            y,
            tallmc.contrib.series.hidden_markov(y, 2, window=64, buffer=1),
        ),
        "AR(1), a = 0.95, plus noise": (
            z,
            tallmc.contrib.series.state_space(z, window=64, buffer=1),
        ),
    }
    rows = []
    for name, (values, posterior) in made.items():
        series, model = values[:, None].astype(posterior.dtype), posterior.model
        assert isinstance(model, DensityModel)
        pilot = series_pilot(recut(model, window=512, before=0, after=0), series)
        for messages in ("past", "both"):
            errors = buffer_errors(
                recut(model, window=64, before=1, after=int(messages == "both")),
                series,
                pilot.position[None],
                pilot.factor,
                window=64,
                buffers=list(BUFFERS),
                reference=128,
            )[0]
            rows.append((name, messages, *(f"{error:.1e}" for error in errors)))
    columns = ("series", "messages", *(f"B = {buffer}" for buffer in BUFFERS))
    print_table("Error of the posterior mean in posterior sds, T = 20,000, L = 64", columns, rows)


def noise_of_windows() -> None:
    """Variances of gradients from windows drawn with preferential weights, relative to uniform."""
    rows = []
    for name, transition in (("2% rare regime", RARE), ("29% other regime", TRANSITION)):
        y = regimes(100_000, transition, 3.0)
        posterior = tallmc.contrib.series.hidden_markov(y, 2, window=64, buffer=20)
        anchor = tallmc.anchor.find_anchor(posterior)
        normal = np.random.default_rng(0).standard_normal((POSITIONS, posterior.dim))
        shifts = normal @ np.asarray(anchor.factor).T
        gradient = eqx.filter_jit(posterior.model.row_gradients)
        there = np.asarray(gradient(anchor.position, posterior.data), float)
        for estimator, known, weigh in (
            ("simple", 0.0, tallmc.subsample.gradient_weights),
            ("control variate", there, tallmc.subsample.curvature_weights),
        ):
            weights = np.asarray(weigh(posterior, anchor), float)
            variances = np.zeros(2)
            for shift in shifts:
                moved = anchor.position + jnp.asarray(shift, posterior.dtype)
                residuals = np.asarray(gradient(moved, posterior.data), float) - known
                squares = (residuals**2).sum(axis=1)
                total = (residuals.sum(axis=0) ** 2).sum()
                preferential = (squares / weights).sum() * weights.sum() - total
                variances += preferential, len(squares) * squares.sum() - total
            rows.append((name, estimator, f"{variances[0] / variances[1]:.2f}"))
    print_table(
        "Variance of one window's gradient, preferential / uniform",
        ("series", "estimator", "ratio"),
        rows,
    )


def time_by_length() -> None:
    """Seconds by the length of the series: what grows with it, and what does not."""
    method = tallmc.Method(
        gradient=tallmc.gradient.ControlVariate(),
        subsample=tallmc.subsample.Preferential("curvature"),
        geometry=tallmc.geometry.Dense(),
        batch_size=32,
        step_size=0.2,
    )
    rows = []
    for n_times in LENGTHS:
        y = regimes(n_times, TRANSITION, 2.0)
        began = time.perf_counter()
        posterior = tallmc.contrib.series.hidden_markov(y, 2)
        built = time.perf_counter()
        anchor = tallmc.anchor.find_anchor(posterior)
        found = time.perf_counter()
        run = functools.partial(
            tallmc.sample,
            posterior,
            method,
            chains=4,
            burn_in=200,
            thin=5,
            progress=False,
            anchor=anchor,
        )
        run(n_draws=10)
        draws = run(n_draws=1000)
        states = posterior.quantities.of(draws.positions)["means"]
        rows.append(
            (
                f"{n_times:,}",
                posterior.description["buffer"].split(",")[0],
                f"{built - began:.1f}",
                f"{found - built:.1f}",
                f"{draws.timing.preparation:.1f}",
                f"{draws.timing.sampling:.2f}",
                f"{states[..., 1].mean():.4f} ± {states[..., 1].std():.4f}",
            )
        )
        columns = ("T", "B", "buffer s", "mode s", "weights s", "sampling s", "higher mean")
    print_table("Two regimes: seconds by the length of the series", columns, rows)


def main() -> None:
    errors_by_buffer()
    noise_of_windows()
    time_by_length()
