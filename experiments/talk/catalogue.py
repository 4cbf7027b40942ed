"""The list of the experiments of the talk on preferential subsampling."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS = {
    "talk-fig1": Experiment(
        "SGLD and SGLD-CV on a Gaussian mean, 1 and 90 % of the rows", "talk.fig1", minutes=1
    ),
}
