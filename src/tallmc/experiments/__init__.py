"""The papers' experiments, to be run by `tallmc reproduce`: one file a figure, and what they share.

results      what an experiment leaves                     chains      chains side by side, with their gradients
registry     the experiments by name                       synthetic   simulated data, bit for bit
output       CSV, PNG and verdict                          data        real data, where they are found
plot         the figure                                    published   curves as published, where they are found
"""

from .registry import EXPERIMENTS, Experiment, experiment_named
from .results import Result, Setting, Variant

__all__ = ["EXPERIMENTS", "Experiment", "Result", "Setting", "Variant", "experiment_named"]
