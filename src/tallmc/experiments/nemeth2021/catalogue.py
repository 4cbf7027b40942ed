"""The list of the experiments of Nemeth and Fearnhead (2021)."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "nemeth2021-fig1": Experiment(
        "KSD and effective sample size against the step size, rotated Gaussian",
        "nemeth2021.fig1",
        minutes=4,
        variants=("stated", "run"),
    ),
}
