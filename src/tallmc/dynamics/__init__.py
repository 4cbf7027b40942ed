"""Dynamics: how a gradient estimate moves the state of a chain."""

from . import table_1
from .base import AbstractDynamics, DynamicsChoice
from .domains import Box, Domain, HalfSpace
from .fisher_scoring import FisherScoring, FisherScoringDynamics
from .geometric_langevin import GeometricLangevin, GeometricLangevinDynamics
from .hamiltonian import Hamiltonian, HamiltonianDynamics
from .hmc import HMC, HMCDynamics
from .langevin import Langevin, LangevinDynamics
from .leimkuhler_matthews import LeimkuhlerMatthews, LeimkuhlerMatthewsDynamics
from .mala import MALA, MalaDynamics
from .matrix_friction import MatrixFriction, MatrixFrictionDynamics
from .microcanonical import Microcanonical, MicrocanonicalDynamics
from .mirror_maps import Entropic, LogBarrier, MirrorMap
from .mirrored import Mirrored, MirroredDynamics
from .mode_jumps import ModeJumpingHMC
from .nose_hoover import NoseHoover, NoseHooverDynamics
from .projected import Projected, ProjectedDynamics
from .random_walk import RandomWalk, RandomWalkDynamics
from .recipe import Recipe, RecipeDynamics
from .reflected import Reflected, ReflectedDynamics
from .riemannian_hamiltonian import RiemannianHamiltonian, RiemannianHamiltonianDynamics
from .riemannian_langevin import RiemannianLangevin, RiemannianLangevinDynamics
from .rmsprop import RMSprop, RMSpropDynamics
from .splitting import Splitting, SplittingDynamics
from .underdamped import Underdamped, UnderdampedDynamics

__all__ = [
    "HMC",
    "MALA",
    "AbstractDynamics",
    "Box",
    "Domain",
    "DynamicsChoice",
    "Entropic",
    "FisherScoring",
    "FisherScoringDynamics",
    "GeometricLangevin",
    "GeometricLangevinDynamics",
    "HMCDynamics",
    "HalfSpace",
    "Hamiltonian",
    "HamiltonianDynamics",
    "Langevin",
    "LangevinDynamics",
    "LeimkuhlerMatthews",
    "LeimkuhlerMatthewsDynamics",
    "LogBarrier",
    "MalaDynamics",
    "MatrixFriction",
    "MatrixFrictionDynamics",
    "Microcanonical",
    "MicrocanonicalDynamics",
    "MirrorMap",
    "Mirrored",
    "MirroredDynamics",
    "ModeJumpingHMC",
    "NoseHoover",
    "NoseHooverDynamics",
    "Projected",
    "ProjectedDynamics",
    "RMSprop",
    "RMSpropDynamics",
    "RandomWalk",
    "RandomWalkDynamics",
    "Recipe",
    "RecipeDynamics",
    "Reflected",
    "ReflectedDynamics",
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
