"""The experiments of Putcha, Nemeth and Fearnhead (2023)."""

from __future__ import annotations

from functools import partial

from .. import experiment

_Figure = partial(experiment.Experiment, variants=("run", "meant"))

EXPERIMENTS = {
    "putcha2023-fig1a": _Figure(
        "pseudo-variance against size, bivariate Gaussian",
        "putcha2023.fig1",
        argument="a",
        minutes=2,
    ),
    "putcha2023-fig1b": _Figure(
        "pseudo-variance against size, balanced logistic regression",
        "putcha2023.fig1",
        argument="b",
        minutes=3,
    ),
    "putcha2023-fig1c": _Figure(
        "pseudo-variance against size, imbalanced logistic regression",
        "putcha2023.fig1",
        argument="c",
        minutes=3,
    ),
    "putcha2023-fig2a": _Figure("KSD on CASP, 0.1 %", "putcha2023.fig2a", data=("casp",)),
    "putcha2023-fig2b": _Figure(
        "KSD and log-loss on covertype, 0.1 %",
        "putcha2023.fig2b",
        ("-i", "-ii"),
        data=("covertype",),
        minutes=12,
    ),
    "putcha2023-fig3": _Figure(
        "adaptive sizes, simulated logistic regression", "putcha2023.fig3", ("a", "b", "c")
    ),
    "putcha2023-fig4a": _Figure("KL on a bivariate Gaussian, 1, 5, 10 %", "putcha2023.fig4a"),
    "putcha2023-fig4b": _Figure(
        "KSD on covertype, 1, 5, 10 %",
        "putcha2023.fig4b",
        data=("covertype",),
        minutes=6,
        place="one H200 GPU",
    ),
    "putcha2023-fig5": _Figure(
        "adaptive sizes on CASP", "putcha2023.fig5", ("a", "b", "c"), data=("casp",)
    ),
}
