"""The list of the experiments of Nemeth and Fearnhead (2021)."""

from __future__ import annotations

from ..experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
