"""The list of the experiments of Li, Wang, Zha and Tao (2021)."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "li2021-fig1": Experiment(
        "EWSG on a Gaussian: KL against passes, choices of x and M, error of averages",
        "li2021.fig1",
        ("a", "b", "c", "d", "e", "f"),
        minutes=9,
    ),
    "li2021-theorem41": Experiment(
        "the sparse probabilities of Theorem 4.1: how many rows, how much less variance",
        "li2021.theorem41",
        ("a", "b", "c"),
        minutes=1,
    ),
    "li2021-fig3a": Experiment(
        "test error of a perceptron on MNIST, and Table 2",
        "li2021.fig3",
        argument="MLP",
        data=("mnist",),
        minutes=8,
        place="one H200 GPU",
        variants=("stated", "works"),
    ),
    "li2021-fig3b": Experiment(
        "test error of a convolutional network, and Table 2",
        "li2021.fig3",
        argument="CNN",
        data=("mnist",),
        minutes=120,
        place="one H200 GPU",
        variants=("stated", "works"),
    ),
    "li2021-table3": Experiment(
        "EWSG against SGHMC over b and M at equal passes",
        "li2021.table3",
        data=("mnist",),
        minutes=8,
        place="one H200 GPU",
        variants=("works",),
    ),
    "li2021-fig4": Experiment(
        "EWSG-VR against EWSG on a Gaussian",
        "li2021.fig4",
        minutes=4,
        variants=("stated", "works"),
    ),
    "li2021-table1": Experiment(
        "logistic regression on covertype in one pass: accuracy, log-likelihood, seconds",
        "li2021.table1",
        data=("covertype",),
        minutes=10,
        variants=("stated", "works"),
    ),
    "li2021-fig5": Experiment(
        "test log-likelihood on Parkinsons and Pima: full gradient, SGHMC, EWSG, EWSG-VR",
        "li2021.fig5",
        data=("parkinsons", "pima"),
        minutes=5,
    ),
    "li2021-fig6": Experiment(
        "misspecified Gaussian: FlyMC, EWSG and Metropolis",
        "li2021.fig6",
        variants=("stated", "works"),
    ),
}
