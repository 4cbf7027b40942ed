"""The list of the experiments of the poster on SGLD with control variates."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS = {
    "poster-fig1": Experiment(
        "a random walk on a two-dimensional Gaussian", "poster.fig1", minutes=1
    ),
    "poster-fig2": Experiment(
        "densities of SGLD, SGLD-CV, MALA and ULA after 100 passes",
        "poster.fig2",
        variants=("stated", "works"),
        minutes=1,
    ),
    "poster-fig3": Experiment("two modes: where each method ends", "poster.fig3", minutes=1),
    "poster-fig4": Experiment(
        "logistic regression on covertype: log-loss and coefficients",
        "poster.fig4",
        data=("covertype",),
        variants=("stated", "works"),
        minutes=10,
    ),
}
