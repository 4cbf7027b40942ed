"""Step sizes as functions of the step number."""

from .base import AbstractSchedule, AbstractSteadySchedule, in_precision
from .constant import Constant, as_schedule
from .cyclical import Cyclical
from .polynomial import Polynomial

__all__ = [
    "AbstractSchedule",
    "AbstractSteadySchedule",
    "Constant",
    "Cyclical",
    "Polynomial",
    "as_schedule",
    "in_precision",
]
