"""Step sizes as functions of the step number."""

from .base import AbstractSchedule, AbstractSteadySchedule, in_precision
from .constant import Constant, as_schedule
from .cyclical import Cyclical
from .halved import Halved, halved
from .polynomial import Polynomial

__all__ = [
    "AbstractSchedule",
    "AbstractSteadySchedule",
    "Constant",
    "Cyclical",
    "Halved",
    "Polynomial",
    "as_schedule",
    "halved",
    "in_precision",
]
