"""The list of the experiments of Nemeth and Fearnhead (2021)."""

from __future__ import annotations

from ..experiment import Experiment

_BASELINES = ("blackjax", "numpyro")  # NUTS and ADVI

EXPERIMENTS: dict[str, Experiment] = {
    "nemeth2021-fig1": Experiment(
        "KSD and effective sample size against the step size, rotated Gaussian",
        "nemeth2021.fig1",
        minutes=4,
        variants=("stated", "run"),
    ),
    "nemeth2021-fig2": Experiment(
        "trace plots of all samplers, logistic regression, d = 10",
        "nemeth2021.fig2",
        minutes=10,
        variants=("stated", "works"),
        packages=_BASELINES,
    ),
    "nemeth2021-fig3": Experiment(
        "errors of the posterior mean and sd against time, logistic regression, d = 10",
        "nemeth2021.fig3",
        minutes=15,
        variants=("stated", "works"),
        packages=_BASELINES,
    ),
    "nemeth2021-table2": Experiment(
        "time, log-loss and KSD of all samplers, logistic regression, d = 10, 50, 100",
        "nemeth2021.table2",
        minutes=20,
        place="one H200 GPU",
        variants=("stated", "works"),
        packages=_BASELINES,
    ),
    "nemeth2021-fig5": Experiment(
        "test log-loss of a neural network on MNIST, with and without control variates",
        "nemeth2021.fig5",
        data=("mnist",),
        minutes=2,
        place="one H200 GPU",
        variants=("stated", "works"),
    ),
    "nemeth2021-fig6": Experiment(
        "test RMSE of matrix factorisation, MovieLens or simulated",
        "nemeth2021.fig6",
        minutes=2,
        place="one H200 GPU",
        variants=("stated", "works"),
    ),
}
