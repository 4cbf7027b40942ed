"""The anchor: the mode and the curvature at the mode, computed once and shared."""

from ._anchor import LBFGS, SGD, Adam, Anchor, Newton, find_anchor, other_modes, prior_directions

__all__ = [
    "LBFGS",
    "SGD",
    "Adam",
    "Anchor",
    "Newton",
    "find_anchor",
    "other_modes",
    "prior_directions",
]
