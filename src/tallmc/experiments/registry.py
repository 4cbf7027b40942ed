"""The experiments by name. The module of an experiment is imported when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from ..core.errors import InvalidInput
from .results import ExperimentSetting, Result, Variant


class Experiment(NamedTuple):
    """A figure: what it shows, its module, panels and datasets, and its minutes on two cores."""

    title: str
    module: str
    panels: tuple[str, ...] = ()
    argument: str | None = None
    data: tuple[str, ...] = ()
    minutes: int = 5

    def run(self, variant: Variant, setting: ExperimentSetting) -> Result:
        module = importlib.import_module(f".{self.module}", __package__)
        run_variant: Callable[..., Result] = getattr(module, f"as_{variant}")
        return (
            run_variant(setting) if self.argument is None else run_variant(self.argument, setting)
        )


EXPERIMENTS = {
    "putcha2023-fig1a": Experiment(
        "pseudo-variance against size, bivariate Gaussian",
        "putcha2023.fig1",
        argument="a",
        minutes=2,
    ),
    "putcha2023-fig1b": Experiment(
        "pseudo-variance against size, balanced logistic regression",
        "putcha2023.fig1",
        argument="b",
        minutes=3,
    ),
    "putcha2023-fig1c": Experiment(
        "pseudo-variance against size, imbalanced logistic regression",
        "putcha2023.fig1",
        argument="c",
        minutes=3,
    ),
    "putcha2023-fig2a": Experiment("KSD on CASP, 0.1 %", "putcha2023.fig2a", data=("casp",)),
    "putcha2023-fig2b": Experiment(
        "KSD and log-loss on covertype, 0.1 %",
        "putcha2023.fig2b",
        ("-i", "-ii"),
        data=("covertype",),
        minutes=12,
    ),
    "putcha2023-fig3": Experiment(
        "adaptive sizes, simulated logistic regression", "putcha2023.fig3", ("a", "b", "c")
    ),
    "putcha2023-fig4a": Experiment("KL on a bivariate Gaussian, 1, 5, 10 %", "putcha2023.fig4a"),
    "putcha2023-fig4b": Experiment(
        "KSD on covertype, 1, 5, 10 %", "putcha2023.fig4b", data=("covertype",), minutes=60
    ),
    "putcha2023-fig5": Experiment(
        "adaptive sizes on CASP", "putcha2023.fig5", ("a", "b", "c"), data=("casp",)
    ),
}


def experiment_named(name: str) -> tuple[str, Experiment]:
    """Find an experiment by its name or by the name of a panel: fig3a is a panel of fig3."""
    for full_name, experiment in EXPERIMENTS.items():
        if name in (full_name, *(f"{full_name}{panel}" for panel in experiment.panels)):
            return full_name, experiment
    raise InvalidInput("NAME", "be an experiment", name, "See tallmc reproduce --list.")
