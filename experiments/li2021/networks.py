"""The networks of section 5.3 on MNIST, and the methods in the paper's parametrisation.

The paper writes V = Σ V_i − log prior and the steps (h, γ) for

    overdamped    θ' = θ − h ∇V + √(2h) ξ
    underdamped   θ' = θ + h r,   r' = r − h (∇V + γ r) + √(2γh) ξ

With V a sum over 60,000 rows, h = 2e-3 and γ = 0.1 cannot work: the underdamped chain is stable
only for curvatures below γ/h = 50. With V/N in place of V, at temperature 1/N, the same posterior
is the target and the printed values are plausible: h²/(hγ) = 0.02 per mean gradient. In the units
of V this is h/√N and γ√N for underdamped and h/N for preconditioned dynamics. SGLD's printed
h = 1e-7 is one of V itself (0.006 per mean gradient).

The paper's "100 independent samples" are the ends of 100 chains, whose predictions are averaged.

Table 3 has no friction, and its h = 10/(b(M + 1)) is no step of the underdamped form: with 5,000
rows per step the chain would hardly leave its start in 200 passes. It works as the learning rate of
the momentum form of Chen, Fox and Guestrin (2014), eq. 15, with η = h/N and α = 0.01:

    v' = (1 − α) v − η ∇V + √(2αη) ξ,   θ' = θ + v'

In the units of V this is a step √η and a friction α/√η. The position moves with the new momentum,
as in `GeometricLangevin`, which has exp(−α) in place of 1 − α. Both readings are inferences.

Not given in the paper: the activation (ReLU here), padding (none here) and starts (random weights
with variance 2/fan-in).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from tallmc._rows.access import RowBlock
from tallmc.dynamics import GeometricLangevin
from tallmc.methods import cp_sghmc, ewsg, psgld, sghmc, sgld
from tallmc.methods.method import Method
from tallmc.models import ConvolutionalLayer, DenseLayer, MaxPoolLayer, neural_network
from tallmc.models.neural_network import AbstractLayer
from tallmc.models.posterior import AbstractPosterior
from tallmc.subsample import ExponentiallyWeighted

from ..chains import Share
from ..data import mnist
from ..predictive_runs import PredictiveRun, Score, error_per_cent, log_loss, predictive_run
from .steps import library_step

N_TRAIN, N_TEST, BATCH, EPOCHS = 60_000, 10_000, 100, 200
ALPHA = 0.01
"""α of Table 3, in the momentum form."""
METHODS = ("SGLD", "pSGLD", "SGHMC", "CP-SGHMC", "EWSG")
Potential = Literal["sum", "mean"]
"""Whether the printed steps are those of V or, except for SGLD, of V/N."""


@dataclasses.dataclass(frozen=True)
class NetworkCard:
    """A network, the printed steps of each method and the printed test errors."""

    layers: tuple[AbstractLayer, ...]
    friction: float
    steps: dict[str, float]
    errors: dict[str, tuple[float, float]]
    """Mean and sd of the test error in per cent."""


NETWORKS = {
    "MLP": NetworkCard(
        (DenseLayer(100, "relu"),),
        0.1,
        {"SGLD": 1e-7, "pSGLD": 1e-4, "SGHMC": 2e-3, "CP-SGHMC": 2e-3, "EWSG": 4e-3},
        {
            "SGLD": (1.976, 0.055),
            "pSGLD": (1.821, 0.061),
            "SGHMC": (1.833, 0.073),
            "CP-SGHMC": (1.835, 0.047),
            "EWSG": (1.793, 0.100),
        },
    ),
    "CNN": NetworkCard(
        (
            ConvolutionalLayer(32, 5, "relu"),
            MaxPoolLayer(2),
            ConvolutionalLayer(64, 5, "relu"),
            MaxPoolLayer(2),
            DenseLayer(200, "relu"),
            DenseLayer(200, "relu"),
        ),
        1.0,
        {"SGLD": 2e-8, "pSGLD": 8e-6, "SGHMC": 2e-3, "CP-SGHMC": 2e-3, "EWSG": 4e-3},
        {
            "SGLD": (0.848, 0.060),
            "pSGLD": (0.860, 0.052),
            "SGHMC": (0.778, 0.040),
            "CP-SGHMC": (0.772, 0.055),
            "EWSG": (0.753, 0.035),
        },
    ),
}


class Problem(NamedTuple):
    """A network with MNIST: the posterior, starts of the chains, test rows and their scores."""

    posterior: AbstractPosterior
    starts: np.ndarray
    test_rows: RowBlock
    scores: dict[str, Score]


def digits(
    network: str,
    folder: Path | None,
    chains: int,
    *,
    n_train: int = N_TRAIN,
    n_test: int = N_TEST,
) -> Problem:
    """Return the posterior of a network with N(0, 1) priors, and one random start per chain.

    Fewer than all rows are the first ones.
    """
    layers, split = NETWORKS[network].layers, mnist(folder)
    shape = (28, 28) if network == "CNN" else (784,)
    x, x_test = (rows.reshape(-1, *shape) for rows in (split.X, split.X_held_out))
    x, y = x[:n_train], split.y[:n_train]
    posterior = neural_network(layers, x, y, prior_variance=1.0)
    starts = [
        neural_network(layers, x[:2], y[:2], classes=10, seed=seed).init for seed in range(chains)
    ]
    assert posterior.predictive is not None, "networks predict"
    y_test = split.y_held_out[:n_test]
    test_rows = posterior.predictive.encode((x_test[:n_test], y_test))
    scores = {"error": error_per_cent(y_test), "log-loss": log_loss(y_test)}
    return Problem(posterior, np.stack([np.asarray(start) for start in starts]), test_rows, scores)


def in_units_of_sum(
    h: float, friction: float, n_rows: int, potential: Potential
) -> tuple[float, float]:
    """h and γ of underdamped dynamics in V, for those of `potential`."""
    scale = np.sqrt(n_rows) if potential == "mean" else 1.0
    return float(h / scale), float(friction * scale)


def momentum_form(rate: float, n_rows: int) -> tuple[float, float]:
    """h and γ in V of the momentum form with learning rate `rate` per mean gradient."""
    root = float(np.sqrt(rate / n_rows))
    return root, ALPHA / root


def methods(card: NetworkCard, potential: Potential, n_rows: int = N_TRAIN) -> dict[str, Method]:
    """The methods of Table 2 at the printed steps."""
    h, friction = dict(card.steps), card.friction
    for name in ("SGHMC", "CP-SGHMC", "EWSG"):
        h[name], friction = in_units_of_sum(card.steps[name], card.friction, n_rows, potential)
    h["pSGLD"] /= n_rows if potential == "mean" else 1
    return {
        "SGLD": sgld(library_step(h["SGLD"]), BATCH),
        "pSGLD": psgld(library_step(h["pSGLD"]), BATCH, decay=0.99, regulariser=1e-5),
        "SGHMC": sghmc(library_step(h["SGHMC"]), BATCH, friction),
        "CP-SGHMC": cp_sghmc(library_step(h["CP-SGHMC"]), BATCH, friction, strata=10),
        "EWSG": ewsg(library_step(h["EWSG"]), BATCH, friction, length=1),
    }


def steps_per_epoch(rows_per_step: int, n_rows: int = N_TRAIN) -> int:
    """Steps that read as many rows as there are; EWSG reads M + 1 batches per step."""
    return max(1, n_rows // rows_per_step)


def run(
    network: str,
    folder: Path | None,
    *,
    chains: int,
    pool: int,
    epochs: int,
    potential: Potential = "mean",
    names: Sequence[str] = METHODS,
    n_train: int = N_TRAIN,
    n_test: int = N_TEST,
    seed: int = 0,
    share: Share = lambda done: None,
) -> dict[str, PredictiveRun]:
    """Run methods of Table 2; each evaluation is one epoch, of pools of `pool` chains."""
    problem = digits(network, folder, chains, n_train=n_train, n_test=n_test)
    chosen = methods(NETWORKS[network], potential, n_train)
    return {
        name: predictive_run(
            problem.posterior,
            chosen[name],
            problem.test_rows,
            problem.scores,
            problem.starts,
            steps=steps_per_epoch((2 if name == "EWSG" else 1) * BATCH, n_train),
            evaluations=epochs,
            seed=seed,
            pool=pool,
            share=lambda done, k=k: share((k + done) / len(names)),  # type: ignore[misc]
        )
        for k, name in enumerate(names)
    }


def run_pair(
    problem: Problem,
    batch: int,
    proposals: int,
    *,
    epochs: int,
    pool: int,
    seed: int = 0,
    share: Share = lambda done: None,
) -> tuple[PredictiveRun, PredictiveRun]:
    """EWSG with b rows and M + 1 = `proposals` batches, and SGHMC with b(M + 1) rows (Table 3).

    Both have h = 10/(b(M + 1)), the learning rate, and the same number of steps.
    """
    n_rows, rows = problem.posterior.n_rows, batch * proposals
    h, friction = momentum_form(10 / rows, n_rows)
    dynamics = GeometricLangevin(friction)
    pair = (
        Method(
            dynamics=dynamics,
            subsample=ExponentiallyWeighted(proposals - 1),
            batch_size=batch,
            step_size=library_step(h),
        ),
        Method(dynamics=dynamics, batch_size=rows, step_size=library_step(h)),
    )
    first, second = (
        predictive_run(
            problem.posterior,
            method,
            problem.test_rows,
            problem.scores,
            problem.starts,
            steps=steps_per_epoch(rows, n_rows),
            evaluations=epochs,
            seed=seed,
            pool=pool,
            share=lambda done, k=k: share((k + done) / 2),  # type: ignore[misc]
        )
        for k, method in enumerate(pair)
    )
    return first, second


def finite_share(run: PredictiveRun) -> float:
    """The share of chains whose last position is finite."""
    return float(np.mean(np.asarray(jnp.isfinite(run.positions).all(axis=1))))
