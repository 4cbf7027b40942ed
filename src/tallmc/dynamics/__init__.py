"""Dynamics: how a gradient estimate moves the state of a chain."""

from .baoab import BAOAB
from .dynamics import AbstractDynamics
from .fisher_scoring import FisherScoring
from .geometric_langevin import GeometricLangevin
from .hamiltonian import Hamiltonian
from .hmc import HMC, ModeJumpingHMC
from .langevin import Langevin
from .leimkuhler_matthews import LeimkuhlerMatthews
from .mala import MALA
from .matrix_friction import MatrixFriction
from .microcanonical import Microcanonical
from .nose_hoover import NoseHoover
from .preconditioned_langevin import PreconditionedLangevin
from .random_walk import RandomWalk
from .riemannian_hamiltonian import RiemannianHamiltonian
from .riemannian_langevin import RiemannianLangevin
from .sghmc import SGHMC

__all__ = [
    "BAOAB",
    "HMC",
    "MALA",
    "SGHMC",
    "AbstractDynamics",
    "FisherScoring",
    "GeometricLangevin",
    "Hamiltonian",
    "Langevin",
    "LeimkuhlerMatthews",
    "MatrixFriction",
    "Microcanonical",
    "ModeJumpingHMC",
    "NoseHoover",
    "PreconditionedLangevin",
    "RandomWalk",
    "RiemannianHamiltonian",
    "RiemannianLangevin",
]
