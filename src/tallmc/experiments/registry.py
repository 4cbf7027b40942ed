"""The experiments by name. Modules are imported when one is run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from .._errors import InvalidInput
from .results import Result, Setting, Variant


class Experiment(NamedTuple):
    """A figure: what it shows, the files of data it needs, its panels, and how long it takes on two cores."""

    title: str
    module: str
    panels: tuple[str, ...] = ()
    argument: str | None = None
    data: tuple[str, ...] = ()
    minutes: int = 5

    def run(self, variant: Variant, setting: Setting) -> Result:
        module = importlib.import_module(f".{self.module}", __package__)
        fn: Callable[..., Result] = getattr(module, f"as_{variant}")
        return fn(setting) if self.argument is None else fn(self.argument, setting)


EXPERIMENTS = {
    "putcha2023-fig1a": Experiment(
        "pseudo-variance against size, bivariate Gaussian", "putcha2023.fig1", argument="a", minutes=2
    ),
    "putcha2023-fig1b": Experiment(
        "pseudo-variance against size, balanced logistic regression", "putcha2023.fig1", argument="b", minutes=3
    ),
    "putcha2023-fig1c": Experiment(
        "pseudo-variance against size, imbalanced logistic regression", "putcha2023.fig1", argument="c", minutes=3
    ),
    "putcha2023-fig2a": Experiment("KSD on CASP, 0.1 %", "putcha2023.fig2a", data=("casp",)),
    "putcha2023-fig2b": Experiment(
        "KSD and log-loss on covertype, 0.1 %", "putcha2023.fig2b", ("-i", "-ii"), data=("covertype",), minutes=12
    ),
    "putcha2023-fig3": Experiment("adaptive sizes, simulated logistic regression", "putcha2023.fig3", ("a", "b", "c")),
    "putcha2023-fig4a": Experiment("KL on a bivariate Gaussian, 1, 5, 10 %", "putcha2023.fig4a"),
    "putcha2023-fig4b": Experiment("KSD on covertype, 1, 5, 10 %", "putcha2023.fig4b", data=("covertype",), minutes=60),
    "putcha2023-fig5": Experiment("adaptive sizes on CASP", "putcha2023.fig5", ("a", "b", "c"), data=("casp",)),
}


def experiment_named(name: str) -> tuple[str, Experiment]:
    """An experiment by its name, or by that of one of its panels: fig3a is a panel of fig3."""
    for full, experiment in EXPERIMENTS.items():
        if name in (full, *(f"{full}{panel}" for panel in experiment.panels)):
            return full, experiment
    raise InvalidInput("NAME", "be an experiment", name, "See tallmc reproduce --list.")
