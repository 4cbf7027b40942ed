"""The experiments of the papers, `python -m experiments`: one file per figure, shared modules.

results     curves, claims and tables      chains            chains with their gradients
experiment  a figure and its ways          predictive_runs   chains scored by their predictions
registry    the experiments by name        synthetic         simulated data, bit for bit
output      CSV, PNG and verdict           data              real data, if found
plot        the figure                     published         published curves, if found
shapes      ellipses and densities         PAPER/catalogue   the experiments of a paper
"""

from .experiment import Experiment
from .registry import EXPERIMENTS, experiment_named
from .results import ExperimentSetting, Result, Variant

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "ExperimentSetting",
    "Result",
    "Variant",
    "experiment_named",
]
