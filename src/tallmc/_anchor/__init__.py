"""The anchor: the mode and the curvature at the mode, computed once and shared."""

from .anchor import Anchor, AnchorLevel, find_anchor
from .modes import OtherMode, other_modes, prior_directions
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
    "find_anchor",
    "other_modes",
    "prior_directions",
]
