"""Dynamics: how a gradient estimate moves the state of a chain."""

from . import table_1
from .base import AbstractDynamics, DynamicsChoice
from .fisher_scoring import FisherScoring, FisherScoringDynamics
from .geometric_langevin import GeometricLangevin, GeometricLangevinDynamics
from .hamiltonian import Hamiltonian, HamiltonianDynamics
from .hmc import HMC, HMCDynamics
from .langevin import Langevin, LangevinDynamics
from .leimkuhler_matthews import LeimkuhlerMatthews, LeimkuhlerMatthewsDynamics
from .mala import MALA, MalaDynamics
from .matrix_friction import MatrixFriction, MatrixFrictionDynamics
from .microcanonical import Microcanonical, MicrocanonicalDynamics
from .mode_jumps import ModeJumpingHMC
from .nose_hoover import NoseHoover, NoseHooverDynamics
from .random_walk import RandomWalk, RandomWalkDynamics
from .recipe import Recipe, RecipeDynamics
from .riemannian_hamiltonian import RiemannianHamiltonian, RiemannianHamiltonianDynamics
from .riemannian_langevin import RiemannianLangevin, RiemannianLangevinDynamics
from .rmsprop import RMSprop, RMSpropDynamics
from .splitting import Splitting, SplittingDynamics
from .underdamped import Underdamped, UnderdampedDynamics

__all__ = [
    "HMC",
    "MALA",
    "AbstractDynamics",
    "DynamicsChoice",
    "FisherScoring",
    "FisherScoringDynamics",
    "GeometricLangevin",
    "GeometricLangevinDynamics",
    "HMCDynamics",
    "Hamiltonian",
    "HamiltonianDynamics",
    "Langevin",
    "LangevinDynamics",
    "LeimkuhlerMatthews",
    "LeimkuhlerMatthewsDynamics",
    "MalaDynamics",
    "MatrixFriction",
    "MatrixFrictionDynamics",
    "Microcanonical",
    "MicrocanonicalDynamics",
    "ModeJumpingHMC",
    "NoseHoover",
    "NoseHooverDynamics",
    "RMSprop",
    "RMSpropDynamics",
    "RandomWalk",
    "RandomWalkDynamics",
    "Recipe",
    "RecipeDynamics",
    "RiemannianHamiltonian",
    "RiemannianHamiltonianDynamics",
    "RiemannianLangevin",
    "RiemannianLangevinDynamics",
    "Splitting",
    "SplittingDynamics",
    "Underdamped",
    "UnderdampedDynamics",
    "table_1",
]
