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
    "li2021-fig4": Experiment(
        "EWSG-VR against EWSG on a Gaussian",
        "li2021.fig4",
        minutes=4,
        variants=("stated", "works"),
    ),
}
