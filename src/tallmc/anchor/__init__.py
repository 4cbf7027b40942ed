"""The anchor: the mode and the curvature at the mode, computed once and shared."""

from .anchor import Anchor, AnchorLevel, laplace
from .identification import prior_directions
from .modes import OtherMode, other_modes
from .optimisers import LBFGS, AbstractOptimiser, Adam, Newton

__all__ = [
    "LBFGS",
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
