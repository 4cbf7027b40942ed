"""The experiments of all papers by name."""

from __future__ import annotations

from tallmc._core.errors import InvalidInput

from .baker2018.catalogue import EXPERIMENTS as BAKER_2018
from .experiment import Experiment
from .li2021.catalogue import EXPERIMENTS as LI_2021
from .nemeth2021.catalogue import EXPERIMENTS as NEMETH_2021
from .poster.catalogue import EXPERIMENTS as POSTER
from .putcha2023.catalogue import EXPERIMENTS as PUTCHA_2023
from .talk.catalogue import EXPERIMENTS as TALK

EXPERIMENTS: dict[str, Experiment] = {
    **PUTCHA_2023,
    **LI_2021,
    **NEMETH_2021,
    **POSTER,
    **TALK,
    **BAKER_2018,
}


def experiment_named(name: str) -> tuple[str, Experiment]:
    """Find an experiment by its name or by the name of a panel: fig3a is a panel of fig3."""
    for full_name, experiment in EXPERIMENTS.items():
        if name in (full_name, *(f"{full_name}{panel}" for panel in experiment.panels)):
            return full_name, experiment
    raise InvalidInput("NAME", "be an experiment", name, "See python -m experiments --list.")
