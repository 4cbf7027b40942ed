"""What is known about every dynamics, one record each. A new dynamics gets its record here.

`problems.DYNAMICS`, `test_stationary_law.py`, `test_order.py` and every test that is parametrised
over all dynamics derive from `LAWS`. The keys name the cases of `golden.json`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import table_1
from tallmc.contrib.constrained import Mirrored, Projected, Reflected
from tallmc.contrib.proximal import Proximal
from tallmc.contrib.recipe import Recipe
from tallmc.dynamics import (
    BAOAB,
    HMC,
    MALA,
    SGHMC,
    AbstractDynamics,
    FisherScoring,
    GeometricLangevin,
    Hamiltonian,
    Langevin,
    LeimkuhlerMatthews,
    MatrixFriction,
    Microcanonical,
    ModeJumpingHMC,
    NoseHoover,
    PreconditionedLangevin,
    RandomWalk,
    RiemannianHamiltonian,
    RiemannianLangevin,
)
from tallmc.dynamics.metric import inverse_root


class Recursion(NamedTuple):
    """s' = As + Bg(Ps) + Nξ, with the momentum redrawn every `refresh` steps (0: never)."""

    A: np.ndarray
    B: np.ndarray
    N: np.ndarray
    P: np.ndarray | None = None
    """Maps s to the point at which the gradient is evaluated; None: at θ."""
    refresh: int = 0


# The recursions, transcribed from the papers independently of the package. d parameters, h = ε/2,
# C the map of the geometry.


def langevin(dynamics, step: float, d: int, C: np.ndarray) -> Recursion:
    return Recursion(np.eye(d), -step / 2 * C @ C.T, np.sqrt(step) * C)


def leimkuhler_matthews(dynamics, step: float, d: int, C: np.ndarray) -> Recursion:
    one, zero, half = np.eye(d), np.zeros((d, d)), np.sqrt(step) / 2 * C
    A = np.block([[one, half], [zero, zero]])
    return Recursion(A, np.vstack([-step / 2 * C @ C.T, zero]), np.vstack([half, one]))


def euler(dynamics, step: float, d: int, C: np.ndarray) -> Recursion:
    """Of `SGHMC` and `MatrixFriction`."""
    one, zero, h = np.eye(d), np.zeros((d, d)), step / 2
    D = np.asarray(dynamics.friction) * (one if np.ndim(dynamics.friction) == 0 else 1)
    A = np.block([[one, h * C], [zero, one - h * D]])
    return Recursion(
        A, np.vstack([zero, -h * C.T]), np.vstack([zero, np.linalg.cholesky(step * D)])
    )


def baoab(dynamics, step: float, d: int, C: np.ndarray) -> Recursion:
    one, zero, h = np.eye(d), np.zeros((d, d)), step / 2
    c = np.exp(-float(dynamics.friction) * h)
    s, A_half = np.sqrt(1 - c**2), h / 2 * C
    drift_and_damp = np.block([[one, (1 + c) * A_half], [zero, c * one]])
    kick = np.vstack([zero, -h * C.T])
    return Recursion(drift_and_damp, drift_and_damp @ kick, np.vstack([s * A_half, s * one]))


def geometric_langevin(dynamics, step: float, d: int, C: np.ndarray) -> Recursion:
    one, zero, h = np.eye(d), np.zeros((d, d)), step / 2
    c = np.exp(-float(dynamics.friction) * h)
    drift = np.block([[one, h * C], [zero, one]])
    damp = np.block([[one, zero], [zero, c * one]])
    half_kick = np.vstack([zero, -h / 2 * C.T])
    noise = np.vstack([zero, np.sqrt(1 - c**2) * one])
    return Recursion(drift @ damp, drift @ (damp @ half_kick + half_kick), drift @ noise)


def hamiltonian(dynamics, step: float, d: int, C: np.ndarray) -> Recursion:
    one, zero, h = np.eye(d), np.zeros((d, d)), step / 2
    c = np.exp(-float(dynamics.friction) * h)
    half = np.block([[one, h / 2 * C], [zero, one]])
    damp = half @ np.block([[one, zero], [zero, c * one]])
    kick = half @ np.vstack([zero, -h / 2 * (1 + c) * C.T])
    noise = half @ np.vstack([zero, np.sqrt(1 - c**2) * one])
    return Recursion(damp @ half, kick, noise, half[:d], int(dynamics.length))


def riemannian_langevin(dynamics, step: float, d: int, C: np.ndarray) -> Recursion:
    # The Fisher metric of a linear regression is constant.
    return langevin(dynamics, step, d, np.asarray(inverse_root(dynamics.metric, jnp.zeros(d))))


def riemannian_hamiltonian(dynamics, step: float, d: int, C: np.ndarray) -> Recursion:
    one, zero, h, gamma = np.eye(d), np.zeros((d, d)), step / 2, float(dynamics.friction)
    R = np.asarray(inverse_root(dynamics.metric, jnp.zeros(d)))
    A = np.block([[one, h * R], [zero, one - h * gamma * R @ R.T]])
    noise = np.vstack([zero, np.sqrt(step * gamma) * R])
    return Recursion(A, np.vstack([zero, -h * R.T]), noise)


class Quartic(NamedTuple):
    """The order of the bias on the anharmonic posterior of `test_order.py`."""

    choice: AbstractDynamics
    largest: float
    """The largest step size."""
    degree: int
    """Of the polynomials that resolve the law."""


class DynamicsLaw(NamedTuple):
    """A dynamics, with settings for the posteriors of the tests, and what it does there."""

    choice: AbstractDynamics
    """Settings for short runs on `linear()`."""
    recursion: Callable[..., Recursion] | None = None
    """The recursion on a Gaussian, if the dynamics is affine there."""
    biased: tuple[AbstractDynamics, float] | None = None
    """Settings and a step size at which the law on `linear()` is visibly biased.

    The posterior has curvatures from 3 to 6.
    """
    gaussian: tuple[AbstractDynamics, float] | None = None
    """Settings and the largest step size for the order of the bias on `linear()`."""
    quartic: Quartic | None = None
    order: int | None = None
    """Order of the bias, with exact gradients."""


def metric(theta):
    """A metric that changes with the parameter."""
    return jnp.reshape(1 / (1 + 0.2 * theta**2), (1, 1))


WALK = Recipe(
    diffusion=lambda zeta: jnp.diag(1 + 0.2 * zeta**2), curl=lambda zeta: jnp.zeros((1, 1))
)
FRICTION = [[8.0, 2.0], [2.0, 5.0]]

LAWS = {
    "langevin": DynamicsLaw(
        Langevin(),
        langevin,
        (Langevin(), 0.15),
        (Langevin(), 0.2),
        Quartic(Langevin(), 0.4, 30),
        order=1,
    ),
    "leimkuhler-matthews": DynamicsLaw(
        LeimkuhlerMatthews(),
        leimkuhler_matthews,
        (LeimkuhlerMatthews(), 0.15),
        None,  # no bias on a Gaussian
        Quartic(LeimkuhlerMatthews(), 0.4, 22),
        order=2,
    ),
    "rmsprop": DynamicsLaw(PreconditionedLangevin()),
    "fisher-scoring": DynamicsLaw(FisherScoring()),
    "riemannian-langevin": DynamicsLaw(
        RiemannianLangevin(),
        riemannian_langevin,
        (RiemannianLangevin(), 1.0),
        (RiemannianLangevin(), 0.5),
        Quartic(RiemannianLangevin(metric), 0.2, 30),
        order=1,
    ),
    "underdamped": DynamicsLaw(
        SGHMC(friction=3.0),
        euler,
        (SGHMC(friction=6.0), 0.2),
        (SGHMC(6.0), 0.2),
        Quartic(SGHMC(2.0), 0.2, 22),
        order=1,
    ),
    "matrix-friction": DynamicsLaw(
        MatrixFriction([[4.0, 1.0], [1.0, 2.0]]),
        euler,
        (MatrixFriction(FRICTION), 0.2),
        (MatrixFriction(FRICTION), 0.2),
        Quartic(MatrixFriction([[2.0]]), 0.2, 22),
        order=1,
    ),
    "trajectories": DynamicsLaw(
        Hamiltonian(length=3, friction=3.0),
        hamiltonian,
        (Hamiltonian(length=4, friction=1.0), 0.3),
        (Hamiltonian(length=3, friction=1.0), 0.4),
        order=2,
    ),
    "splitting": DynamicsLaw(
        BAOAB(friction=3.0),
        baoab,
        (BAOAB(friction=3.0), 0.4),
        None,  # no bias on a Gaussian
        Quartic(BAOAB(1.0), 0.8, 22),
        order=2,
    ),
    "geometric-langevin": DynamicsLaw(
        GeometricLangevin(friction=3.0),
        geometric_langevin,
        (GeometricLangevin(friction=3.0), 0.4),
        quartic=Quartic(GeometricLangevin(1.0), 0.8, 22),
        order=2,
    ),
    "nose-hoover": DynamicsLaw(
        NoseHoover(friction=3.0), quartic=Quartic(NoseHoover(1.5), 0.2, 10), order=1
    ),
    "microcanonical": DynamicsLaw(Microcanonical(friction=3.0)),
    "riemannian-hamiltonian": DynamicsLaw(
        RiemannianHamiltonian(friction=10.0),
        riemannian_hamiltonian,
        (RiemannianHamiltonian(friction=20.0), 0.4),
        (RiemannianHamiltonian(friction=20.0), 0.2),
        Quartic(RiemannianHamiltonian(metric, friction=2.0), 0.2, 22),
        order=1,
    ),
    "recipe": DynamicsLaw(
        table_1.sghmc_recipe(2, friction=3.0), quartic=Quartic(WALK, 0.2, 30), order=1
    ),
    "mala": DynamicsLaw(MALA()),
    "random-walk": DynamicsLaw(RandomWalk()),
    "hmc": DynamicsLaw(HMC(length=3)),
    "projected": DynamicsLaw(Projected((-5.0, 5.0))),
    "reflected": DynamicsLaw(Reflected((-5.0, 5.0))),
    "mirrored": DynamicsLaw(Mirrored((-5.0, 5.0))),
    "proximal": DynamicsLaw(Proximal()),
    "mode-jumping-hmc": DynamicsLaw(ModeJumpingHMC(3, np.zeros((1, 2)), np.eye(2)[None], [1.0])),
}
_OF_CLASS = {type(law.choice): law for law in LAWS.values()}


def recursion(dynamics, step_size: float, d: int) -> Recursion:
    """The recursion of a prepared dynamics, or of a mutant of one."""
    law = next((_OF_CLASS[kind] for kind in type(dynamics).__mro__ if kind in _OF_CLASS), None)
    if law is None or law.recursion is None:
        raise TypeError(f"no law for {type(dynamics).__name__}")
    C = np.asarray(dynamics.geometry.push(jnp.eye(d))).T
    return law.recursion(dynamics, step_size, d, C)
