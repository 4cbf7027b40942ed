"""The list of the experiments of Baker, Fearnhead, Fox and Nemeth (2018)."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS = {
    "baker2018-fig1": Experiment(
        "a probability without observations: SGRLD and SCIR",
        "baker2018.fig1",
        minutes=2,
    ),
    "baker2018-fig2": Experiment(
        "sparse and dense probabilities: distance from the posterior by minibatch size",
        "baker2018.fig2",
        minutes=12,
    ),
    "baker2018-lda": Experiment(
        "topics of docstrings: perplexity of SGRLD, SCIR and scikit-learn on held-out documents",
        "baker2018.lda",
        minutes=12,
        packages=("sklearn",),
    ),
}
