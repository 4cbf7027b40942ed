"""The anchor: the mode and the curvature at the mode, computed once and shared."""

from .anchor import Anchor, AnchorLevel, laplace
from .identification import prior_directions
from .modes import OtherMode, other_modes
from .optimisers import LBFGS, SGD, AbstractOptimiser, Adam, Newton

__all__ = [
    "LBFGS",
    "SGD",
    "AbstractOptimiser",
    "Adam",
    "Anchor",
    "AnchorLevel",
    "Newton",
    "OtherMode",
    "laplace",
    "other_modes",
    "prior_directions",
]
